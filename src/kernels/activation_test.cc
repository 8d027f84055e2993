#include "kernels/activation.h"

#include "kernels/test_arrays.h"

namespace mw::kernels {
namespace {

using namespace testing;

constexpr int64_t kRows = 13;
constexpr int64_t kColumns = 77;
constexpr int64_t kCells = kRows * kColumns;
constexpr double kPi = 3.14159265358979323846;

double gelu_exact(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double gelu_exact_slope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi);
}
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x)));
}
double gelu_tanh_slope(double x) {
  const double u = std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x);
  const double t = std::tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
}
double sigmoid_exact(double x) { return 1 / (1 + std::exp(-x)); }
double silu_exact(double x) { return x * sigmoid_exact(x); }
double silu_slope(double x) {
  const double s = sigmoid_exact(x);
  return s + x * s * (1 - s);
}

struct Case {
  Gelu kind;
  double (*value)(double);
  double (*slope)(double);
};

}  // namespace

TEST_CASE("gelu and its gradient agree with double precision in both forms") {
  const Floats x = normal(kCells, 1, 2.5f);
  const Floats dy = normal(kCells, 2);
  for (const Case& c : {Case{Gelu::kExact, gelu_exact, gelu_exact_slope},
                        Case{Gelu::kTanh, gelu_tanh, gelu_tanh_slope}}) {
    const auto got = split_independent(
        kCells, {Floats(kCells), Floats(kCells)}, [&](int64_t begin, int64_t end, auto& out) {
          gelu(c.kind, x.data(), out[0].data(), begin, end);
          gelu_backward(c.kind, dy.data(), x.data(), out[1].data(), begin, end);
        });
    std::vector<double> y, dx;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back(c.value(x[i]));
      dx.push_back(dy[i] * c.slope(x[i]));
    }
    CHECK(worst_error(got[0], y, 1.0) < 3e-7);
    CHECK(worst_error(got[1], dx, 1.0) < 6e-7);
  }
}

TEST_CASE("gelu stays finite and monotone to its limits for large inputs") {
  const Floats x = {-3e4f, -200.0f, -20.0f, 20.0f, 200.0f, 3e4f};
  const Floats one(6, 1.0f);
  for (const Gelu kind : {Gelu::kExact, Gelu::kTanh}) {
    Floats y(6), dx(6);
    gelu(kind, x.data(), y.data(), 0, 6);
    gelu_backward(kind, one.data(), x.data(), dx.data(), 0, 6);
    for (size_t i = 0; i < 6; ++i) {
      CHECK(y[i] == (x[i] > 0 ? x[i] : 0.0f));
      CHECK(dx[i] == (x[i] > 0 ? 1.0f : 0.0f));
    }
  }
}

TEST_CASE("gelu's gradient is finite wherever its square is") {
  const Floats x = {-1e18f, -1e15f, -2e13f, 2e13f, 1e15f, 1e18f};
  const Floats one(6, 1.0f);
  Floats dx(6);
  gelu_backward(Gelu::kTanh, one.data(), x.data(), dx.data(), 0, 6);
  for (size_t i = 0; i < 6; ++i) CHECK(dx[i] == (x[i] > 0 ? 1.0f : 0.0f));
}

TEST_CASE("bias_gelu is gelu of the biased rows, bit for bit, at every split") {
  const Floats x = normal(kCells, 3);
  const Floats b = normal(kColumns, 4);
  const Floats dy = normal(kCells, 5);
  Floats biased = x;
  for (size_t i = 0; i < biased.size(); ++i) biased[i] += b[i % kColumns];
  for (const Gelu kind : {Gelu::kExact, Gelu::kTanh}) {
    Floats y(kCells), dx(kCells);
    gelu(kind, biased.data(), y.data(), 0, kCells);
    gelu_backward(kind, dy.data(), biased.data(), dx.data(), 0, kCells);
    const auto got = split_independent(
        kRows, {Floats(kCells), Floats(kCells)}, [&](int64_t begin, int64_t end, auto& out) {
          bias_gelu(kind, x.data(), b.data(), kColumns, out[0].data(), begin, end);
          bias_gelu_backward(kind, dy.data(), x.data(), b.data(), kColumns, out[1].data(), begin,
                             end);
        });
    CHECK(same_bits(got[0], y));
    CHECK(same_bits(got[1], dx));
  }
}

TEST_CASE("silu and its gradient agree with double precision") {
  const Floats x = normal(kCells, 6, 4.0f);
  const Floats dy = normal(kCells, 7);
  const auto got = split_independent(
      kCells, {Floats(kCells), Floats(kCells)}, [&](int64_t begin, int64_t end, auto& out) {
        silu(x.data(), out[0].data(), begin, end);
        silu_backward(dy.data(), x.data(), out[1].data(), begin, end);
      });
  std::vector<double> y, dx;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(silu_exact(x[i]));
    dx.push_back(dy[i] * silu_slope(x[i]));
  }
  CHECK(worst_error(got[0], y, 1e-3) < 4e-7);
  CHECK(worst_error(got[1], dx, 0.1) < 1e-6);
}

TEST_CASE("swiglu reads the halves of one array and gives both gradients") {
  const Floats x = normal(2 * kCells, 8, 2.0f);  // gate and up side by side
  const Floats dy = normal(kCells, 9);
  const auto got = split_independent(
      kRows, {Floats(kCells), Floats(2 * kCells)}, [&](int64_t begin, int64_t end, auto& out) {
        swiglu(x.data(), x.data() + kColumns, 2 * kColumns, kColumns, out[0].data(), begin, end);
        swiglu_backward(dy.data(), x.data(), x.data() + kColumns, 2 * kColumns, kColumns,
                        out[1].data(), out[1].data() + kColumns, 2 * kColumns, begin, end);
      });
  std::vector<double> y(kCells), dx(2 * kCells);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const double gate = x[r * 2 * kColumns + c];
      const double up = x[r * 2 * kColumns + kColumns + c];
      const double d = dy[r * kColumns + c];
      y[r * kColumns + c] = silu_exact(gate) * up;
      dx[r * 2 * kColumns + c] = d * up * silu_slope(gate);
      dx[r * 2 * kColumns + kColumns + c] = d * silu_exact(gate);
    }
  }
  CHECK(worst_error(got[0], y, 1e-3) < 5e-7);
  CHECK(worst_error(got[1], dx, 0.1) < 2e-6);
}

}  // namespace mw::kernels
