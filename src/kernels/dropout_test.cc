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

TEST_CASE("the dropout mask of a shard is the whole tensor's at that place") {
  const int64_t S = 12, D = 37;
  const std::vector<int64_t> sample = {4, 1, 8};
  std::vector<int32_t> position;
  for (int64_t i = 0; i < 3 * S; ++i) position.push_back(static_cast<int32_t>(i % S));
  const Floats x = normal(3 * S * D, 1);
  Floats whole(3 * S * D);
  dropout({kKey, 0.3, S, D, 0}, x.data(), sample.data(), position.data(), S, D, whole.data(), 0,
          3 * S);
  // One sample, positions 5, 2 and 11, columns 9 .. 30.
  const int64_t d_offset = 9, D_local = 22, b = 2;
  const std::vector<int32_t> some = {5, 2, 11};
  Floats part(3 * D_local);
  for (int64_t s = 0; s < 3; ++s) {
    const float* row = x.data() + (b * S + some[s]) * D + d_offset;
    std::copy(row, row + D_local, part.begin() + s * D_local);
  }
  dropout({kKey, 0.3, S, D, d_offset}, part.data(), &sample[b], some.data(), 3, D_local,
          part.data(), 0, 3);
  for (int64_t s = 0; s < 3; ++s) {
    for (int64_t d = 0; d < D_local; ++d) {
      CHECK(part[s * D_local + d] == whole[(b * S + some[s]) * D + d_offset + d]);
    }
  }
}

}  // namespace mw::kernels
