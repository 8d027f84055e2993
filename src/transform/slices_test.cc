#include "transform/slices.h"

#include <set>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "transform/autodiff.h"
#include "transform/test_models.h"

namespace mw::transform {
namespace {

using test::microbatch;

constexpr int32_t kSlices = 2;

ir::Module sliced() {
  ir::Module module = test::gpt(0, 3, 3 * kSlices);
  unroll_slices(module, "microbatch", kSlices);
  return module;
}

// What the updates add to each accumulator, without the parts of its name that say where.
std::map<std::string, std::vector<double>> added(const ir::Module& module) {
  const ir::Graph& graph = *module.find_graph("microbatch");
  const std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  const std::vector<ops::Tensor> values = ops::interpret(graph, inputs);
  std::map<std::string, std::vector<double>> sums;
  for (const ir::StateUpdate& update : graph.updates) {
    // update = accumulator + gradient
    const ir::Op& add = graph.op(graph.value(update.value).producer);
    const std::vector<double>& before = values[add.operands[0].index()].values;
    const std::vector<double>& after = values[update.value.index()].values;
    std::vector<double>& sum = sums[module.state(update.state).name];
    sum.resize(after.size(), 0);
    for (size_t i = 0; i < after.size(); ++i) sum[i] += after[i] - before[i];
  }
  return sums;
}

TEST_CASE("the slices of a sequence have its loss and its gradients") {
  ir::Module whole = test::gpt(0, 3 * kSlices, 3 * kSlices), parts = sliced();
  ir::verify(microbatch(parts), &parts);
  CHECK(parts.layers.size() == kSlices * whole.layers.size());
  CHECK(parts.layers.back().name == "head/1");
  differentiate(whole);
  differentiate(parts);
  const auto loss = [](const ir::Module& module) {
    const ir::Graph& graph = *module.find_graph("microbatch");
    return ops::interpret(graph, test::inputs_of(graph))[graph.outputs[0].index()].values[0];
  };
  CHECK(loss(parts) == mw::test::close_to(loss(whole)).epsilon(1e-12));

  merge_slices(parts, "microbatch", kSlices);
  const auto expected = added(whole), found = added(parts);
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, gradient] : expected) {
    CAPTURE(name);
    REQUIRE(found.count(name) == 1);
    REQUIRE(found.at(name).size() == gradient.size());
    for (size_t i = 0; i < gradient.size(); ++i)
      CHECK(found.at(name)[i] == mw::test::close_to(gradient[i]).epsilon(1e-10).scale(1));
  }
}

TEST_CASE("no slice reads keys and values of a slice behind it") {
  const ir::Module parts = sliced();
  const ir::Graph& graph = *parts.find_graph("microbatch");
  std::multiset<int64_t> keys;
  for (const ir::Op& op : graph.ops) {
    if (op.kind == ir::OpKind::kAttention) keys.insert(graph.type(op.operands[1]).dim(1));
  }
  CHECK(keys == std::multiset<int64_t>{3, 3, 6, 6});
}

TEST_CASE("each slice adds its own loss to the state that takes the sum") {
  ir::Module parts = sliced();
  ir::Graph& graph = microbatch(parts);
  ir::State state;
  state.name = "loss";
  state.type = ir::make_type(DType::kF32, {});
  state.kind = ir::StateKind::kMetric;
  const StateId id = parts.add_state(std::move(state));
  const ValueId before = graph.add_input(ir::make_type(DType::kF32, {}), "loss", id);
  ir::Op add;
  add.kind = ir::OpKind::kAccumulate;
  add.operands = {before, graph.outputs[0]};
  const OpId made = graph.add_op(std::move(add), {ir::make_type(DType::kF32, {})});
  graph.updates.push_back({id, graph.op(made).results[0]});
  const double sum = added(parts).at("loss")[0];
  spread_loss(graph, id);
  CHECK(graph.updates.size() == kSlices);
  CHECK(added(parts).at("loss")[0] == mw::test::close_to(sum).epsilon(1e-12));
}

TEST_CASE("attention that is not causal cannot be cut") {
  ir::Module module = test::gpt(0, 3);
  for (ir::Op& op : microbatch(module).ops) {
    if (op.kind == ir::OpKind::kAttention) std::get<ir::AttentionAttrs>(op.attrs).causal = false;
  }
  CHECK_THROWS_WITH_AS(unroll_slices(module, "microbatch", kSlices),
                       doctest::Contains("is not causal"), Error);
}

}  // namespace
}  // namespace mw::transform
