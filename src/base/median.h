// The middle of measured values, which a few slow ones do not move.
#pragma once

#include <algorithm>
#include <vector>

namespace mw {

// The mean of the two middle values where their number is even; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace mw
