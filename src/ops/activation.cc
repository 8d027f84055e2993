// bias_add, relu_grad, gelu, bias_gelu, silu, swiglu and their gradients.
#include <cmath>
#include <numbers>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::GeluAttrs;
using ir::OpKind;

// tanh approximation: gelu(x) = x/2 (1 + tanh(kGeluScale (x + kGeluCubic x^3))) [Hendrycks, Gimpel
// 2016].
const double kGeluScale = std::sqrt(2 / std::numbers::pi);
constexpr double kGeluCubic = 0.044715;

// --- inference ---

void check_bias(const ir::Op& op, const ir::TensorType& x, const ir::TensorType& bias) {
  require_float(op, "x", x);
  const int rank = bias.rank();
  if (rank <= x.rank() && bias == dims_of(x, x.rank() - rank, x.rank())) return;
  reject(op, "bias {} must have the trailing dimensions of x {}", ir::to_string(bias),
         ir::to_string(x));
}

TypeList infer_bias(const ir::Op& op, Types operands, Types) {
  check_bias(op, operands[0], operands[1]);
  return {operands[0]};
}

TypeList infer_unary(const ir::Op& op, Types operands, Types) {
  require_float(op, "x", operands[0]);
  return {operands[0]};
}

TypeList infer_unary_grad(const ir::Op& op, Types operands, Types) {
  require_same(op, "x", operands[1], "dy", operands[0]);
  return {operands[0]};
}

TypeList infer_gelu_grad(const ir::Op& op, Types operands, Types) {
  require_same(op, "x", operands[1], "dy", operands[0]);
  if (operands.size() == 3) check_bias(op, operands[1], operands[2]);
  return {operands[0]};
}

TypeList infer_swiglu(const ir::Op& op, Types operands, Types) {
  require_float(op, "gate", operands[0]);
  require_same(op, "up", operands[1], "gate", operands[0]);
  return {operands[0]};
}

TypeList infer_swiglu_grad(const ir::Op& op, Types operands, Types) {
  require_same(op, "gate", operands[1], "dy", operands[0]);
  require_same(op, "up", operands[2], "dy", operands[0]);
  return {operands[0], operands[0]};
}

// --- rules ---

// The operand at `bias` has the trailing dimensions of the others.
ShardingRule rule_with_bias(size_t bias, Types operands, Types results) {
  const int rank = results[0].rank();
  const std::string all = factor_names(rank);
  const std::string tail =
      factor_names(operands[bias].rank(), static_cast<char>('a' + rank - operands[bias].rank()));
  std::string text;
  for (size_t i = 0; i < operands.size(); ++i)
    text += (i == 0 ? "" : ", ") + (i == bias ? tail : all);
  return make_rule(text + " -> " + all, operands, results);
}

ShardingRule rule_bias(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = rule_with_bias(1, operands, results);
  rule.zero_preserving = false;
  return rule;
}

ShardingRule rule_gelu_grad(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = operands.size() == 3 ? rule_with_bias(2, operands, results)
                                           : elementwise_rule(operands, results);
  rule.linear = {0};
  return rule;
}

// --- gradients ---

// Over the leading dimensions, so that the bias' are left.
ValueId reduce_leading(Builder& b, ValueId dy, ValueId bias) {
  std::vector<int> dims;
  for (int d = 0; d < b.type(dy).rank() - b.type(bias).rank(); ++d) dims.push_back(d);
  return dims.empty() ? dy : b.reduce(dy, ir::Reduction::kSum, dims);
}

void gradient_bias_add(GradientContext& c) {
  c.set_operand_grad(0, c.result_grad(0));
  if (c.needs(1))
    c.set_operand_grad(1, reduce_leading(c.builder(), c.result_grad(0), c.operand(1)));
}

void gradient_gelu(GradientContext& c) {
  c.set_operand_grad(0, c.builder().emit1(OpKind::kGeluGrad, c.op().as<GeluAttrs>(),
                                          {c.result_grad(0), c.operand(0)}));
}

void gradient_bias_gelu(GradientContext& c) {
  Builder& b = c.builder();
  const ValueId dx = b.emit1(OpKind::kGeluGrad, c.op().as<GeluAttrs>(),
                             {c.result_grad(0), c.operand(0), c.operand(1)});
  c.set_operand_grad(0, dx);
  if (c.needs(1)) c.set_operand_grad(1, reduce_leading(b, dx, c.operand(1)));
}

void gradient_silu(GradientContext& c) {
  c.set_operand_grad(0, c.builder().binary(OpKind::kSiluGrad, c.result_grad(0), c.operand(0)));
}

void gradient_swiglu(GradientContext& c) {
  const ValueIds grads = c.builder().emit(OpKind::kSwigluGrad, ir::NoAttrs{},
                                          {c.result_grad(0), c.operand(0), c.operand(1)});
  c.set_operand_grad(0, grads[0]);
  c.set_operand_grad(1, grads[1]);
}

// --- expansions ---

using Operands = std::span<const ValueId>;

ValueId add_scalar(Builder& b, ValueId x, double value) {
  return b.add(x, b.constant(value, b.type(x)));
}

ValueId add_bias(Builder& b, ValueId x, ValueId bias) {
  const ir::TensorType& type = b.type(x);
  std::vector<int64_t> sizes;
  std::vector<int> dims;
  for (int d = 0; d < type.rank(); ++d) {
    sizes.push_back(type.dim(d));
    if (d >= type.rank() - b.type(bias).rank()) dims.push_back(d);
  }
  return b.add(x, b.broadcast(bias, sizes, dims));
}

// tanh(kGeluScale (x + kGeluCubic x^3))
ValueId gelu_tanh(Builder& b, ValueId x) {
  const ValueId cubic = b.scale(b.mul(x, b.mul(x, x)), kGeluCubic);
  return b.unary(OpKind::kTanh, b.scale(b.add(x, cubic), kGeluScale));
}

ValueId expand_gelu_of(Builder& b, ValueId x, bool tanh_approximation) {
  const ValueId t = tanh_approximation ? gelu_tanh(b, x)
                                       : b.unary(OpKind::kErf, b.scale(x, 1 / std::numbers::sqrt2));
  return b.mul(b.scale(x, 0.5), add_scalar(b, t, 1));
}

ValueIds expand_gelu(Builder& b, const ir::Op& op, Operands x) {
  return {expand_gelu_of(b, x[0], op.as<GeluAttrs>().tanh_approximation)};
}

ValueIds expand_bias_gelu(Builder& b, const ir::Op& op, Operands x) {
  return {expand_gelu_of(b, add_bias(b, x[0], x[1]), op.as<GeluAttrs>().tanh_approximation)};
}

// Exact: Phi(x) + x phi(x). Approximation: (1 + t)/2 + x/2 (1 - t^2) kGeluScale (1 + 3 kGeluCubic
// x^2).
ValueIds expand_gelu_grad(Builder& b, const ir::Op& op, Operands operands) {
  const ValueId x = operands.size() == 3 ? add_bias(b, operands[1], operands[2]) : operands[1];
  ValueId derivative;
  if (op.as<GeluAttrs>().tanh_approximation) {
    const ValueId t = gelu_tanh(b, x);
    const ValueId one_minus = add_scalar(b, b.unary(OpKind::kNeg, b.mul(t, t)), 1);
    const ValueId inner =
        b.scale(add_scalar(b, b.scale(b.mul(x, x), 3 * kGeluCubic), 1), kGeluScale);
    derivative =
        b.add(b.scale(add_scalar(b, t, 1), 0.5), b.mul(b.scale(x, 0.5), b.mul(one_minus, inner)));
  } else {
    const ValueId t = b.unary(OpKind::kErf, b.scale(x, 1 / std::numbers::sqrt2));
    const ValueId density = b.scale(b.unary(OpKind::kExp, b.scale(b.mul(x, x), -0.5)),
                                    1 / std::sqrt(2 * std::numbers::pi));
    derivative = b.add(b.scale(add_scalar(b, t, 1), 0.5), b.mul(x, density));
  }
  return {b.mul(operands[0], derivative)};
}

ValueIds expand_bias_add(Builder& b, const ir::Op&, Operands x) {
  return {add_bias(b, x[0], x[1])};
}

ValueIds expand_relu_grad(Builder& b, const ir::Op&, Operands x) {
  const ValueId zero = b.constant(0, b.type(x[0]));
  return {b.select(b.compare(ir::CompareAttrs::Direction::kGt, x[1], zero), x[0], zero)};
}

// 1 / (1 + exp(-x))
ValueId sigmoid(Builder& b, ValueId x) {
  const ValueId denominator = add_scalar(b, b.unary(OpKind::kExp, b.unary(OpKind::kNeg, x)), 1);
  return b.div(b.constant(1, b.type(x)), denominator);
}

// sigmoid(x) (1 + x (1 - sigmoid(x)))
ValueId silu_derivative(Builder& b, ValueId x) {
  const ValueId s = sigmoid(b, x);
  const ValueId one_minus = add_scalar(b, b.unary(OpKind::kNeg, s), 1);
  return b.mul(s, add_scalar(b, b.mul(x, one_minus), 1));
}

ValueIds expand_silu(Builder& b, const ir::Op&, Operands x) {
  return {b.mul(x[0], sigmoid(b, x[0]))};
}

ValueIds expand_silu_grad(Builder& b, const ir::Op&, Operands x) {
  return {b.mul(x[0], silu_derivative(b, x[1]))};
}

ValueIds expand_swiglu(Builder& b, const ir::Op&, Operands x) {
  return {b.mul(b.mul(x[0], sigmoid(b, x[0])), x[1])};
}

ValueIds expand_swiglu_grad(Builder& b, const ir::Op&, Operands x) {
  const ValueId dy = x[0], gate = x[1], up = x[2];
  return {b.mul(b.mul(dy, up), silu_derivative(b, gate)), b.mul(dy, b.mul(gate, sigmoid(b, gate)))};
}

void register_bias_and_gelu(Registry& registry) {
  registry.add({.kind = OpKind::kBiasAdd,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_bias,
                .rule = rule_bias,
                .cost = cost_streaming<1>,
                .gradient = gradient_bias_add,
                .expand = expand_bias_add,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kReluGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_unary_grad,
                .rule = rule_elementwise_linear,
                .cost = cost_streaming<1>,
                .expand = expand_relu_grad,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kGelu,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_unary,
                .rule = rule_elementwise,
                .cost = cost_streaming<20>,
                .gradient = gradient_gelu,
                .expand = expand_gelu,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kGeluGrad,
                .min_operands = 2,
                .max_operands = 3,
                .infer = infer_gelu_grad,
                .rule = rule_gelu_grad,
                .cost = cost_streaming<30>,
                .expand = expand_gelu_grad,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kBiasGelu,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_bias,
                .rule = rule_bias,
                .cost = cost_streaming<21>,
                .gradient = gradient_bias_gelu,
                .expand = expand_bias_gelu,
                .in_place_operand = 0});
}

void register_gated(Registry& registry) {
  registry.add({.kind = OpKind::kSilu,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_unary,
                .rule = rule_elementwise,
                .cost = cost_streaming<14>,
                .gradient = gradient_silu,
                .expand = expand_silu,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kSiluGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_unary_grad,
                .rule = rule_elementwise_linear,
                .cost = cost_streaming<18>,
                .expand = expand_silu_grad,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kSwiglu,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_swiglu,
                .rule = rule_elementwise,
                .cost = cost_streaming<15>,
                .gradient = gradient_swiglu,
                .expand = expand_swiglu,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kSwigluGrad,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_swiglu_grad,
                .rule = rule_elementwise_linear,
                .cost = cost_streaming<22>,
                .expand = expand_swiglu_grad,
                .in_place_operand = 0});
}

}  // namespace

void register_activation(Registry& registry) {
  register_bias_and_gelu(registry);
  register_gated(registry);
}

}  // namespace mw::ops
