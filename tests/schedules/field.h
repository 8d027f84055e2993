// Exact arithmetic for the independent executor: numbers modulo the prime 2^61 - 1. Sums and
// products have no rounding, so that no layout and no order of work may change a bit; a function
// that is no polynomial is a hash.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/rng.h"

namespace mw::field {

using Num = uint64_t;  // below kPrime
inline constexpr int kBits = 61;
inline constexpr Num kPrime = (Num{1} << kBits) - 1;

constexpr Num fold(uint64_t x) {
  x = (x & kPrime) + (x >> kBits);
  return x >= kPrime ? x - kPrime : x;
}
constexpr Num add(Num a, Num b) { return fold(a + b); }
constexpr Num negate(Num a) { return a == 0 ? 0 : kPrime - a; }
constexpr Num sub(Num a, Num b) { return add(a, negate(b)); }
constexpr Num mul(Num a, Num b) {
  __extension__ using Wide = unsigned __int128;
  const Wide x = static_cast<Wide>(a) * b;
  return fold((static_cast<uint64_t>(x) & kPrime) + static_cast<uint64_t>(x >> kBits));
}
constexpr Num power(Num a, uint64_t n) {
  Num result = 1;
  for (; n > 0; n >>= 1, a = mul(a, a))
    if ((n & 1) != 0) result = mul(result, a);
  return result;
}
constexpr Num inverse(Num a) { return power(a, kPrime - 2); }  // 0 of 0
constexpr Num div(Num a, Num b) { return mul(a, inverse(b)); }

constexpr Num from_int(int64_t x) {
  return x >= 0 ? fold(static_cast<uint64_t>(x)) : negate(fold(-static_cast<uint64_t>(x)));
}
// A double is an integer times a power of two, and 2^61 is 1. What is not finite is the least
// number.
inline Num from_double(double x) {
  if (!std::isfinite(x)) return 0;
  int exponent = 0;
  const double mantissa = std::ldexp(std::frexp(x, &exponent), 53);
  const int shift = ((exponent - 53) % kBits + kBits) % kBits;
  return mul(from_int(static_cast<int64_t>(mantissa)), power(2, static_cast<uint64_t>(shift)));
}

// What stands for a function, by what it is of: a gradient and a recomputation find the same.
enum class Function : uint64_t {
  kExp,
  kLog,
  kTanh,
  kSqrt,
  kRsqrt,
  kErf,
  kRelu,
  kGelu,
  kGeluSlope,
  kSilu,
  kSiluSlope,
  kSigmoid,
  kSigmoidSlope,
  kDropout,
  kCos,
  kSin,
  kRandom,
  kClip,
  kInput
};
template <typename... Args>
constexpr Num hash(Function function, Args... args) {
  uint64_t mixed = mix_bits(static_cast<uint64_t>(function));
  ((mixed = mix_bits(mixed ^ static_cast<uint64_t>(args))), ...);
  return fold(mixed);
}

}  // namespace mw::field
