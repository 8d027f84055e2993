#include "transform/slices.h"

#include <set>

#include <doctest/doctest.h>
#include <fmt/core.h>

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

// Every value of the graph with its axes.
std::map<std::string, ir::LogicalAxes> axes_by_name(const ir::Graph& graph) {
  std::map<std::string, ir::LogicalAxes> axes;
  for (const ir::Value& value : graph.values) axes[value.name] = value.logical;
  return axes;
}

TEST_CASE("a slice's values have its number and their axes, its ops lie in its own layers") {
  ir::Module whole = test::gpt(0, 3, 3 * kSlices);
  for (const ir::Op& op : microbatch(whole).ops) {
    for (const ValueId v : op.operands) {
      ir::Value& value = microbatch(whole).value(v);
      if (op.kind != ir::OpKind::kAttention || value.type.rank() != 5) continue;
      value.name = fmt::format("qkv.{}", op.layer.value);
      value.logical = {"batch", "seq", "", "heads", "head_dim"};
    }
  }
  ir::Module parts = whole;
  unroll_slices(parts, "microbatch", kSlices);
  const ir::Graph& graph = microbatch(parts);
  const std::map<std::string, ir::LogicalAxes> axes = axes_by_name(graph);
  for (const auto& [name, of_whole] : axes_by_name(microbatch(whole))) {
    CAPTURE(name);
    REQUIRE(axes.contains(name));
    CHECK(axes.at(name) == of_whole);
  }
  const ir::LogicalAxes heads{"batch", "seq", "heads", "head_dim"};
  for (const std::string name : {"qkv.1.q", "qkv.2.k", "qkv.1.v/1"}) {
    CAPTURE(name);
    REQUIRE(axes.contains(name));
    CHECK(axes.at(name) == heads);
  }
  CHECK(axes.at("h.0.attn.out/1") == ir::LogicalAxes{"batch", "seq", "embed"});
  const int64_t layers = static_cast<int64_t>(whole.layers.size());
  for (const ir::Op& op : graph.ops) {
    const bool of_input =
        op.kind == ir::OpKind::kSlice && !graph.value(op.operands[0]).producer.valid();
    CHECK(op.layer.valid() != of_input);  // its readers' stages each cut their own part
    if (of_input) CHECK(graph.value(op.results[0]).logical == ir::LogicalAxes{"batch", "seq"});
    if (op.kind == ir::OpKind::kConcat) {
      CHECK(op.layer.value >= layers);  // the first slice's attention has no keys before its own
      CHECK(graph.value(op.results[0]).logical == heads);
    }
    if (op.kind != ir::OpKind::kAttention) continue;
    for (const size_t i : {0, 1, 2}) {
      const OpId maker = graph.value(op.operands[i]).producer;
      CHECK(graph.op(maker).layer == op.layer);
    }
  }
  CHECK(graph.op(graph.value(graph.outputs[0]).producer).layer.value == 2 * layers - 1);
}

TEST_CASE("a weight along the sequence is read whole by every slice") {
  ir::Module module = ir::parse_module(R"(module positions {
    layer only
    state table : f32[3] <seq> weight @only
    graph microbatch {
      in %x : f32[2,3] <batch, attn_seq>
      in %table : f32[3] <seq> state table
      %other = exp(%table) : f32[3] F
      %y = bias_add(%x, %table) : f32[2,3] @only F
      %loss_sum = reduce{op=sum, dims=[0, 1]}(%y) : f32[] @only F
      out %other, %loss_sum
    }
  })");
  unroll_slices(module, "microbatch", kSlices);
  const ir::Graph& graph = microbatch(module);
  CHECK(graph.type(graph.inputs[0].value) == ir::make_type(DType::kF32, {2, 3 * kSlices}));
  CHECK(graph.type(graph.inputs[1].value) == ir::make_type(DType::kF32, {3}));
  CHECK(graph.value(graph.inputs[1].value).logical == ir::LogicalAxes{"seq"});
  CHECK(graph.value(graph.outputs[0]).name == "loss_sum");
  CHECK(graph.type(graph.outputs[0]).rank() == 0);
  for (const ir::Op& op : graph.ops) CHECK((op.kind != ir::OpKind::kExp || !op.layer.valid()));
  CHECK(test::count_ops(graph, ir::OpKind::kSlice) == kSlices);
}

TEST_CASE("a merged accumulator is that of all slices, in what reads and what updates it") {
  ir::Module module = sliced();
  differentiate(module);
  merge_slices(module, "microbatch", kSlices);
  std::map<std::string, int> inputs, updates;
  for (const ir::Input& input : microbatch(module).inputs) {
    if (input.state.valid()) ++inputs[module.state(input.state).name];
  }
  for (const ir::StateUpdate& update : microbatch(module).updates)
    ++updates[module.state(update.state).name];
  for (const std::string name : {"grad/tbl@embed", "grad/tbl@head", "grad/h.1.up.w"}) {
    CAPTURE(name);
    CHECK(inputs[name] == kSlices);
    CHECK(updates[name] == kSlices);
  }
  int accumulators = 0;
  for (const ir::State& state : module.states) {
    if (state.kind == ir::StateKind::kGradient && state.parameter.valid()) ++accumulators;
  }
  CHECK(accumulators == 23);  // two tables in three layers, nine a block, the last norm
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
  REQUIRE(graph.updates.size() == kSlices);
  for (size_t s = 0; s < kSlices; ++s) {
    const ir::Op& own = graph.op(graph.value(graph.updates[s].value).producer);
    CHECK(own.layer == graph.op(graph.value(own.operands[1]).producer).layer);
    CHECK(graph.value(own.operands[0]).name == (s == 0 ? "loss" : "loss/1"));
  }
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
