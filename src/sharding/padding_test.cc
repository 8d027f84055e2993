#include "sharding/padding.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace mw::sharding {
namespace {

using ops::ShardingRule;

const cluster::Mesh kPair({{"tp", 2}});

// Of matrices of 7 rows and 8 columns.
ShardingRule matrix_rule(const std::string& text, size_t operands, const std::vector<int>& linear) {
  const std::vector<ir::TensorType> types(operands, ir::make_type(DType::kF32, {7, 8}));
  ShardingRule rule = ops::make_rule(text, types, {types.data(), 1});
  rule.linear = linear;
  return rule;
}

// "10": zeros behind the rows, none behind the columns.
std::string zero_text(const ShardingRule& rule, const std::vector<std::string>& operands) {
  std::string text;
  for (const bool zero :
       zero_tails(rule, 0, [&](size_t i, size_t d) { return operands[i][d] == '1'; }))
    text += zero ? '1' : '0';
  return text;
}

TEST_CASE("one zero makes a product zero, all that are added must be, and some ops keep none") {
  const ShardingRule product = matrix_rule("a b, a b -> a b", 2, {0, 1});
  CHECK(zero_text(product, {"10", "00"}) == "10");
  CHECK(zero_text(product, {"00", "01"}) == "01");
  CHECK(zero_text(product, {"00", "00"}) == "00");

  ShardingRule sum = product;
  sum.linearity = ShardingRule::Linearity::kJoint;
  CHECK(zero_text(sum, {"10", "00"}) == "00");
  CHECK(zero_text(sum, {"10", "11"}) == "10");

  ShardingRule quotient = matrix_rule("a b, a b -> a b", 2, {0});  // 0 / 0
  quotient.zero_preserving = quotient.finite_preserving = false;
  CHECK(zero_text(quotient, {"11", "11"}) == "00");

  ShardingRule exponential = matrix_rule("a b -> a b", 1, {});
  CHECK(zero_text(exponential, {"10"}) == "10");
  exponential.zero_preserving = false;
  CHECK(zero_text(exponential, {"11"}) == "00");
}

TEST_CASE("a dimension that no operand has, or another one has, has no zeros from it") {
  CHECK(zero_text(matrix_rule("a b -> c b", 1, {0}), {"11"}) == "01");
  const std::vector<ir::TensorType> types{ir::make_type(DType::kF32, {7, 8}),
                                          ir::make_type(DType::kF32, {8, 7})};
  ShardingRule transpose = ops::make_rule("a b -> b a", {types.data(), 1}, {&types[1], 1});
  CHECK(zero_text(transpose, {"10"}) == "01");
}

TEST_CASE("what a kernel leaves out is not reduced over, and is zeros in a result") {
  ShardingRule rule = matrix_rule("a b -> a b", 1, {});
  rule.zero_preserving = false;
  ops::set_masked(rule, 'a');
  CHECK(zero_text(rule, {"00"}) == "10");
  CHECK_THROWS_WITH_AS(ops::set_masked(rule, 'z'), doctest::Contains("has no factor z"),
                       CheckFailure);

  const ir::TensorType matrix = ir::make_type(DType::kF32, {7, 8}),
                       row = ir::make_type(DType::kF32, {8});
  ShardingRule rows = ops::make_rule("a b -> b", {&matrix, 1}, {&row, 1});
  CHECK(reduces_tail(rows, 0, {"tp"}, kPair));
  CHECK_FALSE(reduces_tail(rows, 0, {}, kPair));
  CHECK_FALSE(reduces_tail(rows, 1, {"tp"}, kPair));  // eight columns, which stay
  ops::set_masked(rows, 'a');
  CHECK_FALSE(reduces_tail(rows, 0, {"tp"}, kPair));
}

}  // namespace
}  // namespace mw::sharding
