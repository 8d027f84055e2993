// Packing for gemm(): parts of A and B in the order in which the tiles read them.
//
// A panel of A is [depth][kGemmRows], one of B [depth][kGemmColumns]; what lies beyond the matrix
// is 0 in a panel of B and undefined in one of A.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm_tile.h"
#include "kernels/scratch.h"
#include "kernels/transpose.h"

namespace mw::kernels {

// Elements that a store may write beyond the last panel of A.
inline constexpr int64_t kGemmPackSlack = 2 * kLanes;

// Transposes x[0 .. rows)[0 .. depth) (rows every `stride`) into panel[k * kWidth + r]. Writes
// at most kLanes elements beyond panel[depth * kWidth].
template <int64_t kWidth>
MW_INLINE void pack_transposed(const float* x, int64_t stride, int64_t rows, int64_t depth,
                               float* panel) {
  constexpr int64_t kGroups = (kWidth + kLanes - 1) / kLanes;
  for (int64_t k = 0; k < depth; k += kLanes) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, depth - k));
    vf square[kGroups][kLanes];
#pragma GCC unroll 4
    for (int64_t g = 0; g < kGroups; ++g) {
#pragma GCC unroll 16
      for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t row = g * kLanes + r;
        square[g][r] = vf{};
        if (row < kWidth && row < rows) {
          const float* source = x + row * stride + k;
          square[g][r] = count == kLanes ? load(source) : load_partial(source, count);
          __builtin_prefetch(source + kWidth * stride);  // of the next panel
        }
      }
      detail::transpose(square[g]);
    }
    // Ascending, since the last group of one k may write into the first of the next.
    if (count == kLanes) {
#pragma GCC unroll 16
      for (int64_t j = 0; j < kLanes; ++j) {
#pragma GCC unroll 4
        for (int64_t g = 0; g < kGroups; ++g)
          store(panel + (k + j) * kWidth + g * kLanes, square[g][j]);
      }
    } else {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t g = 0; g < kGroups; ++g)
          store(panel + (k + j) * kWidth + g * kLanes, square[g][j]);
      }
    }
  }
}

// Copies x[0 .. depth)[0 .. width) (rows every `stride`) to panel[k * kWidth + j], 0 beyond width.
template <int64_t kWidth>
MW_INLINE void pack_last_straight(const float* x, int64_t stride, int64_t width, int64_t depth,
                                  float* panel) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < kWidth; j += kLanes) {
      const auto there = static_cast<int>(std::clamp<int64_t>(width - j, 0, kLanes));
      const auto room = static_cast<int>(std::min<int64_t>(kWidth - j, kLanes));
      const vf part = there == 0 ? vf{} : load_partial(x + k * stride + j, there);
      store_partial(panel + k * kWidth + j, part, room);
    }
  }
}

// The same for kPanels whole panels that lie side by side, row by row: the lines of memory that two
// panels share are read once.
template <int64_t kWidth, int64_t kPanels>
MW_INLINE void pack_straight(const float* x, int64_t stride, int64_t depth, float* panels) {
  const int64_t panel = depth * kWidth;
  for (int64_t k = 0; k < depth; ++k) {
    const float* source = x + k * stride;
    float* target = panels + k * kWidth;
    __builtin_prefetch(source + 8 * stride);
    __builtin_prefetch(source + 8 * stride + kPanels * kWidth - 1);
#pragma GCC unroll 8
    for (int64_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < kWidth; j += kLanes) {
        // A partial vector's other lanes belong to the next panel in x, and to the next k, which
        // is written later, in the packed one; the last k must not reach into the next panel.
        const auto room = static_cast<int>(std::min<int64_t>(kWidth - j, kLanes));
        const float* from = source + p * kWidth + j;
        float* to = target + p * panel + j;
        if (room == kLanes) {
          store(to, load(from));
        } else if (p + 1 < kPanels && k + 1 < depth) {
          store(to, load(from));
        } else {
          store_partial(to, load_partial(from, room), room);
        }
      }
    }
  }
}

// All panels of a block that is `length` wide. `transposed`: the block is stored as [length,
// depth].
template <int64_t kWidth>
static void pack_block(const float* x, int64_t stride, bool transposed, int64_t length,
                       int64_t depth, float* panels) {
  constexpr int64_t kTogether = kWidth % kLanes == 0 ? 4 : 8;
  int64_t i = 0;
  if (!transposed) {
    for (; i + kTogether * kWidth <= length; i += kTogether * kWidth)
      pack_straight<kWidth, kTogether>(x + i, stride, depth, panels + i * depth);
    for (; i + kWidth <= length; i += kWidth)
      pack_straight<kWidth, 1>(x + i, stride, depth, panels + i * depth);
    if (i < length)
      pack_last_straight<kWidth>(x + i, stride, length - i, depth, panels + i * depth);
    return;
  }
  for (; i < length; i += kWidth) {
    pack_transposed<kWidth>(x + i * stride, stride, std::min(kWidth, length - i), depth,
                            panels + i * depth);
  }
}

}  // namespace mw::kernels
