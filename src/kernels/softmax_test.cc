#include "kernels/softmax.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {

using namespace testing;

TEST_CASE("softmax and its gradient agree with double precision at every split") {
  for (const int64_t N : {1, 5, 16, 100}) {
    const int64_t R = 9;
    const Floats x = normal(R * N, 1, 5.0f);
    const Floats dy = normal(R * N, 2);
    const auto got = split_independent(
        R, {Floats(R * N), Floats(R * N)}, [&](int64_t begin, int64_t end, auto& out) {
          softmax(x.data(), N, out[0].data(), begin, end);
          softmax_backward(dy.data(), out[0].data(), N, out[1].data(), begin, end);
        });
    std::vector<double> y(R * N), dx(R * N);
    for (int64_t r = 0; r < R; ++r) {
      double sum = 0, dot = 0;
      for (int64_t i = 0; i < N; ++i) sum += std::exp(static_cast<double>(x[r * N + i]));
      for (int64_t i = 0; i < N; ++i) {
        y[r * N + i] = std::exp(static_cast<double>(x[r * N + i])) / sum;
        dot += y[r * N + i] * dy[r * N + i];
      }
      for (int64_t i = 0; i < N; ++i) dx[r * N + i] = y[r * N + i] * (dy[r * N + i] - dot);
    }
    CHECK(worst_error(got[0], y, 1e-6) < 2e-6);
    CHECK(worst_error(got[1], dx, 0.1) < 2e-6);
  }
}

TEST_CASE("softmax of a row of -inf is zeros, in place as elsewhere") {
  Floats x = {-INFINITY, -INFINITY, -INFINITY, 1.0f, -INFINITY, 1.0f};
  softmax(x.data(), 3, x.data(), 0, 2);
  CHECK(x == Floats{0, 0, 0, 0.5f, 0, 0.5f});
}

}  // namespace mw::kernels
