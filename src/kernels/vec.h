// Vectors of floats through GCC's vector extensions, as wide as the processor has them.
//
// for_each_vec() walks a range in whole vectors and ends with one partial vector whose missing
// lanes read as 0 and are not written. Body and tail run the same operations on every lane, so that
// an element's bits do not depend on its place in the range. Sums over a row are in row_sum.h, exp
// and its kin in vec_math.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#define MW_ALWAYS_INLINE inline __attribute__((always_inline))
#define MW_INLINE static MW_ALWAYS_INLINE
#define MW_LAMBDA_INLINE __attribute__((always_inline))

namespace mw::kernels {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

typedef float vf __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * kLanes), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes), may_alias));
typedef float vf_unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
// Half as many lanes, and as many bytes: the doubles of one half of a vf.
typedef float vf_half __attribute__((vector_size(2 * kLanes), may_alias));
typedef double vd __attribute__((vector_size(4 * kLanes), may_alias));
typedef int64_t vl __attribute__((vector_size(4 * kLanes), may_alias));

MW_INLINE vf splat(float x) { return x - vf{}; }
MW_INLINE vi splat_i(int32_t x) { return x - vi{}; }
MW_INLINE vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
MW_INLINE void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }
MW_INLINE vi load_i(const int32_t* p) { return *reinterpret_cast<const vi_unaligned*>(p); }
MW_INLINE vi bits_of(vf v) { return reinterpret_cast<vi>(v); }
MW_INLINE vf float_of(vi v) { return reinterpret_cast<vf>(v); }

MW_INLINE vi lane_index() {
  vi lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// The first n lanes from memory, 0 in the others. REQUIRES: 0 <= n <= kLanes.
MW_INLINE vf load_partial(const float* p, int n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
#elif defined(__AVX2__)
  return _mm256_maskload_ps(p, reinterpret_cast<__m256i>(lane_index() < n));
#else
  vf v{};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

MW_INLINE void store_partial(float* p, vf v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(p, reinterpret_cast<__m256i>(lane_index() < n), v);
#else
  for (int i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// a * b + c, rounded once where the processor can; twice elsewhere.
MW_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && defined(__AVX__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
MW_INLINE vf fma(vf a, vf b, float c) { return fma(a, b, splat(c)); }
MW_INLINE vf fma(vf a, float b, vf c) { return fma(a, splat(b), c); }

MW_INLINE vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__) && defined(__AVX__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

MW_INLINE vf select(vi mask, vf yes, vf no) { return mask ? yes : no; }

// b where a or b is NaN, as the instruction has it.
MW_INLINE vf min_of(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, a, b);  // the unmasked form warns in g++ 12
#elif defined(__AVX__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

MW_INLINE vf max_of(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#elif defined(__AVX__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

MW_INLINE vf sqrt_of(vf v) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, v);
#elif defined(__AVX__)
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

MW_INLINE bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask));
#elif defined(__AVX__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask));
#else
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= mask[i];
  return any != 0;
#endif
}

MW_INLINE vf abs_of(vf v) { return float_of(bits_of(v) & 0x7fffffff); }
// |magnitude| with the sign of `sign`.
MW_INLINE vf copy_sign(vf magnitude, vf sign) {
  return float_of((bits_of(magnitude) & 0x7fffffff) |
                  (bits_of(sign) & std::numeric_limits<int32_t>::min()));
}

MW_INLINE vd widen(vf_half v) { return __builtin_convertvector(v, vd); }
MW_INLINE vd low_half(vf v) {
  vf_half half;
  std::memcpy(&half, &v, sizeof half);
  return widen(half);
}
MW_INLINE vd high_half(vf v) {
  vf_half half;
  std::memcpy(&half, reinterpret_cast<const char*>(&v) + sizeof half, sizeof half);
  return widen(half);
}

MW_INLINE vf narrow(vd low, vd high) {
  const vf_half halves[2] = {__builtin_convertvector(low, vf_half),
                             __builtin_convertvector(high, vf_half)};
  vf v;
  std::memcpy(&v, halves, sizeof v);
  return v;
}

// How for_each_vec() hands out memory: kLanes floats, or the `n` that are left.
struct Whole {
  static constexpr int count() { return kLanes; }
  MW_ALWAYS_INLINE vf load(const float* p) const { return kernels::load(p); }
  MW_ALWAYS_INLINE void store(float* p, vf v) const { kernels::store(p, v); }
  // v, with `fill` in the lanes that are not there.
  MW_ALWAYS_INLINE vf keep(vf v, float) const { return v; }
};
struct Part {
  int n;
  int count() const { return n; }
  MW_ALWAYS_INLINE vf load(const float* p) const { return load_partial(p, n); }
  MW_ALWAYS_INLINE void store(float* p, vf v) const { store_partial(p, v, n); }
  MW_ALWAYS_INLINE vf keep(vf v, float fill) const {
    return select(lane_index() < n, v, splat(fill));
  }
};

// f(span, i) for i = begin, begin + kLanes, … with a Whole span, then with a Part for the rest.
template <typename F>
MW_INLINE void for_each_vec(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(Whole{}, i);
  if (i < end) f(Part{static_cast<int>(end - i)}, i);
}

// One vector's maximum; NaN lanes may be lost.
MW_INLINE float max_lane(vf v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

}  // namespace mw::kernels
