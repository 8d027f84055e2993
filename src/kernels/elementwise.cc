#include "kernels/elementwise.h"

#include <algorithm>
#include <functional>

#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

template <typename F>
MW_INLINE void map1(const float* x, float* y, int64_t begin, int64_t end, F f) {
  for_each_vec(begin, end, [&](auto span, int64_t i) { span.store(y + i, f(span.load(x + i))); });
}

template <typename F>
MW_INLINE void map2(const float* a, const float* b, float* y, int64_t begin, int64_t end, F f) {
  for_each_vec(begin, end, [&](auto span, int64_t i) {
    span.store(y + i, f(span.load(a + i), span.load(b + i)));
  });
}

// The destination is an input or overlaps none, so that no element depends on another's.
template <typename X, typename Y, typename F>
MW_INLINE void map_scalar(const X* a, const X* b, Y* y, int64_t begin, int64_t end, F f) {
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) y[i] = static_cast<Y>(f(a[i], b[i]));
}

template <typename X, typename Y>
MW_INLINE void convert_each(const X* x, Y* y, int64_t begin, int64_t end) {
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) y[i] = static_cast<Y>(x[i]);
}

template <typename X>
void compare_any(Compare op, const X* a, const X* b, uint8_t* y, int64_t begin, int64_t end) {
  switch (op) {
    case Compare::kEq: return map_scalar(a, b, y, begin, end, std::equal_to<X>());
    case Compare::kNe: return map_scalar(a, b, y, begin, end, std::not_equal_to<X>());
    case Compare::kLt: return map_scalar(a, b, y, begin, end, std::less<X>());
    case Compare::kLe: return map_scalar(a, b, y, begin, end, std::less_equal<X>());
    case Compare::kGt: return map_scalar(a, b, y, begin, end, std::greater<X>());
    case Compare::kGe: return map_scalar(a, b, y, begin, end, std::greater_equal<X>());
  }
}

}  // namespace

void add(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return u + v; });
}
void subtract(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return u - v; });
}
void multiply(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return u * v; });
}
void divide(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return u / v; });
}
void maximum(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return select((u > v) | (u != u), u, v); });
}
void minimum(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
  map2(a, b, y, begin, end, [](vf u, vf v) { return select((u < v) | (u != u), u, v); });
}

void negate(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return -v; });
}
void scale(const float* x, float c, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [c](vf v) { return v * c; });
}
void add_scalar(const float* x, float c, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [c](vf v) { return v + c; });
}
void accumulate(const float* x, float* y, int64_t begin, int64_t end) { add(y, x, y, begin, end); }
void axpy(float c, const float* x, float* y, int64_t begin, int64_t end) {
  map2(x, y, y, begin, end, [c](vf v, vf old) { return fma(v, c, old); });
}
void fill(float value, float* y, int64_t begin, int64_t end) {
  if (begin < end) std::fill(y + begin, y + end, value);
}
void copy(const float* x, float* y, int64_t begin, int64_t end) {
  if (begin < end) std::memmove(y + begin, x + begin, sizeof(float) * (end - begin));
}

void exp(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return exp_of(v); });
}
void log(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return log_of(v); });
}
void tanh(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return tanh_of(v); });
}
void erf(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return erf_of(v); });
}
void sqrt(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return sqrt_of(v); });
}
void rsqrt(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return 1.0f / sqrt_of(v); });
}
void sigmoid(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return sigmoid_of(v).value; });
}
void sine(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) {
    vf s, c;
    sin_cos_of(v, &s, &c);
    return s;
  });
}
void cosine(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) {
    vf s, c;
    sin_cos_of(v, &s, &c);
    return c;
  });
}

void relu(const float* x, float* y, int64_t begin, int64_t end) {
  map1(x, y, begin, end, [](vf v) { return select(v <= 0.0f, vf{}, v); });
}
void relu_backward(const float* dy, const float* x, float* dx, int64_t begin, int64_t end) {
  map2(dy, x, dx, begin, end, [](vf d, vf v) { return select(v > 0.0f, d, vf{}); });
}

void compare(Compare op, const float* a, const float* b, uint8_t* y, int64_t begin, int64_t end) {
  compare_any(op, a, b, y, begin, end);
}
void compare(Compare op, const int32_t* a, const int32_t* b, uint8_t* y, int64_t begin,
             int64_t end) {
  compare_any(op, a, b, y, begin, end);
}
void select(const uint8_t* mask, const float* a, const float* b, float* y, int64_t begin,
            int64_t end) {
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) y[i] = mask[i] ? a[i] : b[i];
}

void convert(const float* x, double* y, int64_t begin, int64_t end) {
  convert_each(x, y, begin, end);
}
void convert(const double* x, float* y, int64_t begin, int64_t end) {
  convert_each(x, y, begin, end);
}
void convert(const int32_t* x, float* y, int64_t begin, int64_t end) {
  convert_each(x, y, begin, end);
}
void convert(const uint8_t* x, float* y, int64_t begin, int64_t end) {
  convert_each(x, y, begin, end);
}
void convert(const int64_t* x, int32_t* y, int64_t begin, int64_t end) {
  convert_each(x, y, begin, end);
}

}  // namespace mw::kernels
