#include "kernels/optimizer.h"

#include "base/test_close_to.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {

using namespace testing;

TEST_CASE("adamw follows torch.optim.AdamW over several steps, at every split") {
  const int64_t n = 301;
  const float grad_scale = 0.5f;
  for (const double eps : {1e-8, 0.3}) {
    AdamWStep step{1e-2, 0.9, 0.95, eps, 0.1, 1};
    std::vector<Floats> state = {normal(n, 1), Floats(n), Floats(n)};
    std::vector<double> p(state[0].begin(), state[0].end()), m(n), v(n);
    for (step.step = 1; step.step <= 4; ++step.step) {
      const Floats g = normal(n, 10 + static_cast<uint64_t>(step.step));
      state = split_independent(n, state, [&](int64_t begin, int64_t end, auto& out) {
        adamw(step, &grad_scale, g.data(), out[0].data(), out[1].data(), out[2].data(), begin, end);
      });
      for (int64_t i = 0; i < n; ++i) {
        const double grad = 0.5 * g[i];
        p[i] *= 1 - step.lr * step.weight_decay;
        m[i] += (1 - step.beta1) * (grad - m[i]);
        v[i] = step.beta2 * v[i] + (1 - step.beta2) * grad * grad;
        const double bc1 = 1 - std::pow(step.beta1, step.step);
        const double bc2 = 1 - std::pow(step.beta2, step.step);
        p[i] -= step.lr / bc1 * m[i] / (std::sqrt(v[i]) / std::sqrt(bc2) + step.eps);
      }
    }
    CHECK(worst_error(state[0], p, 1e-2) < 2e-6);
    CHECK(worst_error(state[1], m, 1e-2) < 2e-6);
    CHECK(worst_error(state[2], v, 1e-3) < 2e-6);
  }
}

TEST_CASE(
    "a gradient scale of one has the bits of no scale, and a small beta1 starts from the "
    "gradient") {
  const int64_t n = 37;
  const Floats g = normal(n, 1);
  for (const double beta1 : {0.9, 0.3}) {
    AdamWStep step;
    step.beta1 = beta1;
    const float one = 1.0f;
    Floats p = normal(n, 2), m = normal(n, 3), v(n, 0.5f);
    Floats p2 = p, m2 = m, v2 = v, want = m;
    for (int64_t i = 0; i < n; ++i) want[i] = static_cast<float>(beta1 * m[i] + (1 - beta1) * g[i]);
    adamw(step, &one, g.data(), p.data(), m.data(), v.data(), 0, n);
    adamw(step, nullptr, g.data(), p2.data(), m2.data(), v2.data(), 0, n);
    CHECK(same_bits(p, p2));
    CHECK(same_bits(m, m2));
    CHECK(worst_error(m, want, 1e-1) < 1e-6);
  }
}

TEST_CASE("block square sums are those of the blocks, the last one short") {
  const int64_t n = 3 * kNormBlock + 41;
  const Floats x = normal(n, 4, 100.0f);
  std::vector<double> sums(4), pieces(4);
  block_square_sums(x.data(), n, sums.data(), 0, 4);
  for (int64_t k = 3; k >= 0; --k) block_square_sums(x.data(), n, pieces.data(), k, k + 1);
  CHECK(sums == pieces);
  for (int64_t k = 0; k < 4; ++k) {
    double want = 0;
    for (int64_t i = k * kNormBlock; i < std::min(n, (k + 1) * kNormBlock); ++i) {
      want += static_cast<double>(x[i]) * x[i];
    }
    CHECK(sums[k] == mw::test::close_to(want).epsilon(1e-14));
  }
}

}  // namespace mw::kernels
