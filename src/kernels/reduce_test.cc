#include "kernels/reduce.h"

#include "base/test_close_to.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {

using namespace testing;

TEST_CASE("column_sum adds rows in ascending order, at every split of the columns") {
  const int64_t R = 27, N = 53, stride = 60;
  const Floats x = normal(R * stride, 1);
  const Floats old = normal(N, 2);
  for (const bool accumulate : {false, true}) {
    Floats want(N);
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t c = 0; c < N; ++c) want[c] += x[r * stride + c];
    }
    if (accumulate) {
      for (int64_t c = 0; c < N; ++c) want[c] = old[c] + want[c];
    }
    const auto got = split_independent(N, {old}, [&](int64_t begin, int64_t end, auto& out) {
      column_sum(x.data(), stride, R, accumulate, out[0].data(), begin, end);
    });
    CHECK(same_bits(got[0], want));
  }
  Floats none = old;
  column_sum(x.data(), stride, 0, false, none.data(), 0, N);
  CHECK(same_bits(none, Floats(N)));
}

TEST_CASE("the error of long column sums does not grow with their rows") {
  for (const bool accumulate : {false, true}) {
    const int64_t R = int64_t{1} << 17, N = 3;
    const Floats x(R * N, 0.1f);
    Floats sums(N, 0.0f);
    column_sum(x.data(), N, R, accumulate, sums.data(), 0, N);
    const double want = static_cast<double>(0.1f) * static_cast<double>(R);
    for (const float sum : sums) CHECK(std::abs(sum / want - 1) < 5e-6);  // one chain: 1e-3
  }
}

TEST_CASE("row sums and maxima are those of the rows and know NaN") {
  const int64_t R = 10;
  for (const int64_t N : {1, 7, 16, 129}) {
    Floats x = normal(R * N, 3);
    x[2 * N + N / 2] = NAN;
    const auto got =
        split_independent(R, {Floats(R), Floats(R)}, [&](int64_t begin, int64_t end, auto& out) {
          row_sum(x.data(), N, out[0].data(), begin, end);
          row_max(x.data(), N, out[1].data(), begin, end);
        });
    for (int64_t r = 0; r < R; ++r) {
      double sum = 0, top = -INFINITY;
      for (int64_t i = 0; i < N; ++i) {
        sum += x[r * N + i];
        top = std::max<double>(top, x[r * N + i]);
      }
      if (r == 2) {
        CHECK(std::isnan(got[0][r]));
        CHECK(std::isnan(got[1][r]));
      } else {
        CHECK(got[0][r] == mw::test::close_to(sum).epsilon(1e-6));
        CHECK(got[1][r] == static_cast<float>(top));
      }
    }
  }
}

TEST_CASE("reduce_sum takes out the middle dimension, at every split of the output") {
  for (const int64_t inner : {1, 5, 24}) {
    const int64_t outer = 4, reduce = 19;
    const Floats x = normal(outer * reduce * inner, 4);
    const auto got = split_independent(
        outer * inner, {Floats(outer * inner)}, [&](int64_t begin, int64_t end, auto& out) {
          reduce_sum(x.data(), reduce, inner, out[0].data(), begin, end);
        });
    std::vector<double> want(outer * inner);
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t r = 0; r < reduce; ++r) {
        for (int64_t i = 0; i < inner; ++i) want[o * inner + i] += x[(o * reduce + r) * inner + i];
      }
    }
    CHECK(worst_error(got[0], want, 1.0) < 1e-6);
  }
}

}  // namespace mw::kernels
