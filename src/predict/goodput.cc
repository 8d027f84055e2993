#include "predict/goodput.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace mw::predict {
namespace {

// The x in (0, 1) with (1 - x) e^x = e^-c: the best interval over M, for a checkpoint of c M.
// Newton from Young's sqrt(2 c); the left side falls and is concave in (0, 1), so it converges.
double best_share(double c) {
  if (c == 0) return 0;
  double x = std::min(0.999, std::sqrt(2 * c));
  for (int i = 0; i < 100; ++i) {
    // In logarithms, so that a small c keeps its digits.
    const double value = std::log1p(-x) + x + c;
    const double next = x + value * (1 - x) / x;
    const double kept = std::clamp(next, x / 2, (1 + x) / 2);
    if (std::abs(kept - x) <= 1e-15 * x) return kept;
    x = kept;
  }
  return x;
}

// 1 / (e^x - 1), 0 where e^x is beyond all numbers.
double inverse_growth(double x) { return std::exp(-x) / -std::expm1(-x); }

}  // namespace

Goodput goodput(const Failures& failures, int64_t devices, Seconds step) {
  MW_CHECK(failures.device_mtbf.value > 0 && failures.checkpoint.value >= 0 &&
               failures.restart.value >= 0 && devices > 0 && step.value > 0,
           "mtbf {}, checkpoint {}, restart {}, devices {}, step {}", failures.device_mtbf.value,
           failures.checkpoint.value, failures.restart.value, devices, step.value);
  Goodput result;
  const double m = failures.device_mtbf.value / static_cast<double>(devices);
  const double c = failures.checkpoint.value / m, r = failures.restart.value / m;
  result.job_mtbf = Seconds(m);
  result.young = Seconds(std::sqrt(2 * c) * m);
  result.daly =
      Seconds(c < 2 ? m * (std::sqrt(2 * c) * (1 + std::sqrt(c / 2) / 3 + c / 18) - c) : m);
  const auto lasting = [&](Seconds interval) {
    return interval.value / m * std::exp(-r) * inverse_growth(interval.value / m + c);
  };
  const double steps = std::max(1.0, std::floor(best_share(c) * m / step.value));
  result.best_interval =
      lasting(step * (steps + 1)) > lasting(step * steps) ? step * (steps + 1) : step * steps;
  result.interval = result.best_interval;
  if (failures.interval)
    result.interval = step * std::max(1.0, std::round(failures.interval->value / step.value));
  const double tau = result.interval.value / m;
  // An interval's time over M is e^r (e^(tau + c) - 1): each share is divided by it.
  const double up = std::exp(-r), each = inverse_growth(tau + c);
  result.goodput = tau * up * each;
  result.checkpoints = c * up * each;
  result.lost_work = (1 - (tau + c) * each) * up;
  result.restarts = -std::expm1(-r);
  result.best_goodput = lasting(result.best_interval);
  return result;
}

}  // namespace mw::predict
