// What the choice of an op's layout depends on.
#include "partition/choose.h"

#include <doctest/doctest.h>

#include "base/text.h"

namespace mw::partition {
namespace {

using sharding::parse_sharding;

// y = x w, with x split where it is summed over, w and y whole: to gather x is the cheapest.
struct Product {
  Memo memo{cluster::Mesh({{"tp", 4}})};
  Memo::Problem problem;
  ops::ShardingRule rule;

  explicit Product(int64_t columns = 8) {
    ir::DotAttrs attrs;
    attrs.lhs = "bk", attrs.rhs = "kn", attrs.out = "bn";
    const std::vector<ir::TensorType> operands{ir::make_type(DType::kF32, {16, 8}),
                                               ir::make_type(DType::kF32, {8, columns})};
    const ir::TensorType result = ir::make_type(DType::kF32, {16, columns});
    rule = ops::make_rule("b k, k n -> b n", operands, {&result, 1});
    rule.linear = {0, 1};
    problem.kind = ir::OpKind::kDot;
    problem.attributes = memo.number(ir::Attributes(attrs));
    for (const ir::TensorType& type : operands)
      problem.operands.emplace_back().type = memo.number(type);
    x().versions = {number(R"([{}, {"tp"}])")};
    w().versions = {number("[{}, {}]")};
    problem.results.emplace_back().type = memo.number(result);
    y().given = y().advice = number("[{}, {}]");
  }
  Memo::Operand& x() { return problem.operands[0]; }
  Memo::Operand& w() { return problem.operands[1]; }
  Memo::Result& y() { return problem.results[0]; }
  int number(const std::string& sharding) { return memo.number(parse_sharding(sharding)); }

  // The factors that are split, and what stays pending.
  std::string chosen() {
    const Assignment& assignment = choose(problem, rule, memo);
    std::string text;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (!assignment.factors[f].empty()) text += rule.factors[f].name;
    }
    return text + (assignment.kept_partial.empty() ? "" : "pending");
  }
};

TEST_CASE("a clone is laid out as if the value it is made again of had been kept") {
  Product p;
  CHECK(p.chosen().empty());
  p.x().kept = {p.number(R"([{"tp"}, {}])")};
  CHECK(p.chosen() == "b");
}

TEST_CASE("a result that may pend is not reduced at once") {
  Product p;
  p.y().may_pend = true;
  CHECK(p.chosen() == "k");
}

TEST_CASE("a given result is held so, and advice proposes a split") {
  Product p;
  p.y().given = p.number(R"([{"tp"}, {}])");
  CHECK(p.chosen() == "b");
  p.y().given.reset();
  CHECK(p.chosen().empty());
  p.y().advice = p.number(R"([{"tp"}, {}])");
  CHECK(p.chosen() == "b");
}

TEST_CASE("a weight stays where it is") {
  Product p;
  p.x().versions = {p.number("[{}, {}]")};
  p.w().versions = {p.number(R"([{"tp"}, {}])")};
  CHECK(p.chosen().empty());
  p.w().is_weight = true;
  CHECK(p.chosen() == "k");
}

TEST_CASE("what is carried pends beyond the op") {
  Product p(16);
  p.x().versions = {p.number(R"([{}, {}] partial{"tp"})")};
  CHECK(p.chosen().empty());
  p.x().carried_as = p.x().versions[0];
  CHECK(p.chosen() == "pending");
}

TEST_CASE("a problem that comes again is not solved again") {
  Product p;
  const Assignment* first = &choose(p.problem, p.rule, p.memo);
  const Memo::Problem same = p.problem;
  CHECK(&choose(same, p.rule, p.memo) == first);
  p.y().may_pend = true;
  CHECK(&choose(p.problem, p.rule, p.memo) != first);
  p.y().may_pend = false;
  CHECK(&choose(p.problem, p.rule, p.memo) == first);
}

TEST_CASE("the nearest version is the one from which fewest bytes move, of those that can") {
  Memo memo(cluster::Mesh({{"tp", 4}}));
  const int type = memo.number(ir::make_type(DType::kF32, {8, 8}));
  const auto number = [&](const std::string& text) { return memo.number(parse_sharding(text)); };
  const int pending = number(R"([{}, {}] partial{"tp"})"), rows = number(R"([{"tp"}, {}])"),
            columns = number(R"([{}, {"tp"}])"), whole = number("[{}, {}]");
  CHECK(memo.nearest(type, {pending, rows}, whole).version == 1);
  CHECK(memo.nearest(type, {pending, rows}, rows).bytes == 0);
  CHECK(memo.nearest(type, {rows, columns}, whole).version == 0);  // the first of equals
  CHECK(memo.nearest(type, {rows, pending}, pending).version == 1);
  CHECK(memo.nearest(type, {rows, whole}, pending).version == -1);
  CHECK(memo.nearest(type, {}, whole).version == -1);
}

}  // namespace
}  // namespace mw::partition
