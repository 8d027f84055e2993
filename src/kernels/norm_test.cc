#include "kernels/norm.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

using Doubles = std::vector<double>;

// A norm over R rows of D in double, with mean 0 for RMS normalization.
struct Reference {
  Reference(bool centered, const Floats& x, const Floats& gamma, const Floats& beta,
            const Floats& dy, int64_t R, int64_t D, double eps) {
    dgamma.assign(D, 0.0);
    dbeta.assign(D, 0.0);
    for (int64_t r = 0; r < R; ++r) {
      const float* row = x.data() + r * D;
      double mean = 0, square = 0;
      for (int64_t i = 0; i < D && centered; ++i) mean += row[i] / static_cast<double>(D);
      for (int64_t i = 0; i < D; ++i) square += (row[i] - mean) * (row[i] - mean) / D;
      const double rstd = 1 / std::sqrt(square + eps);
      double mean_g = 0, mean_gn = 0;
      for (int64_t i = 0; i < D; ++i) {
        const double n = (row[i] - mean) * rstd;
        const double d = dy[r * D + i];
        y.push_back(n * gamma[i] + (beta.empty() ? 0.0 : beta[i]));
        dgamma[i] += d * n;
        dbeta[i] += d;
        mean_g += centered ? d * gamma[i] / D : 0.0;
        mean_gn += d * gamma[i] * n / D;
      }
      for (int64_t i = 0; i < D; ++i) {
        const double n = (row[i] - mean) * rstd;
        dx.push_back(rstd * (dy[r * D + i] * gamma[i] - mean_g - n * mean_gn));
      }
    }
  }
  Doubles y, dx, dgamma, dbeta;
};

struct Inputs {
  Inputs(int64_t R, int64_t D)
      : x(normal(R * D, 1)),
        residual(normal(R * D, 2)),
        gamma(normal(D, 3)),
        beta(normal(D, 4)),
        dy(normal(R * D, 5)) {
    for (float& v : x) v += 3.0f;  // a mean that is larger than the deviation
  }
  Floats x, residual, gamma, beta, dy;
};

constexpr float kEps = 1e-5f;

}  // namespace

TEST_CASE("layer_norm and its gradients agree with double precision at every split") {
  for (const auto& [R, D] : {std::pair<int64_t, int64_t>{11, 64}, {19, 77}, {5, 3}, {9, 768}}) {
    const Inputs in(R, D);
    const Reference want(true, in.x, in.gamma, in.beta, in.dy, R, D, kEps);
    const auto rows = split_independent(
        R, {Floats(R * D), Floats(R), Floats(R), Floats(R * D)},
        [&](int64_t begin, int64_t end, auto& out) {
          layer_norm(in.x.data(), in.gamma.data(), in.beta.data(), kEps, D, out[0].data(),
                     out[1].data(), out[2].data(), begin, end);
          layer_norm_backward_input(in.dy.data(), in.x.data(), out[1].data(), out[2].data(),
                                    in.gamma.data(), nullptr, D, out[3].data(), begin, end);
        });
    CHECK(worst_error(rows[0], want.y, 1.0) < 2e-6);
    CHECK(worst_error(rows[3], want.dx, 1.0) < 2e-6);
    const auto columns =
        split_independent(D, {Floats(D), Floats(D)}, [&](int64_t begin, int64_t end, auto& out) {
          layer_norm_backward_weight(in.dy.data(), in.x.data(), rows[1].data(), rows[2].data(), R,
                                     D, false, out[0].data(), out[1].data(), begin, end);
        });
    CHECK(worst_error(columns[0], want.dgamma, 1.0) < 2e-6);
    CHECK(worst_error(columns[1], want.dbeta, 1.0) < 2e-6);
  }
}

TEST_CASE("a row that is not finite has no deviation") {
  const int64_t D = 40;
  Floats x = normal(D, 1), y(D), mean(1), rstd(1);
  x[7] = INFINITY;
  const Floats gamma(D, 1.0f), beta(D, 0.0f);
  layer_norm(x.data(), gamma.data(), beta.data(), kEps, D, y.data(), mean.data(), rstd.data(), 0,
             1);
  CHECK(std::isnan(rstd[0]));
  CHECK(std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
}

TEST_CASE("rms_norm and its gradients agree with double precision at every split") {
  for (const auto& [R, D] : {std::pair<int64_t, int64_t>{11, 64}, {19, 77}, {5, 3}, {9, 768}}) {
    const Inputs in(R, D);
    const Reference want(false, in.x, in.gamma, {}, in.dy, R, D, kEps);
    const auto rows = split_independent(
        R, {Floats(R * D), Floats(R), Floats(R * D)}, [&](int64_t begin, int64_t end, auto& out) {
          rms_norm(in.x.data(), in.gamma.data(), kEps, D, out[0].data(), out[1].data(), begin, end);
          rms_norm_backward_input(in.dy.data(), in.x.data(), out[1].data(), in.gamma.data(),
                                  nullptr, D, out[2].data(), begin, end);
        });
    CHECK(worst_error(rows[0], want.y, 1.0) < 1e-6);
    CHECK(worst_error(rows[2], want.dx, 1.0) < 1e-6);
    const auto columns =
        split_independent(D, {Floats(D)}, [&](int64_t begin, int64_t end, auto& out) {
          rms_norm_backward_weight(in.dy.data(), in.x.data(), rows[1].data(), R, D, false,
                                   out[0].data(), begin, end);
        });
    CHECK(worst_error(columns[0], want.dgamma, 1.0) < 2e-6);
  }
}

TEST_CASE("epsilon is added to the mean square: small rows, rows of zeros and of equal numbers") {
  const int64_t D = 77;
  for (const double size : {0.0, 1e-3, 1.0}) {
    Floats x = normal(D, 1, static_cast<float>(size));
    const Floats gamma = normal(D, 2), beta = normal(D, 3);
    for (const bool centered : {false, true}) {
      const Reference want(centered, x, gamma, centered ? beta : Floats(), Floats(D), 1, D, kEps);
      Floats y(D);
      float mean = 0, rstd = 0;
      if (centered) {
        layer_norm(x.data(), gamma.data(), beta.data(), kEps, D, y.data(), &mean, &rstd, 0, 1);
      } else {
        rms_norm(x.data(), gamma.data(), kEps, D, y.data(), &rstd, 0, 1);
      }
      CHECK(worst_error(y, want.y, 1e-3) < 2e-6);
      if (size == 0) CHECK(rstd == static_cast<float>(1 / std::sqrt(static_cast<double>(kEps))));
    }
  }
  // Whose variance is rounded to one below zero, or above.
  for (int64_t n = 2; n < 200; ++n) {
    const Floats x(n, 16777215.0f), gamma(n, 1.0f);
    Floats y(n);
    float mean = 0, rstd = 0;
    layer_norm(x.data(), gamma.data(), nullptr, kEps, n, y.data(), &mean, &rstd, 0, 1);
    CHECK(rstd > 0);
    CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == 0; }));
  }
}

TEST_CASE("an accumulating weight gradient has the bits of a weight gradient and an addition") {
  const int64_t R = 29, D = 1100;
  const Inputs in(R, D);
  Floats y(R * D), mean(R), rstd(R), once(D), once_beta(D);
  layer_norm(in.x.data(), in.gamma.data(), nullptr, kEps, D, y.data(), mean.data(), rstd.data(), 0,
             R);
  layer_norm_backward_weight(in.dy.data(), in.x.data(), mean.data(), rstd.data(), R, D, false,
                             once.data(), once_beta.data(), 0, D);
  const Floats old = normal(D, 8), old_beta = normal(D, 9);
  const auto added =
      split_independent(D, {old, old_beta}, [&](int64_t begin, int64_t end, auto& out) {
        layer_norm_backward_weight(in.dy.data(), in.x.data(), mean.data(), rstd.data(), R, D, true,
                                   out[0].data(), out[1].data(), begin, end);
      });
  Floats want = old, want_beta = old_beta;
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] += once[i];
    want_beta[i] += once_beta[i];
  }
  CHECK(same_bits(added[0], want));
  CHECK(same_bits(added[1], want_beta));
  Floats alone(D);
  layer_norm_backward_weight(in.dy.data(), in.x.data(), mean.data(), rstd.data(), R, D, false,
                             alone.data(), nullptr, 0, D);
  CHECK(same_bits(once, alone));
}

TEST_CASE("the fused residual variants have the bits of an addition before or after") {
  const int64_t R = 7, D = 45;
  const Inputs in(R, D);
  Floats sum(R * D), y(R * D), mean(R), rstd(R), dx(R * D);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = in.x[i] + in.residual[i];
  layer_norm(sum.data(), in.gamma.data(), in.beta.data(), kEps, D, y.data(), mean.data(),
             rstd.data(), 0, R);
  Floats fused_sum(R * D), fused_y(R * D), fused_mean(R), fused_rstd(R), fused_dx(R * D);
  add_layer_norm(in.x.data(), in.residual.data(), in.gamma.data(), in.beta.data(), kEps, D,
                 fused_sum.data(), fused_y.data(), fused_mean.data(), fused_rstd.data(), 0, R);
  CHECK(same_bits(sum, fused_sum));
  CHECK(same_bits(y, fused_y));
  CHECK(same_bits(mean, fused_mean));
  CHECK(same_bits(rstd, fused_rstd));
  layer_norm_backward_input(in.dy.data(), sum.data(), mean.data(), rstd.data(), in.gamma.data(),
                            nullptr, D, dx.data(), 0, R);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] += in.residual[i];
  layer_norm_backward_input(in.dy.data(), sum.data(), mean.data(), rstd.data(), in.gamma.data(),
                            in.residual.data(), D, fused_dx.data(), 0, R);
  CHECK(same_bits(dx, fused_dx));

  rms_norm(sum.data(), in.gamma.data(), kEps, D, y.data(), rstd.data(), 0, R);
  add_rms_norm(in.x.data(), in.residual.data(), in.gamma.data(), kEps, D, fused_sum.data(),
               fused_y.data(), fused_rstd.data(), 0, R);
  CHECK(same_bits(sum, fused_sum));
  CHECK(same_bits(y, fused_y));
}

TEST_CASE("a row's norm does not depend on where the row lies") {
  const int64_t D = 61;
  const Inputs in(1, D);
  Floats y(D), mean(1), rstd(1);
  layer_norm(in.x.data(), in.gamma.data(), in.beta.data(), kEps, D, y.data(), mean.data(),
             rstd.data(), 0, 1);
  for (int64_t shift = 1; shift < 17; ++shift) {
    Floats moved(D + shift), y_moved(D + shift);
    std::copy(in.x.begin(), in.x.end(), moved.begin() + shift);
    layer_norm(moved.data() + shift, in.gamma.data(), in.beta.data(), kEps, D,
               y_moved.data() + shift, mean.data(), rstd.data(), 0, 1);
    CHECK(same_bits(y, Floats(y_moved.begin() + shift, y_moved.end())));
  }
}

}  // namespace mw::kernels
