#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace mw {
namespace {

struct NormalPair {
  float even, odd;
};

NormalPair box_muller(uint32_t word0, uint32_t word1) {
  // Half a step off zero: the logarithm is finite, and both ends are alike.
  const double u0 = (static_cast<double>(word0) + 0.5) * 0x1p-32;
  const double u1 = static_cast<double>(word1) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u0));
  const double angle = 2 * std::numbers::pi * u1;
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

}  // namespace

float random_normal(const RngKey& key, uint64_t index) {
  uint32_t words[4];
  random_u32x4(key, index / 4, words);
  const uint64_t pair = index % 4 & ~uint64_t{1};
  const NormalPair normals = box_muller(words[pair], words[pair + 1]);
  return index % 2 == 0 ? normals.even : normals.odd;
}

void fill_normal(const RngKey& key, uint64_t first, int64_t count, float* out) {
  int64_t i = 0;
  for (; i < count && (first + i) % 4 != 0; ++i) out[i] = random_normal(key, first + i);
  for (; i + 4 <= count; i += 4) {
    uint32_t words[4];
    random_u32x4(key, (first + i) / 4, words);
    const NormalPair a = box_muller(words[0], words[1]);
    const NormalPair b = box_muller(words[2], words[3]);
    out[i] = a.even;
    out[i + 1] = a.odd;
    out[i + 2] = b.even;
    out[i + 3] = b.odd;
  }
  for (; i < count; ++i) out[i] = random_normal(key, first + i);
}

}  // namespace mw
