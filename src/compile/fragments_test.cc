#include "compile/fragments.h"

#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/core.h>

#include "cluster/mesh.h"

namespace mw::compile {
namespace {

using pipeline::ActionKind;

// Of a device of its own.
LocalGraph whole(const std::string& text) {
  LocalGraph stage;
  stage.graph = ir::parse_graph(text);
  for (const ir::Value& value : stage.graph.values) {
    stage.shardings.push_back(sharding::replicated(value.type.rank()));
    stage.global_types.push_back(value.type);
  }
  return stage;
}

ValueId named(const ir::Graph& graph, const std::string& name) {
  const auto it = std::find_if(graph.values.begin(), graph.values.end(),
                               [&](const ir::Value& value) { return value.name == name; });
  REQUIRE(it != graph.values.end());
  return ValueId(it - graph.values.begin());
}

TEST_CASE("a chain of ops that are made again, each of the one before twice, saves its beginning") {
  // 2^64 ways lead from the end to the beginning.
  constexpr int kOps = 64;
  std::string text =
      "graph chain {\n  in %x : f32[2,4]\n  in %dy : f32[2,4]\n"
      "  %y0 = exp(%x) : f32[2,4] @0 F\n";
  for (int i = 1; i <= kOps; ++i)
    text += fmt::format("  %y{} = swiglu(%y{}, %y{}) : f32[2,4] @0 F\n", i, i - 1, i - 1);
  text += fmt::format("  %dx = mul(%y{}, %dy) : f32[2,4] @0 I\n}}", kOps);
  const LocalGraph stage = whole(text);
  StagePorts ports;
  ports.receives = {named(stage.graph, "x"), named(stage.graph, "dy")};
  ports.sends = {named(stage.graph, fmt::format("y{}", kOps)), named(stage.graph, "dx")};
  const cluster::Mesh mesh;
  const std::vector<StageFragment> fragments =
      split_stage(stage, ports, {}, {ActionKind::kF, ActionKind::kB}, "stage 0", {.mesh = mesh});
  REQUIRE(fragments.size() == 2);
  CHECK(fragments[0].outputs.size() == 2);  // what is sent, and what is saved
  CHECK(fragments[0].output_name(1) == "y0");
  CHECK(fragments[1].names == std::vector<std::string>{"y0", "dy", "dx"});
  CHECK(fragments[1].fragment->graph.ops.size() == kOps + 1);
}

TEST_CASE("an input that is a result has a copy of its own, which is no op's") {
  const LocalGraph stage = whole(R"(graph through {
    in %x : f32[2,4]
    in %loss : f32[]
    %y = exp(%x) : f32[2,4] @3 I
  })");
  StagePorts ports;
  ports.receives = {named(stage.graph, "x")};
  ports.sends = {named(stage.graph, "y")};
  ports.results = {named(stage.graph, "loss")};
  const cluster::Mesh mesh;
  const std::vector<StageFragment> fragments =
      split_stage(stage, ports, {}, {ActionKind::kF, ActionKind::kB}, "stage 0", {.mesh = mesh});
  const ir::Graph& forward = fragments[0].fragment->graph;
  REQUIRE(forward.ops.size() == 1);
  CHECK(forward.ops[0].kind == ir::OpKind::kCopy);
  CHECK(forward.ops[0].work == ir::Work::kForward);
  CHECK(!forward.ops[0].layer.valid());
}

}  // namespace
}  // namespace mw::compile
