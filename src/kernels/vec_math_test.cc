#include "kernels/vec_math.h"

#include <cmath>

#include <doctest/doctest.h>

namespace mw::kernels {
namespace {

#if defined(__FMA__)
constexpr double kSlack = 0.0;
#else
constexpr double kSlack = 0.3;  // products that are rounded before they are added
#endif

// |got - want| in units in the last place of want.
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(static_cast<float>(want))) return got == static_cast<float>(want) ? 0 : 1e9;
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, want == 0 ? -149 : std::max(exponent - 24, -149));
}

// Over floats of every sign and exponent, infinities and NaN included.
template <typename Fast, typename Exact>
double worst_ulps(Fast fast, Exact exact, float limit = kInfinity) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (1ull << 32); bits += 4099 * kLanes) {
    vi lanes;
    for (int i = 0; i < kLanes; ++i) {
      const auto lane = static_cast<uint32_t>(bits + 4099 * static_cast<uint64_t>(i));
      std::memcpy(reinterpret_cast<char*>(&lanes) + 4 * i, &lane, 4);
    }
    const vf x = float_of(lanes);
    const vf y = fast(x);
    for (int i = 0; i < kLanes; ++i) {
      if (std::fabs(x[i]) > limit) continue;
      worst = std::max(worst, ulps(y[i], exact(static_cast<double>(x[i]))));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("exp, log, tanh, erf and sigmoid are within their stated errors on all kinds of floats") {
  CHECK(worst_ulps([](vf x) { return exp_of(x); }, [](double x) { return std::exp(x); }) <
        0.9 + kSlack);
  CHECK(worst_ulps([](vf x) { return log_of(x); }, [](double x) { return std::log(x); }) <
        0.9 + kSlack);
  CHECK(worst_ulps([](vf x) { return tanh_of(x); }, [](double x) { return std::tanh(x); }) <
        1.4 + kSlack);
  CHECK(worst_ulps([](vf x) { return erf_of(x); }, [](double x) { return std::erf(x); }) <
        1.0 + kSlack);
  CHECK(worst_ulps([](vf x) { return sigmoid_of(x).value; },
                   [](double x) { return 1 / (1 + std::exp(-x)); }) < 2.7 + kSlack);
  CHECK(worst_ulps([](vf x) { return sigmoid_of(x).complement; },
                   [](double x) { return 1 / (1 + std::exp(x)); }) < 2.7 + kSlack);
}

TEST_CASE("sine and cosine are within their stated error below 2^31") {
  const float limit = 2147483520.0f;
  const auto clamp = [&](vf x) { return select(abs_of(x) <= limit, x, vf{}); };
  const auto sine = [&](vf x) {
    vf s, c;
    sin_cos_of(clamp(x), &s, &c);
    return s;
  };
  const auto cosine = [&](vf x) {
    vf s, c;
    sin_cos_of(clamp(x), &s, &c);
    return c;
  };
  CHECK(worst_ulps(sine, [](double x) { return std::isnan(x) ? 0 : std::sin(x); }, limit) < 0.6);
  CHECK(worst_ulps(cosine, [](double x) { return std::isnan(x) ? 1 : std::cos(x); }, limit) < 0.6);
}

TEST_CASE("the exponential of probabilities is 0 below 2^-125 and exact elsewhere") {
  CHECK(worst_ulps([](vf x) { return exp_probability(x > 80.0f ? splat(80.0f) : x); },
                   [](double x) { return x < -86.6f ? 0.0 : std::exp(x > 80 ? 80.0 : x); }) <
        0.9 + kSlack);
  CHECK(exp_probability(splat(-kInfinity))[0] == 0.0f);
  CHECK(exp_probability(vf{})[0] == 1.0f);
}

}  // namespace mw::kernels
