#include "kernels/elementwise.h"

#include "base/test_close_to.h"
#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

using Unary = void (*)(const float*, float*, int64_t, int64_t);
using Binary = void (*)(const float*, const float*, float*, int64_t, int64_t);

constexpr int64_t kCount = 1003;

void check_unary(Unary kernel, double (*exact)(double), const Floats& x, double tolerance) {
  const Floats y =
      split_independent(kCount, {Floats(kCount)}, [&](int64_t begin, int64_t end, auto& out) {
        kernel(x.data(), out[0].data(), begin, end);
      })[0];
  std::vector<double> want;
  for (const float v : x) want.push_back(exact(v));
  CHECK(worst_error(y, want, 1e-30) < tolerance);
  Floats in_place = x;
  kernel(in_place.data(), in_place.data(), 0, kCount);
  CHECK(same_bits(in_place, y));
}

void check_binary(Binary kernel, float (*exact)(float, float), const Floats& a, const Floats& b) {
  const Floats y =
      split_independent(kCount, {Floats(kCount)}, [&](int64_t begin, int64_t end, auto& out) {
        kernel(a.data(), b.data(), out[0].data(), begin, end);
      })[0];
  for (size_t i = 0; i < a.size(); ++i) {
    const float want = exact(a[i], b[i]);
    CHECK((y[i] == want || (std::isnan(y[i]) && std::isnan(want))));
  }
  Floats in_place = b;
  kernel(a.data(), in_place.data(), in_place.data(), 0, kCount);
  CHECK(same_bits(in_place, y));
}

Floats absolute(Floats x) {
  for (float& v : x) v = std::fabs(v);
  return x;
}

}  // namespace

TEST_CASE("unary kernels agree with libm, however the range is split") {
  const Floats x = normal(kCount, 1, 3.0f);
  check_unary(exp, std::exp, x, 1.2e-7);
  check_unary(tanh, std::tanh, x, 1.4e-7);
  check_unary(erf, std::erf, x, 1.3e-7);
  check_unary(sigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, x, 3e-7);
  check_unary(sine, std::sin, x, 7e-8);
  check_unary(cosine, std::cos, x, 7e-8);
  check_unary(negate, [](double v) { return -v; }, x, 1e-30);
  check_unary(relu, [](double v) { return v > 0 ? v : 0; }, x, 1e-30);
  check_unary(log, std::log, absolute(x), 1.2e-7);
  check_unary(sqrt, std::sqrt, absolute(x), 6e-8);
  check_unary(rsqrt, [](double v) { return 1 / std::sqrt(v); }, absolute(x), 1.2e-7);
}

TEST_CASE("binary kernels round as the scalar operation does, and maximum and minimum keep NaN") {
  Floats a = normal(kCount, 2);
  Floats b = normal(kCount, 3);
  check_binary(add, [](float u, float v) { return u + v; }, a, b);
  check_binary(subtract, [](float u, float v) { return u - v; }, a, b);
  check_binary(multiply, [](float u, float v) { return u * v; }, a, b);
  check_binary(divide, [](float u, float v) { return u / v; }, a, b);
  a[3] = b[5] = a[1001] = b[1002] = NAN;
  check_binary(maximum, [](float u, float v) { return u > v || std::isnan(u) ? u : v; }, a, b);
  check_binary(minimum, [](float u, float v) { return u < v || std::isnan(u) ? u : v; }, a, b);
}

TEST_CASE("scale, add_scalar, accumulate, axpy and fill do what their comments say") {
  const Floats x = normal(kCount, 4);
  const Floats old = normal(kCount, 5);
  Floats y(kCount);
  scale(x.data(), 0.3f, y.data(), 0, kCount);
  CHECK(y[700] == x[700] * 0.3f);
  add_scalar(x.data(), 0.3f, y.data(), 0, kCount);
  CHECK(y[1002] == x[1002] + 0.3f);
  y = old;
  accumulate(x.data(), y.data(), 0, kCount);
  CHECK(y[1000] == old[1000] + x[1000]);
  y = old;
  axpy(0.3f, x.data(), y.data(), 0, kCount);
  CHECK(y[1000] == mw::test::close_to(old[1000] + 0.3 * x[1000]).epsilon(1e-6));
  fill(2.5f, y.data(), 1, kCount - 1);
  CHECK(y[0] != 2.5f);
  CHECK(y[1] == 2.5f);
  CHECK(y[kCount - 2] == 2.5f);
  CHECK(y[kCount - 1] != 2.5f);
  copy(x.data(), y.data(), 0, kCount);
  CHECK(same_bits(x, y));
}

TEST_CASE("relu passes NaN and its gradient is that of positive inputs") {
  const Floats x = {-1.0f, 0.0f, 2.0f, NAN, -0.0f};
  const Floats dy = {3.0f, 4.0f, 5.0f, 6.0f, 7.0f};
  Floats y(5), dx(5);
  relu(x.data(), y.data(), 0, 5);
  CHECK(y[0] == 0.0f);
  CHECK(y[2] == 2.0f);
  CHECK(std::isnan(y[3]));
  CHECK(!std::signbit(y[4]));
  relu_backward(dy.data(), x.data(), dx.data(), 0, 5);
  CHECK(dx == Floats{0, 0, 5, 0, 0});
}

TEST_CASE("comparisons write 0 or 1 and select follows a mask") {
  const Floats a = {1, 2, 3, NAN};
  const Floats b = {2, 2, 2, 2};
  const auto run = [&](Compare op) {
    std::vector<uint8_t> y(4);
    compare(op, a.data(), b.data(), y.data(), 0, 4);
    return y;
  };
  using Mask = std::vector<uint8_t>;
  CHECK(run(Compare::kEq) == Mask{0, 1, 0, 0});
  CHECK(run(Compare::kNe) == Mask{1, 0, 1, 1});
  CHECK(run(Compare::kLt) == Mask{1, 0, 0, 0});
  CHECK(run(Compare::kLe) == Mask{1, 1, 0, 0});
  CHECK(run(Compare::kGt) == Mask{0, 0, 1, 0});
  CHECK(run(Compare::kGe) == Mask{0, 1, 1, 0});
  const std::vector<int32_t> i = {5, 6}, j = {6, 6};
  Mask y(2);
  compare(Compare::kLt, i.data(), j.data(), y.data(), 0, 2);
  CHECK(y == Mask{1, 0});
  Floats picked(4);
  const Mask mask = {1, 0, 2, 0};
  select(mask.data(), a.data(), b.data(), picked.data(), 0, 4);
  CHECK(picked == Floats{1, 2, 3, 2});
}

TEST_CASE("conversions round to nearest") {
  const std::vector<double> wide = {0.1, 1.0 + 0x1p-24, -3.5};
  Floats narrow(3);
  convert(wide.data(), narrow.data(), 0, 3);
  CHECK(narrow == Floats{0.1f, 1.0f, -3.5f});
  std::vector<double> back(3);
  convert(narrow.data(), back.data(), 0, 3);
  CHECK(back[0] == static_cast<double>(0.1f));
  const std::vector<int32_t> ints = {16777217, -5, 0};
  convert(ints.data(), narrow.data(), 0, 3);
  CHECK(narrow == Floats{16777216.0f, -5.0f, 0.0f});
  const std::vector<int64_t> longs = {50256, -100, 7};
  std::vector<int32_t> tokens(3);
  convert(longs.data(), tokens.data(), 0, 3);
  CHECK(tokens == std::vector<int32_t>{50256, -100, 7});
  const std::vector<uint8_t> bytes = {0, 1, 255};
  convert(bytes.data(), narrow.data(), 0, 3);
  CHECK(narrow == Floats{0, 1, 255});
}

}  // namespace mw::kernels
