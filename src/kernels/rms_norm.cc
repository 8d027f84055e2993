#include <cmath>

#include "kernels/column_sum.h"
#include "kernels/norm.h"
#include "kernels/row_sum.h"

namespace mw::kernels {
namespace {

template <bool kResidual>
MW_INLINE void norm_row(const float* x, const float* residual, const float* gamma, float eps,
                        int64_t D, float* sum, float* y, float* rstd) {
  RowSum sum_xx;
  for_each_sum_vec(D, [&](auto span, int64_t i, int slot) {
    vf v = span.load(x + i);
    if constexpr (kResidual) {
      v += span.load(residual + i);
      span.store(sum + i, v);
    }
    sum_xx.add_product(v, v, slot);
  });
  const double mean_square = sum_xx.total() / static_cast<double>(D);
  *rstd = static_cast<float>(1.0 / std::sqrt(mean_square + static_cast<double>(eps)));
  const vf r = splat(*rstd);
  const float* in = kResidual ? sum : x;
  for_each_vec(0, D, [&](auto span, int64_t i) {
    span.store(y + i, span.load(in + i) * r * span.load(gamma + i));
  });
}

}  // namespace

void rms_norm(const float* x_RD, const float* gamma_D, float eps, int64_t D, float* y_RD,
              float* rstd_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_row<false>(x_RD + r * D, nullptr, gamma_D, eps, D, nullptr, y_RD + r * D, rstd_R + r);
  }
}

void add_rms_norm(const float* x_RD, const float* residual_RD, const float* gamma_D, float eps,
                  int64_t D, float* sum_RD, float* y_RD, float* rstd_R, int64_t begin,
                  int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_row<true>(x_RD + r * D, residual_RD + r * D, gamma_D, eps, D, sum_RD + r * D, y_RD + r * D,
                   rstd_R + r);
  }
}

// With n = x * rstd and g = dy * gamma: dx = rstd * (g - n * mean(g * n)).
void rms_norm_backward_input(const float* dy_RD, const float* x_RD, const float* rstd_R,
                             const float* gamma_D, const float* dresidual_RD, int64_t D,
                             float* dx_RD, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = dy_RD + r * D;
    const float* x = x_RD + r * D;
    float* dx = dx_RD + r * D;
    const vf rstd = splat(rstd_R[r]);
    RowSum sum_gn;
    for_each_sum_vec(D, [&](auto span, int64_t i, int slot) {
      sum_gn.add_product(span.load(dy + i) * span.load(gamma_D + i), span.load(x + i) * rstd, slot);
    });
    const vf mean_gn = splat(static_cast<float>(sum_gn.total() / static_cast<double>(D)));
    const auto gradient = [&](auto span, int64_t i) MW_LAMBDA_INLINE {
      const vf g = span.load(dy + i) * span.load(gamma_D + i);
      return rstd * fma(-(span.load(x + i) * rstd), mean_gn, g);
    };
    if (dresidual_RD != nullptr) {
      const float* dresidual = dresidual_RD + r * D;
      for_each_vec(0, D, [&](auto span, int64_t i) {
        span.store(dx + i, gradient(span, i) + span.load(dresidual + i));
      });
    } else {
      for_each_vec(0, D, [&](auto span, int64_t i) { span.store(dx + i, gradient(span, i)); });
    }
  }
}

void rms_norm_backward_weight(const float* dy_RD, const float* x_RD, const float* rstd_R, int64_t R,
                              int64_t D, bool accumulate, float* dgamma_D, int64_t begin,
                              int64_t end) {
  float* const sums[1] = {dgamma_D};
  column_sums<1>(R, accumulate, sums, begin, end,
                 [&](auto span, int64_t r, int64_t c, vf(&out)[1]) MW_LAMBDA_INLINE {
                   const int64_t at = r * D + c;
                   out[0] = span.load(dy_RD + at) * (span.load(x_RD + at) * rstd_R[r]);
                 });
}

}  // namespace mw::kernels
