#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/interpret_families.h"

namespace mw::ops {
namespace {

using ir::OpKind;

// Calls visit(row, place of its first element) for every row of the type, that is its last
// dimension.
template <typename Visit>
bool for_rows(const ir::TensorType& type, Visit visit) {
  const size_t n = static_cast<size_t>(type.dims.back().size);
  const size_t rows = n == 0 ? 0 : static_cast<size_t>(type.elements()) / n;
  for (size_t r = 0; r < rows; ++r) visit(r, r * n);
  return true;
}

size_t columns(const ir::TensorType& type) { return static_cast<size_t>(type.dims.back().size); }

bool softmax(const Call& call) {
  const size_t n = columns(call.out_type());
  return for_rows(call.out_type(), [&](size_t, size_t at) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t i = at; i < at + n; ++i) max = std::max(max, call.in(0)[i]);
    for (size_t i = at; i < at + n; ++i) sum += call.out()[i] = std::exp(call.in(0)[i] - max);
    for (size_t i = at; i < at + n; ++i) call.out()[i] /= sum;
  });
}

bool softmax_grad(const Call& call) {
  const size_t n = columns(call.out_type());
  return for_rows(call.out_type(), [&](size_t, size_t at) {
    double inner = 0;
    for (size_t i = at; i < at + n; ++i) inner += call.in(0)[i] * call.in(1)[i];
    for (size_t i = at; i < at + n; ++i) call.out()[i] = call.in(1)[i] * (call.in(0)[i] - inner);
  });
}

// Layer norm; RMS norm is the same with mean 0 and without beta.
bool norm(const Call& call, bool centered) {
  const size_t n = columns(call.out_type());
  const double epsilon = call.op.as<ir::NormAttrs>().epsilon;
  return for_rows(call.out_type(), [&](size_t r, size_t at) {
    double mean = 0, variance = 0;
    if (centered) {
      for (size_t i = 0; i < n; ++i) mean += call.in(0)[at + i] / static_cast<double>(n);
    }
    for (size_t i = 0; i < n; ++i)
      variance += std::pow(call.in(0)[at + i] - mean, 2) / static_cast<double>(n);
    const double rstd = 1 / std::sqrt(variance + epsilon);
    for (size_t i = 0; i < n; ++i) {
      call.out()[at + i] =
          (call.in(0)[at + i] - mean) * rstd * call.in(1)[i] + (centered ? call.in(2)[i] : 0);
    }
    if (centered) call.out(1)[r] = mean;
    call.out(centered ? 2 : 1)[r] = rstd;
  });
}

// Operands dy, x, gamma, [mean,] rstd.
bool norm_input_grad(const Call& call, bool centered) {
  const size_t n = columns(call.out_type());
  const size_t rstd_at = centered ? 4 : 3;
  return for_rows(call.out_type(), [&](size_t r, size_t at) {
    const double mean = centered ? call.in(3)[r] : 0, rstd = call.in(rstd_at)[r];
    double mean_g = 0, mean_gn = 0;
    const auto g = [&](size_t i) { return call.in(0)[at + i] * call.in(2)[i]; };
    const auto normal = [&](size_t i) { return (call.in(1)[at + i] - mean) * rstd; };
    for (size_t i = 0; i < n; ++i) {
      if (centered) mean_g += g(i) / static_cast<double>(n);
      mean_gn += g(i) * normal(i) / static_cast<double>(n);
    }
    for (size_t i = 0; i < n; ++i)
      call.out()[at + i] = rstd * (g(i) - mean_g - normal(i) * mean_gn);
  });
}

// Operands dy, x, [mean,] rstd.
bool norm_weight_grad(const Call& call, bool centered) {
  const size_t n = columns(call.in_type(0));
  return for_rows(call.in_type(0), [&](size_t r, size_t at) {
    const double mean = centered ? call.in(2)[r] : 0, rstd = call.in(centered ? 3 : 2)[r];
    for (size_t i = 0; i < n; ++i) {
      call.out()[i] += call.in(0)[at + i] * (call.in(1)[at + i] - mean) * rstd;
      if (centered) call.out(1)[i] += call.in(0)[at + i];
    }
  });
}

constexpr double kIgnoredTarget = -100;

// The columns of a shard of the logits that are words.
struct Words {
  int64_t first, count;
  Words(const Call& call, const ir::TensorType& logits) {
    const ir::CrossEntropyAttrs& attrs = call.op.as<ir::CrossEntropyAttrs>();
    const int64_t local = logits.dims.back().size;
    first = call.offset(attrs.columns, local);
    count = std::clamp<int64_t>(attrs.vocab - first, 0, local);
  }
  bool holds(double target) const {
    return target >= static_cast<double>(first) && target < static_cast<double>(first + count);
  }
};

bool cross_entropy_max(const Call& call) {
  const Words words(call, call.in_type(0));
  return for_rows(call.in_type(0), [&](size_t r, size_t at) {
    call.out()[r] = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < static_cast<size_t>(words.count); ++i) {
      call.out()[r] = greater(call.out()[r], call.in(0)[at + i]);
    }
  });
}

bool cross_entropy_sum(const Call& call) {
  const Words words(call, call.in_type(0));
  return for_rows(call.in_type(0), [&](size_t r, size_t at) {
    for (size_t i = 0; i < static_cast<size_t>(words.count); ++i) {
      call.out(0)[r] += std::exp(call.in(0)[at + i] - call.in(1)[r]);
    }
    const double target = call.in(2)[r];
    if (words.holds(target))
      call.out(1)[r] =
          call.in(0)[at + static_cast<size_t>(target) - static_cast<size_t>(words.first)];
  });
}

bool cross_entropy_loss(const Call& call) {
  for (size_t r = 0; r < call.out().size(); ++r) {
    const double lse = call.in(0)[r] + std::log(call.in(1)[r]);
    call.out(0)[r] = call.in(3)[r] == kIgnoredTarget ? 0 : lse - call.in(2)[r];
    call.out(1)[r] = lse;
  }
  return true;
}

bool cross_entropy_grad(const Call& call) {
  const Words words(call, call.in_type(0));
  return for_rows(call.in_type(0), [&](size_t r, size_t at) {
    const double target = call.in(2)[r];
    if (target == kIgnoredTarget) return;
    for (size_t i = 0; i < static_cast<size_t>(words.count); ++i) {
      const double hot =
          static_cast<double>(words.first) + static_cast<double>(i) == target ? 1 : 0;
      call.out()[at + i] = (std::exp(call.in(0)[at + i] - call.in(1)[r]) - hot) * call.in(3)[r];
    }
  });
}

}  // namespace

bool interpret_rows(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kSoftmax: return softmax(call);
    case OpKind::kSoftmaxGrad: return softmax_grad(call);
    case OpKind::kLayerNorm: return norm(call, true);
    case OpKind::kRmsNorm: return norm(call, false);
    case OpKind::kLayerNormInputGrad: return norm_input_grad(call, true);
    case OpKind::kRmsNormInputGrad: return norm_input_grad(call, false);
    case OpKind::kLayerNormWeightGrad: return norm_weight_grad(call, true);
    case OpKind::kRmsNormWeightGrad: return norm_weight_grad(call, false);
    case OpKind::kCrossEntropyMax: return cross_entropy_max(call);
    case OpKind::kCrossEntropySum: return cross_entropy_sum(call);
    case OpKind::kCrossEntropyLoss: return cross_entropy_loss(call);
    case OpKind::kCrossEntropyGrad: return cross_entropy_grad(call);
    default: return false;
  }
}

}  // namespace mw::ops
