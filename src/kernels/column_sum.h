// Running sums down the rows of a matrix, shared by the kernels that reduce over rows.
#pragma once

#include <algorithm>

#include "kernels/vec.h"

namespace mw::kernels {

namespace detail {

// Of rows [begin_row, end_row), of which there is one at least; the sum of column c is at
// sums[s][c - begin].
template <int kSums, typename Term>
MW_INLINE void run_of_column_sums(int64_t begin_row, int64_t end_row, float* const (&sums)[kSums],
                                  int64_t begin, int64_t end, Term&& term) {
  constexpr int64_t kRowsAtOnce = 8;
  for (int64_t first = begin_row; first < end_row; first += kRowsAtOnce) {
    const int64_t last = std::min(end_row, first + kRowsAtOnce);
    for_each_vec(begin, end, [&](auto span, int64_t c) {
      vf acc[kSums];
      for (int s = 0; s < kSums; ++s)
        acc[s] = first > begin_row ? span.load(sums[s] + (c - begin)) : vf{};
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
      for (int s = 0; s < kSums; ++s) span.store(sums[s] + (c - begin), acc[s]);
    });
  }
}

}  // namespace detail

// Rows of which a column's sum is one chain; longer sums are sums of such runs' (see gemm.h).
inline constexpr int64_t kSumRun = 256;

// For every column c of [begin, end): sums of the rows 0 .. rows-1, run by run and each from +0, in
// ascending order, where term(span, row, c, out) writes what is added to each. They replace
// sums[..][c] or, with `accumulate`, are added to them as a whole, so that an element has the bits
// of a call without and an addition. A few rows are taken at a time, so that memory is read in
// streams.
template <int kSums, typename Term>
MW_INLINE void column_sums(int64_t rows, bool accumulate, float* const (&sums)[kSums],
                           int64_t begin, int64_t end, Term&& term) {
  constexpr int64_t kColumnsAtOnce = 512;
  float total[kSums][kColumnsAtOnce], fresh[kSums][kColumnsAtOnce];
  float* parts[kSums];
  for (int s = 0; s < kSums; ++s) parts[s] = fresh[s];
  for (int64_t first = begin; first < end; first += kColumnsAtOnce) {
    const int64_t last = std::min(end, first + kColumnsAtOnce);
    for (int s = 0; s < kSums; ++s) std::fill_n(total[s], last - first, 0.0f);
    for (int64_t row = 0; row < rows; row += kSumRun) {
      detail::run_of_column_sums<kSums>(row, std::min(rows, row + kSumRun), parts, first, last,
                                        term);
      for (int s = 0; s < kSums; ++s) {
        for_each_vec(0, last - first, [&](auto span, int64_t c) {
          span.store(total[s] + c, span.load(total[s] + c) + span.load(fresh[s] + c));
        });
      }
    }
    for_each_vec(first, last, [&](auto span, int64_t c) {
      for (int s = 0; s < kSums; ++s) {
        const vf sum = span.load(total[s] + (c - first));
        span.store(sums[s] + c, accumulate ? span.load(sums[s] + c) + sum : sum);
      }
    });
  }
}

}  // namespace mw::kernels
