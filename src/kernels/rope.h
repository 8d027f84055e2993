// Rotary position embedding [Su et al. 2021] in the convention of Hugging Face's Llama: element i
// of a head's first half turns with element i + D/2.
//
// R rows (batch and sequence), H heads, D elements of a head; rows [begin, end).
#pragma once

#include <cstdint>

namespace mw::kernels {

// inv_freq[i] = 1 / theta^(2i/D), i < D/2, in fp32 as transformers computes it.
void rope_inverse_frequencies(double theta, int64_t D, float* inv_freq);
// Divides those by `factor` that turn less than low_turns times in `positions` positions, those
// between low_turns and high_turns in part, in fp32 as transformers' rope_type "llama3". positions
// 0: all ("linear"). REQUIRES: low_turns < high_turns, or no positions.
void scale_rope_frequencies(double factor, double low_turns, double high_turns, int64_t positions,
                            int64_t D, float* inv_freq);

// cos and sin of position * inv_freq, [R, D/2]; the angle is an fp32 product.
// REQUIRES: positions and inv_freq in (-2^31, 2^31) and [0, 1].
void rope_table(const int32_t* position_R, const float* inv_freq, int64_t D, float* cos, float* sin,
                int64_t begin, int64_t end);

// For every head: y = (x1 cos - x2 sin, x2 cos + x1 sin). A row's heads are contiguous [H, D]; a
// row of x and y starts every x_stride and y_stride elements, so that x may be a part of a fused
// qkv array. y may be x.
void rope(const float* x_RHD, int64_t x_stride, const float* cos, const float* sin, int64_t H,
          int64_t D, float* y_RHD, int64_t y_stride, int64_t begin, int64_t end);

// The rotation the other way: dx = (dy1 cos + dy2 sin, dy2 cos - dy1 sin). dx may be dy.
void rope_backward(const float* dy_RHD, int64_t dy_stride, const float* cos, const float* sin,
                   int64_t H, int64_t D, float* dx_RHD, int64_t dx_stride, int64_t begin,
                   int64_t end);

}  // namespace mw::kernels
