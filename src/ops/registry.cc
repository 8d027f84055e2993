// The table of op definitions, and what is asked of it for a whole graph.
#include <fmt/core.h>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

Registry make_registry() {
  Registry registry;
  register_elementwise(registry);
  register_shape_ops(registry);
  register_slices(registry);
  register_reduce(registry);
  register_dot(registry);
  register_conv(registry);
  register_random(registry);
  register_activation(registry);
  register_softmax(registry);
  register_norm(registry);
  register_rope(registry);
  register_attention(registry);
  register_embedding(registry);
  register_cross_entropy(registry);
  register_dropout(registry);
  register_moe(registry);
  register_state_ops(registry);
  register_update_ops(registry);
  register_collectives(registry);
  registry.check_complete();
  return registry;
}

const Registry& registry() {
  static const Registry instance = make_registry();
  return instance;
}

std::string count_text(const OpDef& def) {
  const auto operands = [](int n) { return fmt::format("{} operand{}", n, n == 1 ? "" : "s"); };
  if (def.max_operands < 0) return fmt::format("at least {}", operands(def.min_operands));
  if (def.min_operands == def.max_operands) return operands(def.min_operands);
  return fmt::format("{} to {}", def.min_operands, operands(def.max_operands));
}

// Without the accumulator of an accumulating op.
Types own_operands(const ir::Op& op, Types operands) {
  return op.accumulates ? operands.first(operands.size() - 1) : operands;
}

}  // namespace

const OpDef& op_def(ir::OpKind kind) { return registry().at(kind); }

std::vector<ir::TensorType> infer(const ir::Op& op, std::span<const ir::TensorType> operands,
                                  std::span<const ir::TensorType> declared) {
  const OpDef& def = op_def(op.kind);
  if (op.accumulates) {
    MW_CHECK(def.can_accumulate, "{} cannot accumulate", ir::op_name(op.kind));
    MW_CHECK(!operands.empty(), "{} accumulates into nothing", ir::op_name(op.kind));
  }
  const Types own = own_operands(op, operands);
  const int count = static_cast<int>(own.size());
  if (count < def.min_operands || (def.max_operands >= 0 && count > def.max_operands)) {
    reject(op, "takes {}, got {}", count_text(def), count);
  }
  TypeList results = def.infer(op, own, declared);
  if (op.accumulates) require_same(op, "accumulator", operands.back(), "the result", results[0]);
  if (!declared.empty()) {
    if (declared.size() != results.size()) {
      reject(op, "makes {} results, {} are declared", results.size(), declared.size());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == declared[i]) continue;
      reject(op, "result {} is {}, declared as {}", i, ir::to_string(results[i]),
             ir::to_string(declared[i]));
    }
  }
  return results;
}

void verify_types(const ir::Graph& graph) {
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const ir::Op& op = graph.ops[i];
    try {
      infer(op, operand_types(graph, op), result_types(graph, op));
    } catch (const Error& error) {
      MW_CHECK(false, "graph '{}', op {}: {}", graph.name, i, error.what());
    }
  }
}

std::vector<ir::TensorType> operand_types(const ir::Graph& graph, const ir::Op& op) {
  TypeList types;
  types.reserve(op.operands.size());
  for (const ValueId operand : op.operands) types.push_back(graph.type(operand));
  return types;
}

std::vector<ir::TensorType> result_types(const ir::Graph& graph, const ir::Op& op) {
  TypeList types;
  types.reserve(op.results.size());
  for (const ValueId result : op.results) types.push_back(graph.type(result));
  return types;
}

ShardingRule rule_of(const ir::Graph& graph, const ir::Op& op) {
  const OpDef& def = op_def(op.kind);
  MW_CHECK(def.rule != nullptr, "{} has no sharding rule", ir::op_name(op.kind));
  const TypeList operands = operand_types(graph, op), results = result_types(graph, op);
  ShardingRule rule = def.rule(op, own_operands(op, operands), results);
  if (op.accumulates) rule.operands.push_back(rule.results[0]);
  return rule;
}

OpCost cost_of(const ir::Graph& graph, const ir::Op& op) {
  // Asked for every op of every program: without taking memory.
  absl::InlinedVector<ir::TensorType, 4> operands, results;
  for (const ValueId operand : op.operands) operands.push_back(graph.type(operand));
  for (const ValueId result : op.results) results.push_back(graph.type(result));
  OpCost cost = op_def(op.kind).cost(op, own_operands(op, operands), results);
  if (op.accumulates) {  // The accumulator is read too, and added to.
    cost.bytes += static_cast<double>(results[0].bytes().value);
    cost.flops += static_cast<double>(results[0].elements());
  }
  return cost;
}

int alias_operand(const ir::Op& op, int result) {
  if (op.accumulates && result == 0) return static_cast<int>(op.operands.size()) - 1;
  const std::vector<int>& aliases = op_def(op.kind).aliases;
  return static_cast<size_t>(result) < aliases.size() ? aliases[static_cast<size_t>(result)] : -1;
}

ValueIds expand(Builder& builder, const ir::Op& op, std::span<const ValueId> operands) {
  const OpDef& def = op_def(op.kind);
  MW_CHECK(def.expand != nullptr, "{} has no expansion", ir::op_name(op.kind));
  return def.expand(builder, op, operands);
}

}  // namespace mw::ops
