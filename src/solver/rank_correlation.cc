#include "solver/rank_correlation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace mw::solver {
namespace {

std::vector<double> ranks_of(const std::vector<double>& values) {
  for (const double value : values) MW_CHECK(!std::isnan(value), "NaN has no rank");
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t j = i; j < end; ++j)
      ranks[order[j]] = (static_cast<double>(i) + static_cast<double>(end) - 1) / 2;
    i = end;
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  MW_CHECK(a.size() == b.size(), "{} numbers beside {}", a.size(), b.size());
  return correlation(ranks_of(a), ranks_of(b));
}

}  // namespace mw::solver
