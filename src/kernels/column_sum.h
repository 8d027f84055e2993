// Running sums down the rows of a matrix, shared by the kernels that reduce over rows.
#pragma once

#include <algorithm>

#include "kernels/vec.h"

namespace mw::kernels {

// For every column c of [begin, end): the running sums sum_0[c], sum_1[c], … continue over the rows
// 0 .. rows-1 in ascending order, where term(span, row, c, out) writes what is added to each.
// Without `accumulate` they start at 0. A few rows are taken at a time, so that memory is read in
// streams.
template <int kSums, typename Term>
MW_INLINE void column_sums(int64_t rows, bool accumulate, float* const (&sums)[kSums],
                           int64_t begin, int64_t end, Term&& term) {
  constexpr int64_t kRowsAtOnce = 8;
  if (rows == 0 && !accumulate) {
    for (float* sum : sums) std::fill(sum + begin, sum + std::max(begin, end), 0.0f);
  }
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t last = std::min(rows, first + kRowsAtOnce);
    const bool load_old = accumulate || first > 0;
    for_each_vec(begin, end, [&](auto span, int64_t c) {
      vf acc[kSums];
      for (int s = 0; s < kSums; ++s) acc[s] = load_old ? span.load(sums[s] + c) : vf{};
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
      for (int s = 0; s < kSums; ++s) span.store(sums[s] + c, acc[s]);
    });
  }
}

}  // namespace mw::kernels
