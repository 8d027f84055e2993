// Whether two lists of numbers have the same order.
#pragma once

#include <vector>

namespace mw::solver {

// Spearman's: the correlation of the numbers' ranks in their lists, 1 for the same order, -1 for
// the reverse; equal numbers share the mean of their ranks. 0 where all numbers of a list are
// equal. REQUIRES: lists of the same length without NaN, which has no rank.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace mw::solver
