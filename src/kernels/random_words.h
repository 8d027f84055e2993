// Runs of base/rng.h's random words, many Philox blocks at a time.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace mw::kernels {

// words[i] = random_u32(key, first + i) for i < count.
void random_words(const RngKey& key, uint64_t first, int64_t count, uint32_t* words);

// What a dropout rate means for a random word: kept iff word >= threshold, then scaled.
struct KeepRule {
  uint32_t threshold = 0;  // ceil(rate * 2^32)
  float scale = 1.0f;      // 1 / (1 - rate)
};
// REQUIRES: 0 <= rate < 1.
KeepRule keep_rule(double rate);

}  // namespace mw::kernels
