#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "ir/graph.h"
#include "ir/test_graphs.h"

using namespace mw;
using namespace mw::ir;

namespace {

// in %x; %a = relu(x); %b = add(a, x) named "b"; out b; update of tbl.weight.grad.
Graph chain(const Module& module) {
  Graph graph;
  graph.name = "g";
  const ValueId x = graph.add_input(module.states[0].type, "x", StateId(0));
  Op relu;
  relu.kind = OpKind::kRelu;
  relu.operands = {x};
  relu.layer = LayerId(1);
  const ValueId a = graph.op(graph.add_op(relu, {graph.type(x)})).results[0];
  Op add;
  add.kind = OpKind::kAdd;
  add.operands = {a, x};
  const ValueId b = graph.op(graph.add_op(add, {graph.type(x)})).results[0];
  graph.value(b).name = "b";
  graph.outputs = {b};
  graph.updates = {{StateId(1), b}};
  return graph;
}

std::string failure(const std::function<void(Graph&)>& damage, bool with_module = true) {
  const Module module = small_module();
  Graph graph = chain(module);
  damage(graph);
  try {
    verify(graph, with_module ? &module : nullptr);
  } catch (const CheckFailure& failure) {
    return failure.what();
  }
  return "verified";
}

}  // namespace

TEST_CASE("a sound graph verifies, with and without its module") {
  CHECK(failure([](Graph&) {}) == "verified");
  CHECK(failure([](Graph&) {}, false) == "verified");
}

TEST_CASE("every structural mistake is named with the graph and the op") {
  CHECK(failure([](Graph& g) { g.ops[1].operands[0] = ValueId(9); }) ==
        "graph 'g': op 1 (add -> b): value id 9 is out of range, there are 3");
  CHECK(failure([](Graph& g) { g.ops[0].operands[0] = ValueId(); }) ==
        "graph 'g': op 0 (relu -> %1): value id -1 is out of range, there are 3");
  CHECK(failure([](Graph& g) { g.ops[0].operands[0] = ValueId(2); }) ==
        "graph 'g': op 0 (relu -> %1): reads b before it is defined");
  CHECK(failure([](Graph& g) { g.ops[1].results[0] = ValueId(1); }) ==
        "graph 'g': op 1 (add -> %1): %1 is defined twice");
  CHECK(failure([](Graph& g) { g.values[1].producer = OpId(1); }) ==
        "graph 'g': op 0 (relu -> %1): result %1 says that op 1, result 0 makes it");
  CHECK(failure([](Graph& g) { g.values[0].producer = OpId(1); }) ==
        "graph 'g': input x: an input has a producer");
  CHECK(failure([](Graph& g) { g.values[2].name = "x"; }) == "graph 'g': two values are named 'x'");
  CHECK(failure([](Graph& g) { g.add_value(make_type(DType::kF32, {1}), "orphan"); }) ==
        "graph 'g': op 1 (add -> b): value orphan is neither an input nor a result");
  CHECK(failure([](Graph& g) { g.outputs = {ValueId(5)}; }) ==
        "graph 'g': outputs: value id 5 is out of range, there are 3");
  CHECK(failure([](Graph& g) { g.ops[0].layer = LayerId(2); }) ==
        "graph 'g': op 0 (relu -> %1): layer id 2 is out of range, there are 2");
  CHECK(failure([](Graph& g) { g.ops[0].called = {GraphId(1)}; }) ==
        "graph 'g': op 0 (relu -> %1): calls graph id 1, there are 1");
}

TEST_CASE("types, logical axes and accumulators that do not fit are named") {
  CHECK(failure([](Graph& g) { g.values[1].logical = {"batch"}; }) ==
        "graph 'g': op 0 (relu -> %1): %1 has 1 logical axes but rank 2");
  CHECK(failure([](Graph& g) { g.values[1].type.dims[0].size = -1; }) ==
        "graph 'g': op 0 (relu -> %1): %1 has a negative dimension: f32[-1,4]");
  CHECK(failure([](Graph& g) { g.values[1].type.dims[0].size_value = ValueId(0); }) ==
        "graph 'g': op 0 (relu -> %1): the bounded dimension of %1 has a size value of type "
        "f32[16,4], not i64[]");
  CHECK(failure([](Graph& g) {
          g.ops[1].accumulates = true;
          g.values[2].type = make_type(DType::kF32, {3});
        }) == "graph 'g': op 1 (add -> b): accumulates f32[3] into f32[16,4]");
  CHECK(failure([](Graph& g) {
          g.ops[0].accumulates = true;
          g.ops[0].operands.clear();
        }) == "graph 'g': op 0 (relu -> %1): accumulates, but has 0 operands and 1 results");
}

TEST_CASE("states that do not exist, differ in type or are bound twice are named") {
  CHECK(failure([](Graph& g) { g.inputs[0].state = StateId(3); }) ==
        "graph 'g': input x: state id 3 is out of range, there are 3");
  CHECK(failure([](Graph& g) { g.values[0].type = make_type(DType::kF32, {4}); }) ==
        "graph 'g': input x: type f32[4], but state 'tbl.weight' has f32[16,4]");
  CHECK(failure([](Graph& g) { g.add_input(g.values[0].type, "again", StateId(0)); }) ==
        "graph 'g': input again: state 'tbl.weight' is an input twice");
  CHECK(failure([](Graph& g) { g.updates.push_back(g.updates[0]); }) ==
        "graph 'g': update of state 'tbl.weight.grad': updated twice");
  CHECK(failure([](Graph& g) { g.updates[0].state = StateId(); }) ==
        "graph 'g': updates: the state id is invalid");
  CHECK(failure([](Graph& g) { g.values[2].type = make_type(DType::kF32, {4}); }) ==
        "graph 'g': update of state 'tbl.weight.grad': b has type f32[4], but the state has "
        "f32[16,4]");
  CHECK(failure(
            [](Graph& g) {
              g.values[2].type = make_type(DType::kF32, {4});
              g.updates[0].state = StateId(0);
            },
            false) ==
        "graph 'g': update of state '#0': b has type f32[4], but the state's input has f32[16,4]");
}

TEST_CASE("drop_dead drops what nothing reads and keeps outputs, updates and accumulating ops") {
  const Module module = small_module();
  Graph graph = chain(module);
  const auto append = [&](ValueIds operands, bool accumulates) {
    Op op;
    op.kind = OpKind::kAdd;
    op.operands = std::move(operands);
    op.accumulates = accumulates;
    return graph.op(graph.add_op(op, {graph.values[0].type})).results[0];
  };
  const ValueId dead = append({ValueId(1), ValueId(0)}, false);
  const ValueId also_dead = append({dead, dead}, false);
  const ValueId accumulator = append({ValueId(1), ValueId(0)}, true);
  const ValueIds renumbered = drop_dead(graph);
  verify(graph, &module);
  CHECK(graph.ops.size() == 3);
  CHECK(graph.values.size() == 4);
  CHECK(!renumbered[dead.index()].valid());
  CHECK(!renumbered[also_dead.index()].valid());
  CHECK(renumbered[accumulator.index()] == ValueId(3));
  CHECK(renumbered[2] == ValueId(2));
  CHECK(graph.op(OpId(2)).accumulates);
}

TEST_CASE("drop_dead keeps the results of random graphs that their outputs need") {
  const Module module = small_module();
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    Graph graph = random_graph(rng, module);
    const size_t outputs = graph.outputs.size();
    drop_dead(graph);
    verify(graph, &module);
    CHECK(graph.outputs.size() == outputs);
    const std::string text = to_text(graph);
    drop_dead(graph);
    CHECK(to_text(graph) == text);
  }
}

TEST_CASE("users lists every reading op once, in order") {
  const Module module = small_module();
  Graph graph = chain(module);
  graph.ops[1].operands = {ValueId(0), ValueId(0)};
  const auto users = graph.users();
  CHECK(users[0] == OpIds{OpId(0), OpId(1)});
  CHECK(users[1].empty());
}
