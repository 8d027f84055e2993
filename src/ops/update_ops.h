// The norm's block, which flat groups are padded to.
#pragma once

#include <cstdint>

namespace mw::ops {

// Elements. Parameters begin at a multiple of it in their flat group, and shard borders are
// multiples of it.
inline constexpr int64_t kNormBlock = 256;

}  // namespace mw::ops
