#include "partition/reshard.h"

#include <utility>

namespace mw::partition {
namespace {

using ir::OpKind;
using sharding::Sharding;

ir::TensorType with_dim(ir::TensorType type, int dim, int64_t size) {
  type.dims[static_cast<size_t>(dim)].size = size;
  return type;
}

}  // namespace

ValueId emit_reshard(const ReshardPlan& plan, const ir::TensorType& global, ValueId local,
                     const Sharding& from, const cluster::Mesh& mesh,
                     const std::function<ir::TensorType(ValueId)>& type_of,
                     const AppendOp& append) {
  Sharding at = from;
  const auto make = [&](OpKind kind, ir::Attributes attrs, ValueId operand) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.operands = {operand};
    return op;
  };
  for (const ReshardStep& step : plan.steps) {
    const ir::TensorType target = sharding::local_type(global, step.after, mesh);
    const int64_t n = sharding::shards(step.axes, mesh);
    ir::TensorType type = type_of(local);
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{step.axes};
    attrs.op = at.reduction;
    attrs.dim = step.dim;
    attrs.concat_dim = step.concat_dim;
    if (step.kind != OpKind::kAllReduce) attrs.global_size = global.dim(step.dim);
    if (step.kind == OpKind::kPermute) {
      attrs.from = at.dims[static_cast<size_t>(step.dim)];
      attrs.to = step.after.dims[static_cast<size_t>(step.dim)];
    }
    const bool splits = step.kind == OpKind::kReduceScatter || step.kind == OpKind::kAllToAll;
    if (splits && type.dim(step.dim) != n * target.dim(step.dim)) {
      ir::PadAttrs pad;
      pad.low.assign(type.dims.size(), 0);
      pad.high.assign(type.dims.size(), 0);
      pad.high[static_cast<size_t>(step.dim)] = n * target.dim(step.dim) - type.dim(step.dim);
      type = with_dim(type, step.dim, n * target.dim(step.dim));
      local = append(make(OpKind::kPad, pad, local), type, at);
    }
    ir::TensorType result = target;
    const int joined = step.kind == OpKind::kAllGather ? step.dim : step.concat_dim;
    const bool joins = step.kind == OpKind::kAllGather || step.kind == OpKind::kAllToAll;
    if (joins) result = with_dim(result, joined, n * type.dim(joined));
    local = append(make(step.kind, attrs, local), result, step.after);
    if (joins && !(result == target))
      local = append(make(OpKind::kTrim, ir::NoAttrs{}, local), target, step.after);
    at = step.after;
  }
  return local;
}

}  // namespace mw::partition
