// Sums and maxima over one dimension.
//
// R rows, N columns; outer, reduce and inner are the products of the dimensions before, in and
// after the reduced one.
#pragma once

#include <cstdint>

namespace mw::kernels {

// y[c] (+)= sum over rows of x[r, c], for the columns [begin, end): one running sum in ascending
// row order. A row of x starts every row_stride elements.
void column_sum(const float* x_RN, int64_t row_stride, int64_t R, bool accumulate, float* y_N,
                int64_t begin, int64_t end);

// y[r] = sum of row r, in double, rounded once; rows [begin, end).
void row_sum(const float* x_RN, int64_t N, float* y_R, int64_t begin, int64_t end);

// y[r] = largest element of row r, NaN if there is one, -inf of no elements; rows [begin, end).
void row_max(const float* x_RN, int64_t N, float* y_R, int64_t begin, int64_t end);

// y[o, i] = sum over r of x[o, r, i], for the elements o * inner + i of [begin, end). Sums as
// row_sum where inner is 1, as column_sum elsewhere.
void reduce_sum(const float* x, int64_t reduce, int64_t inner, float* y, int64_t begin,
                int64_t end);

}  // namespace mw::kernels
