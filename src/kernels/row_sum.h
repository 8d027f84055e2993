// Sums over a row in double precision with one association for every row length: element e is added
// to lane e % 16 in ascending order, and the 16 lanes are added as a tree. The width of a vector
// and the alignment of the row have no part in it.
#pragma once

#include "kernels/vec.h"

namespace mw::kernels {

inline constexpr int kSumLanes = 16;

MW_INLINE double sum_lanes(const vd* acc) {
  double t[kSumLanes];
  std::memcpy(t, acc, sizeof t);
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  }
  return t[0];
}

// Walks [0, n) in groups of kSumLanes elements: f(span, i, slot) sees elements i .. i +
// span.count(); slot is the group's vector, so that lane l of it belongs to sum lane slot * kLanes
// + l.
template <typename F>
MW_INLINE void for_each_sum_vec(int64_t n, F&& f) {
  constexpr int kSlots = kSumLanes / kLanes;
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma GCC unroll 4
    for (int slot = 0; slot < kSlots; ++slot) f(Whole{}, i + slot * kLanes, slot);
  }
#pragma GCC unroll 4
  for (int slot = 0; slot < kSlots; ++slot) {
    const int64_t left = n - i - slot * kLanes;
    if (left >= kLanes) {
      f(Whole{}, i + slot * kLanes, slot);
    } else if (left > 0) {
      f(Part{static_cast<int>(left)}, i + slot * kLanes, slot);
    }
  }
}

// One running sum of a row.
struct RowSum {
  vd acc[2 * kSumLanes / kLanes] = {};

  // Adds a vector's lanes. Lanes beyond the row must be 0.
  MW_ALWAYS_INLINE void add(vf v, int slot) {
    acc[2 * slot] += low_half(v);
    acc[2 * slot + 1] += high_half(v);
  }
  // Adds the lanes' products, each exact in double.
  MW_ALWAYS_INLINE void add_product(vf a, vf b, int slot) {
    acc[2 * slot] = fma(low_half(a), low_half(b), acc[2 * slot]);
    acc[2 * slot + 1] = fma(high_half(a), high_half(b), acc[2 * slot + 1]);
  }
  double total() const { return sum_lanes(acc); }
};

// Largest element of a row; -inf of an empty one. A NaN in the row makes it NaN.
MW_INLINE float row_max_of(const float* x, int64_t n) {
  vf top = splat(-kInfinity);
  vi nan = splat_i(0);
  for_each_vec(0, n, [&](auto span, int64_t i) {
    const vf v = span.keep(span.load(x + i), -kInfinity);
    top = max_of(v, top);
    nan |= v != v;
  });
  return any(nan) ? std::numeric_limits<float>::quiet_NaN() : max_lane(top);
}

}  // namespace mw::kernels
