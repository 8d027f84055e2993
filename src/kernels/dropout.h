// Dropout of activations [B, S, D] whose mask depends on the global place of an element alone:
// index = sample_id * (S_total * D_total) + position * D_total + d_offset + d, so that shards of
// the batch, of the sequence and of the model dimension draw what the whole tensor would.
//
// B samples, S local sequence, D_local of D_total columns.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace mw::kernels {

struct DropoutSite {
  RngKey key;
  double rate = 0.0;  // REQUIRES: 0 <= rate < 1
  int64_t S_total = 0;
  int64_t D_total = 0;
  int64_t d_offset = 0;  // global column of local column 0
};

// y = kept ? x / (1 - rate) : 0, for the rows b * S + s of [begin, end). The backward pass is the
// same call on dy. y may be x.
void dropout(const DropoutSite& site, const float* x_BSD_local, const int64_t* sample_id_B,
             const int32_t* position_BS, int64_t S, int64_t D_local, float* y_BSD_local,
             int64_t begin, int64_t end);

}  // namespace mw::kernels
