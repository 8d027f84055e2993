// Composite ops.
// B batch, S sequence, T key sequence, H query heads, K key and value heads, D head dim or model
#include <algorithm>
#include <numeric>

#include "field_ops.h"

namespace mw::field {
namespace {

using ir::OpKind;
using Numbers = std::vector<uint64_t>;

// Activations: dy, x [, bias] or x [, bias].
bool activation(const Call& call) {
  const auto f = [](Function function, Num x) { return hash(function, x); };
  const auto biased = [&](size_t x, size_t i) {
    if (call.operands.size() <= x + 1) return call.in(x)[i];
    return add(call.in(x)[i], call.in(x + 1)[i % call.in(x + 1).size()]);
  };
  const auto make = [&](auto of) {
    for (size_t i = 0; i < call.out().size(); ++i) call.out()[i] = of(i);
    return true;
  };
  const auto x = [&](size_t operand, size_t i) { return call.in(operand)[i]; };
  const auto open = [&](Num at) { return f(Function::kRelu, at) & 1; };
  switch (call.op.kind) {
    case OpKind::kBiasAdd: return make([&](size_t i) { return biased(0, i); });
    case OpKind::kRelu: return make([&](size_t i) { return mul(open(x(0, i)), x(0, i)); });
    case OpKind::kReluGrad: return make([&](size_t i) { return mul(open(x(1, i)), x(0, i)); });
    case OpKind::kGelu:
    case OpKind::kBiasGelu: return make([&](size_t i) { return f(Function::kGelu, biased(0, i)); });
    case OpKind::kGeluGrad:
      return make([&](size_t i) { return mul(x(0, i), f(Function::kGeluSlope, biased(1, i))); });
    case OpKind::kSilu: return make([&](size_t i) { return f(Function::kSilu, x(0, i)); });
    case OpKind::kSiluGrad:
      return make([&](size_t i) { return mul(x(0, i), f(Function::kSiluSlope, x(1, i))); });
    case OpKind::kSwiglu:
      return make([&](size_t i) { return mul(f(Function::kSilu, x(0, i)), x(1, i)); });
    case OpKind::kSwigluGrad:  // dy, gate, up
      for (size_t i = 0; i < call.out().size(); ++i)
        call.out(1)[i] = mul(x(0, i), f(Function::kSilu, x(1, i)));
      return make(
          [&](size_t i) { return mul(mul(x(0, i), x(2, i)), f(Function::kSiluSlope, x(1, i))); });
    default: return false;
  }
}

bool softmax(const Call& call, bool gradient) {
  const auto n = static_cast<size_t>(call.out_type().dims.back().size);
  for (size_t row = 0; row < call.out().size(); row += n) {
    Num sum = 0;
    for (size_t i = row; i < row + n; ++i)
      sum = add(sum,
                gradient ? mul(call.in(0)[i], call.in(1)[i]) : hash(Function::kExp, call.in(0)[i]));
    for (size_t i = row; i < row + n; ++i)
      call.out()[i] = gradient ? mul(call.in(1)[i], sub(call.in(0)[i], sum))
                               : div(hash(Function::kExp, call.in(0)[i]), sum);
  }
  return true;
}

// x, gamma [, beta] -> y [, mean], rstd
bool norm(const Call& call, bool centered) {
  const auto n = static_cast<size_t>(call.out_type().dims.back().size);
  const Num size = from_int(static_cast<int64_t>(n)),
            epsilon = from_double(call.op.as<ir::NormAttrs>().epsilon);
  for (size_t row = 0; row * n < call.out().size(); ++row) {
    const uint64_t* x = call.in(0).data() + row * n;
    Num mean = 0, squares = 0;
    for (size_t i = 0; centered && i < n; ++i) mean = add(mean, x[i]);
    mean = div(mean, size);
    for (size_t i = 0; i < n; ++i) squares = add(squares, mul(sub(x[i], mean), sub(x[i], mean)));
    const Num rstd = hash(Function::kRsqrt, add(div(squares, size), epsilon));
    for (size_t i = 0; i < n; ++i) {
      const Num y = mul(mul(sub(x[i], mean), rstd), call.in(1)[i]);
      call.out()[row * n + i] = centered ? add(y, call.in(2)[i]) : y;
    }
    if (centered) call.out(1)[row] = mean;
    call.out(centered ? 2 : 1)[row] = rstd;
  }
  return true;
}

// dy, x, gamma [, mean], rstd
bool norm_input_grad(const Call& call, bool centered) {
  const auto n = static_cast<size_t>(call.out_type().dims.back().size);
  const Num size = from_int(static_cast<int64_t>(n));
  for (size_t row = 0; row * n < call.out().size(); ++row) {
    const Num mean = centered ? call.in(3)[row] : 0, rstd = call.in(centered ? 4 : 3)[row];
    const auto g = [&](size_t i) { return mul(call.in(0)[row * n + i], call.in(2)[i]); };
    const auto normal = [&](size_t i) { return mul(sub(call.in(1)[row * n + i], mean), rstd); };
    Num mean_g = 0, mean_gn = 0;
    for (size_t i = 0; i < n; ++i) {
      if (centered) mean_g = add(mean_g, div(g(i), size));
      mean_gn = add(mean_gn, div(mul(g(i), normal(i)), size));
    }
    for (size_t i = 0; i < n; ++i)
      call.out()[row * n + i] = mul(rstd, sub(sub(g(i), mean_g), mul(normal(i), mean_gn)));
  }
  return true;
}

// dy, x [, mean], rstd
bool norm_weight_grad(const Call& call, bool centered) {
  const auto n = static_cast<size_t>(call.in_type(0).dims.back().size);
  for (size_t at = 0; at < call.in(0).size(); ++at) {
    const size_t row = at / n, i = at % n;
    const Num mean = centered ? call.in(2)[row] : 0, rstd = call.in(centered ? 3 : 2)[row];
    const Num dy = call.in(0)[at];
    call.out()[i] = add(call.out()[i], mul(dy, mul(sub(call.in(1)[at], mean), rstd)));
    if (centered) call.out(1)[i] = add(call.out(1)[i], dy);
  }
  return true;
}

constexpr int64_t kIgnoredTarget = -100;

// Logits first; the columns of this shard that are words.
bool cross_entropy(const Call& call) {
  const auto& attrs = call.op.as<ir::CrossEntropyAttrs>();
  const int64_t local = call.in_type(0).dims.back().size, first = call.first(attrs.columns, local);
  const int64_t words = std::clamp<int64_t>(attrs.vocab - first, 0, local);
  const int64_t rows = call.in_type(0).elements() / local;
  for (int64_t row = 0; row < rows; ++row) {
    const auto r = static_cast<size_t>(row);
    for (int64_t word = 0; word < words; ++word) {
      const auto at = static_cast<size_t>(row * local + word);
      const Num x = call.in(0)[at];
      const auto is_target = [&](size_t operand) {
        return static_cast<int64_t>(call.in(operand)[r]) == first + word;
      };
      switch (call.op.kind) {
        case OpKind::kCrossEntropyMax: call.out()[r] = std::max(call.out()[r], x); break;
        case OpKind::kCrossEntropySum:  // logits, max, targets
          call.out(0)[r] = add(call.out(0)[r], hash(Function::kExp, sub(x, call.in(1)[r])));
          if (is_target(2)) call.out(1)[r] = x;
          break;
        default:  // logits, lse, targets, gradient of the losses
          if (static_cast<int64_t>(call.in(2)[r]) == kIgnoredTarget) break;
          call.out()[at] =
              mul(sub(hash(Function::kExp, sub(x, call.in(1)[r])), is_target(2)), call.in(3)[r]);
      }
    }
  }
  return true;
}

// max, sum, logit of the target, targets
bool cross_entropy_loss(const Call& call) {
  for (size_t r = 0; r < call.out().size(); ++r) {
    const Num lse = add(call.in(0)[r], hash(Function::kLog, call.in(1)[r]));
    const bool ignored = static_cast<int64_t>(call.in(3)[r]) == kIgnoredTarget;
    call.out(0)[r] = ignored ? 0 : sub(lse, call.in(2)[r]);
    call.out(1)[r] = lse;
  }
  return true;
}

// [do,] q, k, v (or all in one), [o, lse,] positions [, seed, step, sample ids]
class Attention {
 public:
  explicit Attention(const Call& call, bool gradient)
      : call_(call), attrs_(call.op.as<ir::AttentionAttrs>()), q_(gradient ? 1 : 0) {
    const ir::TensorType& q = call.in_type(q_);
    B = q.dim(0), S = q.dim(1), H = q.dim(attrs_.packed ? 3 : 2), D = q.dims.back().size;
    K = attrs_.packed ? H : call.in_type(q_ + 1).dim(2);
    T = attrs_.packed ? S : call.in_type(q_ + 1).dim(1);
    behind_ = q_ + (attrs_.packed ? 1 : 3);
    positions_ = behind_ + (gradient ? 2 : 0);
  }

  bool forward() const {
    each_query([&](int64_t b, int64_t h, int64_t s) {
      const std::vector<Num> e = exponentials(b, h, s);
      const Num sum = std::accumulate(e.begin(), e.end(), Num{0}, add);
      call_.out(1)[lse_at(b, h, s)] = sum;
      const Num part = inverse(sum);
      for (int64_t t = 0; t < T; ++t) {
        const Num p = mul(mul(e[static_cast<size_t>(t)], part), kept(b, h, s, t));
        for (int64_t d = 0; d < D; ++d) {
          Num& y = call_.out()[out_at(b, s, h, d)];
          y = add(y, mul(p, qkv(2, b, t, h, d)));
        }
      }
    });
    return true;
  }

  bool backward() const {
    each_query([&](int64_t b, int64_t h, int64_t s) {
      const std::vector<Num> e = exponentials(b, h, s);
      const auto dy = [&](int64_t d) { return call_.in(0)[out_at(b, s, h, d)]; };
      Num delta = 0;
      for (int64_t d = 0; d < D; ++d)
        delta = add(delta, mul(dy(d), call_.in(behind_)[out_at(b, s, h, d)]));
      const Num part = inverse(call_.in(behind_ + 1)[lse_at(b, h, s)]);
      for (int64_t t = 0; t < T; ++t) {
        const Num p = mul(e[static_cast<size_t>(t)], part), keep = kept(b, h, s, t);
        Num dp = 0;
        for (int64_t d = 0; d < D; ++d) dp = add(dp, mul(dy(d), qkv(2, b, t, h, d)));
        const Num ds = mul(mul(p, sub(mul(keep, dp), delta)), from_double(attrs_.scale));
        for (int64_t d = 0; d < D; ++d) {
          add_to(0, b, s, h, d, mul(ds, qkv(1, b, t, h, d)));
          add_to(1, b, t, h, d, mul(ds, qkv(0, b, s, h, d)));
          add_to(2, b, t, h, d, mul(mul(p, keep), dy(d)));
        }
      }
    });
    return true;
  }

 private:
  template <typename Visit>
  void each_query(Visit visit) const {
    for (int64_t b = 0; b < B; ++b)
      for (int64_t h = 0; h < H; ++h)
        for (int64_t s = 0; s < S; ++s) visit(b, h, s);
  }
  // Which tensor has q (0), k (1) or v (2), and where.
  std::pair<size_t, size_t> at(int64_t which, int64_t b, int64_t s, int64_t h, int64_t d) const {
    if (attrs_.packed) return {0, static_cast<size_t>((((b * S + s) * 3 + which) * H + h) * D + d)};
    const int64_t heads = which == 0 ? H : K, head = which == 0 ? h : h / (H / K);
    const int64_t row = b * (which == 0 ? S : T) + s;
    return {static_cast<size_t>(which), static_cast<size_t>((row * heads + head) * D + d)};
  }
  Num qkv(int64_t which, int64_t b, int64_t s, int64_t h, int64_t d) const {
    const auto [tensor, element] = at(which, b, s, h, d);
    return call_.in(q_ + tensor)[element];
  }
  void add_to(int64_t which, int64_t b, int64_t s, int64_t h, int64_t d, Num x) const {
    const auto [tensor, element] = at(which, b, s, h, d);
    call_.out(tensor)[element] = add(call_.out(tensor)[element], x);
  }
  size_t out_at(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * S + s) * H + h) * D + d);
  }
  size_t lse_at(int64_t b, int64_t h, int64_t s) const {
    return static_cast<size_t>((b * H + h) * S + s);
  }
  int64_t key_position(int64_t b, int64_t t) const {
    return static_cast<int64_t>(call_.in(positions_)[static_cast<size_t>(b * T + t)]);
  }
  int64_t query_position(int64_t b, int64_t s) const {
    const bool divided = !attrs_.queries.axes.empty();
    return key_position(b, (divided ? call_.first(attrs_.queries, S) : T - S) + s);
  }
  // 0 of a key that the query does not see.
  std::vector<Num> exponentials(int64_t b, int64_t h, int64_t s) const {
    std::vector<Num> e(static_cast<size_t>(T));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t behind = query_position(b, s) - key_position(b, t);
      if (attrs_.causal && (behind < 0 || (attrs_.window > 0 && behind >= attrs_.window))) continue;
      Num score = 0;
      for (int64_t d = 0; d < D; ++d)
        score = add(score, mul(qkv(0, b, s, h, d), qkv(1, b, t, h, d)));
      e[static_cast<size_t>(t)] = hash(Function::kExp, mul(score, from_double(attrs_.scale)));
    }
    return e;
  }
  Num kept(int64_t b, int64_t h, int64_t s, int64_t t) const {
    if (attrs_.dropout == 0) return 1;
    const auto scalar = [&](size_t i, int64_t at) {
      return call_.in(positions_ + i)[static_cast<size_t>(at)];
    };
    return hash(Function::kDropout, rng_site(attrs_.site), scalar(1, 0), scalar(2, 0), scalar(3, b),
                call_.first(attrs_.heads, H) + h, query_position(b, s), key_position(b, t));
  }

  const Call& call_;
  const ir::AttentionAttrs& attrs_;
  size_t q_, behind_, positions_;
  int64_t B, S, T, H, K, D;
};

bool rope_table(const Call& call) {
  const auto& attrs = call.op.as<ir::RopeAttrs>();
  const auto half = static_cast<size_t>(attrs.head_dim / 2);
  for (size_t i = 0; i < call.out().size(); ++i) {
    const Num angle = hash(Function::kInput, call.in(0)[i / half], i % half,
                           from_double(attrs.theta), attrs.head_dim);
    call.out(0)[i] = hash(Function::kCos, angle);
    call.out(1)[i] = hash(Function::kSin, angle);
  }
  return true;
}

// x_BSHD, cosines and sines of the pairs; the pairs turn, backwards in the gradient.
bool rope(const Call& call, bool gradient) {
  const ir::TensorType& x = call.in_type(0);
  const int64_t half = x.dim(3) / 2;
  for_each(x, [&](const Index& i, size_t at) {
    const bool low = i[3] < half;
    const auto turn = static_cast<size_t>((i[0] * x.dim(1) + i[1]) * half + i[3] % half);
    const Num other =
        call.in(0)[low ? at + static_cast<size_t>(half) : at - static_cast<size_t>(half)];
    const Num across = mul(other, call.in(2)[turn]), along = mul(call.in(0)[at], call.in(1)[turn]);
    call.out()[at] = low != gradient ? sub(along, across) : add(along, across);
  });
  return true;
}

// ids, table -> rows; ids, gradient of the rows -> gradient of the table
bool embedding(const Call& call, bool gradient) {
  const ir::TensorType& table = gradient ? call.out_type() : call.in_type(1);
  const int64_t first = call.first(call.op.as<ir::EmbeddingAttrs>().rows, table.dim(0));
  const auto D = static_cast<size_t>(table.dim(1));
  for (size_t t = 0; t < call.in(0).size(); ++t) {
    const int64_t row = static_cast<int64_t>(call.in(0)[t]) - first;
    if (row < 0 || row >= table.dim(0)) continue;
    for (size_t d = 0; d < D; ++d) {
      const size_t at = static_cast<size_t>(row) * D + d;
      if (gradient)
        call.out()[at] = add(call.out()[at], call.in(1)[t * D + d]);
      else
        call.out()[t * D + d] = call.in(1)[at];
    }
  }
  return true;
}

// x, seed, step, sample ids, positions
bool dropout(const Call& call) {
  const auto& attrs = call.op.as<ir::DropoutAttrs>();
  const ir::TensorType& x = call.in_type(0);
  const int64_t features = x.elements() / (x.dim(0) * x.dim(1)),
                first = call.first(attrs.feature, features);
  for (size_t at = 0; at < call.out().size(); ++at) {
    const int64_t row = static_cast<int64_t>(at) / features;
    const Num factor =
        hash(Function::kDropout, rng_site(attrs.site), call.in(1)[0], call.in(2)[0],
             call.in(3)[static_cast<size_t>(row / x.dim(1))], call.in(4)[static_cast<size_t>(row)],
             first + static_cast<int64_t>(at) % features);
    call.out()[at] = mul(call.in(0)[at], factor);
  }
  return true;
}

// The scores of a token's experts: from -1 the gradient's, else the K largest logits.
struct Gates {
  std::vector<size_t> experts;
  std::vector<Num> scores, slopes;  // slope: of the score, by the score
  Num sum = 0;
  void add_expert(const ir::MoeAttrs& attrs, const uint64_t* logits, size_t expert) {
    const Num x = logits[expert];
    experts.push_back(expert);
    scores.push_back(hash(attrs.sigmoid ? Function::kSigmoid : Function::kExp, x));
    slopes.push_back(attrs.sigmoid ? sub(1, scores.back()) : 1);
    sum = add(sum, scores.back());
  }
};

// logits -> gates, experts
bool top_k(const Call& call) {
  const auto& attrs = call.op.as<ir::MoeAttrs>();
  const auto E = static_cast<size_t>(attrs.experts), K = static_cast<size_t>(attrs.top_k);
  for (size_t row = 0; row * K < call.out().size(); ++row) {
    const uint64_t* logits = call.in(0).data() + row * E;
    std::vector<size_t> order(E);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    Gates gates;
    for (size_t k = 0; k < K; ++k) gates.add_expert(attrs, logits, order[k]);
    for (size_t k = 0; k < K; ++k) {
      call.out(0)[row * K + k] = mul(from_double(attrs.scale), div(gates.scores[k], gates.sum));
      call.out(1)[row * K + k] = order[k];
    }
  }
  return true;
}

// gradient of the gates, experts, logits
bool top_k_grad(const Call& call) {
  const auto& attrs = call.op.as<ir::MoeAttrs>();
  const auto E = static_cast<size_t>(attrs.experts), K = static_cast<size_t>(attrs.top_k);
  for (size_t row = 0; row * E < call.out().size(); ++row) {
    Gates gates;
    for (size_t k = 0; k < K; ++k)
      gates.add_expert(attrs, call.in(2).data() + row * E, call.in(1)[row * K + k]);
    Num mean = 0;
    for (size_t k = 0; k < K; ++k)
      mean = add(mean, mul(call.in(0)[row * K + k], div(gates.scores[k], gates.sum)));
    for (size_t k = 0; k < K; ++k) {
      const Num share = mul(from_double(attrs.scale), div(gates.scores[k], gates.sum));
      call.out()[row * E + gates.experts[k]] =
          mul(mul(gates.slopes[k], share), sub(call.in(0)[row * K + k], mean));
    }
  }
  return true;
}

// dispatch: tokens_BSD, experts [, gates] -> rows_EBCD; combine: the other way round; gate_grad:
// rows, tokens, experts -> gradient of the gates. An expert has C rows of a sample and takes its
// tokens in order.
bool moe_rows(const Call& call) {
  const auto& attrs = call.op.as<ir::MoeAttrs>();
  const bool grad = call.op.kind == OpKind::kMoeGateGrad;
  const size_t experts = grad ? 2 : 1;
  const ir::TensorType& type = call.in_type(experts);
  const int64_t B = type.dim(0), S = type.dim(1), K = attrs.top_k, E = attrs.experts;
  const int64_t C = S * K / E, D = call.in_type(0).dims.back().size;
  std::vector<int64_t> used(static_cast<size_t>(B * E));
  for (int64_t choice = 0; choice < B * S * K; ++choice) {
    const int64_t token = choice / K, b = token / S;
    const auto gate = static_cast<size_t>(choice);
    const auto e = static_cast<int64_t>(call.in(experts)[gate]);
    const int64_t c = used[static_cast<size_t>(b * E + e)]++;
    if (c >= C) continue;
    const Num g = !grad && call.operands.size() > 2 ? call.in(2)[gate] : 1;
    for (int64_t d = 0; d < D; ++d) {
      const auto row = static_cast<size_t>(((e * B + b) * C + c) * D + d),
                 at = static_cast<size_t>(token * D + d);
      if (grad)
        call.out()[gate] = add(call.out()[gate], mul(call.in(0)[row], call.in(1)[at]));
      else if (call.op.kind == OpKind::kMoeCombine)
        call.out()[at] = add(call.out()[at], mul(g, call.in(0)[row]));
      else
        call.out()[row] = mul(g, call.in(0)[at]);
    }
  }
  return true;
}

}  // namespace

bool evaluate_composite(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kSoftmax: return softmax(call, false);
    case OpKind::kSoftmaxGrad: return softmax(call, true);
    case OpKind::kLayerNorm: return norm(call, true);
    case OpKind::kRmsNorm: return norm(call, false);
    case OpKind::kLayerNormInputGrad: return norm_input_grad(call, true);
    case OpKind::kRmsNormInputGrad: return norm_input_grad(call, false);
    case OpKind::kLayerNormWeightGrad: return norm_weight_grad(call, true);
    case OpKind::kRmsNormWeightGrad: return norm_weight_grad(call, false);
    case OpKind::kCrossEntropyMax:
    case OpKind::kCrossEntropySum:
    case OpKind::kCrossEntropyGrad: return cross_entropy(call);
    case OpKind::kCrossEntropyLoss: return cross_entropy_loss(call);
    case OpKind::kAttention: return Attention(call, false).forward();
    case OpKind::kAttentionGrad: return Attention(call, true).backward();
    case OpKind::kRopeTable: return rope_table(call);
    case OpKind::kRope: return rope(call, false);
    case OpKind::kRopeGrad: return rope(call, true);
    case OpKind::kEmbedding: return embedding(call, false);
    case OpKind::kEmbeddingGrad: return embedding(call, true);
    case OpKind::kDropout: return dropout(call);
    case OpKind::kMoeTopK: return top_k(call);
    case OpKind::kMoeTopKGrad: return top_k_grad(call);
    case OpKind::kMoeDispatch:
    case OpKind::kMoeCombine:
    case OpKind::kMoeGateGrad: return moe_rows(call);
    default: return activation(call);
  }
}

}  // namespace mw::field
