// Layer normalization [Ba, Kiros, Hinton 2016] and root mean square normalization [Zhang, Sennrich
// 2019] over rows of D, forward and backward. Row statistics are summed in double (row_sum.h).
//
// R rows, D model. Row kernels take rows [begin, end); weight gradients take columns [begin, end)
// and add their rows in ascending order to one running sum (column_sum.h).
#pragma once

#include <cstdint>

namespace mw::kernels {

// y = (x - mean) * rstd * gamma + beta with rstd = 1 / sqrt(variance + eps); saves mean and rstd
// for the backward pass. beta may be null. y may be x.
void layer_norm(const float* x_RD, const float* gamma_D, const float* beta_D, float eps, int64_t D,
                float* y_RD, float* mean_R, float* rstd_R, int64_t begin, int64_t end);

// sum = x + residual, then layer_norm of sum. sum may be x or residual.
void add_layer_norm(const float* x_RD, const float* residual_RD, const float* gamma_D,
                    const float* beta_D, float eps, int64_t D, float* sum_RD, float* y_RD,
                    float* mean_R, float* rstd_R, int64_t begin, int64_t end);

// dx = d(layer_norm)/dx * dy, plus dresidual where that is not null. dx may be dy, x or dresidual.
void layer_norm_backward_input(const float* dy_RD, const float* x_RD, const float* mean_R,
                               const float* rstd_R, const float* gamma_D, const float* dresidual_RD,
                               int64_t D, float* dx_RD, int64_t begin, int64_t end);

// dgamma (+)= sum over rows of dy * (x - mean) * rstd, dbeta (+)= sum over rows of dy. dbeta may be
// null.
void layer_norm_backward_weight(const float* dy_RD, const float* x_RD, const float* mean_R,
                                const float* rstd_R, int64_t R, int64_t D, bool accumulate,
                                float* dgamma_D, float* dbeta_D, int64_t begin, int64_t end);

// y = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps). y may be x.
void rms_norm(const float* x_RD, const float* gamma_D, float eps, int64_t D, float* y_RD,
              float* rstd_R, int64_t begin, int64_t end);

void add_rms_norm(const float* x_RD, const float* residual_RD, const float* gamma_D, float eps,
                  int64_t D, float* sum_RD, float* y_RD, float* rstd_R, int64_t begin, int64_t end);

void rms_norm_backward_input(const float* dy_RD, const float* x_RD, const float* rstd_R,
                             const float* gamma_D, const float* dresidual_RD, int64_t D,
                             float* dx_RD, int64_t begin, int64_t end);

void rms_norm_backward_weight(const float* dy_RD, const float* x_RD, const float* rstd_R, int64_t R,
                              int64_t D, bool accumulate, float* dgamma_D, int64_t begin,
                              int64_t end);

}  // namespace mw::kernels
