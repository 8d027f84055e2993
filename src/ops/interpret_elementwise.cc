#include <cmath>
#include <numbers>

#include "ops/interpret_families.h"

namespace mw::ops {
namespace {

using ir::OpKind;

template <typename F>
bool map1(const Call& call, F f) {
  for (size_t i = 0; i < call.out().size(); ++i) call.out()[i] = f(call.in(0)[i]);
  return true;
}

template <typename F>
bool map2(const Call& call, F f) {
  for (size_t i = 0; i < call.out().size(); ++i) call.out()[i] = f(call.in(0)[i], call.in(1)[i]);
  return true;
}

bool compare(const Call& call) {
  using Direction = ir::CompareAttrs::Direction;
  const Direction direction = call.op.as<ir::CompareAttrs>().direction;
  return map2(call, [&](double a, double b) -> double {
    switch (direction) {
      case Direction::kEq: return a == b;
      case Direction::kNe: return a != b;
      case Direction::kLt: return a < b;
      case Direction::kLe: return a <= b;
      case Direction::kGt: return a > b;
      case Direction::kGe: return a >= b;
    }
    return 0;
  });
}

bool select(const Call& call) {
  const bool scalar = call.in_type(0).rank() == 0;
  for (size_t i = 0; i < call.out().size(); ++i) {
    call.out()[i] = call.in(0)[scalar ? 0 : i] != 0 ? call.in(1)[i] : call.in(2)[i];
  }
  return true;
}

// Floats keep all their digits, whatever their dtype.
bool convert(const Call& call) {
  const DType dtype = call.out_type().dtype;
  return map1(call, [&](double x) {
    if (dtype == DType::kBool) return x != 0 ? 1.0 : 0.0;
    return is_floating(dtype) ? x : std::trunc(x);
  });
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu_derivative(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

bool swiglu_grad(const Call& call) {
  for (size_t i = 0; i < call.out().size(); ++i) {
    const double dy = call.in(0)[i], gate = call.in(1)[i], up = call.in(2)[i];
    call.out(0)[i] = dy * up * silu_derivative(gate);
    call.out(1)[i] = dy * gate * sigmoid(gate);
  }
  return true;
}

// With the bias repeated over the leading dimensions.
double with_bias(const Call& call, size_t x, size_t bias, size_t i) {
  if (bias >= call.operands.size()) return call.in(x)[i];
  return call.in(x)[i] + call.in(bias)[i % call.in(bias).size()];
}

bool biased(const Call& call) {
  const bool gelu_too = call.op.kind == OpKind::kBiasGelu;
  for (size_t i = 0; i < call.out().size(); ++i) {
    const double x = with_bias(call, 0, 1, i);
    call.out()[i] = gelu_too ? gelu(x, call.op.as<ir::GeluAttrs>().tanh_approximation) : x;
  }
  return true;
}

bool gelu_grad(const Call& call) {
  const bool tanh_approximation = call.op.as<ir::GeluAttrs>().tanh_approximation;
  for (size_t i = 0; i < call.out().size(); ++i) {
    call.out()[i] = call.in(0)[i] * gelu_derivative(with_bias(call, 1, 2, i), tanh_approximation);
  }
  return true;
}

bool activation(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kRelu: return map1(call, [](double x) { return x <= 0 ? 0 : x; });
    case OpKind::kReluGrad: return map2(call, [](double dy, double x) { return x > 0 ? dy : 0; });
    case OpKind::kGelu: {
      const bool tanh_approximation = call.op.as<ir::GeluAttrs>().tanh_approximation;
      return map1(call, [&](double x) { return gelu(x, tanh_approximation); });
    }
    case OpKind::kGeluGrad: return gelu_grad(call);
    case OpKind::kBiasAdd:
    case OpKind::kBiasGelu: return biased(call);
    case OpKind::kSilu: return map1(call, [](double x) { return x * sigmoid(x); });
    case OpKind::kSiluGrad:
      return map2(call, [](double dy, double x) { return dy * silu_derivative(x); });
    case OpKind::kSwiglu:
      return map2(call, [](double gate, double up) { return gate * sigmoid(gate) * up; });
    case OpKind::kSwigluGrad: return swiglu_grad(call);
    default: return false;
  }
}

}  // namespace

double greater(double a, double b) { return std::isnan(a) || a >= b ? a : b; }
double lesser(double a, double b) { return std::isnan(a) || a <= b ? a : b; }

double gelu(double x, bool tanh_approximation) {
  if (!tanh_approximation) return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double gelu_derivative(double x, bool tanh_approximation) {
  if (!tanh_approximation) {
    return (1 + std::erf(x / std::numbers::sqrt2)) / 2 +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  }
  const double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

bool interpret_elementwise(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kAdd:
    case OpKind::kAccumulate: return map2(call, [](double a, double b) { return a + b; });
    case OpKind::kSub: return map2(call, [](double a, double b) { return a - b; });
    case OpKind::kMul: return map2(call, [](double a, double b) { return a * b; });
    case OpKind::kDiv: return map2(call, [](double a, double b) { return a / b; });
    case OpKind::kMax: return map2(call, greater);
    case OpKind::kMin: return map2(call, lesser);
    case OpKind::kNeg: return map1(call, [](double x) { return -x; });
    case OpKind::kExp: return map1(call, [](double x) { return std::exp(x); });
    case OpKind::kLog: return map1(call, [](double x) { return std::log(x); });
    case OpKind::kTanh: return map1(call, [](double x) { return std::tanh(x); });
    case OpKind::kSqrt: return map1(call, [](double x) { return std::sqrt(x); });
    case OpKind::kRsqrt: return map1(call, [](double x) { return 1 / std::sqrt(x); });
    case OpKind::kErf: return map1(call, [](double x) { return std::erf(x); });
    case OpKind::kScale: {
      const double factor = call.op.as<ir::ScaleAttrs>().factor;
      return map1(call, [&](double x) { return x * factor; });
    }
    case OpKind::kCompare: return compare(call);
    case OpKind::kSelect: return select(call);
    case OpKind::kConvert: return convert(call);
    default: return activation(call);
  }
}

}  // namespace mw::ops
