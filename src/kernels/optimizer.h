// Optimizer updates over flat spans, and the norm's partial sums. Elements [begin, end).
#pragma once

#include <cstdint>

namespace mw::kernels {

struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;  // of this update, from 1: the bias corrections are 1 - beta^step
};

// AdamW [Loshchilov, Hutter 2019] in the order of torch.optim.AdamW, the coefficients computed in
// double and rounded once: p *= 1 - lr * weight_decay; m += (1 - beta1) * (g - m);
// v = beta2 * v + (1 - beta2) * g * g; p -= lr / bc1 * m / (sqrt(v) / sqrt(bc2) + eps). m and v
// have torch's bits; p too but for torch's square root, whose last bit is not always right. g is
// first multiplied by *grad_scale (the clipping factor) where that is not null; g is not written.
void adamw(const AdamWStep& step, const float* grad_scale, const float* g, float* p, float* m,
           float* v, int64_t begin, int64_t end);

// Elements of a norm block. Shard borders are multiples of it.
inline constexpr int64_t kNormBlock = 256;

// sums[k] = sum of x^2 over [k * kNormBlock, min(n, (k + 1) * kNormBlock)), in double, for the
// blocks [begin, end).
void block_square_sums(const float* x, int64_t n, double* sums, int64_t begin, int64_t end);

}  // namespace mw::kernels
