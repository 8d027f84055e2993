#include <doctest/doctest.h>
#include <fmt/core.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "ir/graph.h"
#include "ir/test_graphs.h"

using namespace mw;
using namespace mw::ir;

namespace {

std::string message_of(const std::string& text, const Module* module = nullptr) {
  return mw::test::thrown_by([&] { parse_graph(text, module); });
}

}  // namespace

TEST_CASE("the text of a random graph parses to a graph that prints the same text") {
  Module module = small_module();
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    const Graph graph = random_graph(rng, module);
    verify(graph, &module);
    for (const Module* context :
         {static_cast<const Module*>(nullptr), static_cast<const Module*>(&module)}) {
      const std::string text = to_text(graph, context);
      CAPTURE(text);
      const Graph again = parse_graph(text, context);
      verify(again, &module);
      CHECK(to_text(again, context) == text);
      CHECK(again.ops.size() == graph.ops.size());
      for (size_t i = 0; i < graph.ops.size(); ++i) CHECK(again.ops[i].attrs == graph.ops[i].attrs);
    }
  }
}

TEST_CASE("the text of a module parses to a module that prints the same text") {
  Module module = small_module();
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    Graph graph = random_graph(rng, module);
    graph.name = fmt::format("random{}", seed);
    module.graphs.push_back(graph);
  }
  const std::string text = to_text(module);
  const Module again = parse_module(text);
  CHECK(to_text(again) == text);
  CHECK(again.states[1].parameter == StateId(0));
  CHECK(again.states[1].use == LayerId(1));
  CHECK(again.states[2].kind == StateKind::kMetric);
  CHECK(!again.layers[0].block);
  CHECK(again.layers[1].block);
  CHECK(again.states[0].init == Init{Init::Kind::kNormal, 0.02});
  for (const Graph& graph : again.graphs) verify(graph, &again);
}

TEST_CASE("a graph reads like this") {
  Module module = small_module();
  Graph graph;
  graph.name = "microbatch";
  const ValueId tokens = graph.add_input(make_type(DType::kI32, {2, 8}), "tokens");
  const ValueId table = graph.add_input(module.states[0].type, "tbl.weight", StateId(0));
  Op op;
  op.kind = OpKind::kEmbedding;
  op.attrs = EmbeddingAttrs{16, {{"tp"}, 16}};
  op.operands = {tokens, table};
  op.layer = LayerId(0);
  const ValueId h = graph.op(graph.add_op(op, {make_type(DType::kF32, {2, 8, 4})})).results[0];
  graph.value(h).logical = {"batch", "seq", ""};
  Op copy;
  copy.kind = OpKind::kCopy;
  copy.operands = {h};
  copy.work = Work::kInputGrad;
  copy.recompute = RegionId(1);
  graph.outputs = {graph.op(graph.add_op(copy, {graph.type(h)})).results[0]};
  CHECK(to_text(graph, &module) ==
        "graph microbatch {\n"
        "  in %tokens : i32[2,8]\n"
        "  in %tbl.weight : f32[16,4] state tbl.weight\n"
        "  %2 = embedding{vocab=16, rows={axes=[tp], global_size=16}}(%tokens, %tbl.weight) : "
        "f32[2,8,4] "
        "<batch, seq, _> @embed F\n"
        "  %3 = copy(%2) : f32[2,8,4] I recompute 1\n"
        "  out %3\n"
        "}\n");
}

TEST_CASE("attributes that are not usual for the op carry the name of their family") {
  Graph graph;
  graph.name = "g";
  Op op;
  op.kind = OpKind::kRelu;
  op.attrs = ScaleAttrs{2};
  graph.add_op(op, {});
  CHECK(to_text(graph) == "graph g {\n  relu:scale{factor=2.0}() F\n}\n");
  CHECK(parse_graph(to_text(graph)).ops[0].attrs == Attributes(ScaleAttrs{2}));
}

TEST_CASE("a mistake in graph text is named with its line and what was expected") {
  const std::string head = "graph g {\n  in %x : f32[2]\n";
  CHECK(message_of(head + "  %y = relv(%x) : f32[2] F\n}") ==
        "graph text, line 3: expected an op, found 'relv(%x) : f32[2] F', did you mean 'relu'?");
  CHECK(message_of(head + "  %y = relu(%z) : f32[2] F\n}") ==
        "graph text, line 3: expected a value that is defined before, found '%z) : f32[2] F'");
  CHECK(message_of(head + "  %x = relu(%x) : f32[2] F\n}") ==
        "graph text, line 3: expected a value that is not defined before, found '%x = relu(%x) : "
        "f32[2] F'");
  CHECK(message_of(head + "  %y = relu(%x) : g32[2] F\n}") ==
        "graph text, line 3: expected a dtype, found 'g32[2] F'");
  CHECK(message_of(head + "  %y = relu(%x) : f32[2] X\n}") ==
        "graph text, line 3: expected F, I, W or U, found 'X'");
  CHECK(message_of(head + "  %y = relu(%x) : f32[2,a] F\n}") ==
        "graph text, line 3: expected an integer, found 'a] F'");
  CHECK(message_of(head + "  %y = relu(%x) : f32[2 F\n}") ==
        "graph text, line 3: expected ']', found 'F'");
  CHECK(message_of(head + "  %y = relu:nrm(%x) : f32[2] F\n}") ==
        "graph text, line 3: expected a family of attributes, found 'nrm(%x) : f32[2] F'");
  CHECK(message_of(head + "  %y = scale{fctor=2}(%x) : f32[2] F\n}") ==
        "graph text, line 3: expected an attribute of this op, found 'fctor=2}(%x) : f32[2] F'");
  CHECK(message_of(head) == "graph text, line 3: expected a word, found the end");
  CHECK(message_of(head + "  %y = relu(%x) : f32[2] @nowhere F\n}") ==
        "graph text, line 3: expected a layer number, for there is no module, found 'nowhere F'");
  const Module module = small_module();
  CHECK(message_of(head + "  %y = relu(%x) : f32[2] @embd F\n}", &module) ==
        "graph text, line 3: expected a layer that exists, found 'embd F', did you mean 'embed'?");
  CHECK(message_of(head + "  %y = relu(%x) : f32[2] @2 F\n}", &module) ==
        "graph text, line 3: expected a layer that exists, found '2 F'");
  CHECK(message_of(head + "  %9 = relu(%x) : f32[2] F\n}") ==
        "graph text: graph g: %9 is too large, there are 2 values");
}

TEST_CASE("a state that is there already is refused") {
  const std::string state = "  state a.b : f32[2] weight init zeros\n";
  CHECK(parse_module("module m {\n" + state + "}").states.size() == 1);
  CHECK_THROWS_WITH_AS(parse_module("module m {\n" + state + state + "}"),
                       "module text: state a.b is there already", Error);
}

TEST_CASE("every family of attributes round-trips through its name and its text") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 rng(seed);
    const Attributes attributes = random_attributes(rng);
    const auto prototype = parse_family(family(attributes));
    REQUIRE(prototype.has_value());
    CHECK(prototype->index() == attributes.index());
    CHECK(parse_attributes(to_string(attributes), *prototype) == attributes);
  }
  CHECK(to_string(Attributes(DotAttrs{"bsk", "nk", "bsn"})) == "{lhs=bsk, rhs=nk, out=bsn}");
  CHECK(to_string(Attributes()) == "");
}

TEST_CASE("every op has a name that parses back") {
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    CHECK(parse_op(op_name(kind)) == kind);
  }
  CHECK(!parse_op("matmul"));
  CHECK(op_name(OpKind::kAdamW) == "adamw");
  CHECK(op_name(OpKind::kLayerNormInputGrad) == "layer_norm_input_grad");
  CHECK(op_name(OpKind::kCrossEntropyGrad) == "cross_entropy_grad");
  CHECK(op_name(OpKind::kRandom) == "random");
  CHECK(op_name(OpKind::kCopy) == "copy");
}

TEST_CASE("a type prints its dtype and dimensions") {
  TensorType type = make_type(DType::kBF16, {8, 256});
  CHECK(to_string(type) == "bf16[8,256]");
  CHECK(type.elements() == 2048);
  CHECK(type.bytes() == Bytes(4096));
  type.dims[1].size_value = ValueId(7);
  CHECK(to_string(type) == "bf16[8,<=256:%7]");
  CHECK(to_string(TensorType(DType::kF32, {})) == "f32[]");
}
