#include "pipeline/sharing.h"

#include "ops/op_def.h"

namespace mw::pipeline {

using ir::OpKind;

Sharing sharing_of(const ir::Graph& graph, const ir::Op& op, int result) {
  if (op.kind == OpKind::kReshape) return {Sharing::Kind::kView, 0, 0};
  if (op.kind == OpKind::kView) {
    const int64_t element = dtype_size(graph.type(op.operands[0]).dtype);
    return {Sharing::Kind::kView, 0, op.as<ir::ViewAttrs>().offset * element};
  }
  if (op.kind == OpKind::kAssemble) return {Sharing::Kind::kAssembly, 0, 0};
  const int operand = ops::alias_operand(op, result);
  return operand < 0 ? Sharing{} : Sharing{Sharing::Kind::kOverwrite, operand, 0};
}

bool may_overwrite(const ir::Op& op, int result, int operand) {
  if (op.kind == OpKind::kAllReduce) return result == operand;
  if (ops::alias_operand(op, result) >= 0) return ops::alias_operand(op, result) == operand;
  return result == 0 && ops::op_def(op.kind).in_place_operand == operand;
}

bool may_keep_own_part(const ir::Op& op, int result, int operand) {
  return op.kind == OpKind::kReduceScatter && result == operand &&
         op.as<ir::CollectiveAttrs>().dim == 0;
}

bool reads_bytes(const ir::Op& op, int operand) {
  switch (op.kind) {
    case OpKind::kZero:
    case OpKind::kView:
    case OpKind::kReshape: return false;
    case OpKind::kAssemble: return operand != 0;
    default: return true;
  }
}

}  // namespace mw::pipeline
