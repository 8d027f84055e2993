// layer_norm and rms_norm over the last dimension, with one op for the input gradient and one for
// the weights'. Statistics (mean, rstd) are f32 and have the leading dimensions.
#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::NormAttrs;
using ir::OpKind;
using ir::Reduction;
using Operands = std::span<const ValueId>;

ir::TensorType statistics_of(const ir::TensorType& x) {
  return with_dtype(dims_of(x, 0, x.rank() - 1), DType::kF32);
}

// x has a last dimension; each of `weights` has it, each of `statistics` the others.
void check_norm(const ir::Op& op, const ir::TensorType& x,
                std::span<const std::pair<const char*, ir::TensorType>> weights,
                std::span<const std::pair<const char*, ir::TensorType>> statistics) {
  require_min_rank(op, "x", x, 1);
  require_float(op, "x", x);
  for (const auto& [name, type] : weights) {
    require_type(op, name, type, dims_of(x, x.rank() - 1, x.rank()),
                 "the last dimension of x " + ir::to_string(x));
  }
  for (const auto& [name, type] : statistics) {
    require_type(op, name, type, statistics_of(x),
                 "the leading dimensions of x " + ir::to_string(x));
  }
}
using Named = std::vector<std::pair<const char*, ir::TensorType>>;

TypeList infer_layer_norm(const ir::Op& op, Types operands, Types) {
  check_norm(op, operands[0], Named{{"gamma", operands[1]}, {"beta", operands[2]}}, Named{});
  return {operands[0], statistics_of(operands[0]), statistics_of(operands[0])};
}

TypeList infer_rms_norm(const ir::Op& op, Types operands, Types) {
  check_norm(op, operands[0], Named{{"gamma", operands[1]}}, Named{});
  return {operands[0], statistics_of(operands[0])};
}

TypeList infer_layer_norm_input_grad(const ir::Op& op, Types operands, Types) {
  check_norm(op, operands[1], Named{{"gamma", operands[2]}},
             Named{{"mean", operands[3]}, {"rstd", operands[4]}});
  require_same(op, "dy", operands[0], "x", operands[1]);
  return {operands[0]};
}

TypeList infer_rms_norm_input_grad(const ir::Op& op, Types operands, Types) {
  check_norm(op, operands[1], Named{{"gamma", operands[2]}}, Named{{"rstd", operands[3]}});
  require_same(op, "dy", operands[0], "x", operands[1]);
  return {operands[0]};
}

TypeList infer_layer_norm_weight_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& x = operands[1];
  check_norm(op, x, Named{}, Named{{"mean", operands[2]}, {"rstd", operands[3]}});
  require_same(op, "dy", operands[0], "x", x);
  const ir::TensorType weight = dims_of(x, x.rank() - 1, x.rank());
  return {weight, weight};
}

TypeList infer_rms_norm_weight_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& x = operands[1];
  check_norm(op, x, Named{}, Named{{"rstd", operands[2]}});
  require_same(op, "dy", operands[0], "x", x);
  return {dims_of(x, x.rank() - 1, x.rank())};
}

// Every tensor is recognised by its rank: the rows of `full` rank, a weight, a statistic. The last
// factor is 'z'.
ShardingRule norm_rule(const std::string& operand_kinds, const std::string& result_kinds,
                       bool whole_rows, int rank, Types operands, Types results) {
  const std::string leading = factor_names(rank - 1), last = whole_rows ? "[z]" : "z";
  const auto text_of = [&](const std::string& kinds) {
    std::string text;
    for (const char kind : kinds) {
      if (!text.empty()) text += ", ";
      text += kind == 'x' ? joined({leading, last}) : kind == 'w' ? last : leading;
    }
    return text;
  };
  return make_rule(text_of(operand_kinds) + " -> " + text_of(result_kinds), operands, results);
}

ShardingRule rule_norm(const ir::Op& op, Types operands, Types results) {
  const int rank = operands[0].rank();
  switch (op.kind) {
    case OpKind::kLayerNorm: {
      ShardingRule rule = norm_rule("xww", "xss", true, rank, operands, results);
      rule.zero_preserving = false;
      rule.finite_preserving = op.as<NormAttrs>().epsilon > 0;  // rstd of a row of equals
      return rule;
    }
    case OpKind::kRmsNorm: {
      ShardingRule rule = norm_rule("xw", "xs", true, rank, operands, results);
      rule.zero_preserving = false;  // rstd of a row of zeros
      rule.finite_preserving = op.as<NormAttrs>().epsilon > 0;
      return rule;
    }
    case OpKind::kLayerNormInputGrad:
    case OpKind::kRmsNormInputGrad: {
      const bool layer = op.kind == OpKind::kLayerNormInputGrad;
      ShardingRule rule = norm_rule(layer ? "xxwss" : "xxws", "x", true, rank, operands, results);
      rule.linear = {0};
      return rule;
    }
    default: {
      const bool layer = op.kind == OpKind::kLayerNormWeightGrad;
      ShardingRule rule =
          norm_rule(layer ? "xxss" : "xxs", layer ? "ww" : "w", false, rank, operands, results);
      rule.linear = {0};
      return rule;
    }
  }
}

void gradient_layer_norm(GradientContext& c) {
  Builder& b = c.builder();
  MW_CHECK(!c.result_grad(1).valid() && !c.result_grad(2).valid(),
           "mean and rstd have no gradient");
  const ValueId dy = c.result_grad(0), x = c.operand(0), mean = c.result(1), rstd = c.result(2);
  if (c.needs(0)) {
    c.set_operand_grad(
        0, b.emit1(OpKind::kLayerNormInputGrad, ir::NoAttrs{}, {dy, x, c.operand(1), mean, rstd}));
  }
  if (c.needs(1) || c.needs(2)) {
    const ValueIds grads = b.emit(OpKind::kLayerNormWeightGrad, ir::NoAttrs{}, {dy, x, mean, rstd});
    c.set_operand_grad(1, grads[0]);
    c.set_operand_grad(2, grads[1]);
  }
}

void gradient_rms_norm(GradientContext& c) {
  Builder& b = c.builder();
  MW_CHECK(!c.result_grad(1).valid(), "rstd has no gradient");
  const ValueId dy = c.result_grad(0), x = c.operand(0), rstd = c.result(1);
  if (c.needs(0))
    c.set_operand_grad(
        0, b.emit1(OpKind::kRmsNormInputGrad, ir::NoAttrs{}, {dy, x, c.operand(1), rstd}));
  if (c.needs(1))
    c.set_operand_grad(1, b.emit1(OpKind::kRmsNormWeightGrad, ir::NoAttrs{}, {dy, x, rstd}));
}

// --- expansions ---

// Repeats along the last dimension (a statistic) or along the leading ones (a weight).
struct Rows {
  Builder& b;
  ir::TensorType type;
  std::vector<int64_t> sizes;
  std::vector<int> leading;
  Rows(Builder& builder, ValueId x) : b(builder), type(builder.type(x)) {
    for (int d = 0; d < type.rank(); ++d) {
      sizes.push_back(type.dim(d));
      if (d + 1 < type.rank()) leading.push_back(d);
    }
  }
  ValueId repeat(ValueId statistic) const { return b.broadcast(statistic, sizes, leading); }
  ValueId weight(ValueId w) const { return b.broadcast(w, sizes, {type.rank() - 1}); }
  ValueId mean(ValueId x) const {
    return b.scale(b.reduce(x, Reduction::kSum, {type.rank() - 1}),
                   1.0 / static_cast<double>(sizes.back()));
  }
  ValueId sum_rows(ValueId x) const { return b.reduce(x, Reduction::kSum, leading); }
};

ValueId rstd_of(const Rows& rows, ValueId centered, double epsilon) {
  Builder& b = rows.b;
  const ValueId variance = rows.mean(b.mul(centered, centered));
  return b.unary(OpKind::kRsqrt, b.add(variance, b.constant(epsilon, b.type(variance))));
}

ValueIds expand_layer_norm(Builder& b, const ir::Op& op, Operands x) {
  const Rows rows(b, x[0]);
  const ValueId mean = rows.mean(x[0]);
  const ValueId centered = b.sub(x[0], rows.repeat(mean));
  const ValueId rstd = rstd_of(rows, centered, op.as<NormAttrs>().epsilon);
  const ValueId normal = b.mul(centered, rows.repeat(rstd));
  return {b.add(b.mul(normal, rows.weight(x[1])), rows.weight(x[2])), mean, rstd};
}

ValueIds expand_rms_norm(Builder& b, const ir::Op& op, Operands x) {
  const Rows rows(b, x[0]);
  const ValueId rstd = rstd_of(rows, x[0], op.as<NormAttrs>().epsilon);
  return {b.mul(b.mul(x[0], rows.repeat(rstd)), rows.weight(x[1])), rstd};
}

// g = dy gamma, n = (x - mean) rstd: dx = rstd (g - mean(g) - n mean(g n))
ValueIds expand_layer_norm_input_grad(Builder& b, const ir::Op&, Operands x) {
  const Rows rows(b, x[0]);
  const ValueId g = b.mul(x[0], rows.weight(x[2]));
  const ValueId n = b.mul(b.sub(x[1], rows.repeat(x[3])), rows.repeat(x[4]));
  const ValueId inner =
      b.sub(b.sub(g, rows.repeat(rows.mean(g))), b.mul(n, rows.repeat(rows.mean(b.mul(g, n)))));
  return {b.mul(inner, rows.repeat(x[4]))};
}

// The same without a mean.
ValueIds expand_rms_norm_input_grad(Builder& b, const ir::Op&, Operands x) {
  const Rows rows(b, x[0]);
  const ValueId g = b.mul(x[0], rows.weight(x[2]));
  const ValueId n = b.mul(x[1], rows.repeat(x[3]));
  return {b.mul(b.sub(g, b.mul(n, rows.repeat(rows.mean(b.mul(g, n))))), rows.repeat(x[3]))};
}

ValueIds expand_layer_norm_weight_grad(Builder& b, const ir::Op&, Operands x) {
  const Rows rows(b, x[0]);
  const ValueId n = b.mul(b.sub(x[1], rows.repeat(x[2])), rows.repeat(x[3]));
  return {rows.sum_rows(b.mul(x[0], n)), rows.sum_rows(x[0])};
}

ValueIds expand_rms_norm_weight_grad(Builder& b, const ir::Op&, Operands x) {
  const Rows rows(b, x[0]);
  return {rows.sum_rows(b.mul(x[0], b.mul(x[1], rows.repeat(x[2]))))};
}

// Statistics count one float a row, whatever a software stack has in their place
// (predict/precision.h).
template <int kFlopsPerElement>
OpCost cost_norm(const ir::Op& op, Types operands, Types results) {
  const bool layer = op.kind == OpKind::kLayerNorm || op.kind == OpKind::kLayerNormInputGrad ||
                     op.kind == OpKind::kLayerNormWeightGrad;
  const size_t statistics = layer ? 2 : 1;
  if (op.kind == OpKind::kLayerNorm || op.kind == OpKind::kRmsNorm) {
    results = results.first(1);
  } else {
    operands = operands.first(operands.size() - statistics);
  }
  const ir::TensorType& x = operands[0];
  const double elements = static_cast<double>(x.elements());
  double rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= static_cast<double>(x.dim(d));
  return {.flops = elements * kFlopsPerElement,
          .bytes = tensor_bytes(operands) + tensor_bytes(results) +
                   4 * rows * static_cast<double>(statistics)};
}

}  // namespace

void register_norm(Registry& registry) {
  registry.add({.kind = OpKind::kLayerNorm,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_layer_norm,
                .rule = rule_norm,
                .cost = cost_norm<8>,
                .gradient = gradient_layer_norm,
                .expand = expand_layer_norm});
  registry.add({.kind = OpKind::kLayerNormInputGrad,
                .min_operands = 5,
                .max_operands = 5,
                .infer = infer_layer_norm_input_grad,
                .rule = rule_norm,
                .cost = cost_norm<11>,
                .expand = expand_layer_norm_input_grad,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kLayerNormWeightGrad,
                .min_operands = 4,
                .max_operands = 4,
                .infer = infer_layer_norm_weight_grad,
                .rule = rule_norm,
                .cost = cost_norm<5>,
                .expand = expand_layer_norm_weight_grad});
  registry.add({.kind = OpKind::kRmsNorm,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_rms_norm,
                .rule = rule_norm,
                .cost = cost_norm<5>,
                .gradient = gradient_rms_norm,
                .expand = expand_rms_norm});
  registry.add({.kind = OpKind::kRmsNormInputGrad,
                .min_operands = 4,
                .max_operands = 4,
                .infer = infer_rms_norm_input_grad,
                .rule = rule_norm,
                .cost = cost_norm<8>,
                .expand = expand_rms_norm_input_grad,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kRmsNormWeightGrad,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_rms_norm_weight_grad,
                .rule = rule_norm,
                .cost = cost_norm<5>,
                .expand = expand_rms_norm_weight_grad,
                .can_accumulate = true});
}

}  // namespace mw::ops
