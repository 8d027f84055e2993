#include "partition/assignment.h"

#include <doctest/doctest.h>

#include "sharding/sharding.h"

namespace mw::partition {
namespace {

using sharding::parse_sharding;
using sharding::Sharding;

const cluster::Mesh kMesh({{"tp", 2}});
const ir::TensorType kMatrix = ir::make_type(DType::kF32, {8, 8});

ops::ShardingRule rule_of(const std::string& text, std::vector<int> linear,
                          const ir::TensorType& result = kMatrix) {
  ops::ShardingRule rule = ops::make_rule(text, std::vector{kMatrix, kMatrix}, std::vector{result});
  rule.linear = std::move(linear);
  return rule;
}

TEST_CASE("among equals the first proposed; work divides a tie, and bytes that it outweighs") {
  const ops::ShardingRule rule = rule_of("a b, a b -> a b", {});
  const auto chosen = [&](double flops, double split_bytes) {
    AssignmentProblem problem{rule, kMesh, {}, {}, {}, {}, {}, flops, 0};
    problem.operands = {{parse_sharding(R"([{}, {"tp"}])")}, {parse_sharding(R"([{"tp"}, {}])")}};
    problem.results = {std::nullopt};
    problem.operand_cost = [&](int, const Sharding& s) {
      return s.is_replicated() ? 0 : split_bytes;
    };
    problem.result_cost = [](int, const Sharding&) { return 0.0; };
    return to_string(result_sharding(rule, 0, choose_assignment(problem)));
  };
  CHECK(chosen(0, 0) == R"([{}, {"tp"}])");
  CHECK(chosen(0, 1) == "[{}, {}]");
  CHECK(chosen(1e9, 1) == R"([{}, {"tp"}])");  // half of it counts for 50 bytes
  CHECK(chosen(1e9, 26) == "[{}, {}]");        // twice
}

TEST_CASE("a product keeps one operand pending, the first that can, where that moves fewer bytes") {
  const ops::ShardingRule rule = rule_of("a b, b c -> a c", {0, 1});
  const Sharding pending = parse_sharding(R"([{}, {}] partial{"tp"})");
  // Whether the sum passes: bytes of each operand as it pends (negative: it cannot) and whole, and
  // of the result as it pends and whole.
  const auto passes = [&](std::pair<double, double> first, std::pair<double, double> second,
                          double result, double whole_result = 0) {
    AssignmentProblem problem{rule, kMesh, {}, {}, {}, {}, {}, 0, 0};
    problem.operands = {{pending}, {pending}};
    problem.results = {std::nullopt};
    problem.operand_cost = [&](int i, const Sharding& s) {
      const auto& [partial, whole] = i == 0 ? first : second;
      return s.is_partial() ? partial : whole;
    };
    problem.result_cost = [&](int, const Sharding& s) {
      return s.is_partial() ? result : whole_result;
    };
    const Assignment made = choose_assignment(problem);
    CHECK(result_sharding(rule, 0, made).partial == made.kept_partial);
    return !made.kept_partial.empty();
  };
  CHECK(passes({0, 9}, {0, 9}, 8));
  CHECK_FALSE(passes({0, 9}, {0, 9}, 10));  // the second is whole in any case
  CHECK(passes({-1, 0}, {0, 9}, 8));
  CHECK_FALSE(passes({-1, 0}, {-1, 0}, 0, 3));  // neither can pend
}

TEST_CASE("a pending sum is that of operands that an op is linear in and of factors it reduces") {
  ops::ShardingRule rule = rule_of("a b, a b -> a", {1}, ir::make_type(DType::kF32, {8}));
  set_reduction(rule, ir::Reduction::kMax);
  Assignment kept;
  kept.factors.resize(2);
  kept.kept_partial = {"tp"};
  CHECK(to_string(operand_sharding(rule, 0, kept)) == "[{}, {}]");
  CHECK(to_string(operand_sharding(rule, 1, kept)) == R"([{}, {}] partial{"tp"})");
  CHECK(to_string(result_sharding(rule, 0, kept)) == R"([{}] partial{"tp"})");
  Assignment split;
  split.factors.resize(2);
  split.factors[1] = {"tp"};
  CHECK(to_string(result_sharding(rule, 0, split)) == R"([{}] partial<max>{"tp"})");
}

}  // namespace
}  // namespace mw::partition
