#include <algorithm>
#include <limits>

#include "ops/interpret_families.h"

namespace mw::ops {
namespace {

using ir::OpKind;

// out[index] = in[source(index)]
template <typename Source>
bool gather(const Call& call, Source source) {
  Index from(call.in_type(0).dims.size());
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    source(index, from);
    call.out()[at] = call.in(0)[static_cast<size_t>(place(call.in_type(0), from))];
  });
  return true;
}

bool broadcast(const Call& call) {
  const std::vector<int>& dims = call.op.as<ir::DimsAttrs>().dims;
  return gather(call, [&](const Index& index, Index& from) {
    for (size_t d = 0; d < from.size(); ++d) from[d] = index[static_cast<size_t>(dims[d])];
  });
}

bool transpose(const Call& call) {
  const std::vector<int>& dims = call.op.as<ir::DimsAttrs>().dims;
  return gather(call, [&](const Index& index, Index& from) {
    for (size_t d = 0; d < from.size(); ++d) from[static_cast<size_t>(dims[d])] = index[d];
  });
}

bool slice(const Call& call) {
  const ir::SliceAttrs& attrs = call.op.as<ir::SliceAttrs>();
  return gather(call, [&](const Index& index, Index& from) {
    for (size_t d = 0; d < from.size(); ++d) from[d] = attrs.start[d] + index[d] * attrs.stride[d];
  });
}

bool pad(const Call& call) {
  const ir::PadAttrs& attrs = call.op.as<ir::PadAttrs>();
  Index to(call.out_type().dims.size());
  for_each(call.in_type(0), [&](const Index& index, size_t at) {
    for (size_t d = 0; d < to.size(); ++d) to[d] = index[d] + attrs.low[d];
    call.out()[static_cast<size_t>(place(call.out_type(), to))] = call.in(0)[at];
  });
  return true;
}

bool concat(const Call& call) {
  const size_t dim = static_cast<size_t>(call.op.as<ir::ConcatAttrs>().dim);
  int64_t start = 0;
  for (const Tensor& part : call.operands) {
    Index to;
    for_each(part.type, [&](const Index& index, size_t at) {
      to = index;
      to[dim] += start;
      call.out()[static_cast<size_t>(place(call.out_type(), to))] = part.values[at];
    });
    start += part.type.dims[dim].size;
  }
  return true;
}

bool reduce(const Call& call) {
  const ir::ReduceAttrs& attrs = call.op.as<ir::ReduceAttrs>();
  const double start = attrs.op == ir::Reduction::kSum   ? 0
                       : attrs.op == ir::Reduction::kMax ? -std::numeric_limits<double>::infinity()
                                                         : std::numeric_limits<double>::infinity();
  std::fill(call.out().begin(), call.out().end(), start);
  for_each(call.in_type(0), [&](const Index& index, size_t at) {
    Index to;
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::find(attrs.dims.begin(), attrs.dims.end(), static_cast<int>(d)) ==
          attrs.dims.end()) {
        to.push_back(index[d]);
      }
    }
    double& y = call.out()[static_cast<size_t>(place(call.out_type(), to))];
    const double x = call.in(0)[at];
    y = attrs.op == ir::Reduction::kSum   ? y + x
        : attrs.op == ir::Reduction::kMax ? greater(y, x)
                                          : lesser(y, x);
  });
  return true;
}

}  // namespace

bool interpret_shapes(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kConstant:
      std::fill(call.out().begin(), call.out().end(), call.op.as<ir::ConstantAttrs>().value);
      return true;
    case OpKind::kReshape: call.out() = call.in(0); return true;
    case OpKind::kBroadcast: return broadcast(call);
    case OpKind::kTranspose: return transpose(call);
    case OpKind::kSlice: return slice(call);
    case OpKind::kPad: return pad(call);
    case OpKind::kConcat: return concat(call);
    case OpKind::kReduce: return reduce(call);
    default: return false;
  }
}

}  // namespace mw::ops
