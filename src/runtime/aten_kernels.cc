// Ops through ATen: convolutions, and what the project's kernels do not cover (other dtypes,
// maxima, products whose letters do not fold). The one file of libmeshwright_aten.so
// (runtime/aten_module.h), and the one that includes ATen, beside the tests. Tensors are made
// around the caller's memory for every call; some functions allocate inside of ATen.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "runtime/aten_module.h"

namespace mw::runtime {
namespace {

using ir::OpKind;
using Tensors = std::vector<at::Tensor>;

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return at::kBool;
    case DType::kU8: return at::kByte;
    case DType::kI32: return at::kInt;
    case DType::kI64: return at::kLong;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF16: return at::kHalf;
    case DType::kF32: return at::kFloat;
    case DType::kF64: return at::kDouble;
  }
  MW_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

struct Shape {
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  int64_t bytes = 0;

  at::Tensor at(void* data) const {
    return at::from_blob(data, sizes, at::TensorOptions().dtype(dtype));
  }
};

Shape shape_of(const ir::TensorType& type) {
  Shape shape;
  for (const ir::Dim& dim : type.dims) shape.sizes.push_back(dim.size);
  shape.dtype = scalar_type(type.dtype);
  shape.bytes = type.bytes().value;
  return shape;
}

// ATen keeps the number of threads of its parallel regions per calling thread, that is per rank.
void use_threads(int threads) {
  thread_local int used = 0;
  if (used == threads) return;
  at::set_num_threads(threads);
  used = threads;
}

// A kernel that calls f(operands, results) with tensors; f writes into the results.
template <typename F>
Prepared make_aten(const OpContext& c, F f) {
  std::vector<Shape> in, out;
  for (const ValueId v : c.op.operands) in.push_back(shape_of(c.graph.type(v)));
  for (const ValueId v : c.op.results) out.push_back(shape_of(c.graph.type(v)));
  return make_kernel([f = std::move(f), in, out, threads = c.threads()](const Args& a) {
    const at::NoGradGuard no_grad;
    use_threads(threads);
    Tensors operands, results;
    for (size_t i = 0; i < in.size(); ++i) operands.push_back(in[i].at(a.operands[i]));
    for (size_t i = 0; i < out.size(); ++i) results.push_back(out[i].at(a.results[i]));
    f(operands, results);
  });
}

template <at::Tensor& (*kFunction)(at::Tensor&, const at::Tensor&)>
Prepared unary(const OpContext& c) {
  return make_aten(c, [](Tensors& x, Tensors& y) { kFunction(y[0], x[0]); });
}

template <at::Tensor& (*kFunction)(at::Tensor&, const at::Tensor&, const at::Tensor&)>
Prepared binary(const OpContext& c) {
  return make_aten(c, [](Tensors& x, Tensors& y) { kFunction(y[0], x[0], x[1]); });
}

Prepared compare(const OpContext& c) {
  using Direction = ir::CompareAttrs::Direction;
  switch (c.op.as<ir::CompareAttrs>().direction) {
    case Direction::kEq: return binary<at::eq_out>(c);
    case Direction::kNe: return binary<at::ne_out>(c);
    case Direction::kLt: return binary<at::lt_out>(c);
    case Direction::kLe: return binary<at::le_out>(c);
    case Direction::kGt: return binary<at::gt_out>(c);
    case Direction::kGe: return binary<at::ge_out>(c);
  }
  return nullptr;
}

Prepared reduce(const OpContext& c) {
  const auto& attrs = c.op.as<ir::ReduceAttrs>();
  const std::vector<int64_t> dims(attrs.dims.begin(), attrs.dims.end());
  if (dims.empty()) return make_aten(c, [](Tensors& x, Tensors& y) { y[0].copy_(x[0]); });
  switch (attrs.op) {
    case ir::Reduction::kSum:
      return make_aten(c, [dims](Tensors& x, Tensors& y) { at::sum_out(y[0], x[0], dims); });
    case ir::Reduction::kMax:
      return make_aten(c, [dims](Tensors& x, Tensors& y) { at::amax_out(y[0], x[0], dims); });
    case ir::Reduction::kMin:
      return make_aten(c, [dims](Tensors& x, Tensors& y) { at::amin_out(y[0], x[0], dims); });
  }
  return nullptr;
}

Prepared dot(const OpContext& c) {
  const auto& attrs = c.op.as<ir::DotAttrs>();
  const std::string equation = attrs.lhs + "," + attrs.rhs + "->" + attrs.out;
  return make_aten(c, [equation, accumulates = c.op.accumulates](Tensors& x, Tensors& y) {
    const at::Tensor product = at::einsum(equation, {x[0], x[1]});
    if (accumulates) {
      at::add_out(y[0], x[2], product);
    } else {
      y[0].copy_(product);
    }
  });
}

// f(operands) is the result, or is added to the accumulator.
template <typename F>
Prepared make_conv(const OpContext& c, F f) {
  return make_aten(c, [f, accumulates = c.op.accumulates](Tensors& x, Tensors& y) {
    const at::Tensor result = f(x);
    if (accumulates) {
      at::add_out(y[0], x[2], result);
    } else {
      y[0].copy_(result);
    }
  });
}

Prepared conv(const OpContext& c) {
  const auto attrs = c.op.as<ir::ConvAttrs>();
  const std::vector<int64_t> ones = {1, 1}, zeros = {0, 0};
  switch (c.op.kind) {
    case OpKind::kConv:
      return make_conv(c, [=](Tensors& x) {
        return at::convolution(x[0], x[1], {}, attrs.stride, attrs.padding, ones, false, zeros, 1);
      });
    case OpKind::kConvInputGrad:
      return make_conv(c, [=, sizes = shape_of(c.result())](Tensors& x) {
        // dy, w; of the input only the sizes are read.
        const at::Tensor input = at::empty({1}, x[0].options()).expand(sizes.sizes);
        return std::get<0>(at::convolution_backward(x[0], input, x[1], at::OptionalIntArrayRef(),
                                                    attrs.stride, attrs.padding, ones, false, zeros,
                                                    1, {true, false, false}));
      });
    default:
      return make_conv(c, [=, sizes = shape_of(c.result())](Tensors& x) {
        // x, dy; of the weight only the sizes are read.
        const at::Tensor weight = at::empty({1}, x[0].options()).expand(sizes.sizes);
        return std::get<1>(at::convolution_backward(x[1], x[0], weight, at::OptionalIntArrayRef(),
                                                    attrs.stride, attrs.padding, ones, false, zeros,
                                                    1, {false, true, false}));
      });
  }
}

// Moves of elements in types that the strided copies lack: those that depend on the device's place.
Prepared move_shard(const OpContext& c) {
  switch (c.op.kind) {
    case OpKind::kShardSlice: {
      const auto& attrs = c.op.as<ir::CollectiveAttrs>();
      const int64_t local = c.result().dim(attrs.dim), whole = c.operand(0).dim(attrs.dim);
      const int64_t start =
          std::min(c.index(std::get<ir::AxisGroup>(attrs.group).axes) * local, whole);
      const int64_t kept = std::min(local, whole - start);
      return make_aten(c, [dim = attrs.dim, start, kept](Tensors& x, Tensors& y) {
        y[0].zero_().narrow(dim, 0, kept).copy_(x[0].narrow(dim, start, kept));
      });
    }
    case OpKind::kPadMask: {
      const auto& attrs = c.op.as<ir::PadMaskAttrs>();
      const int64_t local = c.result().dim(attrs.dim);
      const int64_t kept =
          std::clamp<int64_t>(attrs.offset.global_size - c.offset(attrs.offset, local), 0, local);
      return make_aten(c,
                       [dim = attrs.dim, kept, local, value = attrs.value](Tensors& x, Tensors& y) {
                         if (y[0].data_ptr() != x[0].data_ptr()) y[0].copy_(x[0]);
                         y[0].narrow(dim, kept, local - kept).fill_(value);
                       });
    }
    default: return nullptr;
  }
}

// The others.
Prepared move(const OpContext& c) {
  switch (c.op.kind) {
    case OpKind::kBroadcast: {
      std::vector<int64_t> sizes(c.result().dims.size(), 1);
      const std::vector<int>& dims = c.op.as<ir::DimsAttrs>().dims;
      for (size_t d = 0; d < dims.size(); ++d)
        sizes[static_cast<size_t>(dims[d])] = c.operand(0).dims[d].size;
      return make_aten(
          c, [sizes](Tensors& x, Tensors& y) { y[0].copy_(x[0].reshape(sizes).expand_as(y[0])); });
    }
    case OpKind::kTranspose: {
      const std::vector<int>& dims = c.op.as<ir::DimsAttrs>().dims;
      const std::vector<int64_t> order(dims.begin(), dims.end());
      return make_aten(c, [order](Tensors& x, Tensors& y) { y[0].copy_(x[0].permute(order)); });
    }
    case OpKind::kSlice:
      return make_aten(c, [attrs = c.op.as<ir::SliceAttrs>()](Tensors& x, Tensors& y) {
        at::Tensor view = x[0];
        for (size_t d = 0; d < attrs.start.size(); ++d) {
          view = view.slice(static_cast<int64_t>(d), attrs.start[d], attrs.limit[d],
                            attrs.stride.empty() ? 1 : attrs.stride[d]);
        }
        y[0].copy_(view);
      });
    case OpKind::kPad:
      return make_aten(c, [low = c.op.as<ir::PadAttrs>().low](Tensors& x, Tensors& y) {
        at::Tensor view = y[0].zero_();
        for (size_t d = 0; d < low.size(); ++d) {
          view = view.narrow(static_cast<int64_t>(d), low[d], x[0].size(static_cast<int64_t>(d)));
        }
        view.copy_(x[0]);
      });
    case OpKind::kConcat:
      return make_aten(c, [dim = c.op.as<ir::ConcatAttrs>().dim](Tensors& x, Tensors& y) {
        at::cat_out(y[0], x, dim);
      });
    case OpKind::kTrim:
      return make_aten(c, [](Tensors& x, Tensors& y) {
        at::Tensor view = x[0];
        for (int64_t d = 0; d < y[0].dim(); ++d) view = view.narrow(d, 0, y[0].size(d));
        y[0].copy_(view);
      });
    default: return move_shard(c);
  }
}

Prepared prepare(const OpContext& c) {
  switch (c.op.kind) {
    case OpKind::kAdd:
    case OpKind::kAccumulate:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::add_out(y[0], x[0], x[1]); });
    case OpKind::kSub:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::sub_out(y[0], x[0], x[1]); });
    case OpKind::kMul: return binary<at::mul_out>(c);
    case OpKind::kDiv:
      if (is_floating(c.result().dtype)) return binary<at::div_out>(c);
      return make_aten(c, [](Tensors& x, Tensors& y) { at::div_out(y[0], x[0], x[1], "trunc"); });
    case OpKind::kMax: return binary<at::maximum_out>(c);
    case OpKind::kMin: return binary<at::minimum_out>(c);
    case OpKind::kNeg: return unary<at::neg_out>(c);
    case OpKind::kExp: return unary<at::exp_out>(c);
    case OpKind::kLog: return unary<at::log_out>(c);
    case OpKind::kTanh: return unary<at::tanh_out>(c);
    case OpKind::kSqrt: return unary<at::sqrt_out>(c);
    case OpKind::kRsqrt: return unary<at::rsqrt_out>(c);
    case OpKind::kErf: return unary<at::erf_out>(c);
    case OpKind::kRelu:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::clamp_min_out(y[0], x[0], 0); });
    case OpKind::kReluGrad:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::mul_out(y[0], x[0], x[1].gt(0)); });
    case OpKind::kScale:
      return make_aten(c, [factor = c.op.as<ir::ScaleAttrs>().factor](Tensors& x, Tensors& y) {
        at::mul_out(y[0], x[0], at::scalar_tensor(factor, x[0].options()));
      });
    case OpKind::kBiasAdd:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::add_out(y[0], x[0], x[1]); });
    case OpKind::kCompare: return compare(c);
    case OpKind::kSelect:
      return make_aten(c, [](Tensors& x, Tensors& y) { at::where_out(y[0], x[0], x[1], x[2]); });
    case OpKind::kConvert: return make_aten(c, [](Tensors& x, Tensors& y) { y[0].copy_(x[0]); });
    case OpKind::kConstant:
      return make_aten(c, [value = c.op.as<ir::ConstantAttrs>().value](Tensors&, Tensors& y) {
        y[0].fill_(value);
      });
    case OpKind::kReduce: return reduce(c);
    case OpKind::kDot: return dot(c);
    case OpKind::kConv:
    case OpKind::kConvInputGrad:
    case OpKind::kConvWeightGrad: return conv(c);
    default: return move(c);
  }
}

}  // namespace

extern "C" [[gnu::visibility("default")]] execute::Kernel* mw_prepare_aten(
    const OpContext& context);
execute::Kernel* mw_prepare_aten(const OpContext& context) { return prepare(context).release(); }

}  // namespace mw::runtime
