// Context parallelism: queries are divided along the sequence, keys and values are gathered.
//
// B batch, S sequence, D model, H query heads, N key and value heads, K head dim
#include <doctest/doctest.h>

#include <array>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "partition/partitioner.h"
#include "partition/test_ranks.h"

namespace mw::partition {
namespace {

using ir::OpKind;
using test::Tensor;

constexpr int64_t kB = 2, kS = 8, kD = 6, kH = 4, kN = 2, kK = 3;

// Projections, attention, and back to the gradients of keys, values and queries and of one weight.
struct Net {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b{graph};
  ValueId k, dq, dk, dv, sum;

  explicit Net(int64_t S = kS) {
    graph.name = "microbatch";
    const ValueId x_BSD = data("x", DType::kF32, {kB, S, kD}, {"batch", "attn_seq", "embed"});
    const ValueId positions_BS = data("positions", DType::kI32, {kB, S}, {"batch", "attn_seq"});
    const ValueId dout_BSHK =
        data("dout", DType::kF32, {kB, S, kH, kK}, {"batch", "attn_seq", "heads", ""});
    const ValueId q = project("q", x_BSD, kH, "heads");
    k = project("k", x_BSD, kN, "kv_heads");
    const ValueId v = project("v", x_BSD, kN, "kv_heads");
    ir::AttentionAttrs attrs;
    attrs.scale = 0.5;
    const ValueIds out = b.emit(OpKind::kAttention, attrs, {q, k, v, positions_BS});
    b.annotate(out[0], "out", {"batch", "attn_seq", "heads", ""});
    b.work = ir::Work::kInputGrad;
    const ValueIds grads =
        b.emit(OpKind::kAttentionGrad, attrs, {dout_BSHK, q, k, v, out[0], out[1], positions_BS});
    dq = b.annotate(grads[0], "d.q", {"batch", "attn_seq", "heads", ""});
    dk = b.annotate(grads[1], "d.k", {"batch", "attn_seq", "kv_heads", ""});
    dv = b.annotate(grads[2], "d.v", {"batch", "attn_seq", "kv_heads", ""});
    const ValueId acc = state("grad/wk", {kN, kK, kD}, ir::StateKind::kGradient, "kv_heads");
    const StateId id = graph.inputs.back().state;
    b.work = ir::Work::kWeightGrad;
    const ValueId dw =
        b.annotate(b.dot(dk, x_BSD, "bshk,bsd->hkd"), "d.wk", {"kv_heads", "", "embed"});
    sum = b.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {acc, dw});
    graph.updates.push_back({id, sum});
    graph.outputs = {dq, dk, dv};
  }

  ValueId data(const std::string& name, DType dtype, const std::vector<int64_t>& sizes,
               ir::LogicalAxes logical) {
    const ValueId v = graph.add_input(ir::make_type(dtype, sizes), name);
    graph.value(v).logical = std::move(logical);
    return v;
  }
  ValueId state(const std::string& name, const std::vector<int64_t>& sizes, ir::StateKind kind,
                const std::string& axis) {
    ir::State made;
    made.name = name;
    made.type = ir::make_type(DType::kF32, sizes);
    made.kind = kind;
    made.logical = {axis, "", "embed"};
    return graph.add_input(made.type, name, module.add_state(made));
  }
  ValueId project(const std::string& name, ValueId x_BSD, int64_t heads, const std::string& axis) {
    const ValueId w = state("w" + name, {heads, kK, kD}, ir::StateKind::kWeight, axis);
    return b.annotate(b.dot(x_BSD, w, "bsd,hkd->bshk"), name, {"batch", "attn_seq", axis, ""});
  }
};

Partitioned partitioned(const Net& net, const cluster::Mesh& mesh) {
  const bool grouped = mesh.axis_size("tp_rep") > 1;
  sharding::Strategy strategy;
  strategy.axes = {{"batch", {"dp"}},
                   {"attn_seq", {"cp"}},
                   {"heads", grouped ? ir::Axes{"tp_kv", "tp_rep"} : ir::Axes{"tp"}},
                   {"kv_heads", {grouped ? "tp_kv" : "tp"}}};
  const auto of = [&](LayerId) -> const sharding::Strategy& { return strategy; };
  Partitioned result =
      partition({net.graph, net.module, mesh, given_shardings(net.graph, net.module, mesh, of)});
  ir::verify(result.graph);
  ops::verify_types(result.graph);
  return result;
}

TEST_CASE("attention gathers keys and values over cp, and their gradients are scattered") {
  const Net net;
  const Partitioned result = partitioned(net, cluster::Mesh({{"dp", 2}, {"cp", 2}, {"tp", 2}}));
  const auto layout = [&](ValueId global) {
    return to_string(result.shardings[result.main_version[global.index()].index()]);
  };
  CHECK(layout(net.k) == R"([{"dp"}, {"cp"}, {"tp"}, {}])");
  CHECK(layout(net.dk) == R"([{"dp"}, {"cp"}, {"tp"}, {}])");
  CHECK(layout(net.sum) == R"([{"tp"}, {}, {}] partial{"cp", "dp"})");
  // Keys, values and positions forward; backward they are there, and two gradients are scattered.
  CHECK(join(test::communication(result.graph), "; ") ==
        "all_gather{cp} dim 1; all_gather{cp} dim 1; all_gather{cp} dim 1; "
        "reduce_scatter{cp} dim 1; reduce_scatter{cp} dim 1");
  // What a device receives of keys and values together: 2 B S N K (cp - 1) / (dp cp tp) elements.
  int64_t elements = 0;
  for (const ir::Op& op : result.graph.ops) {
    if (op.kind != OpKind::kAllGather || result.graph.type(op.results[0]).rank() != 4) continue;
    elements +=
        result.graph.type(op.results[0]).elements() - result.graph.type(op.operands[0]).elements();
  }
  CHECK(elements == 2 * kB * kS * kN * kK / (2 * 2 * 2));
}

TEST_CASE("gradients of key heads that several ranks have are scattered over cp, too") {
  const Net net;
  const Partitioned result =
      partitioned(net, cluster::Mesh({{"cp", 2}, {"tp_kv", 2}, {"tp_rep", 2}}));
  const auto layout = [&](ValueId global) {
    return to_string(result.shardings[result.main_version[global.index()].index()]);
  };
  CHECK(layout(net.sum) == R"([{"tp_kv"}, {}, {}] partial{"cp"})");
  CHECK(join(test::communication(result.graph), "; ") ==
        "all_gather{cp} dim 1; all_gather{cp} dim 1; all_gather{cp} dim 1; "
        "reduce_scatter{cp} dim 1; all_reduce{tp_rep}; reduce_scatter{cp} dim 1; "
        "all_reduce{tp_rep}");
}

TEST_CASE("a device's attention is its share of the causal pairs") {
  const Net net;
  double whole = 0;
  for (const ir::Op& op : net.graph.ops) {
    if (op.kind == OpKind::kAttention) whole = ops::cost_of(net.graph, op).flops;
  }
  CHECK(whole == 4.0 * kB * kH * kK * kS * (kS + 1) / 2);
  for (const int64_t cp : {2, 4}) {
    const Partitioned result = partitioned(net, cluster::Mesh({{"cp", cp}}));
    for (const ir::Op& op : result.graph.ops) {
      if (op.kind == OpKind::kAttention)
        CHECK(ops::cost_of(result.graph, op).flops == whole / static_cast<double>(cp));
    }
  }
}

// Positions in another order than the sequence's: that of the balanced parts.
TEST_CASE("with context parallelism every value is what the global graph computes") {
  const Net net;
  std::vector<Tensor> inputs;
  for (const ir::Input& input : net.graph.inputs) {
    const std::string& name = net.graph.value(input.value).name;
    inputs.push_back(test::random_tensor(net.graph.type(input.value), name));
    for (size_t i = 0; name == "positions" && i < inputs.back().values.size(); ++i)
      inputs.back().values[i] = std::array<double, kS>{0, 1, 6, 7, 2, 3, 4, 5}[i % kS];
  }
  for (const auto& axes :
       std::vector<std::vector<cluster::Axis>>{{{"cp", 2}},
                                               {{"cp", 4}},
                                               {{"dp", 2}, {"cp", 2}, {"tp", 2}},
                                               {{"cp", 2}, {"tp_kv", 2}, {"tp_rep", 2}}}) {
    const cluster::Mesh mesh(axes);
    CAPTURE(cluster::to_string(mesh));
    CHECK(test::difference(net.graph, inputs, partitioned(net, mesh), mesh) == "");
  }
}

// Queries are in the gradient of queries and are summed over in those of keys and values.
TEST_CASE(
    "queries behind the end of the sequence add nothing to the gradients of keys and values") {
  for (const int64_t S : {5, 7}) {
    const Net net(S);
    std::vector<Tensor> inputs;
    for (const ir::Input& input : net.graph.inputs) {
      const std::string& name = net.graph.value(input.value).name;
      inputs.push_back(test::random_tensor(net.graph.type(input.value), name));
      for (size_t i = 0; name == "positions" && i < inputs.back().values.size(); ++i)
        inputs.back().values[i] = static_cast<double>(static_cast<int64_t>(i) % S);
    }
    CAPTURE(S);
    const cluster::Mesh mesh({{"cp", 2}});
    CHECK(test::difference(net.graph, inputs, partitioned(net, mesh), mesh,
                           {.tail = 1e3, .relative = 1}) == "");
  }
}

}  // namespace
}  // namespace mw::partition
