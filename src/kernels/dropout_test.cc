#include "kernels/dropout.h"

#include "kernels/random_words.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

const RngKey kKey = {3, 17, rng_site("h.0.dropout")};

}  // namespace

TEST_CASE("runs of random words are base's words, from any start and of any length") {
  for (const uint64_t first : {0ull, 1ull, 3ull, 30ull, (1ull << 34) - 9, ~0ull - 200}) {
    for (const int64_t count : {0, 1, 2, 31, 32, 33, 64, 131}) {
      std::vector<uint32_t> words(static_cast<size_t>(count) + 1, 42);
      random_words(kKey, first, count, words.data());
      for (int64_t i = 0; i < count; ++i) {
        CHECK(words[i] == random_u32(kKey, first + static_cast<uint64_t>(i)));
      }
      CHECK(words.back() == 42);
    }
  }
}

TEST_CASE("a keep rule's threshold is rate * 2^32, rounded up") {
  CHECK(keep_rule(0.0).threshold == 0);
  CHECK(keep_rule(0.5).threshold == 0x80000000u);
  CHECK(keep_rule(0.5).scale == 2.0f);
  CHECK(keep_rule(0.1).threshold == 429496730u);
  CHECK(keep_rule(1 - 0x1p-40).threshold == 0xffffffffu);
}

TEST_CASE("dropout keeps 1 - rate of the elements and scales them") {
  const int64_t B = 2, S = 50, D = 1000;
  const std::vector<int64_t> sample = {5, 9};
  std::vector<int32_t> position;
  for (int64_t i = 0; i < B * S; ++i) position.push_back(static_cast<int32_t>(i % S));
  const Floats x(B * S * D, 3.0f);
  const DropoutSite site{kKey, 0.1, S, D, 0};
  const Floats y =
      split_independent(B * S, {Floats(B * S * D)}, [&](int64_t begin, int64_t end, auto& out) {
        dropout(site, x.data(), sample.data(), position.data(), S, D, out[0].data(), begin, end);
      })[0];
  double kept = 0;
  for (const float v : y) {
    CHECK_MESSAGE((v == 0.0f || v == 3.0f * static_cast<float>(1 / 0.9)), "value ", v);
    kept += v != 0.0f;
  }
  const double count = static_cast<double>(B * S * D);
  CHECK(std::fabs(kept / count - 0.9) < 4 * std::sqrt(0.09 / count));
}

TEST_CASE("an element of a shard is dropped by the random word of its global place") {
  // One sample, positions 5, 2 and 11, columns 509 .. 1208: several runs of random words.
  const int64_t S_total = 12, D_total = 1300, d_offset = 509, D = 700, sample = 8;
  const std::vector<int32_t> position = {5, 2, 11};
  const Floats x = normal(3 * D, 1);
  const auto word = [&](int64_t s, int64_t d) {
    const int64_t row = sample * S_total + position[static_cast<size_t>(s)];
    return random_u32(kKey, static_cast<uint64_t>(row * D_total + d_offset + d));
  };
  // The second rate is such that one element's word is the threshold: it is kept.
  for (const double rate : {0.3, word(1, 600) * 0x1p-32}) {
    Floats y = x;
    dropout({kKey, rate, S_total, D_total, d_offset}, y.data(), &sample, position.data(), 3, D,
            y.data(), 0, 3);
    const auto factor = static_cast<float>(1 / (1 - rate));
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t d = 0; d < D; ++d) {
        const bool kept = word(s, d) >= rate * 0x1p32;
        CHECK(y[s * D + d] == (kept ? x[s * D + d] * factor : 0.0f));
      }
    }
  }
}

}  // namespace mw::kernels
