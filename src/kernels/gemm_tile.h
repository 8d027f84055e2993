// The innermost product of gemm(): a tile of C in registers, A broadcast, B in panels.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "kernels/vec.h"

namespace mw::kernels {

// 12 (AVX, SSE) or 28 (AVX-512) running sums; the other registers hold a row of B and an element of
// A.
inline constexpr int64_t kGemmRows = kLanes == 16 ? 14 : 6;
inline constexpr int64_t kGemmColumns = 2 * kLanes;

// One tile: the chain over `depth` products from +0, after `partial` is added to it where there is
// one, replaces C(i, j) or is added to it.
struct GemmTile {
  int64_t depth;
  const float* a;  // A(i, k): a[k * a_stride + i], or a[i * a_stride + k] for a kernel of rows
  int64_t a_stride;
  const float* b;  // B(k, j): b[k * kGemmColumns + j]
  float* c;
  int64_t c_stride;
  const float* partial;  // null, or like C, and it may be C
  int64_t partial_stride;
  int columns;  // of C, at most kGemmColumns; nothing beyond them is read or written
  bool adds;    // to the old C, rather than replacing it
};

using GemmTileKernel = void (*)(const GemmTile&);

// kRows rows of C. kPacked: A's elements of one k are neighbours.
template <int kRows, bool kPacked>
[[gnu::noinline]] static void gemm_tile(const GemmTile& t) {
  vf acc[kRows][2];
  const int64_t c_stride = t.c_stride, a_stride = t.a_stride;
  const bool whole = t.columns == kGemmColumns;
  const int left = t.columns < kLanes ? t.columns : kLanes, right = t.columns - left;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    acc[i][0] = acc[i][1] = vf{};
    __builtin_prefetch(t.c + i * c_stride, 1);
  }
  const float* a = t.a;
  const float* b = t.b;
#pragma GCC unroll 4
  for (int64_t k = 0; k < t.depth; ++k) {
    const vf b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const vf x = splat(kPacked ? a[i] : a[i * a_stride]);
      acc[i][0] = fma(x, b0, acc[i][0]);
      acc[i][1] = fma(x, b1, acc[i][1]);
    }
    a += kPacked ? a_stride : 1;
    b += kGemmColumns;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* c = t.c + i * c_stride;
    const float* partial = t.partial == nullptr ? nullptr : t.partial + i * t.partial_stride;
    if (whole) {
      const auto put = [&](int at, vf sum) MW_LAMBDA_INLINE {
        if (partial != nullptr) sum = load(partial + at) + sum;
        store(c + at, t.adds ? load(c + at) + sum : sum);
      };
      put(0, acc[i][0]);
      put(kLanes, acc[i][1]);
    } else {
      const auto put = [&](int at, vf sum, int count) MW_LAMBDA_INLINE {
        if (partial != nullptr) sum = load_partial(partial + at, count) + sum;
        store_partial(c + at, t.adds ? load_partial(c + at, count) + sum : sum, count);
      };
      put(0, acc[i][0], left);
      if (right > 0) put(kLanes, acc[i][1], right);
    }
  }
}

// Kernels of 1 to kGemmRows rows, by rows - 1.
template <bool kPacked>
inline constexpr std::array<GemmTileKernel, kGemmRows> kGemmTiles =
    []<int... kRow>(std::integer_sequence<int, kRow...>) {
      return std::array<GemmTileKernel, kGemmRows>{gemm_tile<kRow + 1, kPacked>...};
    }(std::make_integer_sequence<int, kGemmRows>());

}  // namespace mw::kernels
