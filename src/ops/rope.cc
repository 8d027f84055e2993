// Rotary position embedding [Su et al. 2021] in the half-split order of Hugging Face's Llama:
// element i of the first half of a head turns with element i of the second. cos and sin are [B, S,
// head_dim/2] of position * theta^(-2i/head_dim), slower where RopeAttrs::scaling says so.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;
using ir::RopeAttrs;
using Operands = std::span<const ValueId>;

TypeList infer_table(const ir::Op& op, Types operands, Types) {
  require_rank(op, "positions", operands[0], 2);
  require_dtype(op, "positions", operands[0], DType::kI32);
  const int64_t head_dim = op.as<RopeAttrs>().head_dim;
  if (head_dim < 2 || head_dim % 2 != 0)
    reject(op, "head_dim {} must be even and positive", head_dim);
  const ir::RopeScaling& scaling = op.as<RopeAttrs>().scaling;
  if (!(scaling.factor > 0)) reject(op, "factor {} must be positive", scaling.factor);
  if (scaling.positions > 0 && !(scaling.low_turns < scaling.high_turns)) {
    reject(op, "low_turns {} must be less than high_turns {}", scaling.low_turns,
           scaling.high_turns);
  }
  const ir::TensorType table{DType::kF32, {operands[0].dims[0], operands[0].dims[1], head_dim / 2}};
  return {table, table};
}

TypeList infer_rope(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& x = operands[0];
  require_rank(op, "x", x, 4);
  require_float(op, "x", x);
  if (x.dim(3) % 2 != 0) reject(op, "the head dimension of x {} must be even", ir::to_string(x));
  const ir::TensorType table{DType::kF32, {x.dims[0], x.dims[1], x.dim(3) / 2}};
  require_type(op, "cos", operands[1], table,
               "batch, sequence and half the head dimension of x " + ir::to_string(x));
  require_type(op, "sin", operands[2], table,
               "batch, sequence and half the head dimension of x " + ir::to_string(x));
  return {x};
}

ShardingRule rule_table(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = make_rule("b s -> b s [e], b s [e]", operands, results);
  rule.zero_preserving = false;
  return rule;
}

ShardingRule rule_rope(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = make_rule("b s h [d], b s [e], b s [e] -> b s h [d]", operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_rope(GradientContext& c) {
  c.set_operand_grad(0, c.builder().emit1(OpKind::kRopeGrad, ir::NoAttrs{},
                                          {c.result_grad(0), c.operand(1), c.operand(2)}));
}

// (a cos - b sin, b cos + a sin); the gradient turns back: `sign` -1.
ValueIds turn(Builder& b, Operands x, double sign) {
  const ir::TensorType type = b.type(x[0]);
  const int64_t batch = type.dim(0), sequence = type.dim(1), heads = type.dim(2),
                half = type.dim(3) / 2;
  const ValueId first = b.slice(x[0], {0, 0, 0, 0}, {batch, sequence, heads, half});
  const ValueId second = b.slice(x[0], {0, 0, 0, half}, {batch, sequence, heads, 2 * half});
  const ValueId cos = b.broadcast(x[1], {batch, sequence, heads, half}, {0, 1, 3});
  const ValueId sin = b.scale(b.broadcast(x[2], {batch, sequence, heads, half}, {0, 1, 3}), sign);
  return {b.concat(
      {b.sub(b.mul(first, cos), b.mul(second, sin)), b.add(b.mul(second, cos), b.mul(first, sin))},
      3)};
}

ValueIds expand_rope(Builder& b, const ir::Op&, Operands x) { return turn(b, x, 1); }
ValueIds expand_rope_grad(Builder& b, const ir::Op&, Operands x) { return turn(b, x, -1); }

}  // namespace

void register_rope(Registry& registry) {
  // No expansion: the primitives have no sine. The interpreter has it directly.
  registry.add({.kind = OpKind::kRopeTable,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_table,
                .rule = rule_table,
                .cost = cost_streaming<80>});
  registry.add({.kind = OpKind::kRope,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_rope,
                .rule = rule_rope,
                .cost = cost_streaming<3>,
                .gradient = gradient_rope,
                .expand = expand_rope,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kRopeGrad,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_rope,
                .rule = rule_rope,
                .cost = cost_streaming<3>,
                .expand = expand_rope_grad,
                .in_place_operand = 0});
}

}  // namespace mw::ops
