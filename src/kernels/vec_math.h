// exp, log, tanh, erf and their kin on vectors, for all floats including subnormals, infinities and
// NaN. Largest errors measured over all floats, in units in the last place: exp 0.9, log 0.9,
// tanh 1.4, erf 1.0, sigmoid 2.7, sin and cos 0.6 (0.2 more without fused multiply-add).
//
// The polynomials are minimax fits for one fused multiply-add chain (after N. Juffa's published
// single-precision expf, logf and erff, and Cephes' tanhf).
#pragma once

#include "kernels/vec.h"

namespace mw::kernels {
namespace detail {

// exp(x) = 2^n * f with f in [0.7, 1.42], for x in [-104, 89]. The low bits of *n are n + bias, the
// 23rd and higher ones are not part of it.
MW_INLINE vf exp_parts(vf x, float bias, vi* n) {
  const float round = 12582912.0f + bias;  // 1.5 * 2^23: adding it rounds to an integer
  const vf shifted = fma(x, 1.442695041f, splat(round));
  const vf count = shifted - round;
  *n = bits_of(shifted);
  vf r = fma(count, -6.93145752e-1f, x);  // ln 2, upper 14 bits: count * that is exact
  r = fma(count, -1.42860677e-6f, r);
  vf p = splat(1.37805939e-3f);
  p = fma(p, r, 8.37312452e-3f);
  p = fma(p, r, 4.16695364e-2f);
  p = fma(p, r, 1.66664720e-1f);
  p = fma(p, r, 4.99999851e-1f);
  p = fma(p, r, 1.0f);
  return fma(p, r, 1.0f);
}

}  // namespace detail

MW_INLINE vf exp_of(vf x) {
  vi n;
  // The operands' order keeps NaN: min and max return the second one.
  const vf f = detail::exp_parts(max_of(splat(-104.0f), min_of(splat(89.0f), x)), 254.0f, &n);
  const vi both =
      n & 0x1ff;  // n + 2 * 127, the exponents of two factors: neither over- nor underflows
  const vi half = both >> 1;
  return f * float_of(half << 23) * float_of((both - half) << 23);
}

// exp for arguments up to 80, with 0 for a result below 2^-125: a third cheaper. For probabilities.
MW_INLINE vf exp_probability(vf x) {
  vi n;
  const vf f = detail::exp_parts(max_of(splat(-87.0f), x), 127.0f, &n);
  return select(x < -86.6f, vf{}, f * float_of(n << 23));
}

MW_INLINE vf log_of(vf a) {
  const vi tiny = a < std::numeric_limits<float>::min();
  const vf x = select(tiny, a * 8388608.0f, a);
  const vf bias = select(tiny, splat(-23.0f), vf{});
  const vu bits = reinterpret_cast<vu>(x);  // unsigned: of a negative x the difference wraps
  const vu e = (bits - 0x3f2aaaabu) & 0xff800000u;
  const vf m = reinterpret_cast<vf>(bits - e) - 1.0f;  // in [-1/3, 1/3]
  const vf exponent =
      fma(__builtin_convertvector(reinterpret_cast<vi>(e), vf), 1.19209290e-7f, bias);
  const vf s = m * m;
  vf r = splat(-0.130310059f);
  vf t = splat(0.140869141f);
  r = fma(r, s, -0.121483512f);
  t = fma(t, s, 0.139814854f);
  r = fma(r, s, -0.166846126f);
  t = fma(t, s, 0.200120345f);
  r = fma(r, s, -0.249996200f);
  r = fma(t, m, r);
  r = fma(r, m, 0.333331972f);
  r = fma(r, m, -0.5f);
  r = fma(r, s, m);
  r = fma(exponent, 0.693147182f, r);
  r = select(a == 0.0f, splat(-kInfinity), r);
  r = select(a == kInfinity, a, r);
  return select((a < 0.0f) | (a != a), splat(std::numeric_limits<float>::quiet_NaN()), r);
}

MW_INLINE vf tanh_of(vf x) {
  const vf a = abs_of(x);
  const vf s = x * x;
  vf p = splat(-5.70498872745e-3f);
  p = fma(p, s, 2.06390887954e-2f);
  p = fma(p, s, -5.37397155531e-2f);
  p = fma(p, s, 1.33314422036e-1f);
  p = fma(p, s, -3.33332819422e-1f);
  const vf near_zero = fma(p * s, x, x);
  const vf far = 1.0f - 2.0f / (exp_of(a + a) + 1.0f);
  return select(a < 0.625f, near_zero, copy_sign(far, x));
}

MW_INLINE vf erf_of(vf a) {
  const vf t = abs_of(a);
  const vf s = a * a;
  vf near_zero = splat(-5.96761703e-4f);
  near_zero = fma(near_zero, s, 4.99119423e-3f);
  near_zero = fma(near_zero, s, -2.67681349e-2f);
  near_zero = fma(near_zero, s, 1.12819925e-1f);
  near_zero = fma(near_zero, s, -3.76125336e-1f);
  near_zero = fma(near_zero, s, 1.28379166e-1f);
  near_zero = fma(near_zero, a, a);
  const vf u4 = min_of(splat(4.0f), t);  // erf is 1 beyond; keeps the polynomial in its range
  const vf s4 = u4 * u4;
  vf r = fma(u4, -1.72853470e-5f, splat(3.83197126e-4f));
  const vf u = fma(u4, -3.88396438e-3f, splat(2.42546219e-2f));
  r = fma(r, s4, u);
  r = fma(r, u4, -1.06777877e-1f);
  r = fma(r, u4, -6.34846687e-1f);
  r = fma(r, u4, -1.28717512e-1f);
  r = fma(r, u4, -u4);
  const vf far = copy_sign(1.0f - exp_probability(r), a);
  return select(t > 0.927734375f, far, near_zero);
}

// 1 / (1 + exp(-x)), and what it lacks to 1, neither losing digits.
struct Sigmoid {
  vf value;
  vf complement;
};
MW_INLINE Sigmoid sigmoid_of(vf x) {
  const vf e = exp_of(float_of(bits_of(x) | std::numeric_limits<int32_t>::min()));  // exp(-|x|)
  const vf large = 1.0f / (1.0f + e);
  const vf small = e * large;
  const vi positive = x > 0.0f;
  return {select(positive, large, small), select(positive, small, large)};
}

namespace detail {

// Sine and cosine in double, for |x| < 2^31: x less a multiple n of pi/2 in four parts, of which
// the first three have 22 bits, so that n * part is exact; then fdlibm's kernels.
MW_INLINE void sin_cos(vd x, vd* sine, vd* cosine) {
  const double round = 6755399441055744.0;  // 1.5 * 2^52
  const vd shifted = x * 0.63661977236758134308 + round;
  const vd n = shifted - round;
  vd r = x - n * 0x1.921fb00000000p+0;
  r = r - n * 0x1.5110b00000000p-22;
  r = r - n * 0x1.1846980000000p-44;
  r = r - n * 0x1.3198a2e037073p-69;
  const vd z = r * r;
  vd s = z * 1.58969099521155010221e-10 - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = s * z * r + r;
  vd c = z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = c * z * z - z * 0.5 + 1.0;
  const vl quadrant = reinterpret_cast<vl>(shifted);
  const vl odd = -(quadrant & 1);
  const vd a = odd ? c : s;
  const vd b = odd ? s : c;
  *sine = reinterpret_cast<vd>(reinterpret_cast<vl>(a) ^ ((quadrant & 2) << 62));
  *cosine = reinterpret_cast<vd>(reinterpret_cast<vl>(b) ^ (((quadrant + 1) & 2) << 62));
}

}  // namespace detail

// REQUIRES: |x| < 2^31.
MW_INLINE void sin_cos_of(vf x, vf* sine, vf* cosine) {
  vd s[2], c[2];
  detail::sin_cos(low_half(x), &s[0], &c[0]);
  detail::sin_cos(high_half(x), &s[1], &c[1]);
  *sine = narrow(s[0], s[1]);
  *cosine = narrow(c[0], c[1]);
}

}  // namespace mw::kernels
