#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/row_sum.h"

namespace mw::kernels {

void adamw(const AdamWStep& step, const float* grad_scale, const float* g, float* p, float* m,
           float* v, int64_t begin, int64_t end) {
  const double bc1 = 1.0 - std::pow(step.beta1, static_cast<double>(step.step));
  const double bc2 = 1.0 - std::pow(step.beta2, static_cast<double>(step.step));
  const float decay = static_cast<float>(1.0 - step.lr * step.weight_decay);
  const float grad_weight = static_cast<float>(1.0 - step.beta1);
  const float beta2 = static_cast<float>(step.beta2);
  const float square_weight = static_cast<float>(1.0 - step.beta2);
  const float root_bc2 = static_cast<float>(std::sqrt(bc2));
  const float eps = static_cast<float>(step.eps);
  const float rate = static_cast<float>(-(step.lr / bc1));
  const bool has_scale = grad_scale != nullptr;
  const float factor = has_scale ? *grad_scale : 1.0f;
  // torch's lerp starts from the nearer end.
  const bool from_old = grad_weight < 0.5f;
  for_each_vec(begin, end, [&](auto span, int64_t i) {
    vf grad = span.load(g + i);
    if (has_scale) grad = grad * factor;
    const vf old_m = span.load(m + i);
    const vf new_m = from_old ? fma(grad - old_m, grad_weight, old_m)
                              : fma(grad - old_m, grad_weight - 1.0f, grad);
    const vf new_v = fma(square_weight * grad, grad, span.load(v + i) * beta2);
    const vf denominator = sqrt_of(new_v) / root_bc2 + eps;
    span.store(m + i, new_m);
    span.store(v + i, new_v);
    span.store(p + i, span.load(p + i) * decay + rate * new_m / denominator);
  });
}

void block_square_sums(const float* x, int64_t n, double* sums, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    const float* block = x + k * kNormBlock;
    RowSum sum;
    for_each_sum_vec(std::min(kNormBlock, n - k * kNormBlock), [&](auto span, int64_t i, int slot) {
      const vf value = span.load(block + i);
      sum.add_product(value, value, slot);
    });
    sums[k] = sum.total();
  }
}

}  // namespace mw::kernels
