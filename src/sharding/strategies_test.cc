// What the propagation strategies propose for one op, by its tensors' axes.
#include <doctest/doctest.h>

#include "base/text.h"
#include "sharding/propagation_strategy.h"

namespace mw::sharding {
namespace {

struct Held {
  std::vector<Axes> axes;  // [factor of the rule]
  double bytes = 1;
  Authority authority = Authority::kPropagated;
};

// "b {dp} of 1; d {tp} of 0; tp for d, not a, by 0 and 1": proposals, then conflicts.
std::string proposed(const PropagationStrategy& strategy, const std::string& text,
                     const std::vector<ir::TensorType>& operands,
                     const std::vector<ir::TensorType>& results, const std::vector<Held>& held) {
  static const cluster::Mesh mesh({{"dp", 2}, {"tp", 2}, {"cp", 2}});
  const ops::ShardingRule rule = ops::make_rule(text, operands, results);
  const ir::Op op;
  OpView view{op, rule, mesh, {}};
  for (size_t t = 0; t < held.size(); ++t) {
    const bool operand = t < rule.operands.size();
    TensorView& tensor = view.tensors.emplace_back();
    tensor.dims = operand ? &rule.operands[t] : &rule.results[t - rule.operands.size()];
    tensor.axes.assign(held[t].axes.begin(), held[t].axes.end());
    tensor.axes.resize(rule.factors.size());
    tensor.authority = held[t].authority;
    tensor.bytes = held[t].bytes;
  }
  const auto name = [&](size_t factor) { return rule.factors[factor].name; };
  std::vector<std::string> texts;
  const Proposals found = strategy.propose(view);
  for (const Proposal& p : found.list) {
    std::vector<std::string> axes;
    for (const Name axis : p.axes) axes.push_back(axis);
    texts.push_back(fmt::format("{} {{{}}} of {}", name(p.factor), join(axes, ", "), p.from));
  }
  for (const Conflict& c : found.conflicts) {
    texts.push_back(fmt::format("{} for {}, not {}, by {} and {}", c.axis, name(c.kept),
                                name(c.lost), c.kept_by, c.lost_by));
  }
  return join(texts, "; ");
}

const ir::TensorType kMatrix = ir::make_type(DType::kF32, {8, 8});

// a d, b d -> a b.
std::string of_product(const PropagationStrategy& strategy, const std::vector<Held>& held) {
  return proposed(strategy, "a d, b d -> a b", {kMatrix, kMatrix}, {kMatrix}, held);
}

TEST_CASE("factors: the longest axes that all agree on, of the first tensor that has them") {
  // Factors a, d, b.
  CHECK(of_product(kFactors, {{{{}, {"dp"}}}, {{{}, {"dp"}}}, {}}) == "d {dp} of 0");
  CHECK(of_product(kFactors, {{{{}, {"dp"}}}, {{{}, {"dp", "tp"}}}, {}}) == "d {dp, tp} of 1");
  CHECK(of_product(kFactors, {{{{}, {"dp"}}}, {{{}, {"tp"}}}, {}}) == "");
  CHECK(of_product(kFactors, {{{{}, {"dp"}}}, {{{}, {"tp", "dp"}}}, {}}) == "");
  // Up to the first that another factor has somewhere.
  CHECK(of_product(kFactors, {{{{}, {"dp", "tp", "cp"}}}, {}, {{{"tp"}}}}) == "d {dp} of 0");
  CHECK(of_product(kFactors, {{{{}, {"tp"}}}, {}, {{{"tp"}}}}) == "");
}

TEST_CASE("pass-through: of ops whose tensors all have all factors that can be split") {
  const ir::TensorType vector = ir::make_type(DType::kF32, {8}),
                       scalar = ir::make_type(DType::kF32, {});
  const auto passes = [&](const std::string& rule, const std::vector<ir::TensorType>& operands,
                          const ir::TensorType& result) {
    return proposed(kPassThrough, rule, operands, {result}, {{{{"dp"}}}, {}}) == "b {dp} of 0";
  };
  CHECK(passes("b d -> d b", {kMatrix}, kMatrix));
  CHECK(passes("b [d] -> b", {kMatrix}, vector));
  CHECK_FALSE(passes("b d -> b", {kMatrix}, vector));
  CHECK(proposed(kPassThrough, "b, -> b", {vector, scalar}, {vector}, {{{{"dp"}}}, {}, {}}) ==
        "b {dp} of 0");
  CHECK(proposed(kPassThrough, "b d, b -> b d", {kMatrix, vector}, {kMatrix},
                 {{{{"dp"}}}, {}, {}}) == "");
}

TEST_CASE("resolve: authority first, then bytes that would move, then the rule's first factor") {
  const auto resolved = [](const std::vector<Held>& held) { return of_product(kResolve, held); };
  constexpr Authority kAnnotation = Authority::kAnnotation, kState = Authority::kState;
  // An axis that two factors claim.
  CHECK(resolved({{{{"tp"}}}, {{{}, {"tp"}}}, {}}) == "a {tp} of 0; tp for a, not d, by 0 and 1");
  CHECK(resolved({{{{}, {"tp"}}}, {}, {{{"tp"}}}}) == "a {tp} of 2; tp for a, not d, by 2 and 0");
  CHECK(resolved({{{{"tp"}}}, {{{}, {"tp"}}, 2}, {}}) ==
        "d {tp} of 1; tp for d, not a, by 1 and 0");
  CHECK(resolved({{{{"tp"}}, 1, kAnnotation}, {{{}, {"tp"}}, 2}, {}}) ==
        "a {tp} of 0; tp for a, not d, by 0 and 1");
  CHECK(resolved({{{{"tp"}}, 2, kAnnotation}, {{{}, {"tp"}}, 1, kState}, {}}) ==
        "d {tp} of 1; tp for d, not a, by 1 and 0");
  // Bytes are those of all tensors that have the factor so, and of no other.
  CHECK(resolved({{{{}, {"dp"}}, 10}, {{{}, {"tp"}}, 6}, {}}) ==
        "d {dp} of 0; tp for d, not d, by 0 and 1");
  CHECK(proposed(kResolve, "d, d -> d",
                 {ir::make_type(DType::kF32, {8}), ir::make_type(DType::kF32, {8})},
                 {ir::make_type(DType::kF32, {8})},
                 {{{{"dp"}}, 10}, {{{"tp"}}, 6}, {{{"tp"}}, 6}}) ==
        "d {tp} of 1; dp for d, not d, by 1 and 0");
  // What is behind an axis that was lost is lost, too.
  CHECK(resolved({{{{"tp"}}, 2}, {{{}, {"tp", "dp"}}}, {}}) ==
        "a {tp} of 0; tp for a, not d, by 0 and 1");
  CHECK(resolved({{{{"tp"}}, 2}, {{{}, {"dp", "tp", "cp"}}}, {}}) ==
        "a {tp} of 0; d {dp} of 1; tp for a, not d, by 0 and 1");
  // A weaker claim goes on where a stronger one ends, and takes nothing from it.
  CHECK(resolved({{{{}, {"dp"}}, 2}, {{{}, {"dp", "tp"}}}, {}}) == "d {dp, tp} of 0");
  CHECK(resolved({{{{}, {"dp", "tp"}}, 2}, {{{}, {"dp"}}}, {}}) == "d {dp, tp} of 0");
  CHECK(resolved({{{{}, {"dp", "tp"}}, 2}, {{{}, {"dp", "cp"}}}, {}}) ==
        "d {dp, tp} of 0; cp for d, not d, by 0 and 1");
}

}  // namespace
}  // namespace mw::sharding
