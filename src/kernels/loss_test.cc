#include "kernels/loss.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

struct Example {
  int64_t R = 12;
  int64_t V = 103;  // columns, 3 of them padding
  int64_t words = 100;
  Floats logits = normal(12 * 103, 1, 4.0f);
  std::vector<int64_t> target;
  Example() {
    for (int64_t r = 0; r < R; ++r) target.push_back((r * 37 + 99) % words);
    target[4] = kIgnoreIndex;
    target[2] = 0;  // the first word of each shard
    target[3] = 64;
    for (int64_t r = 0; r < R; ++r) logits[r * V + 101] = 1e30f;  // padding must not be read
  }
};

}  // namespace

TEST_CASE("the fused loss has the bits of its pieces and agrees with double precision") {
  const Example e;
  const VocabShard shard{e.V, e.words, 0};
  const auto fused = split_independent(
      e.R, {Floats(e.R), Floats(e.R)}, [&](int64_t begin, int64_t end, auto& out) {
        cross_entropy_forward(e.logits.data(), e.target.data(), shard, out[0].data(), out[1].data(),
                              begin, end);
      });
  const auto pieces = split_independent(
      e.R, std::vector<Floats>(5, Floats(e.R)), [&](int64_t begin, int64_t end, auto& out) {
        cross_entropy_max(e.logits.data(), shard, out[2].data(), begin, end);
        cross_entropy_sum(e.logits.data(), e.target.data(), out[2].data(), shard, out[3].data(),
                          out[4].data(), begin, end);
        cross_entropy_loss(e.target.data(), out[2].data(), out[3].data(), out[4].data(),
                           out[0].data(), out[1].data(), begin, end);
      });
  CHECK(same_bits(fused[0], pieces[0]));
  CHECK(same_bits(fused[1], pieces[1]));
  std::vector<double> loss;
  for (int64_t r = 0; r < e.R; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < e.words; ++i)
      sum += std::exp(static_cast<double>(e.logits[r * e.V + i]));
    loss.push_back(e.target[r] < 0 ? 0.0 : std::log(sum) - e.logits[r * e.V + e.target[r]]);
  }
  CHECK(worst_error(fused[0], loss, 0.1) < 1e-6);
}

TEST_CASE("two shards of the vocabulary give the loss and gradient of one") {
  const Example e;
  const int64_t left = 64, V_shard = 64;  // 64 words, then 36 words and 28 columns of padding
  Floats shards[2] = {Floats(e.R * V_shard), Floats(e.R * V_shard, 1e30f)};
  for (int64_t r = 0; r < e.R; ++r) {
    const float* row = e.logits.data() + r * e.V;
    std::copy(row, row + left, shards[0].begin() + r * V_shard);
    std::copy(row + left, row + e.words, shards[1].begin() + r * V_shard);
  }
  const VocabShard layout[2] = {{V_shard, left, 0}, {V_shard, e.words - left, left}};
  Floats top(e.R, -INFINITY), sum(e.R), logit(e.R), loss(e.R), lse(e.R);
  for (int s = 0; s < 2; ++s) {
    Floats part(e.R);
    cross_entropy_max(shards[s].data(), layout[s], part.data(), 0, e.R);
    for (int64_t r = 0; r < e.R; ++r) top[r] = std::max(top[r], part[r]);
  }
  for (int s = 0; s < 2; ++s) {
    Floats part(e.R), part_logit(e.R);
    cross_entropy_sum(shards[s].data(), e.target.data(), top.data(), layout[s], part.data(),
                      part_logit.data(), 0, e.R);
    for (int64_t r = 0; r < e.R; ++r) {
      sum[r] += part[r];
      logit[r] += part_logit[r];
    }
  }
  cross_entropy_loss(e.target.data(), top.data(), sum.data(), logit.data(), loss.data(), lse.data(),
                     0, e.R);
  Floats whole_loss(e.R), whole_lse(e.R), whole_dlogits(e.R * e.V);
  const VocabShard whole{e.V, e.words, 0};
  cross_entropy_forward(e.logits.data(), e.target.data(), whole, whole_loss.data(),
                        whole_lse.data(), 0, e.R);
  CHECK(worst_error(loss, whole_loss, 0.1) < 1e-6);

  const float dloss = 0.25f;
  cross_entropy_backward(e.logits.data(), e.target.data(), whole_lse.data(), &dloss, 0, whole,
                         whole_dlogits.data(), 0, e.R);
  for (int s = 0; s < 2; ++s) {
    cross_entropy_backward(shards[s].data(), e.target.data(), whole_lse.data(), &dloss, 0,
                           layout[s], shards[s].data(), 0, e.R);
    for (int64_t r = 0; r < e.R; ++r) {
      for (int64_t i = 0; i < layout[s].valid; ++i) {
        CHECK(shards[s][r * V_shard + i] == whole_dlogits[r * e.V + layout[s].begin + i]);
      }
      for (int64_t i = layout[s].valid; i < V_shard; ++i) CHECK(shards[s][r * V_shard + i] == 0.0f);
    }
  }
}

TEST_CASE("the loss's gradient agrees with double precision, with one scale a row") {
  const Example e;
  const VocabShard shard{e.V, e.words, 0};
  Floats loss(e.R), lse(e.R);
  cross_entropy_forward(e.logits.data(), e.target.data(), shard, loss.data(), lse.data(), 0, e.R);
  const Floats dloss = normal(e.R, 2);
  const auto got =
      split_independent(e.R, {Floats(e.R * e.V)}, [&](int64_t begin, int64_t end, auto& out) {
        cross_entropy_backward(e.logits.data(), e.target.data(), lse.data(), dloss.data(), 1, shard,
                               out[0].data(), begin, end);
      });
  std::vector<double> want(e.R * e.V);
  for (int64_t r = 0; r < e.R; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < e.words; ++i)
      sum += std::exp(static_cast<double>(e.logits[r * e.V + i]));
    for (int64_t i = 0; i < e.words && e.target[r] >= 0; ++i) {
      const double p = std::exp(static_cast<double>(e.logits[r * e.V + i])) / sum;
      want[r * e.V + i] = (p - (i == e.target[r] ? 1 : 0)) * dloss[r];
    }
  }
  CHECK(worst_error(got[0], want, 1e-3) < 3e-6);
}

TEST_CASE("large logits near each other lose no digits of the loss") {
  const Floats logits = {1e6f, 1e6f};
  const std::vector<int64_t> target = {1};
  float loss = 0, lse = 0;
  cross_entropy_forward(logits.data(), target.data(), {2, 2, 0}, &loss, &lse, 0, 1);
  CHECK(std::fabs(loss - std::log(2.0)) < 1e-7);
}

TEST_CASE("a shard of padding alone, or of logits -inf alone, has maximum -inf and sum 0") {
  const std::vector<int64_t> target = {1};
  for (const int64_t words : {0, 5}) {
    const Floats logits(8, words == 0 ? 5.0f : -INFINITY);
    const VocabShard shard{8, words, 100};
    float top = 0, sum = 1, logit = 1;
    cross_entropy_max(logits.data(), shard, &top, 0, 1);
    CHECK(top == -INFINITY);
    cross_entropy_sum(logits.data(), target.data(), &top, shard, &sum, &logit, 0, 1);
    CHECK(sum == 0.0f);
    CHECK(logit == 0.0f);
  }
}

}  // namespace mw::kernels
