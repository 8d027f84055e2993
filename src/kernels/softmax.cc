#include "kernels/softmax.h"

#include "kernels/row_sum.h"
#include "kernels/vec_math.h"

namespace mw::kernels {

void softmax(const float* x_RN, int64_t N, float* y_RN, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = x_RN + r * N;
    float* y = y_RN + r * N;
    const float top = row_max_of(x, N);
    const vf shift = splat(top == -kInfinity ? 0.0f : top);
    RowSum sum;
    for_each_sum_vec(N, [&](auto span, int64_t i, int slot) {
      const vf e = exp_of(span.load(x + i) - shift);
      span.store(y + i, e);
      sum.add(span.keep(e, 0.0f), slot);
    });
    const double total = sum.total();
    const vf factor = splat(total == 0.0 ? 0.0f : static_cast<float>(1.0 / total));
    for_each_vec(0, N, [&](auto span, int64_t i) { span.store(y + i, span.load(y + i) * factor); });
  }
}

void softmax_backward(const float* dy_RN, const float* y_RN, int64_t N, float* dx_RN, int64_t begin,
                      int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = dy_RN + r * N;
    const float* y = y_RN + r * N;
    float* dx = dx_RN + r * N;
    RowSum sum;
    for_each_sum_vec(N, [&](auto span, int64_t i, int slot) {
      sum.add_product(span.load(dy + i), span.load(y + i), slot);
    });
    const vf dot = splat(static_cast<float>(sum.total()));
    for_each_vec(0, N, [&](auto span, int64_t i) {
      span.store(dx + i, span.load(y + i) * (span.load(dy + i) - dot));
    });
  }
}

}  // namespace mw::kernels
