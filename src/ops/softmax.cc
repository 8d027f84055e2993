// softmax over the last dimension, and its gradient.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;
using Operands = std::span<const ValueId>;

TypeList infer_softmax(const ir::Op& op, Types operands, Types) {
  require_min_rank(op, "x", operands[0], 1);
  require_float(op, "x", operands[0]);
  return {operands[0]};
}

TypeList infer_softmax_grad(const ir::Op& op, Types operands, Types) {
  require_min_rank(op, "dy", operands[0], 1);
  require_same(op, "y", operands[1], "dy", operands[0]);
  return {operands[0]};
}

ShardingRule rule_rows(const ir::Op& op, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.factors.back().shardable = false;
  rule.zero_preserving = op.kind == OpKind::kSoftmaxGrad;
  if (op.kind == OpKind::kSoftmaxGrad) rule.linear = {0};
  return rule;
}

void gradient_softmax(GradientContext& c) {
  c.set_operand_grad(0, c.builder().binary(OpKind::kSoftmaxGrad, c.result_grad(0), c.result(0)));
}

// Reduces the last dimension and repeats the result along it.
ValueId row_reduce(Builder& b, ValueId x, ir::Reduction op) {
  const ir::TensorType type = b.type(x);
  std::vector<int64_t> sizes;
  std::vector<int> dims;
  for (int d = 0; d < type.rank(); ++d) {
    sizes.push_back(type.dim(d));
    if (d + 1 < type.rank()) dims.push_back(d);
  }
  return b.broadcast(b.reduce(x, op, {type.rank() - 1}), sizes, dims);
}

ValueIds expand_softmax(Builder& b, const ir::Op&, Operands x) {
  const ValueId e = b.unary(OpKind::kExp, b.sub(x[0], row_reduce(b, x[0], ir::Reduction::kMax)));
  return {b.div(e, row_reduce(b, e, ir::Reduction::kSum))};
}

// y (dy - sum(dy y))
ValueIds expand_softmax_grad(Builder& b, const ir::Op&, Operands x) {
  return {b.mul(x[1], b.sub(x[0], row_reduce(b, b.mul(x[0], x[1]), ir::Reduction::kSum)))};
}

}  // namespace

void register_softmax(Registry& registry) {
  registry.add({.kind = OpKind::kSoftmax,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_softmax,
                .rule = rule_rows,
                .cost = cost_streaming<14>,
                .gradient = gradient_softmax,
                .expand = expand_softmax,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kSoftmaxGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_softmax_grad,
                .rule = rule_rows,
                .cost = cost_streaming<4>,
                .expand = expand_softmax_grad,
                .in_place_operand = 0});
}

}  // namespace mw::ops
