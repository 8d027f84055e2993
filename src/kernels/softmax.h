// Softmax over the last dimension. R rows, N columns; rows [begin, end).
#pragma once

#include <cstdint>

namespace mw::kernels {

// y = exp(x - max) / sum; a row of -inf alone gives zeros. y may be x.
void softmax(const float* x_RN, int64_t N, float* y_RN, int64_t begin, int64_t end);

// dx = y * (dy - sum(dy * y)). dx may be dy or y.
void softmax_backward(const float* dy_RN, const float* y_RN, int64_t N, float* dx_RN, int64_t begin,
                      int64_t end);

}  // namespace mw::kernels
