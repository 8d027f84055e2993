// Activations, forward and backward. Flat arrays take elements [begin, end); those with a bias or
// with strides take rows [begin, end). A gradient may overwrite one of the inputs of its kernel.
//
// R rows, N columns, F ffn
#pragma once

#include <cstdint>

namespace mw::kernels {

// x * Phi(x), with the error function (exact) or with the tanh approximation (GPT-2's "gelu_new"),
// which is x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3)) [Hendrycks, Gimpel 2016].
enum class Gelu : uint8_t { kExact, kTanh };

void gelu(Gelu kind, const float* x, float* y, int64_t begin, int64_t end);
// dx = dy * gelu'(x)
void gelu_backward(Gelu kind, const float* dy, const float* x, float* dx, int64_t begin,
                   int64_t end);

// y = gelu(x + b), rows [begin, end).
void bias_gelu(Gelu kind, const float* x_RN, const float* b_N, int64_t N, float* y_RN,
               int64_t begin, int64_t end);
// dx = dy * gelu'(x + b); the bias gradient is the column sum of dx (reduce.h).
void bias_gelu_backward(Gelu kind, const float* dy_RN, const float* x_RN, const float* b_N,
                        int64_t N, float* dx_RN, int64_t begin, int64_t end);

// x * sigmoid(x)
void silu(const float* x, float* y, int64_t begin, int64_t end);
void silu_backward(const float* dy, const float* x, float* dx, int64_t begin, int64_t end);

// y = silu(gate) * up, rows [begin, end). A row of gate and up starts every in_stride elements, so
// that both may be halves of one [R, 2F] array; y is contiguous.
void swiglu(const float* gate_RF, const float* up_RF, int64_t in_stride, int64_t F, float* y_RF,
            int64_t begin, int64_t end);
// dgate and dup have rows every grad_stride elements.
void swiglu_backward(const float* dy_RF, const float* gate_RF, const float* up_RF,
                     int64_t in_stride, int64_t F, float* dgate_RF, float* dup_RF,
                     int64_t grad_stride, int64_t begin, int64_t end);

}  // namespace mw::kernels
