#include "compile/cut.h"

#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/core.h>

#include "ops/builder.h"
#include "partition/test_nets.h"
#include "transform/autodiff.h"

namespace mw::compile {
namespace {

// What crosses, "in.out 0->3" or, backward, "d.in.out 3->0 back", sorted.
std::vector<std::string> crossings(const ir::Graph& whole, const std::vector<StageGraph>& stages) {
  std::vector<std::string> sent, received;
  for (const StageGraph& stage : stages) {
    const auto text = [&](const Crossing& c, StageId from, StageId to) {
      return fmt::format("{} {}->{}{}", whole.label(c.whole), from.value, to.value,
                         c.backward ? " back" : "");
    };
    for (const Crossing& c : stage.sends) sent.push_back(text(c, stage.stage, c.peer));
    for (const Crossing& c : stage.receives) received.push_back(text(c, c.peer, stage.stage));
    for (const Crossing& c : stage.sends) CHECK((stage.whole[c.value.index()] == c.whole));
    for (const Crossing& c : stage.receives) CHECK((stage.whole[c.value.index()] == c.whole));
  }
  std::sort(sent.begin(), sent.end());
  std::sort(received.begin(), received.end());
  CHECK(sent == received);
  return sent;
}

ir::Graph differentiated(ir::Module& module) {
  transform::differentiate(module);
  ir::Graph whole = *module.find_graph("microbatch");
  whole.outputs.clear();
  ir::drop_dead(whole);
  return whole;
}

using Texts = std::vector<std::string>;

TEST_CASE("a value that skips stages goes to its reader directly, and its gradient back") {
  ir::Module module = partition::test::mlp_net({});
  const ir::Graph whole = differentiated(module);
  const std::vector<StageGraph> stages = cut(whole, {0, 1, 2, 3}, 4);
  const Texts found = crossings(whole, stages);
  const auto has = [&](const std::string& text) {
    return std::find(found.begin(), found.end(), text) != found.end();
  };
  CHECK(has("in.out 0->1"));
  CHECK(has("in.out 0->3"));
  CHECK(has("block.0.out 1->2"));
  CHECK(has("block.1.out 2->3"));
  CHECK(std::count_if(found.begin(), found.end(),
                      [](const std::string& t) { return t.ends_with("3->0 back"); }) == 1);
  // Forward 4, backward as many: nothing goes twice, nothing through a stage between.
  CHECK(found.size() == 8);
  for (const StageGraph& stage : stages) ir::verify(stage.graph, &module);
}

TEST_CASE("a stage without layers has no ops and nothing goes through it") {
  ir::Module module = partition::test::mlp_net({});
  const ir::Graph whole = differentiated(module);
  const std::vector<StageGraph> stages = cut(whole, {0, 0, 2, 2}, 3);
  CHECK(stages[1].graph.ops.empty());
  CHECK(stages[1].receives.empty());
  CHECK(stages[1].sends.empty());
  CHECK(crossings(whole, stages).size() == 4);  // block.0.out and in.out, and their gradients
}

TEST_CASE("every tagged op is in its stage once, in the order of the whole graph") {
  ir::Module module = partition::test::gpt_net({});
  const ir::Graph whole = differentiated(module);
  const std::vector<int32_t> stage_of_layer{0, 0, 1, 1};
  const std::vector<StageGraph> stages = cut(whole, stage_of_layer, 2);
  for (const StageGraph& stage : stages) {
    ValueIds expected, got;
    for (const ir::Op& op : whole.ops) {
      if (op.layer.valid() && stage_of_layer[op.layer.index()] == stage.stage.value)
        expected.push_back(op.results[0]);
    }
    for (const ir::Op& op : stage.graph.ops) {
      if (op.layer.valid()) got.push_back(stage.whole[op.results[0].index()]);
    }
    CHECK((got == expected));
    // Updates stay with the stage that makes them; a tied weight has one in each.
    for (const ir::StateUpdate& update : stage.graph.updates) {
      const LayerId use = module.state(update.state).use;
      if (use.valid()) CHECK(stage_of_layer[use.index()] == stage.stage.value);
    }
  }
  CHECK(stages[0].graph.updates.size() + stages[1].graph.updates.size() == whole.updates.size());
}

TEST_CASE("an op without a layer is cloned into every stage that uses it, and only there") {
  ir::Graph whole;
  ops::Builder b(whole);
  const ValueId positions = whole.add_input(ir::make_type(DType::kF32, {4}), "positions");
  const ValueId table = b.annotate(b.scale(positions, 2), "table", {""});
  const ValueId deeper = b.annotate(b.scale(table, 3), "deeper", {""});
  b.layer = LayerId(0);
  ValueId h = b.annotate(b.mul(positions, deeper), "h0", {""});
  b.layer = LayerId(1);
  h = b.annotate(b.unary(ir::OpKind::kExp, h), "h1", {""});
  b.layer = LayerId(2);
  h = b.annotate(b.mul(h, deeper), "h2", {""});
  whole.outputs = {h};
  const std::vector<StageGraph> stages = cut(whole, {0, 1, 2}, 3);
  const auto names = [](const StageGraph& stage) {
    Texts list;
    for (const ir::Op& op : stage.graph.ops) list.push_back(stage.graph.label(op.results[0]));
    return list;
  };
  CHECK(names(stages[0]) == Texts{"table", "deeper", "h0"});
  CHECK(names(stages[1]) == Texts{"h1"});
  CHECK(names(stages[2]) == Texts{"table", "deeper", "h2"});
  CHECK(crossings(whole, stages) == Texts{"h0 0->1", "h1 1->2"});
  // Results stay with the stage that makes them.
  CHECK(stages[2].results.size() == 1);
  CHECK(stages[0].results.empty());
}

}  // namespace
}  // namespace mw::compile
