// Running sums down the rows of a matrix, shared by the kernels that reduce over rows.
#pragma once

#include <algorithm>

#include "kernels/vec.h"

namespace mw::kernels {

namespace detail {

// Like column_sums without `accumulate`; the sum of column c is at sums[s][c - first_column].
template <int kSums, typename Term>
MW_INLINE void new_column_sums(int64_t rows, float* const (&sums)[kSums], int64_t first_column,
                               int64_t begin, int64_t end, Term&& term) {
  constexpr int64_t kRowsAtOnce = 8;
  if (rows == 0) {
    for (float* sum : sums)
      std::fill(sum + (begin - first_column), sum + (std::max(begin, end) - first_column), 0.0f);
  }
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t last = std::min(rows, first + kRowsAtOnce);
    for_each_vec(begin, end, [&](auto span, int64_t c) {
      vf acc[kSums];
      for (int s = 0; s < kSums; ++s)
        acc[s] = first > 0 ? span.load(sums[s] + (c - first_column)) : vf{};
      const auto add_row = [&](int64_t row) MW_LAMBDA_INLINE {
        vf out[kSums];
        term(span, row, c, out);
        for (int s = 0; s < kSums; ++s) acc[s] += out[s];
      };
      if (last - first == kRowsAtOnce) {
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRowsAtOnce; ++r) add_row(first + r);
      } else {
        for (int64_t row = first; row < last; ++row) add_row(row);
      }
      for (int s = 0; s < kSums; ++s) span.store(sums[s] + (c - first_column), acc[s]);
    });
  }
}

}  // namespace detail

// For every column c of [begin, end): sums of the rows 0 .. rows-1 from +0, in ascending order,
// where term(span, row, c, out) writes what is added to each. They replace sums[..][c] or, with
// `accumulate`, are added to them as a whole, so that an element has the bits of a call without and
// an addition. A few rows are taken at a time, so that memory is read in streams.
template <int kSums, typename Term>
MW_INLINE void column_sums(int64_t rows, bool accumulate, float* const (&sums)[kSums],
                           int64_t begin, int64_t end, Term&& term) {
  if (!accumulate) return detail::new_column_sums<kSums>(rows, sums, 0, begin, end, term);
  constexpr int64_t kColumnsAtOnce = 512;
  float fresh[kSums][kColumnsAtOnce];
  float* parts[kSums];
  for (int s = 0; s < kSums; ++s) parts[s] = fresh[s];
  for (int64_t first = begin; first < end; first += kColumnsAtOnce) {
    const int64_t last = std::min(end, first + kColumnsAtOnce);
    detail::new_column_sums<kSums>(rows, parts, first, first, last, term);
    for_each_vec(first, last, [&](auto span, int64_t c) {
      for (int s = 0; s < kSums; ++s)
        span.store(sums[s] + c, span.load(sums[s] + c) + span.load(fresh[s] + (c - first)));
    });
  }
}

}  // namespace mw::kernels
