// Activations, softmax, and bias_add, on f32.
//
// R rows, N columns of the last dimension
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "kernels/softmax.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

kernels::Gelu gelu_kind(const OpContext& c) {
  return c.op.as<ir::GeluAttrs>().tanh_approximation ? kernels::Gelu::kTanh : kernels::Gelu::kExact;
}

Prepared prepare_bias_add(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = c.operand(1).elements(), R = N == 0 ? 0 : c.result().elements() / N;
  return make_kernel([N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(N), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kernels::add(a.in(0) + r * N, a.in(1), a.out() + r * N, 0, N);
    });
  });
}

Prepared prepare_gelu(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  return make_kernel(
      [kind = gelu_kind(c), n = c.result().elements(), threads = c.threads()](const Args& a) {
        parallel_for(threads, n, kGrain / 4, [&](int64_t begin, int64_t end) {
          kernels::gelu(kind, a.in(0), a.out(), begin, end);
        });
      });
}

Prepared prepare_gelu_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const auto kind = gelu_kind(c);
  if (c.op.operands.size() == 2) {
    return make_kernel([kind, n = c.result().elements(), threads = c.threads()](const Args& a) {
      parallel_for(threads, n, kGrain / 4, [&](int64_t begin, int64_t end) {
        kernels::gelu_backward(kind, a.in(0), a.in(1), a.out(), begin, end);
      });
    });
  }
  const int64_t N = c.operand(2).elements(), R = N == 0 ? 0 : c.result().elements() / N;
  return make_kernel([kind, N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * N), [&](int64_t begin, int64_t end) {
      kernels::bias_gelu_backward(kind, a.in(0), a.in(1), a.in(2), N, a.out(), begin, end);
    });
  });
}

Prepared prepare_bias_gelu(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = c.operand(1).elements(), R = N == 0 ? 0 : c.result().elements() / N;
  return make_kernel([kind = gelu_kind(c), N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * N), [&](int64_t begin, int64_t end) {
      kernels::bias_gelu(kind, a.in(0), a.in(1), N, a.out(), begin, end);
    });
  });
}

Prepared prepare_silu(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain / 4,
                 [&](int64_t begin, int64_t end) { kernels::silu(a.in(0), a.out(), begin, end); });
  });
}

Prepared prepare_silu_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain / 4, [&](int64_t begin, int64_t end) {
      kernels::silu_backward(a.in(0), a.in(1), a.out(), begin, end);
    });
  });
}

Prepared prepare_swiglu(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = last(c.result()), R = leading(c.result());
  return make_kernel([N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * N), [&](int64_t begin, int64_t end) {
      kernels::swiglu(a.in(0), a.in(1), N, N, a.out(), begin, end);
    });
  });
}

Prepared prepare_swiglu_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = last(c.result()), R = leading(c.result());
  return make_kernel([N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * N), [&](int64_t begin, int64_t end) {
      kernels::swiglu_backward(a.in(0), a.in(1), a.in(2), N, N, a.out(0), a.out(1), N, begin, end);
    });
  });
}

Prepared prepare_softmax(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = last(c.result()), R = leading(c.result());
  return make_kernel([N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * N), [&](int64_t begin, int64_t end) {
      kernels::softmax(a.in(0), N, a.out(), begin, end);
    });
  });
}

Prepared prepare_softmax_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t N = last(c.result()), R = leading(c.result());
  return make_kernel([N, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(2 * N), [&](int64_t begin, int64_t end) {
      kernels::softmax_backward(a.in(0), a.in(1), N, a.out(), begin, end);
    });
  });
}

}  // namespace

void register_activations(KernelTable& table) {
  table.add(OpKind::kBiasAdd, prepare_bias_add);
  table.add(OpKind::kGelu, prepare_gelu);
  table.add(OpKind::kGeluGrad, prepare_gelu_grad);
  table.add(OpKind::kBiasGelu, prepare_bias_gelu);
  table.add(OpKind::kSilu, prepare_silu);
  table.add(OpKind::kSiluGrad, prepare_silu_grad);
  table.add(OpKind::kSwiglu, prepare_swiglu);
  table.add(OpKind::kSwigluGrad, prepare_swiglu_grad);
  table.add(OpKind::kSoftmax, prepare_softmax);
  table.add(OpKind::kSoftmaxGrad, prepare_softmax_grad);
}

}  // namespace mw::runtime
