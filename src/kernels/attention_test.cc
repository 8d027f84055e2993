#include "kernels/attention.h"

#include <numeric>

#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

using Doubles = std::vector<double>;

constexpr char kNaN = -1;  // every byte of one: what is read from scratch must have been written

// An example with q, k and v in one fused array [B, S, (H + 2 Hkv) * D] and everything else
// contiguous. Sq is Sk unless the example is built with fewer queries, which are then the last
// ones.
struct Example {
  Example(int64_t B, int64_t Sq, int64_t Sk, int64_t H, int64_t Hkv, int64_t D) {
    a = {.B = B, .Sq = Sq, .Sk = Sk, .H = H, .Hkv = Hkv, .D = D};
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t s = 0; s < Sk; ++s) position_k.push_back(static_cast<int32_t>(s));
      for (int64_t s = 0; s < Sq; ++s) position_q.push_back(static_cast<int32_t>(Sk - Sq + s));
      sample.push_back(3 * b + 2);
    }
    a.position_q = position_q.data();
    a.position_k = position_k.data();
    width = (H + 2 * Hkv) * D;
    fused = normal(B * std::max(Sq, Sk) * width, 1);
    dout = normal(B * Sq * H * D, 2);
  }
  Example(const Example&) = delete;

  void use_dropout(double rate) { a.dropout = {{1, 2, 3}, rate, sample.data(), 0, a.H, 1000}; }
  Heads<const float> part(int64_t first_head) const {
    const int64_t rows = std::max(a.Sq, a.Sk);
    return {fused.data() + first_head * a.D, rows * width, width, a.D};
  }
  Heads<const float> q() const { return part(0); }
  Heads<const float> k() const { return part(a.H); }
  Heads<const float> v() const { return part(a.H + a.Hkv); }
  template <typename T>
  static Heads<T> contiguous(T* data, int64_t S, int64_t H, int64_t D) {
    return {data, S * H * D, H * D, D};
  }

  // out, lse
  std::vector<Floats> forward() const {
    return split_independent(
        a.B * a.H, {Floats(a.B * a.Sq * a.H * a.D, 5.0f), Floats(a.B * a.H * a.Sq, 5.0f)},
        [&](int64_t begin, int64_t end, auto& out) {
          std::vector<char> scratch(attention_forward_scratch_bytes(a), kNaN);
          attention_forward(a, q(), k(), v(), contiguous(out[0].data(), a.Sq, a.H, a.D),
                            out[1].data(), scratch.data(), begin, end);
        });
  }
  // dq, dk, dv
  std::vector<Floats> backward(const std::vector<Floats>& forwarded) const {
    const Floats kv(a.B * a.Sk * a.Hkv * a.D, 5.0f);
    return split_independent(
        a.B * a.Hkv, {Floats(a.B * a.Sq * a.H * a.D, 5.0f), kv, kv},
        [&](int64_t begin, int64_t end, auto& out) {
          std::vector<char> scratch(attention_backward_scratch_bytes(a), kNaN);
          attention_backward(a, q(), k(), v(), contiguous(forwarded[0].data(), a.Sq, a.H, a.D),
                             forwarded[1].data(), contiguous(dout.data(), a.Sq, a.H, a.D),
                             contiguous(out[0].data(), a.Sq, a.H, a.D),
                             contiguous(out[1].data(), a.Sk, a.Hkv, a.D),
                             contiguous(out[2].data(), a.Sk, a.Hkv, a.D), scratch.data(), begin,
                             end);
        });
  }

  Attention a;
  std::vector<int32_t> position_q, position_k, segment_q, segment_k;
  std::vector<int64_t> sample;
  int64_t width;
  Floats fused, dout;
};

// The same in double, row by row.
struct Reference {
  explicit Reference(const Example& e) : e(e), a(e.a) {
    out.assign(a.B * a.Sq * a.H * a.D, 0.0);
    lse.assign(a.B * a.H * a.Sq, -INFINITY);
    dq = out;
    dk.assign(a.B * a.Sk * a.Hkv * a.D, 0.0);
    dv = dk;
    for (int64_t b = 0; b < a.B; ++b) {
      for (int64_t h = 0; h < a.H; ++h) {
        for (int64_t i = 0; i < a.Sq; ++i) row(b, h, i);
      }
    }
  }

  int64_t query_position(int64_t b, int64_t i) const {
    return a.position_q[b * (a.position_q_stride > 0 ? a.position_q_stride : a.Sq) + i];
  }
  bool visible(int64_t b, int64_t i, int64_t j) const {
    if (a.causal && a.position_k[b * a.Sk + j] > query_position(b, i)) return false;
    return a.segment_q == nullptr || a.segment_q[b * a.Sq + i] == a.segment_k[b * a.Sk + j];
  }
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const AttentionDropout& d = a.dropout;
    if (d.rate == 0) return 1;
    const int64_t head = d.sample_id_B[b] * d.H_total + d.head_offset + h;
    const int64_t index =
        (head * d.S_total + query_position(b, i)) * d.S_total + a.position_k[b * a.Sk + j];
    return random_u32(d.key, static_cast<uint64_t>(index)) >= d.rate * 0x1p32 ? 1 / (1 - d.rate)
                                                                              : 0;
  }
  static double dot(const float* x, const float* y, int64_t n) {
    return std::inner_product(x, x + n, y, 0.0, std::plus<>(),
                              [](double u, double v) { return u * v; });
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const int64_t g = h / (a.H / a.Hkv);
    const float* q = e.q().row(b, i, h);
    const int64_t at = ((b * a.Sq + i) * a.H + h) * a.D;
    const float* dout = e.dout.data() + at;
    Doubles p(a.Sk), dp(a.Sk);
    double sum = 0, delta = 0;
    for (int64_t j = 0; j < a.Sk; ++j) {
      if (visible(b, i, j)) p[j] = std::exp(a.scale * dot(q, e.k().row(b, j, g), a.D));
      sum += p[j];
    }
    if (sum == 0) return;
    lse[(b * a.H + h) * a.Sq + i] = std::log(sum);
    for (int64_t j = 0; j < a.Sk; ++j) {
      p[j] /= sum;
      dp[j] = dot(dout, e.v().row(b, j, g), a.D) * factor(b, h, i, j);
      delta += p[j] * dp[j];
    }
    for (int64_t j = 0; j < a.Sk; ++j) {
      const double ds = p[j] * (dp[j] - delta) * a.scale;
      const double kept = p[j] * factor(b, h, i, j);
      const int64_t kv = ((b * a.Sk + j) * a.Hkv + g) * a.D;
      for (int64_t d = 0; d < a.D; ++d) {
        out[at + d] += kept * e.v().row(b, j, g)[d];
        dq[at + d] += ds * e.k().row(b, j, g)[d];
        dk[kv + d] += ds * q[d];
        dv[kv + d] += kept * dout[d];
      }
    }
  }

  const Example& e;
  const Attention& a;
  Doubles out, lse, dq, dk, dv;
};

void check(const Example& e) {
  const Reference want(e);
  const auto forwarded = e.forward();
  CHECK(worst_error(forwarded[0], want.out, 1.0) < 2e-6);
  CHECK(worst_error(forwarded[1], want.lse, 1.0) < 2e-6);
  const auto gradients = e.backward(forwarded);
  CHECK(worst_error(gradients[0], want.dq, 1.0) < 4e-6);
  CHECK(worst_error(gradients[1], want.dk, 1.0) < 4e-6);
  CHECK(worst_error(gradients[2], want.dv, 1.0) < 4e-6);
}

}  // namespace

TEST_CASE("causal attention and its gradients agree with double precision") {
  check(Example(2, 33, 33, 2, 2, 16));
  check(Example(1, 200, 200, 2, 2, 64));
  check(Example(1, 96, 96, 1, 1, 20));
  check(Example(1, 1, 1, 1, 1, 3));
  check(Example(1, 130, 130, 1, 1, 80));
}

TEST_CASE("grouped-query and multi-query attention agree with double precision") {
  check(Example(2, 40, 40, 6, 2, 24));
  check(Example(1, 101, 101, 4, 1, 32));
}

TEST_CASE("the error of attention does not grow with the sequence") {
  Example e(1, 48, 12000, 1, 1, 8);  // a slice, and the gradients of its keys
  check(e);
  check(Example(1, 3000, 3000, 1, 1, 8));
}

TEST_CASE("attention without a causal mask sees every key, with positions or without") {
  Example e(2, 70, 110, 2, 1, 16);
  e.a.causal = false;
  check(e);
  e.a.position_q = e.a.position_k = nullptr;
  check(e);
}

TEST_CASE("a slice of the queries attends to the keys before it") {
  check(Example(1, 50, 300, 2, 2, 16));
}

TEST_CASE("queries see the keys of their own segment only") {
  Example e(2, 150, 150, 2, 2, 16);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 150; ++s) {
      e.segment_q.push_back(static_cast<int32_t>(b == 0 ? s / 60 : s / 99));
      // Positions restart with each segment.
      e.position_q[b * 150 + s] = e.position_k[b * 150 + s] =
          static_cast<int32_t>(b == 0 ? s % 60 : s % 99);
    }
  }
  e.segment_k = e.segment_q;
  e.a.segment_q = e.segment_q.data();
  e.a.segment_k = e.segment_k.data();
  check(e);
  e.a.causal = false;
  check(e);
}

TEST_CASE("positions may come in any order, as context parallelism leaves them") {
  Example e(1, 120, 240, 2, 2, 16);
  // Queries of the first and the last quarter; keys shuffled.
  for (int64_t s = 0; s < 120; ++s) e.position_q[s] = static_cast<int32_t>(s < 60 ? s : s + 120);
  for (int64_t s = 0; s < 240; ++s) e.position_k[s] = static_cast<int32_t>(s * 77 % 240);
  check(e);
}

TEST_CASE("a query that sees no key has output 0, lse -inf and no gradient") {
  Example e(1, 30, 30, 1, 1, 8);
  for (int64_t s = 0; s < 30; ++s) e.position_q[s] = static_cast<int32_t>(s - 10);
  check(e);
  const auto forwarded = e.forward();
  const auto gradients = e.backward(forwarded);
  for (int64_t s = 0; s < 10; ++s) {
    CHECK(forwarded[1][s] == -INFINITY);
    for (int64_t d = 0; d < 8; ++d) {
      CHECK(forwarded[0][s * 8 + d] == 0.0f);
      CHECK(gradients[0][s * 8 + d] == 0.0f);
    }
  }
  for (int64_t s = 0; s < 30; ++s) e.position_q[s] = -1;
  check(e);
}

TEST_CASE("large scores neither overflow nor give NaN") {
  Example e(1, 70, 70, 1, 1, 16);
  for (float& x : e.fused) x *= 8.0f;
  const auto forwarded = e.forward();
  const auto gradients = e.backward(forwarded);
  const Reference want(e);
  CHECK(worst_error(forwarded[0], want.out, 8.0) < 2e-5);
  CHECK(worst_error(gradients[0], want.dq, 100.0) < 2e-5);
}

TEST_CASE("attention with dropout on the probabilities agrees with double precision") {
  Example causal(2, 110, 110, 4, 2, 16);
  causal.use_dropout(0.2);
  check(causal);
  Example shuffled(1, 50, 100, 2, 2, 16);
  shuffled.use_dropout(0.5);
  for (int64_t s = 0; s < 100; ++s) shuffled.position_k[s] = static_cast<int32_t>(s * 37 % 100);
  check(shuffled);
}

TEST_CASE(
    "each batch entry has positions of its own, with gaps, of which its queries are the last") {
  Example e(3, 50, 130, 2, 1, 16);
  for (int64_t s = 0; s < 130; ++s) {
    e.position_k[s] = static_cast<int32_t>(s == 129 ? 140 : s);  // a gap before a block's last key
    e.position_k[130 + s] = static_cast<int32_t>(2 * s + 7);
    e.position_k[260 + s] = static_cast<int32_t>(s * 37 % 130);
  }
  e.a.position_q = e.position_k.data() + 80;
  e.a.position_q_stride = 130;
  check(e);
  e.use_dropout(0.3);
  check(e);
}

TEST_CASE("a probability whose random word is the threshold is kept") {
  Example e(1, 6, 6, 1, 1, 8);
  for (int64_t q = 0; q < 6; ++q) {
    for (int64_t k = 0; k <= q; ++k) {
      const auto index = static_cast<uint64_t>((e.sample[0] * 1000 + q) * 1000 + k);
      const double rate = random_u32({1, 2, 3}, index) * 0x1p-32;
      if (rate > 0.9) continue;  // the others' factor would be large
      e.use_dropout(rate);
      check(e);
    }
  }
}

TEST_CASE("a shard of the heads and samples has the bits of the whole, dropout included") {
  Example whole(3, 50, 50, 4, 2, 16);
  whole.use_dropout(0.3);
  const auto forwarded = whole.forward();
  const auto gradients = whole.backward(forwarded);
  // Batch entry 2, key-value head 1 and its query heads 2 and 3.
  Example shard(1, 50, 50, 2, 1, 16);
  shard.use_dropout(0.3);
  shard.sample = {whole.sample[2]};
  shard.a.dropout.sample_id_B = shard.sample.data();
  shard.a.dropout.head_offset = 2;
  shard.a.dropout.H_total = 4;
  const int64_t D = 16, S = 50;
  const auto copy_heads = [&](const Heads<const float>& from, int64_t first, int64_t count,
                              const Heads<const float>& to) {
    for (int64_t s = 0; s < S; ++s) {
      std::copy_n(from.row(2, s, first), count * D, const_cast<float*>(to.row(0, s, 0)));
    }
  };
  copy_heads(whole.q(), 2, 2, shard.q());
  copy_heads(whole.k(), 1, 1, shard.k());
  copy_heads(whole.v(), 1, 1, shard.v());
  for (int64_t s = 0; s < S; ++s) {
    std::copy_n(whole.dout.data() + ((2 * S + s) * 4 + 2) * D, 2 * D,
                shard.dout.data() + s * 2 * D);
  }
  const auto shard_forwarded = shard.forward();
  const auto shard_gradients = shard.backward(shard_forwarded);
  for (int64_t s = 0; s < S; ++s) {
    for (int64_t i = 0; i < 2 * D; ++i) {
      CHECK(shard_forwarded[0][s * 2 * D + i] == forwarded[0][((2 * S + s) * 4 + 2) * D + i]);
      CHECK(shard_gradients[0][s * 2 * D + i] == gradients[0][((2 * S + s) * 4 + 2) * D + i]);
    }
    for (int64_t i = 0; i < D; ++i) {
      CHECK(shard_gradients[1][s * D + i] == gradients[1][((2 * S + s) * 2 + 1) * D + i]);
      CHECK(shard_gradients[2][s * D + i] == gradients[2][((2 * S + s) * 2 + 1) * D + i]);
    }
  }
}

TEST_CASE("a local slice of the queries has the bits of the whole sequence") {
  Example whole(1, 230, 230, 1, 1, 16);
  whole.use_dropout(0.1);
  const auto forwarded = whole.forward();
  Example slice(1, 61, 230, 1, 1, 16);
  slice.use_dropout(0.1);
  slice.fused = whole.fused;
  const int64_t first = 111;
  for (int64_t s = 0; s < 61; ++s) {
    slice.position_q[s] = static_cast<int32_t>(first + s);
    std::copy_n(whole.q().row(0, first + s, 0), 16, const_cast<float*>(slice.q().row(0, s, 0)));
  }
  const auto sliced = slice.forward();
  for (int64_t i = 0; i < 61 * 16; ++i) CHECK(sliced[0][i] == forwarded[0][first * 16 + i]);
}

}  // namespace mw::kernels
