#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

template <bool kBackward>
void rotate(const float* x_RHD, int64_t x_stride, const float* cos, const float* sin, int64_t H,
            int64_t D, float* y_RHD, int64_t y_stride, int64_t begin, int64_t end) {
  const int64_t half = D / 2;
  for (int64_t r = begin; r < end; ++r) {
    const float* cos_row = cos + r * half;
    const float* sin_row = sin + r * half;
    for (int64_t h = 0; h < H; ++h) {
      const float* x = x_RHD + r * x_stride + h * D;
      float* y = y_RHD + r * y_stride + h * D;
      for_each_vec(0, half, [&](auto span, int64_t i) {
        const vf x1 = span.load(x + i);
        const vf x2 = span.load(x + half + i);
        const vf c = span.load(cos_row + i);
        const vf s = kBackward ? -span.load(sin_row + i) : span.load(sin_row + i);
        span.store(y + i, x1 * c - x2 * s);
        span.store(y + half + i, x2 * c + x1 * s);
      });
    }
  }
}

}  // namespace

void rope_inverse_frequencies(double theta, int64_t D, float* inv_freq) {
  for (int64_t i = 0; i < D / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(D);
    inv_freq[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
}

void scale_rope_frequencies(double factor, double low_turns, double high_turns, int64_t positions,
                            int64_t D, float* inv_freq) {
  for (int64_t i = 0; i < D / 2; ++i) {
    const float slow = inv_freq[i] / static_cast<float>(factor);
    if (positions == 0) {
      inv_freq[i] = slow;
      continue;
    }
    const float length = static_cast<float>(2 * std::numbers::pi) / inv_freq[i];  // of a turn
    const float turns = static_cast<float>(positions) / length;
    const float share = std::clamp(
        (turns - static_cast<float>(low_turns)) / static_cast<float>(high_turns - low_turns), 0.0f,
        1.0f);
    inv_freq[i] = (1 - share) * slow + share * inv_freq[i];
  }
}

void rope_table(const int32_t* position_R, const float* inv_freq, int64_t D, float* cos, float* sin,
                int64_t begin, int64_t end) {
  const int64_t half = D / 2;
  for (int64_t r = begin; r < end; ++r) {
    const vf position = splat(static_cast<float>(position_R[r]));
    for_each_vec(0, half, [&](auto span, int64_t i) {
      vf s, c;
      sin_cos_of(position * span.load(inv_freq + i), &s, &c);
      span.store(sin + r * half + i, s);
      span.store(cos + r * half + i, c);
    });
  }
}

void rope(const float* x_RHD, int64_t x_stride, const float* cos, const float* sin, int64_t H,
          int64_t D, float* y_RHD, int64_t y_stride, int64_t begin, int64_t end) {
  rotate<false>(x_RHD, x_stride, cos, sin, H, D, y_RHD, y_stride, begin, end);
}

void rope_backward(const float* dy_RHD, int64_t dy_stride, const float* cos, const float* sin,
                   int64_t H, int64_t D, float* dx_RHD, int64_t dx_stride, int64_t begin,
                   int64_t end) {
  rotate<true>(dy_RHD, dy_stride, cos, sin, H, D, dx_RHD, dx_stride, begin, end);
}

}  // namespace mw::kernels
