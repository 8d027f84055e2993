// constant and random: no tensor operands, the declared type.
#include <cmath>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;
using ir::RandomAttrs;

TypeList infer_random(const ir::Op& op, Types operands, Types declared) {
  require_declared(op, declared, 1);
  require_float(op, "result", declared[0]);
  if (!operands.empty())
    require_type(op, "seed", operands[0], ir::make_type(DType::kI64, {}), "a scalar");
  const RandomAttrs& attrs = op.as<RandomAttrs>();
  const size_t rank = declared[0].dims.size();
  if (attrs.global_sizes.size() != rank ||
      (!attrs.offsets.empty() && attrs.offsets.size() != rank)) {
    reject(op, "global_sizes (and offsets) must have one entry for each dimension of the result {}",
           ir::to_string(declared[0]));
  }
  return {declared[0]};
}

ShardingRule rule_of_result(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = make_rule(" -> " + factor_names(results[0].rank()), operands, results);
  rule.zero_preserving = false;
  return rule;
}

ShardingRule rule_constant(const ir::Op& op, Types operands, Types results) {
  ShardingRule rule = rule_of_result(op, operands, results);
  const double value = op.as<ir::ConstantAttrs>().value;
  rule.zero_preserving = value == 0;
  rule.finite_preserving = std::isfinite(value);
  return rule;
}

void localize_random(ir::Op& op, const LocalLayout& layout) {
  RandomAttrs& attrs = std::get<RandomAttrs>(op.attrs);
  const ir::TensorType& global = layout.global_results[0];
  attrs.global_sizes.clear();
  attrs.offsets.clear();
  for (int d = 0; d < global.rank(); ++d) {
    const ir::Axes& axes = layout.results[0][static_cast<size_t>(d)];
    attrs.global_sizes.push_back(global.dim(d));
    attrs.offsets.push_back(axes.empty() ? ir::ShardOffset{}
                                         : ir::ShardOffset{axes, global.dim(d)});
  }
}

}  // namespace

void register_random(Registry& registry) {
  registry.add({.kind = OpKind::kConstant,
                .min_operands = 0,
                .max_operands = 0,
                .infer = infer_declared,
                .rule = rule_constant,
                .cost = cost_streaming<0>});
  // Box-Muller over Philox: about 60 operations a number.
  registry.add({.kind = OpKind::kRandom,
                .min_operands = 0,
                .max_operands = 1,
                .infer = infer_random,
                .rule = rule_of_result,
                .cost = cost_streaming<60>,
                .localize = localize_random});
}

}  // namespace mw::ops
