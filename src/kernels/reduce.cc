#include "kernels/reduce.h"

#include "kernels/column_sum.h"
#include "kernels/row_sum.h"

namespace mw::kernels {

void column_sum(const float* x_RN, int64_t row_stride, int64_t R, bool accumulate, float* y_N,
                int64_t begin, int64_t end) {
  float* const sums[1] = {y_N};
  column_sums<1>(R, accumulate, sums, begin, end,
                 [&](auto span, int64_t r, int64_t c, vf(&out)[1])
                     MW_LAMBDA_INLINE { out[0] = span.load(x_RN + r * row_stride + c); });
}

void row_sum(const float* x_RN, int64_t N, float* y_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = x_RN + r * N;
    RowSum sum;
    for_each_sum_vec(N, [&](auto span, int64_t i, int slot) { sum.add(span.load(x + i), slot); });
    y_R[r] = static_cast<float>(sum.total());
  }
}

void row_max(const float* x_RN, int64_t N, float* y_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) y_R[r] = row_max_of(x_RN + r * N, N);
}

void reduce_sum(const float* x, int64_t reduce, int64_t inner, float* y, int64_t begin,
                int64_t end) {
  if (inner == 1) return row_sum(x, reduce, y, begin, end);
  for (int64_t i = begin; i < end;) {
    const int64_t outer = i / inner;
    const int64_t first = i - outer * inner;
    const int64_t last = std::min(inner, first + (end - i));
    column_sum(x + outer * reduce * inner, inner, reduce, false, y + outer * inner, first, last);
    i += last - first;
  }
}

}  // namespace mw::kernels
