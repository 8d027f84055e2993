// Where dropout draws its random words: a word is a function of the seed, the step, the site and
// the element's global place. Kernels, interpreter and tests use these two functions.
#pragma once

#include <cstdint>

namespace mw::ops {

// Positions between two samples in the numbering of elements; no sequence is longer. A constant, so
// that the numbers of a sample do not depend on the sequence length of the run or on a shard's.
inline constexpr int64_t kPositions = int64_t{1} << 20;

// dropout: element `feature` of `features` at a position of a sample. Wraps modulo 2^64.
constexpr uint64_t dropout_index(int64_t sample, int64_t position, int64_t feature,
                                 int64_t features) {
  const uint64_t row = static_cast<uint64_t>(sample) * static_cast<uint64_t>(kPositions) +
                       static_cast<uint64_t>(position);
  return row * static_cast<uint64_t>(features) + static_cast<uint64_t>(feature);
}

// attention: the probability of key position k for query position q in a head of `heads` heads.
constexpr uint64_t attention_dropout_index(int64_t sample, int64_t head, int64_t heads, int64_t q,
                                           int64_t k) {
  const uint64_t row =
      (static_cast<uint64_t>(sample) * static_cast<uint64_t>(heads) + static_cast<uint64_t>(head)) *
          static_cast<uint64_t>(kPositions) +
      static_cast<uint64_t>(q);
  return row * static_cast<uint64_t>(kPositions) + static_cast<uint64_t>(k);
}

}  // namespace mw::ops
