// Mixture of experts: which experts a token goes to and how much each counts, and the rows that are
// dealt out to the experts and put together again [Shazeer 2017; the fixed number of rows per
// expert after GShard, Lepikhin 2020]. B batch, S sequence, D model, E experts, K experts of a
// token, C = S K / E rows of an expert and sample
//
// Routing is taken to be balanced: an expert has C rows of every sample (of a sample's part on the
// device, where the sequence is divided), for its first C tokens in order; what a token sends
// beyond is dropped. All rows of a device's tokens are dealt out there, for all experts; that
// experts lie on other devices makes the exchange of rows an all-to-all.
#include <algorithm>
#include <numeric>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::MoeAttrs;
using ir::OpKind;

struct Sizes {
  int64_t B, S, K, E, C;
};

// Of experts_BSK; their rows must come out even.
Sizes check_experts(const ir::Op& op, const ir::TensorType& experts) {
  const MoeAttrs& attrs = op.as<MoeAttrs>();
  require_rank(op, "experts", experts, 3);
  require_dtype(op, "experts", experts, DType::kI32);
  if (attrs.top_k < 1 || attrs.top_k > attrs.experts)
    reject(op, "top_k={} must be 1 to experts={}", attrs.top_k, attrs.experts);
  if (experts.dim(2) != attrs.top_k)
    reject(op, "experts {} must have top_k={} a token", ir::to_string(experts), attrs.top_k);
  const int64_t S = experts.dim(1);
  if (S * attrs.top_k % attrs.experts != 0) {
    reject(op, "{} tokens with top_k={} must be a whole number of rows for each of {} experts", S,
           attrs.top_k, attrs.experts);
  }
  return {experts.dim(0), S, attrs.top_k, attrs.experts, S * attrs.top_k / attrs.experts};
}

ir::TensorType rows_type(const Sizes& n, const ir::TensorType& like) {
  return {like.dtype, {n.E, n.B, n.C, like.dims.back()}};
}
ir::TensorType tokens_type(const Sizes& n, const ir::TensorType& like) {
  return {like.dtype, {n.B, n.S, like.dims.back()}};
}
void check_gates(const ir::Op& op, Types operands, size_t at, const Sizes& n) {
  if (operands.size() <= at) return;
  require_type(op, "gates", operands[at], {operands[at].dtype, {n.B, n.S, n.K}},
               "one for each expert of a token");
}

void check_logits(const ir::Op& op, const ir::TensorType& logits) {
  const MoeAttrs& attrs = op.as<MoeAttrs>();
  require_float(op, "logits", logits);
  require_rank(op, "logits", logits, 3);
  if (logits.dim(2) != attrs.experts || attrs.top_k < 1 || attrs.top_k > attrs.experts) {
    reject(op, "logits {} must have experts={}, and top_k={} of them", ir::to_string(logits),
           attrs.experts, attrs.top_k);
  }
}

TypeList infer_top_k(const ir::Op& op, Types operands, Types) {
  const MoeAttrs& attrs = op.as<MoeAttrs>();
  const ir::TensorType& logits = operands[0];
  check_logits(op, logits);
  const ir::Dims dims{logits.dims[0], logits.dims[1], attrs.top_k};
  return {{logits.dtype, dims}, {DType::kI32, dims}};
}

TypeList infer_top_k_grad(const ir::Op& op, Types operands, Types) {
  const ir::TensorType &dgates = operands[0], &logits = operands[2];
  check_logits(op, logits);
  const ir::Dim k = op.as<MoeAttrs>().top_k;
  require_type(op, "dgates", dgates, {logits.dtype, {logits.dims[0], logits.dims[1], k}},
               "one for each expert of a token");
  require_type(op, "experts", operands[1], with_dtype(dgates, DType::kI32), "as dgates");
  return {logits};
}

TypeList infer_dispatch(const ir::Op& op, Types operands, Types) {
  const Sizes n = check_experts(op, operands[1]);
  require_rank(op, "x", operands[0], 3);
  require_type(op, "x", operands[0], tokens_type(n, operands[0]), "batch and sequence of experts");
  check_gates(op, operands, 2, n);
  return {rows_type(n, operands[0])};
}

TypeList infer_combine(const ir::Op& op, Types operands, Types) {
  const Sizes n = check_experts(op, operands[1]);
  require_rank(op, "rows", operands[0], 4);
  require_type(op, "rows", operands[0], rows_type(n, operands[0]), "experts, batch, rows of each");
  check_gates(op, operands, 2, n);
  return {tokens_type(n, operands[0])};
}

TypeList infer_gate_grad(const ir::Op& op, Types operands, Types) {
  const Sizes n = check_experts(op, operands[2]);
  require_rank(op, "rows", operands[0], 4);
  require_type(op, "rows", operands[0], rows_type(n, operands[0]), "experts, batch, rows of each");
  require_type(op, "dy", operands[1], tokens_type(n, operands[0]), "the tokens of the rows");
  return {{operands[1].dtype, {n.B, n.S, n.K}}};
}

// A sequence is c times r tokens, for each expert c times q rows: dividing it divides the rows.
ShardingRule rule_rows(const ir::Op& op, Types operands, Types results) {
  const MoeAttrs& attrs = op.as<MoeAttrs>();
  const int64_t common = std::gcd(attrs.experts, attrs.top_k), q = attrs.top_k / common;
  const std::string rows = q == 1 ? "[e] b c d" : "[e] b (c [q]) d", tokens = "b (c [r]) d",
                    chosen = "b (c [r]) [k]";
  std::string text;
  switch (op.kind) {
    case OpKind::kMoeDispatch: text = tokens + ", " + chosen; break;
    case OpKind::kMoeCombine: text = rows + ", " + chosen; break;
    default: text = rows + ", " + tokens + ", " + chosen; break;
  }
  if (op.kind != OpKind::kMoeGateGrad && operands.size() > 2) text += ", " + chosen;
  text += " -> ";
  text += op.kind == OpKind::kMoeDispatch ? rows : op.kind == OpKind::kMoeCombine ? tokens : chosen;
  ShardingRule rule = make_rule(text, operands, results, {{'q', q}, {'r', attrs.experts / common}});
  rule.linear = op.kind == OpKind::kMoeGateGrad ? std::vector<int>{0, 1} : std::vector<int>{0};
  // Rows of experts are top_k times as many as tokens: dealt out by every rank that could have
  // them, they take longer than the tokens that are not moved then.
  rule.streams = op.kind != OpKind::kMoeGateGrad;
  return rule;
}

ShardingRule rule_top_k(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = make_rule("b s [e] -> b s [k], b s [k]", operands, results);
  rule.zero_preserving = false;
  return rule;
}
ShardingRule rule_top_k_grad(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = make_rule("b s [k], b s [k], b s [e] -> b s [e]", operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_top_k(GradientContext& c) {
  if (!c.result_grad(0).valid()) return;
  c.set_operand_grad(0, c.builder().emit1(OpKind::kMoeTopKGrad, c.op().as<MoeAttrs>(),
                                          {c.result_grad(0), c.result(1), c.operand(0)}));
}
// Dealing out and putting together are each other's transposes; a gate's gradient is the product of
// the row and the token that it joins.
void gradient_rows(GradientContext& c) {
  const MoeAttrs& attrs = c.op().as<MoeAttrs>();
  const bool gates = c.op().operands.size() == 3, dispatch = c.op().kind == OpKind::kMoeDispatch;
  const ValueId dy = c.result_grad(0), experts = c.operand(1);
  if (c.needs(0)) {
    ValueIds operands{dy, experts};
    if (gates) operands.push_back(c.operand(2));
    const OpKind transpose = dispatch ? OpKind::kMoeCombine : OpKind::kMoeDispatch;
    c.set_operand_grad(0, c.builder().emit1(transpose, attrs, operands));
  }
  if (gates && c.needs(2)) {
    const ValueId rows = dispatch ? dy : c.operand(0), tokens = dispatch ? c.operand(0) : dy;
    c.set_operand_grad(2, c.builder().emit1(OpKind::kMoeGateGrad, attrs, {rows, tokens, experts}));
  }
}

// Every row is read and written once; a combination reads K rows a token.
OpCost cost_rows(const ir::Op& op, Types operands, Types results) {
  const double rows =
      static_cast<double>((op.kind == OpKind::kMoeDispatch ? results[0] : operands[0]).elements());
  double bytes = tensor_bytes(operands) + tensor_bytes(results);
  if (op.kind == OpKind::kMoeDispatch)  // the token of every row is read
    bytes += rows * static_cast<double>(dtype_size(operands[0].dtype)) -
             static_cast<double>(operands[0].bytes().value);
  return {.flops = 2 * rows, .bytes = bytes};
}

}  // namespace

void register_moe(Registry& registry) {
  registry.add({.kind = OpKind::kMoeTopK,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_top_k,
                .rule = rule_top_k,
                .cost = cost_streaming<4>,
                .gradient = gradient_top_k});
  registry.add({.kind = OpKind::kMoeTopKGrad,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_top_k_grad,
                .rule = rule_top_k_grad,
                .cost = cost_streaming<4>});
  registry.add({.kind = OpKind::kMoeDispatch,
                .min_operands = 2,
                .max_operands = 3,
                .infer = infer_dispatch,
                .rule = rule_rows,
                .cost = cost_rows,
                .gradient = gradient_rows});
  registry.add({.kind = OpKind::kMoeCombine,
                .min_operands = 2,
                .max_operands = 3,
                .infer = infer_combine,
                .rule = rule_rows,
                .cost = cost_rows,
                .gradient = gradient_rows});
  registry.add({.kind = OpKind::kMoeGateGrad,
                .min_operands = 3,
                .max_operands = 3,
                .infer = infer_gate_grad,
                .rule = rule_rows,
                .cost = cost_rows});
}

}  // namespace mw::ops
