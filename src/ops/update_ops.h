// The norm's block, which flat groups are padded to, and adamw's operands.
#pragma once

#include <cstdint>

namespace mw::ops {

// Elements. Parameters begin at a multiple of it in their flat group, and shard borders are
// multiples of it.
inline constexpr int64_t kNormBlock = 256;

// What counts at the origin of some axes alone (ir::Segment::counted_at_origin_of): norm_blocks
// heeds the axes that do not split the flat view. Along those that do, every device has other
// elements; norm_parameters, which has the blocks of all, heeds these.

// validate takes the sums of squares by parameter of all pipeline ranks, a vector of each, and the
// losses that some of them have. It makes the norm of all, the clipping factor, 1 if that is, bit
// for bit, not the factor that clip makes of some rank's vector alone (else 0), and the sum of the
// losses.

// adamw takes weight, grad, m, v, scale, lr and step. With four operands more it amends the step
// that another adamw made with the scale `used`: where that is `scale`, bit for bit, weight, m and
// v stay as they are; else it makes the step again from copies of what they were before.
inline constexpr int kAdamWOperands = 7;
inline constexpr int kAmendOperands = 11;

}  // namespace mw::ops
