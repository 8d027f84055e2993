// Plain elementwise kernels over the elements [begin, end) of flat arrays. The destination may be
// one of the inputs; otherwise arrays do not overlap.
#pragma once

#include <cstdint>

namespace mw::kernels {

void add(const float* a, const float* b, float* y, int64_t begin, int64_t end);
void subtract(const float* a, const float* b, float* y, int64_t begin, int64_t end);
void multiply(const float* a, const float* b, float* y, int64_t begin, int64_t end);
void divide(const float* a, const float* b, float* y, int64_t begin, int64_t end);
// NaN where a or b is NaN.
void maximum(const float* a, const float* b, float* y, int64_t begin, int64_t end);
void minimum(const float* a, const float* b, float* y, int64_t begin, int64_t end);

void negate(const float* x, float* y, int64_t begin, int64_t end);
// y = c * x
void scale(const float* x, float c, float* y, int64_t begin, int64_t end);
// y = x + c
void add_scalar(const float* x, float c, float* y, int64_t begin, int64_t end);
// y += x
void accumulate(const float* x, float* y, int64_t begin, int64_t end);
// y += c * x, rounded once where the processor has fused multiply-add
void axpy(float c, const float* x, float* y, int64_t begin, int64_t end);
void fill(float value, float* y, int64_t begin, int64_t end);
void copy(const float* x, float* y, int64_t begin, int64_t end);

void exp(const float* x, float* y, int64_t begin, int64_t end);
void log(const float* x, float* y, int64_t begin, int64_t end);
void tanh(const float* x, float* y, int64_t begin, int64_t end);
void erf(const float* x, float* y, int64_t begin, int64_t end);
void sqrt(const float* x, float* y, int64_t begin, int64_t end);
// 1 / sqrt(x), both rounded
void rsqrt(const float* x, float* y, int64_t begin, int64_t end);
void sigmoid(const float* x, float* y, int64_t begin, int64_t end);
void sine(const float* x, float* y, int64_t begin, int64_t end);    // REQUIRES: |x| < 2^31
void cosine(const float* x, float* y, int64_t begin, int64_t end);  // REQUIRES: |x| < 2^31

// +0 for x <= 0; NaN stays.
void relu(const float* x, float* y, int64_t begin, int64_t end);
// dx = x > 0 ? dy : 0; y may stand for x
void relu_backward(const float* dy, const float* x, float* dx, int64_t begin, int64_t end);

enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };
// y = a op b, as 0 or 1
void compare(Compare op, const float* a, const float* b, uint8_t* y, int64_t begin, int64_t end);
void compare(Compare op, const int32_t* a, const int32_t* b, uint8_t* y, int64_t begin,
             int64_t end);
// y = mask ? a : b; any nonzero mask counts
void select(const uint8_t* mask, const float* a, const float* b, float* y, int64_t begin,
            int64_t end);

// y = x in the other type, rounded to nearest even.
void convert(const float* x, double* y, int64_t begin, int64_t end);
void convert(const double* x, float* y, int64_t begin, int64_t end);
void convert(const int32_t* x, float* y, int64_t begin, int64_t end);
void convert(const uint8_t* x, float* y, int64_t begin, int64_t end);
// Truncated to 32 bits. REQUIRES: every x fits.
void convert(const int64_t* x, int32_t* y, int64_t begin, int64_t end);

}  // namespace mw::kernels
