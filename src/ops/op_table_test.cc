// Every op kind: what it infers, its rule, its cost, against a golden table. MW_BLESS=1 rewrites
// it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "ops/op_def.h"
#include "ops/op_examples.h"

namespace mw::ops {
namespace {

using test::op_examples;
using test::OpExample;

std::string types_text(const std::vector<ir::TensorType>& types) {
  std::vector<std::string> texts;
  for (const ir::TensorType& type : types) texts.push_back(ir::to_string(type));
  return join(texts, ", ");
}

std::string rule_text(const ShardingRule& rule) {
  std::string text = rule.to_string();
  std::string reductions;
  for (const Factor& factor : rule.factors) {
    if (!factor.contracted || !factor.shardable) continue;
    reductions += fmt::format(" {}:{}", factor.name,
                              factor.reduction == ir::Reduction::kSum   ? "sum"
                              : factor.reduction == ir::Reduction::kMax ? "max"
                                                                        : "min");
  }
  if (!reductions.empty()) text += "; contracts" + reductions;
  for (const Factor& factor : rule.factors) {
    if (factor.masked) text += fmt::format("; masks {}", factor.name);
  }
  if (!rule.linear.empty()) {
    text += fmt::format("; linear {} {{{}}}",
                        rule.linearity == ShardingRule::Linearity::kEach ? "each" : "joint",
                        fmt::join(rule.linear, ","));
  }
  if (!rule.zero_preserving) text += "; not zero preserving";
  if (!rule.finite_preserving) text += "; not finite preserving";
  if (rule.streams) text += "; streams";
  return text;
}

std::string table() {
  std::string text;
  for (const OpExample& example : op_examples()) {
    const ir::Op op = test::op_of(example);
    const std::vector<ir::TensorType> operands = test::parse_types(example.operands);
    const std::vector<ir::TensorType> results =
        infer(op, operands, test::parse_types(example.declared));
    const OpDef& def = op_def(op.kind);
    const OpCost cost = def.cost(op, operands, results);
    text += fmt::format("{}{}: {} -> {}\n", ir::op_name(op.kind), ir::to_string(op.attrs),
                        types_text(operands), types_text(results));
    text += fmt::format("  rule {}\n",
                        def.rule != nullptr ? rule_text(def.rule(op, operands, results)) : "none");
    text += fmt::format("  cost {} flops{}, {} bytes\n", cost.flops,
                        cost.matrix_product ? " (product)" : "", cost.bytes);
    std::vector<std::string> has;
    if (def.gradient != nullptr) has.push_back("gradient");
    if (def.expand != nullptr) has.push_back("expansion");
    if (def.localize != nullptr) has.push_back("localize");
    if (def.can_accumulate) has.push_back("accumulates");
    if (def.in_place_operand >= 0) has.push_back(fmt::format("in place {}", def.in_place_operand));
    if (!def.aliases.empty()) has.push_back(fmt::format("aliases {}", fmt::join(def.aliases, ",")));
    if (!has.empty()) text += "  " + join(has, ", ") + "\n";
  }
  return text;
}

TEST_CASE("every op kind has a definition, and an example in these tests") {
  std::set<ir::OpKind> kinds;
  for (const OpExample& example : op_examples()) kinds.insert(example.kind);
  for (int i = 0; i < ir::kOpKinds; ++i) {
    const ir::OpKind kind = static_cast<ir::OpKind>(i);
    CAPTURE(ir::op_name(kind));
    CHECK(op_def(kind).kind == kind);
    CHECK((op_def(kind).infer != nullptr));
    CHECK((op_def(kind).cost != nullptr));
    CHECK(kinds.count(kind) == 1);
  }
}

TEST_CASE("types, rules and costs are those of the golden table") {
  const std::string path = MW_SOURCE_DIR "/src/ops/op_table.golden", actual = table();
  if (std::getenv("MW_BLESS") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  CHECK(actual == expected.str());
}

TEST_CASE("a rule names every dimension of every operand and result with the dimension's size") {
  for (const OpExample& example : op_examples()) {
    const ir::Op op = test::op_of(example);
    const OpDef& def = op_def(op.kind);
    if (def.rule == nullptr) continue;
    CAPTURE(ir::op_name(op.kind));
    const std::vector<ir::TensorType> operands = test::parse_types(example.operands);
    const std::vector<ir::TensorType> results =
        infer(op, operands, test::parse_types(example.declared));
    const ShardingRule rule = def.rule(op, operands, results);
    const auto check = [&](const std::vector<ShardingRule::Dims>& tensors,
                           const std::vector<ir::TensorType>& types) {
      REQUIRE(tensors.size() == types.size());
      for (size_t t = 0; t < types.size(); ++t) {
        REQUIRE(static_cast<int>(tensors[t].size()) == types[t].rank());
        for (size_t d = 0; d < tensors[t].size(); ++d) {
          int64_t size = 1;
          for (const int index : tensors[t][d])
            size *= rule.factors[static_cast<size_t>(index)].size;
          CHECK(size == types[t].dims[d].size);
        }
      }
    };
    check(rule.operands, operands);
    check(rule.results, results);
  }
}

TEST_CASE("in place and alias operands have the type of the result that lies in them") {
  for (const OpExample& example : op_examples()) {
    const OpDef& def = op_def(example.kind);
    CAPTURE(ir::op_name(example.kind));
    const std::vector<ir::TensorType> operands = test::parse_types(example.operands);
    const std::vector<ir::TensorType> results =
        infer(test::op_of(example), operands, test::parse_types(example.declared));
    if (def.in_place_operand >= 0)
      CHECK(operands[static_cast<size_t>(def.in_place_operand)] == results[0]);
    for (size_t r = 0; r < def.aliases.size(); ++r) {
      if (example.kind == ir::OpKind::kView) continue;  // lies inside
      CHECK(operands[static_cast<size_t>(def.aliases[r])] == results[r]);
    }
  }
}

TEST_CASE("rules are read from and written as text") {
  const auto types = [](const std::vector<std::string>& texts) { return test::parse_types(texts); };
  const ShardingRule rule =
      make_rule("b (k g) [d], b k . , -> b (k g) ~v", types({"f32[2,6,4]", "f32[2,3,5]", "f32[]"}),
                types({"f32[2,6,9]"}));
  CHECK(rule.to_string() == "b (k g) [d], b k .,  -> b (k g) ~v");
  CHECK(rule.factors[1].size == 3);
  CHECK(rule.factors[2].size == 2);
  CHECK(rule.factors[1].shardable);
  CHECK(rule.factors[2].shardable);
  CHECK_FALSE(rule.factors[3].shardable);
  CHECK(rule.factors[3].contracted);
  CHECK(rule.factors[5].ignored);
  // In brackets once is everywhere, whatever comes behind.
  const ShardingRule once =
      make_rule("[b], b -> b", types({"f32[2]", "f32[2]"}), types({"f32[2]"}));
  CHECK_FALSE(once.factors[0].shardable);
  CHECK_THROWS_AS(make_rule("b s -> b s", types({"f32[2]"}), types({"f32[2]"})), CheckFailure);
  CHECK_THROWS_AS(make_rule("b -> b", types({"f32[2]"}), types({"f32[3]"})), CheckFailure);
}

TEST_CASE("a padded constant is zeros where it is zero, and finite where it is") {
  ir::Op op;
  op.kind = ir::OpKind::kConstant;
  const std::vector<ir::TensorType> result = test::parse_types({"f32[2]"});
  for (const double value : {0.0, 2.0, HUGE_VAL}) {
    op.attrs = ir::ConstantAttrs{value};
    const ShardingRule rule = op_def(op.kind).rule(op, {}, result);
    CHECK(rule.zero_preserving == (value == 0));
    CHECK(rule.finite_preserving == (value != HUGE_VAL));
  }
}

TEST_CASE("norms of padded rows are finite by their epsilon alone") {
  for (const ir::OpKind kind : {ir::OpKind::kLayerNorm, ir::OpKind::kRmsNorm}) {
    const OpExample example = *std::find_if(op_examples().begin(), op_examples().end(),
                                            [&](const OpExample& e) { return e.kind == kind; });
    for (const double epsilon : {0.0, 1e-5}) {
      ir::Op op = test::op_of(example);
      op.attrs = ir::NormAttrs{epsilon};
      const std::vector<ir::TensorType> operands = test::parse_types(example.operands);
      CHECK(op_def(kind).rule(op, operands, infer(op, operands)).finite_preserving ==
            (epsilon > 0));
    }
  }
}

TEST_CASE("dimensions of size 1 have no factor in common, wherever a reshape puts them") {
  const auto rule = [](const std::string& in, const std::string& out) {
    ir::Op op;
    op.kind = ir::OpKind::kReshape;
    return op_def(op.kind).rule(op, test::parse_types({in}), test::parse_types({out})).to_string();
  };
  CHECK(rule("f32[2,5]", "f32[2,1,5]") == "a c -> a . c");
  CHECK(rule("f32[2,1,5]", "f32[2,5]") == "a . c -> a c");
  CHECK(rule("f32[6]", "f32[1,6,1]") == "b -> . b .");
}

TEST_CASE("an accumulating op has a rule and a cost with its accumulator") {
  ir::Graph graph;
  const ValueId dy = graph.add_input(test::parse_type("f32[8,4]"), "dy"),
                x = graph.add_input(test::parse_type("f32[8,5]"), "x");
  const ValueId acc = graph.add_input(test::parse_type("f32[4,5]"), "acc");
  ir::Op op;
  op.kind = ir::OpKind::kDot;
  op.attrs = ir::DotAttrs{"bn", "bk", "nk"};
  op.operands = {dy, x, acc};
  op.accumulates = true;
  const std::vector<ir::TensorType> results = infer(op, operand_types(graph, op));
  const OpId id = graph.add_op(op, results);
  verify_types(graph);
  CHECK(rule_of(graph, graph.op(id)).to_string() == "b n, b k, n k -> n k");
  CHECK(cost_of(graph, graph.op(id)).flops == 2 * 8 * 4 * 5 + 4 * 5);
  CHECK(cost_of(graph, graph.op(id)).bytes == 4 * (8 * 4 + 8 * 5 + 2 * 4 * 5));
  CHECK(alias_operand(graph.op(id), 0) == 2);
}

TEST_CASE("attention counts the pairs that its mask, its window and earlier slices leave") {
  const int64_t T = 12;
  for (const int64_t S : {12, 6, 4}) {
    for (const int64_t window : {0, 1, 3, 5, 8, 12, 20}) {
      CAPTURE(S);
      CAPTURE(window);
      ir::Graph graph;
      ir::Op op;
      op.kind = ir::OpKind::kAttention;
      ir::AttentionAttrs attrs;
      attrs.window = window;
      op.attrs = attrs;
      op.operands = {graph.add_input(ir::make_type(DType::kF32, {2, S, 3, 16}), "q"),
                     graph.add_input(ir::make_type(DType::kF32, {2, T, 3, 16}), "k"),
                     graph.add_input(ir::make_type(DType::kF32, {2, T, 3, 16}), "v"),
                     graph.add_input(ir::make_type(DType::kI32, {2, T}), "positions")};
      const OpId id = graph.add_op(op, infer(op, operand_types(graph, op)));
      int64_t pairs = 0;
      for (int64_t q = T - S; q < T; ++q) pairs += std::min(q + 1, window > 0 ? window : T);
      CHECK(cost_of(graph, graph.op(id)).flops ==
            mw::test::close_to(2.0 * 2 * 3 * static_cast<double>(pairs) * (16 + 16)));
    }
  }
}

TEST_CASE("an update of half-precision weights reads and writes their master copy") {
  for (const char* weights : {"f32[100]", "bf16[100]"}) {
    CAPTURE(weights);
    ir::Graph graph;
    ir::Op op;
    op.kind = ir::OpKind::kAdamW;
    op.attrs.emplace<ir::FlatAttrs>();
    for (const char* type : {weights, "f32[100]", "f32[100]", "f32[100]"})
      op.operands.push_back(graph.add_input(test::parse_type(type), ""));
    while (op.operands.size() < 7)
      op.operands.push_back(graph.add_input(test::parse_type("f32[]"), ""));
    const OpId id = graph.add_op(
        op, {graph.type(op.operands[0]), graph.type(op.operands[2]), graph.type(op.operands[3])});
    // Gradient once, both moments and the weight or its master twice; the weight once more.
    const double elements = 4.0 * (1 + 2 * 3) + (weights[0] == 'b' ? 2 : 0);
    CHECK(cost_of(graph, graph.op(id)).bytes == mw::test::close_to(100 * elements).epsilon(0.03));
  }
}

}  // namespace
}  // namespace mw::ops
