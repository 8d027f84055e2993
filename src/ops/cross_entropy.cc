// Cross-entropy of logits as max, sum and loss, so that a sharded vocabulary takes two all-reduces
// of one number a token. A target of -100 gives loss 0 and gradient 0. Columns from attrs.vocab on
// are padding.
//
// The chain is differentiated as one: only cross_entropy_loss has a gradient, that of the logits
// (its fifth operand, which its kernel does not read).
#include "ops/builder.h"
#include "ops/family.h"
#include "ops/one_hot.h"

namespace mw::ops {
namespace {

using ir::CrossEntropyAttrs;
using ir::OpKind;
using ir::Reduction;
using Operands = std::span<const ValueId>;

constexpr double kIgnoredTarget = -100;

ir::TensorType tokens_of(const ir::TensorType& logits, DType dtype) {
  return {dtype, {logits.dims.begin(), logits.dims.end() - 1}};
}

void check_logits(const ir::Op& op, const ir::TensorType& logits) {
  require_min_rank(op, "logits", logits, 1);
  require_float(op, "logits", logits);
  const CrossEntropyAttrs& attrs = op.as<CrossEntropyAttrs>();
  if (attrs.columns.axes.empty() && (attrs.vocab < 1 || attrs.vocab > logits.dims.back().size)) {
    reject(op, "logits {} must have vocab={} columns at least", ir::to_string(logits), attrs.vocab);
  }
}

void check_tokens(const ir::Op& op, const char* name, const ir::TensorType& type,
                  const ir::TensorType& logits, DType dtype) {
  require_type(op, name, type, tokens_of(logits, dtype),
               "the leading dimensions of logits " + ir::to_string(logits));
}

TypeList infer_max(const ir::Op& op, Types operands, Types) {
  check_logits(op, operands[0]);
  return {tokens_of(operands[0], DType::kF32)};
}

TypeList infer_sum(const ir::Op& op, Types operands, Types) {
  check_logits(op, operands[0]);
  check_tokens(op, "max", operands[1], operands[0], DType::kF32);
  check_tokens(op, "targets", operands[2], operands[0], DType::kI32);
  return {operands[1], operands[1]};
}

TypeList infer_loss(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& logits = operands[4];
  check_logits(op, logits);
  check_tokens(op, "max", operands[0], logits, DType::kF32);
  check_tokens(op, "sum", operands[1], logits, DType::kF32);
  check_tokens(op, "target_logit", operands[2], logits, DType::kF32);
  check_tokens(op, "targets", operands[3], logits, DType::kI32);
  return {operands[0], operands[0]};
}

TypeList infer_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType& logits = operands[0];
  check_logits(op, logits);
  check_tokens(op, "lse", operands[1], logits, DType::kF32);
  check_tokens(op, "targets", operands[2], logits, DType::kI32);
  check_tokens(op, "dloss", operands[3], logits, DType::kF32);
  return {logits};
}

ShardingRule rule_cross_entropy(const ir::Op& op, Types operands, Types results) {
  const bool loss = op.kind == OpKind::kCrossEntropyLoss;
  const std::string t = factor_names(operands[loss ? 4 : 0].rank() - 1);
  const std::string logits = joined({t, loss ? "~v" : "v"});
  std::string text;
  switch (op.kind) {
    case OpKind::kCrossEntropyMax: text = logits + " -> " + t; break;
    case OpKind::kCrossEntropySum:
      text = logits + ", " + t + ", " + t + " -> " + t + ", " + t;
      break;
    case OpKind::kCrossEntropyLoss:
      text = t + ", " + t + ", " + t + ", " + t + ", " + logits + " -> " + t + ", " + t;
      break;
    default: text = logits + ", " + t + ", " + t + ", " + t + " -> " + logits;
  }
  ShardingRule rule = make_rule(text, operands, results);
  if (op.kind == OpKind::kCrossEntropyMax) set_reduction(rule, Reduction::kMax);
  if (!loss) set_masked(rule, 'v');
  rule.zero_preserving =
      op.kind == OpKind::kCrossEntropyMax || op.kind == OpKind::kCrossEntropyGrad;
  rule.finite_preserving = op.kind == OpKind::kCrossEntropyMax;  // others have exp and log
  if (op.kind == OpKind::kCrossEntropyGrad) rule.linear = {3};
  return rule;
}

void gradient_loss(GradientContext& c) {
  MW_CHECK(!c.result_grad(1).valid(), "lse has no gradient");
  c.set_operand_grad(
      4, c.builder().emit1(OpKind::kCrossEntropyGrad, c.op().as<CrossEntropyAttrs>(),
                           {c.operand(4), c.result(1), c.operand(3), c.result_grad(0)}));
}

void localize_cross_entropy(ir::Op& op, const LocalLayout& layout) {
  const size_t logits = op.kind == OpKind::kCrossEntropyLoss ? 4 : 0;
  const ir::Axes& axes = layout.operands[logits].back();
  std::get<CrossEntropyAttrs>(op.attrs).columns =
      axes.empty() ? ir::ShardOffset{}
                   : ir::ShardOffset{axes, layout.global_operands[logits].dims.back().size};
}

// --- expansions ---

// A number a token repeated over `columns`.
ValueId repeat(Builder& b, ValueId x, int64_t columns) {
  std::vector<int64_t> sizes;
  std::vector<int> dims;
  for (int d = 0; d < b.type(x).rank(); ++d) {
    sizes.push_back(b.type(x).dim(d));
    dims.push_back(d);
  }
  sizes.push_back(columns);
  return b.broadcast(x, sizes, dims);
}

// The columns that are words, as f32.
ValueId words(Builder& b, const ir::Op& op, ValueId logits) {
  const ir::TensorType type = b.type(logits);
  std::vector<int64_t> start(type.dims.size(), 0), limit;
  for (const ir::Dim& dim : type.dims) limit.push_back(dim.size);
  if (limit.back() != op.as<CrossEntropyAttrs>().vocab) {
    limit.back() = op.as<CrossEntropyAttrs>().vocab;
    logits = b.slice(logits, start, limit);
  }
  return type.dtype == DType::kF32 ? logits : b.convert(logits, DType::kF32);
}

ValueId is_ignored(Builder& b, ValueId targets) {
  return b.compare(ir::CompareAttrs::Direction::kEq, targets,
                   b.constant(kIgnoredTarget, b.type(targets)));
}

ValueIds expand_max(Builder& b, const ir::Op& op, Operands x) {
  return {b.reduce(words(b, op, x[0]), Reduction::kMax, {b.type(x[0]).rank() - 1})};
}

ValueIds expand_sum(Builder& b, const ir::Op& op, Operands x) {
  const ValueId logits = words(b, op, x[0]);
  const int64_t vocab = op.as<CrossEntropyAttrs>().vocab;
  const int last = b.type(logits).rank() - 1;
  const ValueId e = b.unary(OpKind::kExp, b.sub(logits, repeat(b, x[1], vocab)));
  const ValueId picked = b.select(one_hot(b, x[2], vocab), logits, b.constant(0, b.type(logits)));
  return {b.reduce(e, Reduction::kSum, {last}), b.reduce(picked, Reduction::kSum, {last})};
}

ValueIds expand_loss(Builder& b, const ir::Op&, Operands x) {
  const ValueId lse = b.add(x[0], b.unary(OpKind::kLog, x[1]));
  return {b.select(is_ignored(b, x[3]), b.constant(0, b.type(lse)), b.sub(lse, x[2])), lse};
}

ValueIds expand_grad(Builder& b, const ir::Op& op, Operands x) {
  const ValueId logits = words(b, op, x[0]);
  const ir::TensorType full = b.type(x[0]), type = b.type(logits);
  const int64_t vocab = op.as<CrossEntropyAttrs>().vocab;
  const ValueId p = b.unary(OpKind::kExp, b.sub(logits, repeat(b, x[1], vocab)));
  const ValueId hot = b.convert(one_hot(b, x[2], vocab), DType::kF32);
  const ValueId zero = b.constant(0, b.type(x[3]));
  const ValueId dloss = repeat(b, b.select(is_ignored(b, x[2]), zero, x[3]), vocab);
  ValueId dlogits = b.mul(b.sub(p, hot), dloss);
  if (full.dtype != DType::kF32) dlogits = b.convert(dlogits, full.dtype);
  if (full.dims.back().size == vocab) return {dlogits};
  std::vector<int64_t> low(full.dims.size(), 0), high(full.dims.size(), 0);
  high.back() = full.dims.back().size - vocab;
  return {b.pad(dlogits, low, high)};
}

// Per logit; the loss reads no logits.
template <int kFlops>
OpCost cost_logits(const ir::Op&, Types operands, Types results) {
  return {.flops = kFlops * static_cast<double>(operands[0].elements()),
          .bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

}  // namespace

void register_cross_entropy(Registry& registry) {
  registry.add({.kind = OpKind::kCrossEntropyMax,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_max,
                .rule = rule_cross_entropy,
                .cost = cost_logits<1>,
                .localize = localize_cross_entropy,
                .expand = expand_max});
  registry.add({.kind = OpKind::kCrossEntropySum,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_sum,
                .rule = rule_cross_entropy,
                .cost = cost_logits<12>,
                .localize = localize_cross_entropy,
                .expand = expand_sum});
  registry.add(
      {.kind = OpKind::kCrossEntropyLoss,
       .min_operands = 5,
       .max_operands = 5,
       .infer = infer_loss,
       .rule = rule_cross_entropy,
       .cost = [](const ir::Op&, Types operands,
                  Types results) { return streaming_cost(operands.first(4), results, 12); },
       .gradient = gradient_loss,
       .localize = localize_cross_entropy,
       .expand = expand_loss});
  registry.add({.kind = OpKind::kCrossEntropyGrad,
                .min_operands = 4,
                .max_operands = 4,
                .infer = infer_grad,
                .rule = rule_cross_entropy,
                .cost = cost_logits<13>,
                .localize = localize_cross_entropy,
                .expand = expand_grad,
                .in_place_operand = 0});
}

}  // namespace mw::ops
