// The transpose of a square of vectors in registers.
#pragma once

#include <utility>

#include "kernels/vec.h"

namespace mw::kernels::detail {

// One step of a transpose: exchanges the lanes of a and b whose numbers differ in the bit kBit.
template <int kBit, int... kLane>
MW_INLINE void exchange(vf& a, vf& b, std::integer_sequence<int, kLane...>) {
  const vf first =
      __builtin_shufflevector(a, b, (kLane & kBit ? kLanes + (kLane ^ kBit) : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kBit ? kLanes + kLane : kLane ^ kBit)...);
  a = first;
}

// The transpose of kLanes x kLanes floats, one bit of the indices after the other.
template <int kBit = 1>
MW_INLINE void transpose(vf (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBit) == 0) {
      exchange<kBit>(rows[i], rows[i + kBit], std::make_integer_sequence<int, kLanes>());
    }
  }
  if constexpr (2 * kBit < kLanes) transpose<2 * kBit>(rows);
}

}  // namespace mw::kernels::detail
