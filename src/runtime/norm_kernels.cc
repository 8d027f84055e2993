// layer_norm and rms_norm with their gradients, on f32.
//
// R rows, D model
#include "kernels/norm.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

float epsilon(const OpContext& c) { return static_cast<float>(c.op.as<ir::NormAttrs>().epsilon); }

Prepared prepare_layer_norm(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([eps = epsilon(c), D, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(2 * D), [&](int64_t begin, int64_t end) {
      kernels::layer_norm(a.in(0), a.in(1), a.in(2), eps, D, a.out(0), a.out(1), a.out(2), begin,
                          end);
    });
  });
}

Prepared prepare_layer_norm_input_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([D, R, threads = c.threads()](const Args& a) {
    // dy, x, gamma, mean, rstd
    parallel_for(threads, R, row_grain(2 * D), [&](int64_t begin, int64_t end) {
      kernels::layer_norm_backward_input(a.in(0), a.in(1), a.in(3), a.in(4), a.in(2), nullptr, D,
                                         a.out(), begin, end);
    });
  });
}

Prepared prepare_layer_norm_weight_grad(const OpContext& c) {
  if (!c.is_f32() || c.op.accumulates) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([D, R, threads = c.threads()](const Args& a) {
    // dy, x, mean, rstd; columns are split
    parallel_for(threads, D, row_grain(2 * R), [&](int64_t begin, int64_t end) {
      kernels::layer_norm_backward_weight(a.in(0), a.in(1), a.in(2), a.in(3), R, D, false, a.out(0),
                                          a.out(1), begin, end);
    });
  });
}

Prepared prepare_rms_norm(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([eps = epsilon(c), D, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(2 * D), [&](int64_t begin, int64_t end) {
      kernels::rms_norm(a.in(0), a.in(1), eps, D, a.out(0), a.out(1), begin, end);
    });
  });
}

Prepared prepare_rms_norm_input_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([D, R, threads = c.threads()](const Args& a) {
    // dy, x, gamma, rstd
    parallel_for(threads, R, row_grain(2 * D), [&](int64_t begin, int64_t end) {
      kernels::rms_norm_backward_input(a.in(0), a.in(1), a.in(3), a.in(2), nullptr, D, a.out(),
                                       begin, end);
    });
  });
}

Prepared prepare_rms_norm_weight_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t D = last(c.operand(0)), R = leading(c.operand(0));
  return make_kernel([D, R, accumulate = c.op.accumulates, bytes = c.result().bytes().value,
                      threads = c.threads()](const Args& a) {
    // dy, x, rstd [, accumulator]
    if (accumulate) bring(a.out(), a.operands[3], bytes);
    parallel_for(threads, D, row_grain(2 * R), [&](int64_t begin, int64_t end) {
      kernels::rms_norm_backward_weight(a.in(0), a.in(1), a.in(2), R, D, accumulate, a.out(), begin,
                                        end);
    });
  });
}

}  // namespace

void register_norms(KernelTable& table) {
  table.add(OpKind::kLayerNorm, prepare_layer_norm);
  table.add(OpKind::kLayerNormInputGrad, prepare_layer_norm_input_grad);
  table.add(OpKind::kLayerNormWeightGrad, prepare_layer_norm_weight_grad);
  table.add(OpKind::kRmsNorm, prepare_rms_norm);
  table.add(OpKind::kRmsNormInputGrad, prepare_rms_norm_input_grad);
  table.add(OpKind::kRmsNormWeightGrad, prepare_rms_norm_weight_grad);
}

}  // namespace mw::runtime
