// The small matrix products of attention: a tile of kTileRows x kTileColumns of C is held in
// registers while A is broadcast and B is read in panels.
//
// Every element of C is a sum of chains of fused multiply-adds, a chain a block of the summed
// index, both in ascending order: its bits do not depend on how rows and columns are cut into
// tiles, and its error grows with the number of blocks, not of products, as gemm.h has it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/scratch.h"
#include "kernels/transpose.h"
#include "kernels/vec.h"

namespace mw::kernels {

inline constexpr int64_t kTileRows = kLanes == 16 ? 12 : 6;
inline constexpr int64_t kTileColumns = 2 * kLanes;
// Queries and keys of one block: multiples of both tile sizes, as their products appear on both
// sides.
inline constexpr int64_t kQueryBlock = 96;
inline constexpr int64_t kKeyBlock = 96;
static_assert(kQueryBlock % kTileRows == 0 && kKeyBlock % kTileRows == 0);
static_assert(kQueryBlock % kTileColumns == 0 && kKeyBlock % kTileColumns == 0);

// What a tile's sums are added to.
enum class Start { kZero, kOld, kOldScaled };

// C[kTileRows, kTileColumns] (rows every c_stride) = start + A B over `depth`. A(i, k) is
// a[i * a_stride + k], or a[k * a_stride + i] if kTransposed. B is a panel [depth][kTileColumns].
// kOldScaled multiplies row i of the old C by factor[i].
template <Start kStart, bool kTransposed>
[[gnu::noinline]] static void tile_product(int64_t depth, const float* a, int64_t a_stride,
                                           const float* b, float* c, int64_t c_stride,
                                           const float* factor = nullptr) {
  vf acc[kTileRows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const vf b0 = load(b + k * kTileColumns);
    const vf b1 = load(b + k * kTileColumns + kLanes);
#pragma GCC unroll 12
    for (int64_t i = 0; i < kTileRows; ++i) {
      const vf x = splat(kTransposed ? a[k * a_stride + i] : a[i * a_stride + k]);
      acc[i][0] = fma(x, b0, acc[i][0]);
      acc[i][1] = fma(x, b1, acc[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < kTileRows; ++i) {
    for (int64_t half = 0; half < 2; ++half) {
      float* at = c + i * c_stride + half * kLanes;
      if constexpr (kStart == Start::kOld) acc[i][half] += load(at);
      if constexpr (kStart == Start::kOldScaled)
        acc[i][half] = fma(splat(factor[i]), load(at), acc[i][half]);
      store(at, acc[i][half]);
    }
  }
}

// x[rows][D] (rows every x_stride) times factor, as a contiguous A operand of padded_rows rows; the
// padding is 0.
[[gnu::noinline]] inline void pack_rows(const float* x, int64_t x_stride, int64_t rows,
                                        int64_t padded_rows, int64_t D, float factor, float* a) {
  for (int64_t r = 0; r < rows; ++r) {
    for_each_vec(0, D, [&](auto span, int64_t i) {
      span.store(a + r * D + i, span.load(x + r * x_stride + i) * factor);
    });
  }
  std::fill(a + rows * D, a + padded_rows * D, 0.0f);
}

// The same as a B operand summed over rows: panels [ceil(D /
// kTileColumns)][panel_rows][kTileColumns], 0 in the padding of the columns and in the rows up to
// padded_rows.
[[gnu::noinline]] inline void pack_panels(const float* x, int64_t x_stride, int64_t rows,
                                          int64_t padded_rows, int64_t panel_rows, int64_t D,
                                          float factor, float* b) {
  for (int64_t column = 0; column < D; column += kTileColumns, b += panel_rows * kTileColumns) {
    const int left = static_cast<int>(std::min(kTileColumns, D - column));
    const int first = std::min(left, kLanes);
    for (int64_t r = 0; r < rows; ++r) {
      const float* source = x + r * x_stride + column;
      float* target = b + r * kTileColumns;
      if (left == kTileColumns) {
        store(target, load(source) * factor);
        store(target + kLanes, load(source + kLanes) * factor);
      } else {
        store(target, load_partial(source, first) * factor);
        store(target + kLanes, load_partial(source + first, left - first) * factor);
      }
    }
    std::fill(b + rows * kTileColumns, b + padded_rows * kTileColumns, 0.0f);
  }
}

// The transpose as a B operand summed over D: panels [ceil(rows / kTileColumns)][D][kTileColumns],
// 0 beyond the rows.
[[gnu::noinline]] inline void pack_transposed_panels(const float* x, int64_t x_stride, int64_t rows,
                                                     int64_t D, float* b) {
  for (int64_t first = 0; first < round_up(rows, kTileColumns); first += kLanes) {
    float* panel = b + first / kTileColumns * kTileColumns * D + first % kTileColumns;
    for_each_vec(0, D, [&](auto span, int64_t d) {
      vf square[kLanes];
#pragma GCC unroll 16
      for (int64_t j = 0; j < kLanes; ++j) {
        square[j] = first + j < rows ? span.load(x + (first + j) * x_stride + d) : vf{};
      }
      detail::transpose(square);
#pragma GCC unroll 16
      for (int64_t j = 0; j < kLanes; ++j) {
        if (j < span.count()) store(panel + (d + j) * kTileColumns, square[j]);
      }
    });
  }
}

}  // namespace mw::kernels
