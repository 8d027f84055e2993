// Elementwise primitives on f32 (and what their kernels have of other types).
#include <cstring>

#include "kernels/elementwise.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

using Unary = void (*)(const float*, float*, int64_t, int64_t);
using Binary = void (*)(const float*, const float*, float*, int64_t, int64_t);

template <Unary kFunction>
Prepared prepare_unary(const OpContext& c) {
  if (!c.all_are(DType::kF32)) return nullptr;
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain,
                 [&](int64_t begin, int64_t end) { kFunction(a.in(0), a.out(), begin, end); });
  });
}

template <Binary kFunction>
Prepared prepare_binary(const OpContext& c) {
  if (!c.all_are(DType::kF32)) return nullptr;
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain, [&](int64_t begin, int64_t end) {
      kFunction(a.in(0), a.in(1), a.out(), begin, end);
    });
  });
}

Prepared prepare_scale(const OpContext& c) {
  if (!c.all_are(DType::kF32)) return nullptr;
  const auto factor = static_cast<float>(c.op.as<ir::ScaleAttrs>().factor);
  return make_kernel([factor, n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain, [&](int64_t begin, int64_t end) {
      kernels::scale(a.in(0), factor, a.out(), begin, end);
    });
  });
}

kernels::Compare direction(ir::CompareAttrs::Direction direction) {
  using Direction = ir::CompareAttrs::Direction;
  switch (direction) {
    case Direction::kEq: return kernels::Compare::kEq;
    case Direction::kNe: return kernels::Compare::kNe;
    case Direction::kLt: return kernels::Compare::kLt;
    case Direction::kLe: return kernels::Compare::kLe;
    case Direction::kGt: return kernels::Compare::kGt;
    case Direction::kGe: return kernels::Compare::kGe;
  }
  MW_CHECK(false, "comparison {}", static_cast<int>(direction));
}

template <typename T>
Prepared compare_of(const OpContext& c) {
  return make_kernel([op = direction(c.op.as<ir::CompareAttrs>().direction),
                      n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain, [&](int64_t begin, int64_t end) {
      kernels::compare(op, a.in<T>(0), a.in<T>(1), a.out<uint8_t>(), begin, end);
    });
  });
}

Prepared prepare_compare(const OpContext& c) {
  switch (c.operand(0).dtype) {
    case DType::kF32: return compare_of<float>(c);
    case DType::kI32: return compare_of<int32_t>(c);
    default: return nullptr;
  }
}

Prepared prepare_select(const OpContext& c) {
  if (c.result().dtype != DType::kF32 || c.operand(0).elements() != c.result().elements())
    return nullptr;
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain, [&](int64_t begin, int64_t end) {
      kernels::select(a.in<uint8_t>(0), a.in(1), a.in(2), a.out(), begin, end);
    });
  });
}

template <typename From, typename To>
Prepared convert_of(const OpContext& c) {
  return make_kernel([n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain, [&](int64_t begin, int64_t end) {
      kernels::convert(a.in<From>(0), a.out<To>(), begin, end);
    });
  });
}

Prepared prepare_convert(const OpContext& c) {
  const DType from = c.operand(0).dtype, to = c.result().dtype;
  if (from == to) {
    return make_kernel(
        [bytes = c.result().bytes().value](const Args& a) { bring(a.out(), a.in(0), bytes); });
  }
  if (from == DType::kF32 && to == DType::kF64) return convert_of<float, double>(c);
  if (from == DType::kF64 && to == DType::kF32) return convert_of<double, float>(c);
  if (from == DType::kI32 && to == DType::kF32) return convert_of<int32_t, float>(c);
  if (from == DType::kBool && to == DType::kF32) return convert_of<uint8_t, float>(c);
  return nullptr;
}

Prepared prepare_constant(const OpContext& c) {
  if (c.result().dtype != DType::kF32) return nullptr;
  const auto value = static_cast<float>(c.op.as<ir::ConstantAttrs>().value);
  return make_kernel([value, n = c.result().elements(), threads = c.threads()](const Args& a) {
    parallel_for(threads, n, kGrain,
                 [&](int64_t begin, int64_t end) { kernels::fill(value, a.out(), begin, end); });
  });
}

Prepared prepare_zero(const OpContext& c) {
  return make_kernel([bytes = c.result().bytes().value, threads = c.threads()](const Args& a) {
    parallel_for(threads, bytes, 4 * kGrain, [&](int64_t begin, int64_t end) {
      std::memset(a.out<char>() + begin, 0, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace

void register_elementwise(KernelTable& table) {
  table.add(OpKind::kAdd, prepare_binary<kernels::add>);
  table.add(OpKind::kAccumulate, prepare_binary<kernels::add>);
  table.add(OpKind::kSub, prepare_binary<kernels::subtract>);
  table.add(OpKind::kMul, prepare_binary<kernels::multiply>);
  table.add(OpKind::kDiv, prepare_binary<kernels::divide>);
  table.add(OpKind::kMax, prepare_binary<kernels::maximum>);
  table.add(OpKind::kMin, prepare_binary<kernels::minimum>);
  table.add(OpKind::kReluGrad, prepare_binary<kernels::relu_backward>);
  table.add(OpKind::kNeg, prepare_unary<kernels::negate>);
  table.add(OpKind::kExp, prepare_unary<kernels::exp>);
  table.add(OpKind::kLog, prepare_unary<kernels::log>);
  table.add(OpKind::kTanh, prepare_unary<kernels::tanh>);
  table.add(OpKind::kSqrt, prepare_unary<kernels::sqrt>);
  table.add(OpKind::kRsqrt, prepare_unary<kernels::rsqrt>);
  table.add(OpKind::kErf, prepare_unary<kernels::erf>);
  table.add(OpKind::kRelu, prepare_unary<kernels::relu>);
  table.add(OpKind::kScale, prepare_scale);
  table.add(OpKind::kCompare, prepare_compare);
  table.add(OpKind::kSelect, prepare_select);
  table.add(OpKind::kConvert, prepare_convert);
  table.add(OpKind::kConstant, prepare_constant);
  table.add(OpKind::kZero, prepare_zero);
}

}  // namespace mw::runtime
