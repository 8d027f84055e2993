// Expert parallelism: rows go to the devices that hold their experts, and back, in all-to-alls.
//
// B batch, S sequence, D model, E experts, K experts of a token, C rows of an expert and sample, F
// ffn
#include <doctest/doctest.h>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "partition/partitioner.h"
#include "partition/test_ranks.h"

namespace mw::partition::mixture_test {
namespace {

using ir::OpKind;
using test::Tensor;

constexpr int64_t kB = 8, kS = 8, kD = 3, kE = 4, kK = 2, kF = 5;

// Tokens to their experts, through one product, and back together; and the gradients.
struct Net {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b{graph};
  ValueId rows, sum;

  explicit Net(int64_t number = kE, int64_t top_k = kK, int64_t size = kD, int64_t wide = kF)
      : state_sizes_{number, wide, size} {
    graph.name = "microbatch";
    const ir::LogicalAxes tokens{"batch", "seq", ""},
        of_experts{"expert", "expert_batch", "seq", ""};
    const ir::MoeAttrs attrs{number, top_k, false, 1};
    const ValueId x = data("x", DType::kF32, size, tokens),
                  dy = data("dy", DType::kF32, wide, tokens),
                  gates = data("gates", DType::kF32, top_k, tokens),
                  experts = data("experts", DType::kI32, top_k, tokens);
    const ValueId w = state("w", ir::StateKind::kWeight);
    rows = b.annotate(b.emit1(OpKind::kMoeDispatch, attrs, {x, experts}), "rows", of_experts);
    const ValueId made = b.annotate(b.dot(rows, w, "ebcd,efd->ebcf"), "made", of_experts);
    const ValueId y =
        b.annotate(b.emit1(OpKind::kMoeCombine, attrs, {made, experts, gates}), "y", tokens);
    b.work = ir::Work::kInputGrad;
    const ValueId dmade = b.emit1(OpKind::kMoeDispatch, attrs, {dy, experts, gates});
    const ValueId dgates =
        b.annotate(b.emit1(OpKind::kMoeGateGrad, attrs, {made, dy, experts}), "d.gates", tokens);
    const ValueId drows = b.dot(dmade, w, "ebcf,efd->ebcd");
    const ValueId dx =
        b.annotate(b.emit1(OpKind::kMoeCombine, attrs, {drows, experts}), "d.x", tokens);
    const ValueId acc = state("grad/w", ir::StateKind::kGradient);
    const StateId id = graph.inputs.back().state;
    b.work = ir::Work::kWeightGrad;
    sum =
        b.emit1(OpKind::kAccumulate, ir::NoAttrs{},
                {acc, b.annotate(b.dot(dmade, rows, "ebcf,ebcd->efd"), "d.w", {"expert", "", ""})});
    graph.updates.push_back({id, sum});
    graph.outputs = {y, dx, dgates};
  }

  ValueId data(const std::string& name, DType dtype, int64_t size, const ir::LogicalAxes& logical) {
    const ValueId v = graph.add_input(ir::make_type(dtype, {kB, kS, size}), name);
    graph.value(v).logical = logical;
    return v;
  }
  ValueId state(const std::string& name, ir::StateKind kind) {
    ir::State made;
    made.name = name;
    made.type = ir::make_type(DType::kF32, state_sizes_);
    made.kind = kind;
    made.logical = {"expert", "", ""};
    return graph.add_input(made.type, name, module.add_state(made));
  }

 private:
  std::vector<int64_t> state_sizes_;  // E, F, D
};

Partitioned partitioned(const Net& net, const cluster::Mesh& mesh) {
  sharding::Strategy strategy;
  strategy.axes = {
      {"batch", {"dp", "ep"}}, {"expert", {"ep"}}, {"expert_batch", {"dp"}}, {"seq", {"cp", "tp"}}};
  const auto of = [&](LayerId) -> const sharding::Strategy& { return strategy; };
  Partitioned result =
      partition({net.graph, net.module, mesh, given_shardings(net.graph, net.module, mesh, of)});
  ir::verify(result.graph);
  ops::verify_types(result.graph);
  return result;
}

TEST_CASE(
    "rows change place in four all-to-alls over ep, and gradients pend over what is left of dp") {
  const Net net;
  const cluster::Mesh mesh({{"dp", 2}, {"ep", 4}, {"tp", 2}});
  const Partitioned result = partitioned(net, mesh);
  const auto layout = [&](ValueId global) {
    return to_string(result.shardings[result.main_version[global.index()].index()]);
  };
  CHECK(layout(net.rows) == R"([{"ep"}, {"dp"}, {"tp"}, {}])");
  CHECK(layout(net.sum) == R"([{"ep"}, {}, {}] partial{"dp", "tp"})");
  CHECK(join(test::communication(result.graph), "; ") ==
        "all_to_all{ep} dim 0 from 1; all_to_all{ep} dim 1 from 0; all_to_all{ep} dim 0 from 1; "
        "all_to_all{ep} dim 1 from 0");
  // Each of K rows of every token of the device, of D or of F elements.
  const int64_t rows = kB * kS * kK / (2 * 4 * 2);
  std::vector<int64_t> moved;
  for (const ir::Op& op : result.graph.ops) {
    if (op.kind == OpKind::kAllToAll) moved.push_back(result.graph.type(op.operands[0]).elements());
  }
  CHECK(moved == std::vector<int64_t>{rows * kD, rows * kF, rows * kF, rows * kD});
}

TEST_CASE("tokens of more experts than parts of them are dealt out where they are") {
  // To gather them would move fewer bytes than their rows have, but each device would write all.
  const Net net(16, 8, 64, 64);
  const Partitioned result = partitioned(net, cluster::Mesh({{"dp", 2}, {"ep", 4}}));
  CHECK(join(test::communication(result.graph), "; ") ==
        "all_to_all{ep} dim 0 from 1; all_to_all{ep} dim 1 from 0; all_to_all{ep} dim 0 from 1; "
        "all_to_all{ep} dim 1 from 0");
}

TEST_CASE("with expert parallelism every value is what the global graph computes") {
  const Net net;
  std::vector<Tensor> inputs;
  for (const ir::Input& input : net.graph.inputs) {
    const std::string& name = net.graph.value(input.value).name;
    inputs.push_back(test::random_tensor(net.graph.type(input.value), name));
    // Every two tokens have all four experts: balanced in any part of a sequence.
    for (size_t i = 0; name == "experts" && i < inputs.back().values.size(); ++i)
      inputs.back().values[i] = static_cast<double>((i * 3 + i / 16) % kE);
  }
  for (const auto& axes :
       std::vector<std::vector<cluster::Axis>>{{{"ep", 2}},
                                               {{"dp", 2}, {"ep", 4}},
                                               {{"ep", 4}, {"tp", 2}},
                                               {{"dp", 2}, {"ep", 2}, {"cp", 2}}}) {
    const cluster::Mesh mesh(axes);
    CAPTURE(cluster::to_string(mesh));
    CHECK(test::difference(net.graph, inputs, partitioned(net, mesh), mesh) == "");
  }
}

}  // namespace
}  // namespace mw::partition::mixture_test
