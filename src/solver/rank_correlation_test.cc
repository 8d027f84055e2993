#include "solver/rank_correlation.h"

#include <cmath>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"

using mw::solver::rank_correlation;
using mw::test::close_to;

TEST_CASE("rank correlation sees the order alone, and equal numbers share their ranks") {
  CHECK(rank_correlation({1, 2, 3}, {10, 1000, 1001}) == close_to(1));
  CHECK(rank_correlation({1, 2, 3}, {7, 6, -5}) == close_to(-1));
  // Ranks 0, 1.5, 1.5, 3 beside 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
  CHECK(rank_correlation({1, 2, 2, 4}, {1, 2, 3, 4}) == close_to(0.948683));
  CHECK(rank_correlation({5, 5}, {1, 2}) == 0);
  CHECK(rank_correlation({5}, {1}) == 0);
}

TEST_CASE("a list with NaN has no rank correlation") {
  CHECK_THROWS_AS(rank_correlation({1, NAN, 3}, {1, 2, 3}), mw::CheckFailure);
  CHECK_THROWS_AS(rank_correlation({1, 2, 3}, {1, 2, NAN}), mw::CheckFailure);
}
