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

// The fragments of a stage that receives `receives` and sends `sends`.
std::vector<StageFragment> split(const LocalGraph& stage, const std::vector<ActionKind>& kinds,
                                 const std::vector<std::string>& receives,
                                 const std::vector<std::string>& sends, bool regather = false) {
  static const cluster::Mesh mesh;
  StagePorts ports;
  for (const std::string& name : receives) ports.receives.push_back(named(stage.graph, name));
  for (const std::string& name : sends) ports.sends.push_back(named(stage.graph, name));
  return split_stage(stage, ports, {}, kinds, "stage 0", {.mesh = mesh, .regather = regather});
}

const ir::Op& producer_of(const pipeline::Fragment& fragment, size_t output) {
  const ir::Graph& graph = fragment.graph;
  return graph.op(graph.value(fragment.outputs[output].value).producer);
}

int count(const StageFragment& of, ir::OpKind kind) {
  const std::vector<ir::Op>& ops = of.fragment->graph.ops;
  return static_cast<int>(
      std::count_if(ops.begin(), ops.end(), [&](const ir::Op& op) { return op.kind == kind; }));
}

TEST_CASE("what is saved is consumed by the last part that reads it") {
  const LocalGraph stage = whole(R"(graph saves {
    in %x : f32[2,4]
    in %dy : f32[2,4]
    %y = exp(%x) : f32[2,4] @0 F
    %z = exp(%y) : f32[2,4] @0 F
    %sent = exp(%z) : f32[2,4] @0 F
    %dz = mul(%z, %dy) : f32[2,4] @0 I
    %dx = mul(%y, %dz) : f32[2,4] @0 I
    %dw = mul(%y, %dz) : f32[2,4] @0 W
  })");
  const auto fragments =
      split(stage, {ActionKind::kF, ActionKind::kI, ActionKind::kW}, {"x", "dy"}, {"sent", "dx"});
  std::vector<std::string> consumed;
  for (const StageFragment& of : fragments) {
    for (const pipeline::Port& port : of.fragment->inputs) {
      if (port.consumed)
        consumed.push_back(fmt::format("{} {}", pipeline::to_string(of.fragment->kind), port.name));
    }
  }
  CHECK(consumed == std::vector<std::string>{"I z", "W y", "W dz"});
}

TEST_CASE("what is made again does the work of the part that makes it, an alias its own") {
  const LocalGraph stage = whole(R"(graph again {
    in %x : f32[2,4]
    in %dy : f32[2,4]
    %y = exp(%x) : f32[2,4] <batch, embed> @0 F
    %g = silu(%y) : f32[2,4] @0 F
    %r = reshape(%y) : f32[8] @0 F
    %sent = exp(%g) : f32[2,4] @0 F
    %dx = mul(%g, %dy) : f32[2,4] @0 I
    %dr = exp(%r) : f32[8] @0 I
    %dw = mul(%g, %dx) : f32[2,4] @0 W
    %dv = exp(%r) : f32[8] @0 W
  })");
  const auto works = [&](const std::vector<ActionKind>& kinds, ir::OpKind kind) {
    std::string found;
    for (const StageFragment& of : split(stage, kinds, {"x", "dy"}, {"sent", "dx"})) {
      for (const ir::Op& op : of.fragment->graph.ops) {
        if (op.kind == kind) found += "FIWU"[static_cast<size_t>(op.work)];
      }
      for (const ir::Input& input : of.fragment->graph.inputs) {
        const ir::Value& value = of.fragment->graph.value(input.value);
        if (value.name == "y") CHECK(value.logical == ir::LogicalAxes{"batch", "embed"});
      }
    }
    return found;
  };
  const std::vector<ActionKind> split_up{ActionKind::kF, ActionKind::kI, ActionKind::kW},
      together{ActionKind::kF, ActionKind::kB};
  CHECK(works(split_up, ir::OpKind::kSilu) == "FIW");
  CHECK(works(together, ir::OpKind::kSilu) == "FI");
  CHECK(works(split_up, ir::OpKind::kReshape) == "FFF");
}

TEST_CASE("what leaves a stage has memory of its own: it is copied where something else keeps it") {
  const LocalGraph stage = whole(R"(graph sends {
    in %x : f32[2,4]
    in %dy : f32[2,4]
    %own = exp(%x) : f32[2,4] @0 F
    %acc = neg(%x) : f32[2,4] @0 F
    %saved = tanh(%x) : f32[2,4] @0 F
    %alias = reshape(%own) : f32[8] @0 F
    %sum = accumulate(%acc, %x) : f32[2,4] @0 F
    %dx = mul(%saved, %dy) : f32[2,4] @0 I
  })");
  const auto fragments = split(stage, {ActionKind::kF, ActionKind::kB}, {"x", "dy"},
                               {"own", "own", "saved", "alias", "sum", "x", "dx"});
  const pipeline::Fragment& forward = *fragments[0].fragment;
  const std::vector<ir::OpKind> made{ir::OpKind::kExp,  ir::OpKind::kCopy, ir::OpKind::kCopy,
                                     ir::OpKind::kCopy, ir::OpKind::kCopy, ir::OpKind::kCopy,
                                     ir::OpKind::kTanh};
  REQUIRE(forward.outputs.size() == made.size());
  for (size_t i = 0; i < made.size(); ++i) {
    CAPTURE(i);
    CHECK(producer_of(forward, i).kind == made[i]);
  }
}

TEST_CASE("what goes to and comes from another slice is carried") {
  const LocalGraph stage = whole(R"(graph carries {
    in %x : f32[2,4]
    in %before : f32[2,4]
    %y = add(%x, %before) : f32[2,4] @0 F
    %behind = exp(%before) : f32[2,4] @0 F
  })");
  StagePorts ports;
  ports.receives = {named(stage.graph, "x"), named(stage.graph, "before")};
  ports.sends = {named(stage.graph, "y"), named(stage.graph, "behind")};
  ports.carried_in = ports.carried_out = {false, true};
  const cluster::Mesh mesh;
  const auto fragments = split_stage(stage, ports, {}, {ActionKind::kF}, "stage 0", {.mesh = mesh});
  const pipeline::Fragment& forward = *fragments[0].fragment;
  for (const std::vector<pipeline::Port>* ports_of : {&forward.inputs, &forward.outputs}) {
    REQUIRE(ports_of->size() == 2);
    CHECK(ports_of->at(0).kind == pipeline::PortKind::kBoundary);
    CHECK(ports_of->at(1).kind == pipeline::PortKind::kCarried);
  }
}

TEST_CASE("activations are gathered again where the plan says so, states and parts of them never") {
  const auto gathers = [](const std::string& from, bool regather) {
    const LocalGraph stage =
        whole("graph gathers {\n  in %x : f32[2,4]\n  in %dy : f32[2,4]\n" + from +
              "  %all = all_gather{group=axes[dp], op=sum}(%part) : f32[2,4] "
              "@0 F\n"
              "  %y = exp(%all) : f32[2,4] @0 F\n"
              "  %dx = mul(%all, %dy) : f32[2,4] @0 I\n}");
    return count(split(stage, {ActionKind::kF, ActionKind::kB}, {"dy"}, {"y", "dx"}, regather)[1],
                 ir::OpKind::kAllGather);
  };
  const std::string made = "  %part = exp(%x) : f32[2,4] @0 F\n";
  CHECK(gathers(made, false) == 0);
  CHECK(gathers(made, true) == 1);
  for (const std::string part :
       {"slice{start=[0, 0], limit=[2, 4]}(%from)", "copy(%from)", "reshape(%from)"}) {
    CAPTURE(part);
    const std::string of_part = "  %part = " + part + " : f32[2,4] @0 F\n";
    CHECK(gathers("  %from = exp(%x) : f32[2,4] @0 F\n" + of_part, true) == 1);
    CHECK(gathers("  %from = copy(%x) : f32[2,4] @0 F\n" + of_part, true) == 0);
  }
}

}  // namespace
}  // namespace mw::compile
