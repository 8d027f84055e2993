// B batch, S sequence, T key sequence, H query heads, K key/value heads, D head dim, V of values
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/interpret_families.h"
#include "ops/random_index.h"

namespace mw::ops {
namespace {

using ir::AttentionAttrs;
using ir::OpKind;

// Where q, k and v of a head lie, packed or not.
class AttentionCall {
 public:
  explicit AttentionCall(const Call& call)
      : call_(call),
        attrs_(call.op.as<AttentionAttrs>()),
        gradient_(call.op.kind == OpKind::kAttentionGrad) {
    const ir::TensorType& q = call.in_type(first());
    B = q.dim(0), S = q.dim(1), H = q.dim(attrs_.packed ? 3 : 2), D = q.dims.back().size;
    K = attrs_.packed ? H : call.in_type(first() + 1).dim(2);
    T = attrs_.packed ? S : call.in_type(first() + 1).dim(1);
    V = attrs_.packed ? D : call.in_type(first() + 2).dim(3);
  }
  int64_t B, S, T, H, K, D, V;

  size_t first() const { return gradient_ ? 1 : 0; }
  size_t behind_qkv() const { return first() + (attrs_.packed ? 1 : 3); }
  size_t positions() const { return behind_qkv() + (gradient_ ? 2 : 0); }
  // Which tensor of operands (from first()) or results holds q, k or v, and the element.
  struct At {
    size_t tensor;
    size_t element;
  };
  At at(int which, int64_t b, int64_t s, int64_t h, int64_t d) const {
    if (attrs_.packed) return {0, static_cast<size_t>((((b * S + s) * 3 + which) * H + h) * D + d)};
    const int64_t heads = which == 0 ? H : K, head = which == 0 ? h : h / (H / K);
    const int64_t row = b * (which == 0 ? S : T) + s, size = which == 2 ? V : D;
    return {static_cast<size_t>(which), static_cast<size_t>((row * heads + head) * size + d)};
  }
  double qkv(int which, int64_t b, int64_t s, int64_t h, int64_t d) const {
    const At place = at(which, b, s, h, d);
    return call_.in(first() + place.tensor)[place.element];
  }
  size_t out_at(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * S + s) * H + h) * V + d);
  }
  size_t lse_at(int64_t b, int64_t h, int64_t s) const {
    return static_cast<size_t>((b * H + h) * S + s);
  }

  double key_position(int64_t b, int64_t t) const {
    return call_.in(positions())[static_cast<size_t>(b * T + t)];
  }
  // Queries of a padded tail, behind the end of the sequence, see what its last one sees.
  double query_position(int64_t b, int64_t s) const {
    const bool part = !attrs_.queries.axes.empty();
    const int64_t first = part ? call_.offset(attrs_.queries, S) : T - S;
    return key_position(b, std::min(first + s, T - 1));
  }
  bool sees(int64_t b, int64_t s, int64_t t) const {
    if (!attrs_.causal) return true;
    const double behind = query_position(b, s) - key_position(b, t);
    return behind >= 0 && (attrs_.window == 0 || behind < static_cast<double>(attrs_.window));
  }
  double score(int64_t b, int64_t h, int64_t s, int64_t t) const {
    if (!sees(b, s, t)) return -std::numeric_limits<double>::infinity();
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += qkv(0, b, s, h, d) * qkv(1, b, t, h, d);
    return sum * attrs_.scale;
  }
  // 1 / (1 - rate) or 0; 1 without dropout.
  double kept(int64_t b, int64_t h, int64_t s, int64_t t) const {
    if (attrs_.dropout == 0) return 1;
    const size_t seed = positions() + 1;
    const int64_t heads = attrs_.heads.axes.empty() ? H : attrs_.heads.global_size;
    const uint64_t index = attention_dropout_index(
        static_cast<int64_t>(call_.in(seed + 2)[static_cast<size_t>(b)]),
        call_.offset(attrs_.heads, H) + h, heads, static_cast<int64_t>(query_position(b, s)),
        static_cast<int64_t>(key_position(b, t)));
    return dropout_factor(attrs_.dropout, attrs_.site, call_.in(seed)[0], call_.in(seed + 1)[0],
                          index);
  }
  const AttentionAttrs& attrs() const { return attrs_; }

 private:
  const Call& call_;
  const AttentionAttrs& attrs_;
  bool gradient_;
};

template <typename Visit>
void for_queries(const AttentionCall& a, Visit visit) {
  for (int64_t b = 0; b < a.B; ++b) {
    for (int64_t h = 0; h < a.H; ++h) {
      for (int64_t s = 0; s < a.S; ++s) visit(b, h, s);
    }
  }
}

bool attention(const Call& call) {
  const AttentionCall a(call);
  for_queries(a, [&](int64_t b, int64_t h, int64_t s) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t t = 0; t < a.T; ++t) max = std::max(max, a.score(b, h, s, t));
    for (int64_t t = 0; t < a.T; ++t) sum += std::exp(a.score(b, h, s, t) - max);
    const double lse = max + std::log(sum);
    call.out(1)[a.lse_at(b, h, s)] = lse;
    for (int64_t t = 0; t < a.T; ++t) {
      const double p = std::exp(a.score(b, h, s, t) - lse) * a.kept(b, h, s, t);
      for (int64_t d = 0; d < a.V; ++d)
        call.out()[a.out_at(b, s, h, d)] += p * a.qkv(2, b, t, h, d);
    }
  });
  return true;
}

bool attention_grad(const Call& call) {
  const AttentionCall a(call);
  const std::vector<double>&dout = call.in(0), &out = call.in(a.behind_qkv()),
        &lse = call.in(a.behind_qkv() + 1);
  const auto add = [&](AttentionCall::At place, double x) {
    call.out(place.tensor)[place.element] += x;
  };
  for_queries(a, [&](int64_t b, int64_t h, int64_t s) {
    double delta = 0;
    for (int64_t d = 0; d < a.V; ++d)
      delta += dout[a.out_at(b, s, h, d)] * out[a.out_at(b, s, h, d)];
    for (int64_t t = 0; t < a.T; ++t) {
      const double p = std::exp(a.score(b, h, s, t) - lse[a.lse_at(b, h, s)]),
                   kept = a.kept(b, h, s, t);
      double dp = 0;
      for (int64_t d = 0; d < a.V; ++d) dp += dout[a.out_at(b, s, h, d)] * a.qkv(2, b, t, h, d);
      const double ds = p * (kept * dp - delta) * a.attrs().scale;
      for (int64_t d = 0; d < a.D; ++d) {
        add(a.at(0, b, s, h, d), ds * a.qkv(1, b, t, h, d));
        add(a.at(1, b, t, h, d), ds * a.qkv(0, b, s, h, d));
      }
      for (int64_t d = 0; d < a.V; ++d)
        add(a.at(2, b, t, h, d), p * kept * dout[a.out_at(b, s, h, d)]);
    }
  });
  return true;
}

// What is left of a frequency.
double scaled(double frequency, const ir::RopeScaling& scaling) {
  const double slow = frequency / scaling.factor;
  if (scaling.positions == 0) return slow;
  const double turns = static_cast<double>(scaling.positions) * frequency / (2 * std::numbers::pi);
  if (turns <= scaling.low_turns) return slow;
  if (turns >= scaling.high_turns) return frequency;
  const double share = (turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns);
  return (1 - share) * slow + share * frequency;
}

bool rope_table(const Call& call) {
  const ir::RopeAttrs& attrs = call.op.as<ir::RopeAttrs>();
  const int64_t half = attrs.head_dim / 2;
  for (size_t i = 0; i < call.out().size(); ++i) {
    const int64_t element = static_cast<int64_t>(i) % half;
    const double position = call.in(0)[i / static_cast<size_t>(half)];
    const double frequency = std::pow(
        attrs.theta, -2.0 * static_cast<double>(element) / static_cast<double>(attrs.head_dim));
    const double angle = position * scaled(frequency, attrs.scaling);
    call.out(0)[i] = std::cos(angle);
    call.out(1)[i] = std::sin(angle);
  }
  return true;
}

bool rope(const Call& call, double sign) {
  const ir::TensorType& x = call.in_type(0);
  const int64_t half = x.dim(3) / 2;
  for_each(x, [&](const Index& i, size_t at) {
    const bool low = i[3] < half;
    const size_t turn = static_cast<size_t>((i[0] * x.dim(1) + i[1]) * half + i[3] % half);
    const double other =
        call.in(0)[low ? at + static_cast<size_t>(half) : at - static_cast<size_t>(half)];
    call.out()[at] =
        call.in(0)[at] * call.in(1)[turn] + (low ? -1 : 1) * sign * other * call.in(2)[turn];
  });
  return true;
}

}  // namespace

bool interpret_attention(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kAttention: return attention(call);
    case OpKind::kAttentionGrad: return attention_grad(call);
    case OpKind::kRopeTable: return rope_table(call);
    case OpKind::kRope: return rope(call, 1);
    case OpKind::kRopeGrad: return rope(call, -1);
    default: return false;
  }
}

}  // namespace mw::ops
