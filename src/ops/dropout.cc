// dropout: an element survives iff the random word of its global place (random_index.h) is at least
// rate * 2^32, and is then scaled by 1 / (1 - rate). The gradient is the same op on dy.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::DropoutAttrs;
using ir::OpKind;

TypeList infer_dropout(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& x = operands[0];
  const DropoutAttrs& attrs = op.as<DropoutAttrs>();
  require_min_rank(op, "x", x, 3);
  require_float(op, "x", x);
  if (attrs.rate < 0 || attrs.rate >= 1) reject(op, "rate {} must be in [0, 1)", attrs.rate);
  require_type(op, "seed", operands[1], {DType::kI64, {}}, "a scalar");
  require_type(op, "step", operands[2], {DType::kI64, {}}, "a scalar");
  require_type(op, "sample_ids", operands[3], {DType::kI64, {x.dims[0]}},
               "the batch of x " + ir::to_string(x));
  require_type(op, "positions", operands[4], {DType::kI32, {x.dims[0], x.dims[1]}},
               "batch and sequence of x " + ir::to_string(x));
  int64_t features = 1;
  for (int d = 2; d < x.rank(); ++d) features *= x.dim(d);
  if (attrs.feature.axes.empty() && features != attrs.features) {
    reject(op, "x {} must have features={} elements at a position, has {}", ir::to_string(x),
           attrs.features, features);
  }
  return {x};
}

// Of the feature dimensions only the first can be sharded.
ShardingRule rule_dropout(const ir::Op&, Types operands, Types results) {
  std::string x = "b s c";
  for (int d = 3; d < operands[0].rank(); ++d)
    x += fmt::format(" [{}]", static_cast<char>('d' + d - 3));
  ShardingRule rule = make_rule(x + ", , , b, b s -> " + x, operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_dropout(GradientContext& c) {
  c.set_operand_grad(0, c.builder().emit1(OpKind::kDropout, c.op().as<DropoutAttrs>(),
                                          {c.result_grad(0), c.operand(1), c.operand(2),
                                           c.operand(3), c.operand(4)}));
}

void localize_dropout(ir::Op& op, const LocalLayout& layout) {
  DropoutAttrs& attrs = std::get<DropoutAttrs>(op.attrs);
  const ir::Axes& axes = layout.operands[0][2];
  attrs.feature = axes.empty() ? ir::ShardOffset{} : ir::ShardOffset{axes, attrs.features};
}

}  // namespace

void register_dropout(Registry& registry) {
  // Philox: about 25 operations a word.
  registry.add({.kind = OpKind::kDropout,
                .min_operands = 5,
                .max_operands = 5,
                .infer = infer_dropout,
                .rule = rule_dropout,
                .cost = cost_streaming<27>,
                .gradient = gradient_dropout,
                .localize = localize_dropout,
                .in_place_operand = 0});
}

}  // namespace mw::ops
