#include "kernels/dropout.h"

#include <algorithm>

#include "kernels/random_words.h"
#include "kernels/vec.h"

namespace mw::kernels {

void dropout(const DropoutSite& site, const float* x_BSD_local, const int64_t* sample_id_B,
             const int32_t* position_BS, int64_t S, int64_t D_local, float* y_BSD_local,
             int64_t begin, int64_t end) {
  constexpr int64_t kChunk = 512;
  const KeepRule rule = keep_rule(site.rate);
  uint32_t words[kChunk];
  for (int64_t r = begin; r < end; ++r) {
    const int64_t global_row = sample_id_B[r / S] * site.S_total + position_BS[r];
    const uint64_t row_index = static_cast<uint64_t>(global_row * site.D_total + site.d_offset);
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
