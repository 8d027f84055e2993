// Ops on state: accumulate, zero, view, assemble. They write or share the memory of an operand.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;

TypeList infer_accumulate(const ir::Op& op, Types operands, Types) {
  require_same(op, "g", operands[1], "accumulator", operands[0]);
  return {operands[0]};
}

ShardingRule rule_accumulate(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linearity = ShardingRule::Linearity::kJoint;
  rule.linear = {0, 1};
  return rule;
}

void check_part(const ir::Op& op, const ir::TensorType& flat, const ir::TensorType& part,
                int64_t offset) {
  require_rank(op, "flat", flat, 1);
  if (part.dtype == flat.dtype && offset >= 0 && offset + part.elements() <= flat.elements())
    return;
  reject(op, "{} at element {} does not lie in flat {}", ir::to_string(part), offset,
         ir::to_string(flat));
}

TypeList infer_view(const ir::Op& op, Types operands, Types declared) {
  require_declared(op, declared, 1);
  check_part(op, operands[0], declared[0], op.as<ir::ViewAttrs>().offset);
  return {declared[0]};
}

TypeList infer_assemble(const ir::Op& op, Types operands, Types) {
  const std::vector<int64_t>& offsets = op.as<ir::AssembleAttrs>().offsets;
  if (offsets.size() + 1 != operands.size()) {
    reject(op, "takes {} parts, as many as offsets, got {}", offsets.size(), operands.size() - 1);
  }
  for (size_t i = 0; i < offsets.size(); ++i)
    check_part(op, operands[0], operands[i + 1], offsets[i]);
  return {operands[0]};
}

// Parts are read and written; the rest of the flat buffer stays.
OpCost cost_assemble(const ir::Op&, Types operands, Types) {
  return {.bytes = 2 * tensor_bytes(operands.subspan(1))};
}

}  // namespace

void register_state_ops(Registry& registry) {
  registry.add({.kind = OpKind::kAccumulate,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_accumulate,
                .rule = rule_accumulate,
                .cost = cost_streaming<1>,
                .expand = [](Builder& b, const ir::Op&,
                             std::span<const ValueId> x) { return ValueIds{b.add(x[0], x[1])}; },
                .in_place_operand = 0,
                .aliases = {0}});
  registry.add(
      {.kind = OpKind::kZero,
       .min_operands = 1,
       .max_operands = 1,
       .infer = infer_first,
       .rule = rule_elementwise_linear,
       .cost = [](const ir::Op&, Types,
                  Types results) { return OpCost{.bytes = tensor_bytes(results)}; },
       .expand = [](Builder& b, const ir::Op&,
                    std::span<const ValueId> x) { return ValueIds{b.constant(0, b.type(x[0]))}; },
       .in_place_operand = 0,
       .aliases = {0}});
  registry.add({.kind = OpKind::kView,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_view,
                .cost = [](const ir::Op&, Types, Types) { return OpCost{}; },
                .aliases = {0}});
  registry.add({.kind = OpKind::kAssemble,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_assemble,
                .cost = cost_assemble,
                .in_place_operand = 0,
                .aliases = {0}});
}

}  // namespace mw::ops
