#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/random_words.h"
#include "kernels/vec.h"

namespace mw::kernels {

// ops::dropout_index of the row's first local feature; wraps as that does.
static uint64_t first_index(const DropoutSite& site, int64_t sample, int64_t position) {
  const uint64_t row = static_cast<uint64_t>(sample) * static_cast<uint64_t>(site.S_total) +
                       static_cast<uint64_t>(position);
  return row * static_cast<uint64_t>(site.D_total) + static_cast<uint64_t>(site.d_offset);
}

void dropout(const DropoutSite& site, const float* x_BSD_local, const int64_t* sample_id_B,
             const int32_t* position_BS, int64_t S, int64_t D_local, float* y_BSD_local,
             int64_t begin, int64_t end) {
  constexpr int64_t kChunk = 512;
  const KeepRule rule = keep_rule(site.rate);
  uint32_t words[kChunk];
  for (int64_t r = begin; r < end; ++r) {
    const uint64_t row_index = first_index(site, sample_id_B[r / S], position_BS[r]);
    const float* x_D = x_BSD_local + r * D_local;
    float* y_D = y_BSD_local + r * D_local;
    for (int64_t first = 0; first < D_local; first += kChunk) {
      const int64_t count = std::min(kChunk, D_local - first);
      random_words(site.key, row_index + static_cast<uint64_t>(first), count, words);
      const float* x = x_D + first;
      float* y = y_D + first;
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i)
        y[i] = words[i] >= rule.threshold ? x[i] * rule.scale : 0.0f;
    }
  }
}

}  // namespace mw::kernels
