#include <cmath>

#include "kernels/column_sum.h"
#include "kernels/norm.h"
#include "kernels/row_sum.h"

namespace mw::kernels {
namespace {

// One row: x is residual + x where there is a residual, and then also stored to `sum`.
template <bool kResidual>
MW_INLINE void norm_row(const float* x, const float* residual, const float* gamma,
                        const float* beta, float eps, int64_t D, float* sum, float* y, float* mean,
                        float* rstd) {
  RowSum sum_x, sum_xx;
  for_each_sum_vec(D, [&](auto span, int64_t i, int slot) {
    vf v = span.load(x + i);
    if constexpr (kResidual) {
      v += span.load(residual + i);
      span.store(sum + i, v);
    }
    sum_x.add(v, slot);
    sum_xx.add_product(v, v, slot);
  });
  const double count = static_cast<double>(D);
  const double center = sum_x.total() / count;
  const double difference = sum_xx.total() / count - center * center;
  const double variance = difference < 0 ? 0 : difference;  // of NaN it is NaN
  *mean = static_cast<float>(center);
  *rstd = static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(eps)));
  const vf m = splat(*mean);
  const vf r = splat(*rstd);
  const float* in = kResidual ? sum : x;
  if (beta != nullptr) {
    for_each_vec(0, D, [&](auto span, int64_t i) {
      const vf normal = (span.load(in + i) - m) * r;
      span.store(y + i, fma(normal, span.load(gamma + i), span.load(beta + i)));
    });
  } else {
    for_each_vec(0, D, [&](auto span, int64_t i) {
      span.store(y + i, (span.load(in + i) - m) * r * span.load(gamma + i));
    });
  }
}

}  // namespace

void layer_norm(const float* x_RD, const float* gamma_D, const float* beta_D, float eps, int64_t D,
                float* y_RD, float* mean_R, float* rstd_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_row<false>(x_RD + r * D, nullptr, gamma_D, beta_D, eps, D, nullptr, y_RD + r * D,
                    mean_R + r, rstd_R + r);
  }
}

void add_layer_norm(const float* x_RD, const float* residual_RD, const float* gamma_D,
                    const float* beta_D, float eps, int64_t D, float* sum_RD, float* y_RD,
                    float* mean_R, float* rstd_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    norm_row<true>(x_RD + r * D, residual_RD + r * D, gamma_D, beta_D, eps, D, sum_RD + r * D,
                   y_RD + r * D, mean_R + r, rstd_R + r);
  }
}

// With n = (x - mean) * rstd and g = dy * gamma: dx = rstd * (g - mean(g) - n * mean(g * n)).
void layer_norm_backward_input(const float* dy_RD, const float* x_RD, const float* mean_R,
                               const float* rstd_R, const float* gamma_D, const float* dresidual_RD,
                               int64_t D, float* dx_RD, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = dy_RD + r * D;
    const float* x = x_RD + r * D;
    float* dx = dx_RD + r * D;
    const vf mean = splat(mean_R[r]);
    const vf rstd = splat(rstd_R[r]);
    RowSum sum_g, sum_gn;
    for_each_sum_vec(D, [&](auto span, int64_t i, int slot) {
      const vf g = span.load(dy + i) * span.load(gamma_D + i);
      sum_g.add(g, slot);
      sum_gn.add_product(g, (span.load(x + i) - mean) * rstd, slot);
    });
    const vf mean_g = splat(static_cast<float>(sum_g.total() / static_cast<double>(D)));
    const vf mean_gn = splat(static_cast<float>(sum_gn.total() / static_cast<double>(D)));
    const auto gradient = [&](auto span, int64_t i) MW_LAMBDA_INLINE {
      const vf g = span.load(dy + i) * span.load(gamma_D + i);
      const vf n = (span.load(x + i) - mean) * rstd;
      return rstd * (g - fma(n, mean_gn, mean_g));
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

void layer_norm_backward_weight(const float* dy_RD, const float* x_RD, const float* mean_R,
                                const float* rstd_R, int64_t R, int64_t D, bool accumulate,
                                float* dgamma_D, float* dbeta_D, int64_t begin, int64_t end) {
  const auto dgamma_term = [&](auto span, int64_t r, int64_t c, vf dy) MW_LAMBDA_INLINE {
    return dy * ((span.load(x_RD + r * D + c) - mean_R[r]) * rstd_R[r]);
  };
  if (dbeta_D == nullptr) {
    float* const sums[1] = {dgamma_D};
    column_sums<1>(R, accumulate, sums, begin, end,
                   [&](auto span, int64_t r, int64_t c, vf(&out)[1]) MW_LAMBDA_INLINE {
                     out[0] = dgamma_term(span, r, c, span.load(dy_RD + r * D + c));
                   });
    return;
  }
  float* const sums[2] = {dgamma_D, dbeta_D};
  column_sums<2>(R, accumulate, sums, begin, end,
                 [&](auto span, int64_t r, int64_t c, vf(&out)[2]) MW_LAMBDA_INLINE {
                   out[1] = span.load(dy_RD + r * D + c);
                   out[0] = dgamma_term(span, r, c, out[1]);
                 });
}

}  // namespace mw::kernels
