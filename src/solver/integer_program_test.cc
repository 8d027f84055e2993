#include "solver/integer_program.h"

#include <cmath>

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

TEST_CASE("a start is taken and the same program gives the same answer") {
  if (absent()) return;
  IntegerProgram program;
  std::vector<IntegerProgram::Term> row;
  for (int i = 0; i < 12; ++i) row.push_back({program.add_binary(1.0 + i % 5), 3.0 + i % 4});
  program.add_row(20, kInfinity, row);
  const Solution plain = solve(program);
  const Solution started = solve(program, {.start = std::vector<double>(12, 1)});
  CHECK(plain.objective == mw::test::close_to(started.objective));
  CHECK(solve(program).values == plain.values);
}

TEST_CASE("a search whose nodes are used up says so, the same way every time") {
  if (absent()) return;
  // Market split [Cornuejols 1999]: which half of the customers has half of every product's sales?
  // Their relaxation says nothing.
  constexpr int32_t kProducts = 4, kCustomers = 30;
  IntegerProgram program;
  std::vector<double> start(kCustomers, 0);
  for (int32_t c = 0; c < kCustomers; ++c) program.add_binary();
  for (int32_t p = 0; p < kProducts; ++p) {
    std::vector<IntegerProgram::Term> row;
    double sum = 0;
    for (int32_t c = 0; c < kCustomers; ++c) {
      row.push_back({c, static_cast<double>((c * c * 37 + c * 11 + p * 53 + c * p * 29) % 100)});
      sum += row.back().factor;
    }
    const double half = std::floor(sum / 2);
    row.push_back({program.add_variable({1, 0, kInfinity, false}), 1});
    row.push_back({program.add_variable({1, 0, kInfinity, false}), -1});
    program.add_row(half, half, row);
    start.insert(start.end(), {half, 0});
  }
  const SolveOptions few{.most_nodes = 20, .start = start};
  const Solution cut = solve(program, few);
  CHECK(cut.status == Solution::Status::kFeasible);
  CHECK(cut.bound < cut.objective);
  const Solution again = solve(program, few);
  CHECK(again.values == cut.values);
  CHECK(again.bound == cut.bound);
}
