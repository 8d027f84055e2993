// Scaled dot-product attention as one op, with the logarithm of the softmax's denominator for the
// backward pass [Dao et al. 2022]. Causal: key position <= query position, by the values of
// positions, of which there is one a key, and with a window no further behind; the queries are the
// last S of the T keys (T > S: those before are of earlier slices of the sequence), or with context
// parallelism this device's part of them: keys, values and positions are all-gathered, which moves
// as many bytes as passing them around a ring. B batch, S sequence, T key sequence, H query heads,
// K key/value heads, G = H / K, D head dim
#include <algorithm>
#include <limits>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::AttentionAttrs;
using ir::OpKind;
using ir::Reduction;
using Operands = std::span<const ValueId>;

// Where the operands stand: the queries, keys and values (packed: one), then for the gradient out
// and lse, then positions and, with dropout, seed, step and sample ids. The gradient has dout
// before all of them.
struct Layout {
  bool packed, gradient;
  explicit Layout(const ir::Op& op)
      : packed(op.as<AttentionAttrs>().packed), gradient(op.kind == OpKind::kAttentionGrad) {}
  size_t q() const { return gradient ? 1 : 0; }
  size_t k() const { return q() + 1; }
  size_t v() const { return q() + 2; }
  size_t out() const { return q() + (packed ? 1 : 3); }
  size_t lse() const { return out() + 1; }
  size_t positions() const { return out() + (gradient ? 2 : 0); }
  size_t seed() const { return positions() + 1; }
  size_t count(bool dropout) const { return positions() + (dropout ? 4 : 1); }
};

struct Sizes {
  ir::Dim B, S, T, H, K, D, V;  // V: of values, where they are not packed
};

Sizes check_operands(const ir::Op& op, Types operands) {
  const AttentionAttrs& attrs = op.as<AttentionAttrs>();
  const Layout at(op);
  if (operands.size() != at.count(attrs.dropout > 0)) {
    reject(op, "takes {} operands ({}, {} dropout), got {}", at.count(attrs.dropout > 0),
           attrs.packed ? "packed" : "not packed", attrs.dropout > 0 ? "with" : "without",
           operands.size());
  }
  if (attrs.dropout < 0 || attrs.dropout >= 1)
    reject(op, "dropout {} must be in [0, 1)", attrs.dropout);
  const ir::TensorType& q = operands[at.q()];
  Sizes n;
  require_float(op, attrs.packed ? "qkv" : "q", q);
  if (attrs.packed) {
    require_rank(op, "qkv", q, 5);
    if (q.dim(2) != 3)
      reject(op, "qkv {} must be [batch, sequence, 3, heads, head_dim]", ir::to_string(q));
    n = {q.dims[0], q.dims[1], q.dims[1], q.dims[3], q.dims[3], q.dims[4], q.dims[4]};
  } else {
    require_rank(op, "q", q, 4);
    const ir::TensorType& k = operands[at.k()];
    require_rank(op, "k", k, 4);
    const ir::TensorType& v = operands[at.v()];
    require_rank(op, "v", v, 4);
    n = {q.dims[0], q.dims[1], k.dims[1], q.dims[2], k.dims[2], q.dims[3], v.dims[3]};
    if (n.T.size < n.S.size) n.T = n.S;
    require_type(op, "k", k, {q.dtype, {n.B, n.T, n.K, n.D}},
                 "like q " + ir::to_string(q) + " in all but the heads and a longer sequence");
    require_type(op, "v", v, {k.dtype, {n.B, n.T, n.K, n.V}},
                 "like k " + ir::to_string(k) + " in all but the size of a head");
    if (n.K.size < 1 || n.H.size % n.K.size != 0) {
      reject(op, "the heads of k {} must divide the heads of q {}", ir::to_string(k),
             ir::to_string(q));
    }
  }
  require_type(op, "positions", operands[at.positions()], {DType::kI32, {n.B, n.T}},
               "batch and sequence of the keys");
  if (attrs.dropout > 0) {
    require_type(op, "seed", operands[at.seed()], {DType::kI64, {}}, "a scalar");
    require_type(op, "step", operands[at.seed() + 1], {DType::kI64, {}}, "a scalar");
    require_type(op, "sample_ids", operands[at.seed() + 2], {DType::kI64, {n.B}}, "one a sample");
  }
  return n;
}

TypeList infer_attention(const ir::Op& op, Types operands, Types) {
  const Sizes n = check_operands(op, operands);
  return {{operands[0].dtype, {n.B, n.S, n.H, n.V}}, {DType::kF32, {n.B, n.H, n.S}}};
}

TypeList infer_attention_grad(const ir::Op& op, Types operands, Types) {
  const Sizes n = check_operands(op, operands);
  const Layout at(op);
  const ir::TensorType& q = operands[at.q()];
  const ir::TensorType out{q.dtype, {n.B, n.S, n.H, n.V}};
  require_type(op, "dout", operands[0], out, "the attention's result");
  require_type(op, "out", operands[at.out()], out, "the attention's result");
  require_type(op, "lse", operands[at.lse()], {DType::kF32, {n.B, n.H, n.S}},
               "batch, heads and sequence of q");
  if (at.packed) return {q};
  return {q, operands[at.k()], operands[at.v()]};
}

// Whether values have heads of another size than queries and keys.
bool has_value_size(const Layout& at, Types operands) {
  return !at.packed && operands[at.q()].dim(3) != operands[at.v()].dim(3);
}

// With as many key heads as query heads a head is one factor 'h', else a query head is (k g) and a
// key head k. Queries may be divided along the sequence, where each sees all keys; a packed operand
// cannot, nor the queries of a slice.
ShardingRule rule_attention(const ir::Op& op, Types operands, Types results) {
  const Layout at(op);
  const ir::TensorType& q = operands[at.q()];
  const bool grouped = !at.packed && q.dim(2) != operands[at.k()].dim(2);
  const bool longer = !at.packed && q.dim(1) != operands[at.k()].dim(1);
  const std::string heads = grouped ? "(k g)" : "h", kv = grouped ? "k" : "h";
  const bool divides = !at.packed && !longer;
  const std::string s = divides ? "s" : "[s]", t = at.packed ? "[s]" : "[t]";
  const std::string d = has_value_size(at, operands) ? "[v]" : "[d]";
  const std::string out = "b " + s + " " + heads + " " + d, lse = "b " + heads + " " + s;
  const std::string qkv = at.packed ? "b [s] . h [d]"
                                    : "b " + s + " " + heads + " [d], b " + t + " " + kv +
                                          " [d], b " + t + " " + kv + " " + d;
  std::string text = (at.gradient ? out + ", " : "") + qkv;
  if (at.gradient) text += ", " + out + ", " + lse;
  text += ", b " + t;
  if (op.as<AttentionAttrs>().dropout > 0) text += ", , , b";
  ShardingRule rule =
      make_rule(text + " -> " + (at.gradient ? qkv : out + ", " + lse), operands, results);
  rule.zero_preserving = at.gradient;
  if (at.gradient) rule.linear = {0};
  return rule;
}

// How many of T keys one of S queries sees, on average. Under the causal mask those not behind it:
// S (S + 1) / 2 pairs of S^2, and S (T - S) more with keys of earlier slices; of a window's keys
// the first queries of the sequence see fewer. Queries of context parallelism are half from the
// front and half from the end of the sequence, so that every device has as many pairs.
double keys_of_query(const AttentionAttrs& attrs, double S, double T) {
  if (!attrs.causal) return T;
  const double earlier = attrs.queries.axes.empty() ? T - S : 0, queries = T - earlier;
  const double most = attrs.window > 0 ? std::min(static_cast<double>(attrs.window), T) : T;
  const double growing = std::max(0.0, most - earlier);  // queries that see fewer, and the first
                                                         // that sees `most`
  return most - growing * (growing - 1) / 2 / queries;
}

// Two products forward, five backward (scores again, dP, dV, dQ, dK).
template <int kProducts>
OpCost cost_attention(const ir::Op& op, Types operands, Types results) {
  const Layout at(op);
  const ir::TensorType& lse = kProducts == 2 ? results[1] : operands[Layout(op).lse()];
  const ir::TensorType& out = kProducts == 2 ? results[0] : operands[0];
  const double S = static_cast<double>(out.dim(1)), V = static_cast<double>(out.dim(3));
  const double rows = static_cast<double>(out.dim(0) * out.dim(2)) * S;
  const double D = at.packed ? V : static_cast<double>(operands[at.q()].dim(3));
  // Of the products one forward and three backward are along D, the others along V.
  const double sizes = kProducts == 2 ? D + V : 3 * D + 2 * V;
  const double T = at.packed ? S : static_cast<double>(operands[at.k()].dim(1));
  const double keys = keys_of_query(op.as<AttentionAttrs>(), S, T);
  // One float of lse a row, whatever a software stack has in its place (predict/precision.h).
  const double bytes = tensor_bytes(operands) + tensor_bytes(results);
  return {.flops = 2.0 * rows * keys * sizes,
          .bytes = bytes - static_cast<double>(lse.bytes().value) + 4 * rows,
          .matrix_product = true};
}

void gradient_attention(GradientContext& c) {
  MW_CHECK(!c.result_grad(1).valid(), "lse has no gradient");
  const Layout at(c.op());
  ValueIds operands{c.result_grad(0)};
  for (size_t i = 0; i < at.positions(); ++i) operands.push_back(c.operand(static_cast<int>(i)));
  operands.push_back(c.result(0));
  operands.push_back(c.result(1));
  for (size_t i = at.positions(); i < c.op().operands.size(); ++i)
    operands.push_back(c.operand(static_cast<int>(i)));
  const ValueIds grads =
      c.builder().emit(OpKind::kAttentionGrad, c.op().as<AttentionAttrs>(), operands);
  for (size_t i = 0; i < grads.size(); ++i) c.set_operand_grad(static_cast<int>(i), grads[i]);
}

// The random numbers of a head are drawn by its global index.
void localize_attention(ir::Op& op, const LocalLayout& layout) {
  AttentionAttrs& attrs = std::get<AttentionAttrs>(op.attrs);
  const size_t q = Layout(op).q(), dim = attrs.packed ? 3 : 2;
  const ir::Axes& axes = layout.operands[q][dim];
  attrs.heads = axes.empty() ? ir::ShardOffset{}
                             : ir::ShardOffset{axes, layout.global_operands[q].dims[dim].size};
  const ir::Axes& sequence = layout.operands[q][1];
  attrs.queries = sequence.empty() ? ir::ShardOffset{}
                                   : ir::ShardOffset{sequence, layout.global_operands[q].dim(1)};
}

// --- expansions ---

struct Heads {
  ValueId q_BSHD, k_BTHD, v_BTHV;
  int64_t B = 0, S = 0, T = 0, H = 0, K = 0, D = 0, V = 0;
};

ValueId part(Builder& b, ValueId qkv, int64_t i) {
  const ir::TensorType type = b.type(qkv);
  const ValueId slice =
      b.slice(qkv, {0, 0, i, 0, 0}, {type.dim(0), type.dim(1), i + 1, type.dim(3), type.dim(4)});
  return b.reshape(slice, {type.dim(0), type.dim(1), type.dim(3), type.dim(4)});
}

Heads heads_of(Builder& b, const ir::Op& op, Operands x) {
  const Layout at(op);
  Heads n;
  if (at.packed) {
    n = {part(b, x[at.q()], 0), part(b, x[at.q()], 1), part(b, x[at.q()], 2)};
  } else {
    n = {x[at.q()], x[at.k()], x[at.v()]};
  }
  const ir::TensorType q = b.type(n.q_BSHD);
  n.B = q.dim(0), n.S = q.dim(1), n.H = q.dim(2), n.D = q.dim(3);
  n.T = b.type(n.k_BTHD).dim(1), n.K = b.type(n.k_BTHD).dim(2);
  n.V = b.type(n.v_BTHV).dim(3);
  const auto repeat = [&](ValueId x_BTK, int64_t size) {
    if (n.K == n.H) return x_BTK;
    return b.reshape(b.broadcast(x_BTK, {n.B, n.T, n.K, n.H / n.K, size}, {0, 1, 2, 4}),
                     {n.B, n.T, n.H, size});
  };
  n.k_BTHD = repeat(n.k_BTHD, n.D);
  n.v_BTHV = repeat(n.v_BTHV, n.V);
  return n;
}

// q k^T scale [B, H, S, T], minus infinity where the mask forbids.
ValueId scores(Builder& b, const ir::Op& op, const Heads& n, ValueId positions_BT) {
  const AttentionAttrs& attrs = op.as<AttentionAttrs>();
  const ValueId s = b.scale(b.dot(n.q_BSHD, n.k_BTHD, "bshd,bthd->bhst"), attrs.scale);
  if (!attrs.causal) return s;
  const std::vector<int64_t> sizes{n.B, n.H, n.S, n.T};
  const ValueId positions_BS =
      n.T == n.S ? positions_BT : b.slice(positions_BT, {0, n.T - n.S}, {n.B, n.T});
  const ValueId keys = b.broadcast(positions_BT, sizes, {0, 3}),
                queries = b.broadcast(positions_BS, sizes, {0, 2});
  const ValueId never = b.constant(-std::numeric_limits<double>::infinity(), b.type(s));
  const ValueId masked =
      b.select(b.compare(ir::CompareAttrs::Direction::kLe, keys, queries), s, never);
  if (attrs.window == 0) return masked;
  const ValueId behind = b.sub(queries, keys);
  const ValueId window = b.constant(static_cast<double>(attrs.window), b.type(behind));
  return b.select(b.compare(ir::CompareAttrs::Direction::kLt, behind, window), masked, never);
}

void check_expands(const AttentionAttrs& attrs) {
  MW_CHECK(attrs.dropout == 0, "attention with dropout {} has no expansion", attrs.dropout);
}

ValueIds expand_attention(Builder& b, const ir::Op& op, Operands x) {
  check_expands(op.as<AttentionAttrs>());
  const Heads n = heads_of(b, op, x);
  const ValueId s = scores(b, op, n, x[Layout(op).positions()]);
  const std::vector<int64_t> sizes{n.B, n.H, n.S, n.T};
  const ValueId max = b.reduce(s, Reduction::kMax, {3});
  const ValueId e = b.unary(OpKind::kExp, b.sub(s, b.broadcast(max, sizes, {0, 1, 2})));
  const ValueId sum = b.reduce(e, Reduction::kSum, {3});
  const ValueId p = b.div(e, b.broadcast(sum, sizes, {0, 1, 2}));
  return {b.dot(p, n.v_BTHV, "bhst,bthv->bshv"), b.add(max, b.unary(OpKind::kLog, sum))};
}

// P = exp(scores - lse), dP = dout v^T, dS = P (dP - rowsum(dout out)) scale.
ValueIds expand_attention_grad(Builder& b, const ir::Op& op, Operands x) {
  const AttentionAttrs& attrs = op.as<AttentionAttrs>();
  check_expands(attrs);
  const Layout at(op);
  const Heads n = heads_of(b, op, x);
  const ValueId dout = x[0], out = x[at.out()], lse = x[at.lse()];
  const std::vector<int64_t> sizes{n.B, n.H, n.S, n.T};
  const ValueId s = scores(b, op, n, x[at.positions()]);
  const ValueId p = b.unary(OpKind::kExp, b.sub(s, b.broadcast(lse, sizes, {0, 1, 2})));
  const ValueId dp = b.dot(dout, n.v_BTHV, "bshv,bthv->bhst");
  const ValueId delta_BSH = b.reduce(b.mul(dout, out), Reduction::kSum, {3});
  const ValueId ds =
      b.scale(b.mul(p, b.sub(dp, b.broadcast(delta_BSH, sizes, {0, 2, 1}))), attrs.scale);
  const ValueId dq = b.dot(ds, n.k_BTHD, "bhst,bthd->bshd");
  const ValueId dk = b.dot(ds, n.q_BSHD, "bhst,bshd->bthd");
  const ValueId dv = b.dot(p, dout, "bhst,bshv->bthv");
  if (attrs.packed) {
    const std::vector<int64_t> one{n.B, n.S, 1, n.H, n.D};
    return {b.concat({b.reshape(dq, one), b.reshape(dk, one), b.reshape(dv, one)}, 2)};
  }
  const auto sum_group = [&](ValueId dx, int64_t size) {
    if (n.K == n.H) return dx;
    return b.reduce(b.reshape(dx, {n.B, n.T, n.K, n.H / n.K, size}), Reduction::kSum, {3});
  };
  return {dq, sum_group(dk, n.D), sum_group(dv, n.V)};
}

}  // namespace

void register_attention(Registry& registry) {
  registry.add({.kind = OpKind::kAttention,
                .min_operands = 2,
                .max_operands = 7,
                .infer = infer_attention,
                .rule = rule_attention,
                .cost = cost_attention<2>,
                .gradient = gradient_attention,
                .localize = localize_attention,
                .expand = expand_attention});
  registry.add({.kind = OpKind::kAttentionGrad,
                .min_operands = 5,
                .max_operands = 10,
                .infer = infer_attention_grad,
                .rule = rule_attention,
                .cost = cost_attention<5>,
                .localize = localize_attention,
                .expand = expand_attention_grad});
}

}  // namespace mw::ops
