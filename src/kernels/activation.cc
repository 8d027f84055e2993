#include "kernels/activation.h"

#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

constexpr float kInvSqrtTwoPi = 0.39894228040143267794f;
constexpr float kTwoSqrtTwoOverPi = 1.59576912160573071176f;  // 2 * sqrt(2/pi)
constexpr float kCubic = 0.044715f;

// Phi(x) and the density exp(-x^2 / 2), from one exponential: Phi(-t) = exp(-t^2 / 2) s p(s) with
// s = 1 / (1 + 0.35 t), t >= 0. p interpolates at the Chebyshev nodes of t in [0, 14], with a
// relative error of 4e-8; farther out the exponential is 0.
struct Normal {
  vf cdf;
  vf density;
};
MW_INLINE Normal normal_of(vf x) {
  const vf density = exp_probability(x * x * -0.5f);
  const vf s = 1.0f / fma(abs_of(x), 0.35f, splat(1.0f));
  vf p = splat(-0.029679522f);
  p = fma(p, s, 0.14654583f);
  p = fma(p, s, -0.26096126f);
  p = fma(p, s, 0.16505103f);
  p = fma(p, s, -0.027046626f);
  p = fma(p, s, 0.1071146f);
  p = fma(p, s, 0.119444914f);
  p = fma(p, s, 0.13991229f);
  p = fma(p, s, 0.13961871f);
  const vf tail = density * (s * p);
  return {select(x > 0.0f, 1.0f - tail, tail), density};
}

struct GeluExact {
  static MW_ALWAYS_INLINE vf value(vf x) { return x * normal_of(x).cdf; }
  static MW_ALWAYS_INLINE vf slope(vf x) {
    const Normal normal = normal_of(x);
    return fma(x, normal.density * kInvSqrtTwoPi, normal.cdf);
  }
};

// 0.5 * (1 + tanh(u)) is sigmoid(2u).
struct GeluTanh {
  static MW_ALWAYS_INLINE vf argument(vf x) {
    return x * fma(x * x, kTwoSqrtTwoOverPi * kCubic, splat(kTwoSqrtTwoOverPi));
  }
  static MW_ALWAYS_INLINE vf value(vf x) { return x * sigmoid_of(argument(x)).value; }
  static MW_ALWAYS_INLINE vf slope(vf x) {
    const Sigmoid s = sigmoid_of(argument(x));
    const vf inner = fma(x * x, 3.0f * kTwoSqrtTwoOverPi * kCubic, splat(kTwoSqrtTwoOverPi));
    return fma(x * (s.value * s.complement), inner, s.value);
  }
};

template <typename Kind>
void gelu_of(const float* x, float* y, int64_t begin, int64_t end) {
  for_each_vec(begin, end,
               [&](auto span, int64_t i) { span.store(y + i, Kind::value(span.load(x + i))); });
}

template <typename Kind>
void gelu_backward_of(const float* dy, const float* x, float* dx, int64_t begin, int64_t end) {
  for_each_vec(begin, end, [&](auto span, int64_t i) {
    span.store(dx + i, span.load(dy + i) * Kind::slope(span.load(x + i)));
  });
}

template <typename Kind>
void bias_gelu_of(const float* x_RN, const float* b_N, int64_t N, float* y_RN, int64_t begin,
                  int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = x_RN + r * N;
    float* y = y_RN + r * N;
    for_each_vec(0, N, [&](auto span, int64_t i) {
      span.store(y + i, Kind::value(span.load(x + i) + span.load(b_N + i)));
    });
  }
}

template <typename Kind>
void bias_gelu_backward_of(const float* dy_RN, const float* x_RN, const float* b_N, int64_t N,
                           float* dx_RN, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = dy_RN + r * N;
    const float* x = x_RN + r * N;
    float* dx = dx_RN + r * N;
    for_each_vec(0, N, [&](auto span, int64_t i) {
      span.store(dx + i, span.load(dy + i) * Kind::slope(span.load(x + i) + span.load(b_N + i)));
    });
  }
}

MW_INLINE vf silu_slope(vf x, Sigmoid s) { return fma(x * s.value, s.complement, s.value); }

}  // namespace

void gelu(Gelu kind, const float* x, float* y, int64_t begin, int64_t end) {
  (kind == Gelu::kExact ? gelu_of<GeluExact> : gelu_of<GeluTanh>)(x, y, begin, end);
}

void gelu_backward(Gelu kind, const float* dy, const float* x, float* dx, int64_t begin,
                   int64_t end) {
  (kind == Gelu::kExact ? gelu_backward_of<GeluExact> : gelu_backward_of<GeluTanh>)(dy, x, dx,
                                                                                    begin, end);
}

void bias_gelu(Gelu kind, const float* x_RN, const float* b_N, int64_t N, float* y_RN,
               int64_t begin, int64_t end) {
  (kind == Gelu::kExact ? bias_gelu_of<GeluExact> : bias_gelu_of<GeluTanh>)(x_RN, b_N, N, y_RN,
                                                                            begin, end);
}

void bias_gelu_backward(Gelu kind, const float* dy_RN, const float* x_RN, const float* b_N,
                        int64_t N, float* dx_RN, int64_t begin, int64_t end) {
  (kind == Gelu::kExact ? bias_gelu_backward_of<GeluExact>
                        : bias_gelu_backward_of<GeluTanh>)(dy_RN, x_RN, b_N, N, dx_RN, begin, end);
}

void silu(const float* x, float* y, int64_t begin, int64_t end) {
  for_each_vec(begin, end, [&](auto span, int64_t i) {
    const vf v = span.load(x + i);
    span.store(y + i, v * sigmoid_of(v).value);
  });
}

void silu_backward(const float* dy, const float* x, float* dx, int64_t begin, int64_t end) {
  for_each_vec(begin, end, [&](auto span, int64_t i) {
    const vf v = span.load(x + i);
    span.store(dx + i, span.load(dy + i) * silu_slope(v, sigmoid_of(v)));
  });
}

void swiglu(const float* gate_RF, const float* up_RF, int64_t in_stride, int64_t F, float* y_RF,
            int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* gate = gate_RF + r * in_stride;
    const float* up = up_RF + r * in_stride;
    float* y = y_RF + r * F;
    for_each_vec(0, F, [&](auto span, int64_t i) {
      const vf g = span.load(gate + i);
      span.store(y + i, g * sigmoid_of(g).value * span.load(up + i));
    });
  }
}

void swiglu_backward(const float* dy_RF, const float* gate_RF, const float* up_RF,
                     int64_t in_stride, int64_t F, float* dgate_RF, float* dup_RF,
                     int64_t grad_stride, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* dy = dy_RF + r * F;
    const float* gate = gate_RF + r * in_stride;
    const float* up = up_RF + r * in_stride;
    float* dgate = dgate_RF + r * grad_stride;
    float* dup = dup_RF + r * grad_stride;
    for_each_vec(0, F, [&](auto span, int64_t i) {
      const vf d = span.load(dy + i);
      const vf g = span.load(gate + i);
      const vf u = span.load(up + i);
      const Sigmoid s = sigmoid_of(g);
      span.store(dup + i, d * (g * s.value));
      span.store(dgate + i, d * u * silu_slope(g, s));
    });
  }
}

}  // namespace mw::kernels
