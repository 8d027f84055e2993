// Elementwise primitives. At a tie, max and min give the gradient to the first operand; relu gives
// 0 at 0.
#include <numbers>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;

TypeList infer_binary(const ir::Op& op, Types operands, Types) {
  require_same(op, "rhs", operands[1], "lhs", operands[0]);
  return {operands[0]};
}

TypeList infer_float_unary(const ir::Op& op, Types operands, Types) {
  require_float(op, "x", operands[0]);
  return {operands[0]};
}

TypeList infer_compare(const ir::Op& op, Types operands, Types) {
  require_same(op, "rhs", operands[1], "lhs", operands[0]);
  return {with_dtype(operands[0], DType::kBool)};
}

TypeList infer_select(const ir::Op& op, Types operands, Types) {
  require_same(op, "on_false", operands[2], "on_true", operands[1]);
  require_dtype(op, "mask", operands[0], DType::kBool);
  if (operands[0].rank() > 0) {
    require_type(op, "mask", operands[0], with_dtype(operands[1], DType::kBool),
                 "the shape of on_true (or a scalar)");
  }
  return {operands[1]};
}

TypeList infer_convert(const ir::Op& op, Types operands, Types declared) {
  require_declared(op, declared, 1);
  if (operands[0].dims != declared[0].dims) {
    reject(op, "result {} must have the dimensions of x {}", ir::to_string(declared[0]),
           ir::to_string(operands[0]));
  }
  return {declared[0]};
}

ShardingRule rule_joint(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linearity = ShardingRule::Linearity::kJoint;
  rule.linear = {0, 1};
  return rule;
}

ShardingRule rule_mul(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linear = {0, 1};
  return rule;
}

ShardingRule rule_div(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linear = {0};
  rule.zero_preserving = rule.finite_preserving = false;  // 0 / 0
  return rule;
}

ShardingRule rule_not_zero_preserving(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.zero_preserving = false;
  return rule;
}

// Of some finite numbers infinities or none: the root of -1, the logarithm of 0, e^1000.
template <bool kZeroPreserving>
ShardingRule rule_not_finite_preserving(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.zero_preserving = kZeroPreserving;
  rule.finite_preserving = false;
  return rule;
}

ShardingRule rule_select(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linearity = ShardingRule::Linearity::kJoint;
  rule.linear = {1, 2};
  return rule;
}

ShardingRule rule_convert(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  if (is_floating(operands[0].dtype) && is_floating(results[0].dtype)) rule.linear = {0};
  return rule;
}

void gradient_add(GradientContext& c) {
  c.set_operand_grad(0, c.result_grad(0));
  c.set_operand_grad(1, c.result_grad(0));
}

void gradient_sub(GradientContext& c) {
  c.set_operand_grad(0, c.result_grad(0));
  if (c.needs(1)) c.set_operand_grad(1, c.builder().unary(OpKind::kNeg, c.result_grad(0)));
}

void gradient_mul(GradientContext& c) {
  Builder& b = c.builder();
  if (c.needs(0)) c.set_operand_grad(0, b.mul(c.result_grad(0), c.operand(1)));
  if (c.needs(1)) c.set_operand_grad(1, b.mul(c.result_grad(0), c.operand(0)));
}

void gradient_div(GradientContext& c) {
  Builder& b = c.builder();
  const ValueId da = b.div(c.result_grad(0), c.operand(1));
  if (c.needs(0)) c.set_operand_grad(0, da);
  if (c.needs(1)) c.set_operand_grad(1, b.unary(OpKind::kNeg, b.mul(da, c.result(0))));
}

template <ir::CompareAttrs::Direction kFirstWins>
void gradient_extremum(GradientContext& c) {
  Builder& b = c.builder();
  const ValueId dy = c.result_grad(0);
  const ValueId mask = b.compare(kFirstWins, c.operand(0), c.operand(1));
  const ValueId zero = b.constant(0, b.type(dy));
  if (c.needs(0)) c.set_operand_grad(0, b.select(mask, dy, zero));
  if (c.needs(1)) c.set_operand_grad(1, b.select(mask, zero, dy));
}

void gradient_neg(GradientContext& c) {
  c.set_operand_grad(0, c.builder().unary(OpKind::kNeg, c.result_grad(0)));
}

void gradient_exp(GradientContext& c) {
  c.set_operand_grad(0, c.builder().mul(c.result_grad(0), c.result(0)));
}

void gradient_log(GradientContext& c) {
  c.set_operand_grad(0, c.builder().div(c.result_grad(0), c.operand(0)));
}

void gradient_tanh(GradientContext& c) {  // dy - dy * y^2
  Builder& b = c.builder();
  const ValueId dy = c.result_grad(0), y = c.result(0);
  c.set_operand_grad(0, b.sub(dy, b.mul(dy, b.mul(y, y))));
}

void gradient_sqrt(GradientContext& c) {  // dy / (2 y)
  Builder& b = c.builder();
  c.set_operand_grad(0, b.scale(b.div(c.result_grad(0), c.result(0)), 0.5));
}

void gradient_rsqrt(GradientContext& c) {  // -dy * y^3 / 2
  Builder& b = c.builder();
  const ValueId y = c.result(0);
  c.set_operand_grad(0, b.scale(b.mul(c.result_grad(0), b.mul(y, b.mul(y, y))), -0.5));
}

void gradient_erf(GradientContext& c) {  // dy * 2/sqrt(pi) * exp(-x^2)
  Builder& b = c.builder();
  const ValueId x = c.operand(0);
  const ValueId density = b.unary(OpKind::kExp, b.unary(OpKind::kNeg, b.mul(x, x)));
  c.set_operand_grad(0, b.scale(b.mul(c.result_grad(0), density), 2 * std::numbers::inv_sqrtpi));
}

void gradient_relu(GradientContext& c) {
  c.set_operand_grad(0, c.builder().binary(OpKind::kReluGrad, c.result_grad(0), c.operand(0)));
}

void gradient_scale(GradientContext& c) {
  c.set_operand_grad(0, c.builder().scale(c.result_grad(0), c.op().as<ir::ScaleAttrs>().factor));
}

void gradient_select(GradientContext& c) {
  Builder& b = c.builder();
  const ValueId dy = c.result_grad(0), zero = b.constant(0, b.type(dy));
  if (c.needs(1)) c.set_operand_grad(1, b.select(c.operand(0), dy, zero));
  if (c.needs(2)) c.set_operand_grad(2, b.select(c.operand(0), zero, dy));
}

void gradient_convert(GradientContext& c) {
  Builder& b = c.builder();
  c.set_operand_grad(0, b.convert(c.result_grad(0), b.type(c.operand(0)).dtype));
}

using Rule = decltype(OpDef::rule);
using Gradient = decltype(OpDef::gradient);

void add_binary(Registry& registry, OpKind kind, Rule rule, Gradient gradient) {
  registry.add({.kind = kind,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_binary,
                .rule = rule,
                .cost = cost_streaming<1>,
                .gradient = gradient,
                .in_place_operand = 0});
}

// flops: of a polynomial of single precision, about what a vector math library takes.
template <int kFlops>
void add_unary(Registry& registry, OpKind kind, Rule rule, Gradient gradient,
               bool any_dtype = false) {
  registry.add({.kind = kind,
                .min_operands = 1,
                .max_operands = 1,
                .infer = any_dtype ? infer_first : infer_float_unary,
                .rule = rule,
                .cost = cost_streaming<kFlops>,
                .gradient = gradient,
                .in_place_operand = 0});
}

}  // namespace

void register_elementwise(Registry& registry) {
  using Direction = ir::CompareAttrs::Direction;
  add_binary(registry, OpKind::kAdd, rule_joint, gradient_add);
  add_binary(registry, OpKind::kSub, rule_joint, gradient_sub);
  add_binary(registry, OpKind::kMul, rule_mul, gradient_mul);
  add_binary(registry, OpKind::kDiv, rule_div, gradient_div);
  add_binary(registry, OpKind::kMax, rule_elementwise, gradient_extremum<Direction::kGe>);
  add_binary(registry, OpKind::kMin, rule_elementwise, gradient_extremum<Direction::kLe>);
  add_unary<1>(registry, OpKind::kNeg, rule_elementwise_linear, gradient_neg, true);
  add_unary<1>(registry, OpKind::kScale, rule_elementwise_linear, gradient_scale, true);
  add_unary<1>(registry, OpKind::kRelu, rule_elementwise, gradient_relu, true);
  add_unary<10>(registry, OpKind::kExp, rule_not_finite_preserving<false>, gradient_exp);
  add_unary<10>(registry, OpKind::kLog, rule_not_finite_preserving<false>, gradient_log);
  add_unary<15>(registry, OpKind::kTanh, rule_elementwise, gradient_tanh);
  add_unary<1>(registry, OpKind::kSqrt, rule_not_finite_preserving<true>, gradient_sqrt);
  add_unary<2>(registry, OpKind::kRsqrt, rule_not_finite_preserving<false>, gradient_rsqrt);
  add_unary<15>(registry, OpKind::kErf, rule_elementwise, gradient_erf);
  registry.add({.kind = OpKind::kCompare,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_compare,
                .rule = rule_not_zero_preserving,
                .cost = cost_streaming<1>});
  registry.add({.kind = OpKind::kSelect,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_select,
                .rule = rule_select,
                .cost = cost_streaming<1>,
                .gradient = gradient_select});
  registry.add({.kind = OpKind::kConvert,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_convert,
                .rule = rule_convert,
                .cost = cost_streaming<1>,
                .gradient = gradient_convert});
}

}  // namespace mw::ops
