// CSE, dead code, folded accumulation and ops taken apart.
#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "transform/autodiff.h"
#include "transform/cse.h"
#include "transform/dead_code.h"
#include "transform/fold_accumulate.h"
#include "transform/test_models.h"
#include "transform/unfuse.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using test::microbatch;

struct TwoExps {
  ir::Graph graph;
  ValueId x, a, b;
  TwoExps() {
    ops::Builder builder(graph);
    builder.layer = LayerId(0);
    x = graph.add_input(ir::make_type(DType::kF32, {2}), "x");
    a = builder.unary(OpKind::kExp, x);
    b = builder.unary(OpKind::kExp, x);
    graph.outputs = {builder.add(a, b)};
  }
};

TEST_CASE("CSE merges equal ops and says where values went") {
  TwoExps t;
  const ValueIds map = merge_common(t.graph);
  CHECK(test::count_ops(t.graph, OpKind::kExp) == 1);
  CHECK(map[t.a.index()] == map[t.b.index()]);
  CHECK(map[t.x.index()] == t.graph.inputs[0].value);
  ir::verify(t.graph);
}

TEST_CASE("CSE merges across neither layers nor recompute regions nor differing axes") {
  for (int what = 0; what < 3; ++what) {
    TwoExps t;
    if (what == 0) t.graph.ops[1].layer = LayerId(1);
    if (what == 1) t.graph.ops[1].recompute = RegionId(0);
    if (what == 2) {
      t.graph.value(t.a).logical = {"batch"};
      t.graph.value(t.b).logical = {"seq"};
    }
    merge_common(t.graph);
    CAPTURE(what);
    CHECK(test::count_ops(t.graph, OpKind::kExp) == 2);
  }
}

TEST_CASE("of merged ops the one that stays does the earliest work and has both names and axes") {
  TwoExps t;
  t.graph.ops[0].work = ir::Work::kWeightGrad;
  t.graph.ops[1].work = ir::Work::kInputGrad;
  t.graph.value(t.b).name = std::string("second");
  t.graph.value(t.b).logical = {"batch"};
  merge_common(t.graph);
  CHECK(t.graph.ops[0].work == ir::Work::kInputGrad);
  CHECK(t.graph.value(t.graph.ops[0].results[0]).name == "second");
  CHECK(t.graph.value(t.graph.ops[0].results[0]).logical == ir::LogicalAxes{"batch"});
}

TEST_CASE("CSE leaves accumulations alone") {
  ir::Graph graph;
  ops::Builder b(graph);
  const ValueId acc = graph.add_input(ir::make_type(DType::kF32, {2}), "acc"),
                x = graph.add_input(graph.type(acc), "x");
  graph.outputs = {b.binary(OpKind::kAccumulate, acc, x), b.binary(OpKind::kAccumulate, acc, x)};
  merge_common(graph);
  CHECK(test::count_ops(graph, OpKind::kAccumulate) == 2);
}

TEST_CASE("CSE merges ops in all but what they are") {
  const auto left = [](const std::string& ops) {
    ir::Graph graph = ir::parse_graph("graph one {\n  in %x : f32[4]\n  in %acc : f32[4,4]\n" +
                                      ops + "  out %a, %b\n}");
    merge_common(graph);
    ir::verify(graph);
    return graph.ops.size();
  };
  const std::string slice = "slice{start=[0], limit=[2]}(%x) : f32[2] @0 F\n";
  CHECK(left("  %a = " + slice + "  %b = " + slice) == 1);
  CHECK(left("  %a = " + slice + "  %b = slice{start=[1], limit=[3]}(%x) : f32[2] @0 F\n") == 2);
  CHECK(left("  %a = convert(%x) : f64[4] @0 F\n  %b = convert(%x) : bf16[4] @0 F\n") == 2);
  const std::string sum = "dot{lhs=i, rhs=j, out=ij}(%x, %x, %acc) : f32[4,4] @0 F accumulates\n";
  CHECK(left("  %a = " + sum + "  %b = " + sum) == 2);
  const std::string reduce =
      "all_reduce{group=axes[dp], op=sum}(%x) : "
      "f32[4] @0 F\n";
  CHECK(left("  %a = " + reduce + "  %b = " + reduce) == 2);
  const std::string called = "neg(%x) : f32[4] @0 F calls [0]\n";
  CHECK(left("  %a = " + called + "  %b = " + called) == 2);
}

TEST_CASE("CSE sees that ops are the same whose operands have become the same") {
  ir::Graph graph = ir::parse_graph(R"(graph chains {
    in %x : f32[4]
    %a = exp(%x) : f32[4] @0 F
    %b = exp(%x) : f32[4] @0 F
    %na = neg(%a) : f32[4] @0 F
    %nb = neg(%b) : f32[4] @0 F
    %y = add(%na, %nb) : f32[4] @0 F
    out %y, %nb
  })");
  merge_common(graph);
  ir::verify(graph);
  REQUIRE(graph.ops.size() == 3);
  CHECK(graph.ops[2].operands == ValueIds{graph.ops[1].results[0], graph.ops[1].results[0]});
  CHECK(graph.outputs[1] == graph.ops[1].results[0]);
}

TEST_CASE("of merged ops the one that stays keeps its own name and axes") {
  TwoExps t;
  t.graph.value(t.a).name = std::string("first");
  t.graph.value(t.a).logical = {"batch"};
  t.graph.value(t.b).name = std::string("second");
  merge_common(t.graph);
  CHECK(test::count_ops(t.graph, OpKind::kExp) == 1);
  const ir::Value& stays = t.graph.value(t.graph.ops[0].results[0]);
  CHECK(stays.name == "first");
  CHECK(stays.logical == ir::LogicalAxes{"batch"});
}

TEST_CASE("dead code goes, with what only it needed") {
  TwoExps t;
  ops::Builder b(t.graph);
  const ValueId dead = b.unary(OpKind::kNeg, b.unary(OpKind::kTanh, t.x));
  const ValueIds map = drop_dead_code(t.graph);
  CHECK_FALSE(map[dead.index()].valid());
  CHECK(t.graph.ops.size() == 3);
}

TEST_CASE("products take the accumulation in, other gradients keep it") {
  ir::Module module = test::gpt(0);
  differentiate(module);
  ir::Graph& graph = microbatch(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  const auto expected = test::outcome(module, graph, inputs);
  const std::vector<ir::OpIds> users = graph.users();
  fold_accumulate(graph);
  ir::verify(graph, &module);
  ops::verify_types(graph);
  int folded = 0;
  for (const ir::Op& op : graph.ops) {
    if (op.accumulates) ++folded;
    if (op.accumulates) CHECK((op.kind == OpKind::kDot || op.kind == OpKind::kEmbeddingGrad));
    if (op.kind != OpKind::kAccumulate) continue;
    const OpId maker = graph.value(op.operands[1]).producer;
    CHECK_FALSE(ops::op_def(graph.op(maker).kind).can_accumulate);
  }
  CHECK(folded == 2 + 2 * 4 + 1);  // embeddings, four products a block, the head
  const auto result = test::outcome(module, graph, inputs);
  REQUIRE(result.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      CHECK(result.at(name).values[i] == mw::test::close_to(tensor.values[i]).epsilon(1e-14));
    }
  }
}

// The graph of one accumulation, folded.
ir::Graph folded(const std::string& ops, const std::string& end = "out %sum") {
  ir::Graph graph = ir::parse_graph(
      "graph one {\n  in %x : f32[2,2]\n  in %acc : f32[2,2] state 0\n" + ops + "  " + end + "\n}");
  fold_accumulate(graph);
  ir::verify(graph);
  return graph;
}

TEST_CASE("a product takes in the accumulation of its own work and layer alone") {
  const std::string dot = "dot{lhs=bn, rhs=bk, out=nk}", sum = "accumulate(%acc, %g) : f32[2,2] ";
  const auto stays = [&](const std::string& ops, const std::string& end = "out %sum") {
    return test::count_ops(folded(ops, end), OpKind::kAccumulate) == 1;
  };
  const std::string g = "  %g = " + dot + "(%x, %x) : f32[2,2] @0 W\n";
  CHECK_FALSE(stays(g + "  %sum = " + sum + "@0 W\n"));
  CHECK(stays(g + "  %sum = " + sum + "@0 I\n"));
  CHECK(stays(g + "  %sum = " + sum + "@1 W\n"));
  CHECK(stays(g + "  %sum = " + sum + "@0 W\n", "out %sum, %g"));
  CHECK(stays(g + "  %sum = " + sum + "@0 W\n", "out %sum, %acc"));
  CHECK(stays(g + "  %sum = " + sum + "@0 W\n", "update 0 = %g\n  out %sum"));
  // It has an accumulator already.
  CHECK(stays("  %other = exp(%x) : f32[2,2] @0 W\n  %g = " + dot +
              "(%x, %x, %other) : f32[2,2] @0 W accumulates\n  %sum = " + sum + "@0 W\n"));
  // The accumulator is made before the product, or behind it.
  const std::string made = "  %made = exp(%acc) : f32[2,2] @0 W\n",
                    end = "  %sum = accumulate(%made, %g) : f32[2,2] @0 W\n";
  CHECK_FALSE(stays(made + g + end));
  CHECK(stays(g + made + end));
}

TEST_CASE(
    "a product that takes an accumulation in has the sum's name, and axes where it has none") {
  const auto gradient = [](const std::string& axes) {
    const ir::Graph graph = folded("  %g = dot{lhs=bn, rhs=bk, out=nk}(%x, %x) : f32[2,2]" + axes +
                                   " @0 W\n  %sum = accumulate(%acc, %g) : f32[2,2] <n, k> @0 W\n");
    REQUIRE(graph.ops.size() == 1);
    return graph.value(graph.ops[0].results[0]);
  };
  CHECK(gradient("").name == "sum");
  CHECK(gradient("").logical == ir::LogicalAxes{"n", "k"});
  CHECK(gradient(" <a, b>").logical == ir::LogicalAxes{"a", "b"});
}

TEST_CASE("without fused kernels SwiGLU is two ops, of the same values, layer and axes") {
  ir::Graph graph;
  ops::Builder b(graph);
  b.layer = LayerId(3);
  const ValueId gate = graph.add_input(ir::make_type(DType::kF32, {2, 3}), "gate"),
                up = graph.add_input(graph.type(gate), "up"), hidden = b.swiglu(gate, up);
  graph.value(hidden).logical = {"batch", "mlp"};
  graph.value(hidden).name = std::string("hidden");
  graph.outputs = {b.unary(OpKind::kTanh, hidden)};
  const std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  const std::vector<ops::Tensor> expected = ops::interpret(graph, inputs);
  unfuse_activations(graph);
  ir::verify(graph);
  ops::verify_types(graph);
  REQUIRE(graph.ops.size() == 3);
  const ir::Op &silu = graph.ops[0], &product = graph.ops[1];
  CHECK(silu.kind == OpKind::kSilu);
  CHECK(silu.operands == ValueIds{gate});
  CHECK(product.kind == OpKind::kMul);
  CHECK(product.operands == ValueIds{silu.results[0], up});
  CHECK(graph.value(product.results[0]).name == "hidden");
  for (const ir::Op* op : {&silu, &product}) {
    CHECK(op->layer == LayerId(3));
    CHECK(graph.value(op->results[0]).logical == ir::LogicalAxes{"batch", "mlp"});
  }
  const std::vector<ops::Tensor> made = ops::interpret(graph, inputs);
  for (size_t i = 0; i < expected[0].values.size(); ++i)
    CHECK(made[0].values[i] == mw::test::close_to(expected[0].values[i]).epsilon(1e-14));
}

}  // namespace
}  // namespace mw::transform
