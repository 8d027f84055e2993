// Grouped-query attention with fewer key heads than tensor-parallel ranks: keys and values lie on
// one factor of the axis and are replicated over the other.
//
// B batch, S sequence, D model, H query heads, N key and value heads, K head dim
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <map>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "partition/partitioner.h"
#include "partition/test_ranks.h"

namespace mw::partition::grouped_test {
namespace {

using ir::OpKind;
using test::Tensor;

struct Sizes {
  int64_t B = 2, S = 4, D = 6, H = 8, N = 2, K = 2;
};

// Projections, attention, and back to the gradients of the input and of the three weights.
struct Net {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b{graph};
  Sizes n;
  std::map<std::string, ValueId> at;

  explicit Net(const Sizes& sizes) : n(sizes) {
    graph.name = "microbatch";
    const ValueId x_BSD = data("x", {n.B, n.S, n.D}, {"batch", "seq", "embed"});
    const ValueId positions_BS =
        graph.add_input(ir::make_type(DType::kI32, {n.B, n.S}), "positions");
    graph.value(positions_BS).logical = {"batch", ""};
    const ValueId dout_BSHK = data("dout", {n.B, n.S, n.H, n.K}, {"batch", "", "heads", ""});
    const ValueId q = project("q", x_BSD, n.H, "heads"), k = project("k", x_BSD, n.N, "kv_heads"),
                  v = project("v", x_BSD, n.N, "kv_heads");
    ir::AttentionAttrs attrs;
    attrs.scale = 0.5;
    const ValueIds out = b.emit(OpKind::kAttention, attrs, {q, k, v, positions_BS});
    b.annotate(out[0], "out", {"batch", "", "heads", ""});
    b.work = ir::Work::kInputGrad;
    const ValueIds grads =
        b.emit(OpKind::kAttentionGrad, attrs, {dout_BSHK, q, k, v, out[0], out[1], positions_BS});
    const ValueId sum =
        b.add(b.add(back("q", grads[0], x_BSD, "heads"), back("k", grads[1], x_BSD, "kv_heads")),
              back("v", grads[2], x_BSD, "kv_heads"));
    graph.outputs = {b.annotate(sum, "d.x", {"batch", "seq", "embed"}), out[0]};
  }

  ValueId data(const std::string& name, const std::vector<int64_t>& sizes,
               ir::LogicalAxes logical) {
    const ValueId v = graph.add_input(ir::make_type(DType::kF32, sizes), name);
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
    const ValueId w = state("w" + name, {heads, n.K, n.D}, ir::StateKind::kWeight, axis);
    at["w" + name] = w;
    return b.annotate(b.dot(x_BSD, w, "bsd,hkd->bshk"), name, {"batch", "", axis, ""});
  }
  // Accumulates the weight's gradient; returns the input's.
  ValueId back(const std::string& name, ValueId grad, ValueId x_BSD, const std::string& axis) {
    b.annotate(grad, "d." + name, {"batch", "", axis, ""});
    const ir::TensorType type = graph.type(at["w" + name]);
    const ValueId acc = state("grad/w" + name, {type.dim(0), type.dim(1), type.dim(2)},
                              ir::StateKind::kGradient, axis);
    b.work = ir::Work::kWeightGrad;
    const ValueId dw =
        b.annotate(b.dot(grad, x_BSD, "bshk,bsd->hkd"), "d.w" + name, {axis, "", "embed"});
    at["sum.w" + name] = b.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {acc, dw});
    graph.updates.push_back({graph.inputs.back().state, at["sum.w" + name]});
    b.work = ir::Work::kInputGrad;
    return b.dot(grad, at["w" + name], "bshk,hkd->bsd");
  }
};

sharding::Strategy strategy(bool sp) {
  const ir::Axes tensor{"tp_kv", "tp_rep"};
  sharding::Strategy strategy;
  strategy.axes = {{"batch", {"dp"}}, {"heads", tensor}, {"kv_heads", {"tp_kv"}}};
  if (sp) strategy.axes["seq"] = tensor;
  return strategy;
}

Partitioned partitioned(const Net& net, const cluster::Mesh& mesh, bool sp) {
  const sharding::Strategy layout = strategy(sp);
  const auto of = [&](LayerId) -> const sharding::Strategy& { return layout; };
  Partitioned result =
      partition({net.graph, net.module, mesh, given_shardings(net.graph, net.module, mesh, of)});
  ir::verify(result.graph);
  ops::verify_types(result.graph);
  return result;
}

TEST_CASE(
    "gradients of replicated key heads pend over the sub-axis and cost no message of their "
    "own") {
  const Net net({});
  const cluster::Mesh mesh({{"dp", 2}, {"tp_kv", 2}, {"tp_rep", 2}});
  for (const bool sp : {false, true}) {
    const Partitioned result = partitioned(net, mesh, sp);
    const auto layout = [&](ValueId global) {
      return to_string(result.shardings[result.main_version[global.index()].index()]);
    };
    CHECK(layout(net.at.at("sum.wq")) == R"([{"tp_kv", "tp_rep"}, {}, {}] partial{"dp"})");
    CHECK(layout(net.at.at("sum.wk")) == R"([{"tp_kv"}, {}, {}] partial{"dp", "tp_rep"})");
    CHECK(layout(net.at.at("sum.wv")) == R"([{"tp_kv"}, {}, {}] partial{"dp", "tp_rep"})");
    CHECK(join(test::communication(result.graph), "; ") ==
          std::string(sp ? "all_gather{tp_kv,tp_rep} dim 1; reduce_scatter{tp_kv,tp_rep} dim 1"
                         : "all_reduce{tp_kv,tp_rep}"));
  }
}

// Empty, or the first value that differs from the global graph's.
std::string difference(const Net& net, const cluster::Mesh& mesh, bool sp) {
  const Partitioned result = partitioned(net, mesh, sp);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : net.graph.inputs) {
    const std::string& name = net.graph.value(input.value).name;
    inputs.push_back(test::random_tensor(net.graph.type(input.value), name));
    for (size_t i = 0; name == "positions" && i < inputs.back().values.size(); ++i)
      inputs.back().values[i] = static_cast<double>(static_cast<int64_t>(i) % net.n.S);
  }
  return test::difference(net.graph, inputs, result, mesh);
}

TEST_CASE("with replicated key heads every value is what the global graph computes") {
  struct Case {
    Sizes sizes;
    int64_t kv, rep;
  };
  for (const Case& c : {Case{{}, 2, 2}, Case{{}, 2, 4}, Case{{.H = 4, .N = 1}, 1, 4},
                        Case{{.S = 5, .H = 12, .N = 3}, 3, 2}}) {
    const Net net(c.sizes);
    for (const int64_t dp : {1, 2}) {
      for (const bool sp : {false, true}) {
        const cluster::Mesh mesh({{"dp", dp}, {"tp_kv", c.kv}, {"tp_rep", c.rep}});
        CAPTURE(cluster::to_string(mesh));
        CAPTURE(sp);
        CHECK(difference(net, mesh, sp) == "");
      }
    }
  }
}

}  // namespace
}  // namespace mw::partition::grouped_test
