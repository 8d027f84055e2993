#include "solver/integer_program.h"

#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"

using namespace mw::solver;

// Where the build has no solver there is nothing to test but that it says so.
static bool absent() {
  if (!solver_name().empty()) return false;
  CHECK_THROWS_AS(solve({}), mw::Error);
  return true;
}

TEST_CASE("a knapsack of six things is packed best") {
  if (absent()) return;
  const double value[] = {10, 13, 7, 8, 2, 11}, weight[] = {5, 6, 3, 4, 1, 5};
  IntegerProgram program;
  std::vector<IntegerProgram::Term> row;
  for (int i = 0; i < 6; ++i) row.push_back({program.add_binary(-value[i]), weight[i]});
  program.add_row(-kInfinity, 12, row);
  const Solution solution = solve(program);
  CHECK(solution.status == Solution::Status::kOptimal);
  double best = 0;  // by trying all
  for (int set = 0; set < 64; ++set) {
    double v = 0, w = 0;
    for (int i = 0; i < 6; ++i) {
      if (set >> i & 1) v += value[i], w += weight[i];
    }
    if (w <= 12) best = std::max(best, v);
  }
  CHECK(solution.objective == mw::test::close_to(-best));
}

TEST_CASE("continuous variables, equations and bounds on both sides") {
  if (absent()) return;
  IntegerProgram program;  // minimise x + 2 y, x + y = 4, x <= 3, 1 <= y
  const int32_t x = program.add_variable({1, 0, 3, false});
  const int32_t y = program.add_variable({2, 1, kInfinity, false});
  program.add_row(4, 4, {{x, 1}, {y, 1}});
  const Solution solution = solve(program);
  CHECK(solution.status == Solution::Status::kOptimal);
  CHECK(solution.values[0] == mw::test::close_to(3));
  CHECK(solution.values[1] == mw::test::close_to(1));
  CHECK(solution.objective == mw::test::close_to(5));
  CHECK(solution.bound == mw::test::close_to(5));
}

TEST_CASE("rows without variables are satisfied or not") {
  if (absent()) return;
  IntegerProgram program;
  program.add_row(-1, 2, {});
  CHECK(solve(program).status == Solution::Status::kOptimal);
  CHECK(solve(program).bound == 0);
  program.add_row(1, 2, {});
  CHECK(solve(program).status == Solution::Status::kInfeasible);
}

TEST_CASE("costs that fall without an end are unbounded") {
  if (absent()) return;
  for (const bool integer : {false, true}) {
    IntegerProgram program;
    program.add_variable({-1, 0, kInfinity, integer});
    const Solution solution = solve(program);
    CHECK(solution.status == Solution::Status::kUnbounded);
    CHECK(solution.bound == -kInfinity);
  }
}

TEST_CASE("what cannot be satisfied is said to be so") {
  if (absent()) return;
  IntegerProgram program;
  const int32_t x = program.add_binary(), y = program.add_binary();
  program.add_row(3, kInfinity, {{x, 1}, {y, 1}});
  const Solution solution = solve(program);
  CHECK(solution.status == Solution::Status::kInfeasible);
  CHECK(solution.values.empty());
}

// Which of twelve things, of 3 to 6, come to 20 at the least cost: 6, and 31 for all.
static IntegerProgram cover(double unit) {
  IntegerProgram program;
  std::vector<IntegerProgram::Term> row;
  for (int i = 0; i < 12; ++i)
    row.push_back({program.add_binary((1.0 + i % 5) * unit), 3.0 + i % 4});
  program.add_row(20, kInfinity, row);
  return program;
}

TEST_CASE("the best is found in whatever unit the costs are, from whatever start") {
  if (absent()) return;
  for (const double unit : {1e-9, 1e-6, 1., 1e6}) {
    CAPTURE(unit);
    for (const std::vector<double>& start : {std::vector<double>(), std::vector<double>(12, 1)}) {
      const Solution solution = solve(cover(unit), {.start = start});
      CHECK(solution.status == Solution::Status::kOptimal);
      CHECK(solution.objective == mw::test::close_to(6 * unit));
      CHECK(solution.bound == mw::test::close_to(6 * unit));
    }
  }
}

TEST_CASE("the same program gives the same answer") {
  if (absent()) return;
  CHECK(solve(cover(1)).values == solve(cover(1)).values);
}

// Market split [Cornuejols 1999]: which half of the customers has half of every product's sales?
// The costs are what is missing or too much. Their relaxation says nothing.
struct MarketSplit {
  static constexpr int32_t kProducts = 4, kCustomers = 30;
  IntegerProgram program;

  // `half` gives a product's half of its sales, [customer], of which `most` may be missing.
  template <typename Half>
  explicit MarketSplit(Half half, double most = kInfinity) {
    for (int32_t c = 0; c < kCustomers; ++c) program.add_binary();
    for (int32_t p = 0; p < kProducts; ++p) {
      std::vector<IntegerProgram::Term> row;
      std::vector<double> sales;
      for (int32_t c = 0; c < kCustomers; ++c) {
        sales.push_back((c * c * 37 + c * 11 + p * 53 + c * p * 29) % 100);
        row.push_back({c, sales.back()});
      }
      row.push_back({program.add_variable({1, 0, most, false}), 1});
      row.push_back({program.add_variable({1, 0, most, false}), -1});
      program.add_row(half(sales), half(sales), row);
    }
  }
};

// Of the first half of the customers, whom a search hardly finds.
static double planted(const std::vector<double>& sales) {
  return std::accumulate(sales.begin(), sales.begin() + MarketSplit::kCustomers / 2, 0.);
}

TEST_CASE("a start is taken") {
  if (absent()) return;
  const MarketSplit split(planted);
  std::vector<double> start(split.program.variables().size(), 0);
  std::fill_n(start.begin(), MarketSplit::kCustomers / 2, 1);
  const Solution without = solve(split.program, {.most_nodes = 1, .start = {}});
  CHECK(without.status == Solution::Status::kFeasible);
  CHECK(without.objective > 1);
  const Solution with = solve(split.program, {.most_nodes = 1, .start = start});
  CHECK(with.status == Solution::Status::kOptimal);
  CHECK(with.objective == doctest::Approx(0));
  CHECK(with.values == start);
}

TEST_CASE("a search whose nodes are used up says so, the same way every time") {
  if (absent()) return;
  const MarketSplit split([](const std::vector<double>& sales) {
    return std::floor(std::accumulate(sales.begin(), sales.end(), 0.) / 2);
  });
  const SolveOptions few{.most_nodes = 20, .start = {}};
  const Solution cut = solve(split.program, few);
  CHECK(cut.status == Solution::Status::kFeasible);
  CHECK(cut.bound < cut.objective);
  const Solution again = solve(split.program, few);
  CHECK(again.values == cut.values);
  CHECK(again.bound == cut.bound);
}

TEST_CASE("a search that ends before it has found anything says so") {
  if (absent()) return;
  const Solution solution = solve(MarketSplit(planted, 0).program, {.most_nodes = 1, .start = {}});
  CHECK(solution.status == Solution::Status::kNothing);
  CHECK(solution.values.empty());
}
