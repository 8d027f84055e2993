#include "partition/partitioner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "partition/test_nets.h"
#include "partition/test_ranks.h"

namespace mw::partition {
namespace {

using test::NetSizes;
using test::Tensor;

Partitioned partitioned(const ir::Graph& graph, const ir::Module& module, const cluster::Mesh& mesh,
                        const sharding::Strategy& strategy) {
  const auto of = [&](LayerId) -> const sharding::Strategy& { return strategy; };
  Partitioned result = partition({graph, module, mesh, given_shardings(graph, module, mesh, of)});
  ir::verify(result.graph, nullptr);
  ops::verify_types(result.graph);
  return result;
}

Partitioned partitioned(const ir::Module& module, const cluster::Mesh& mesh, bool sp) {
  return partitioned(*module.find_graph("microbatch"), module, mesh, test::strategy(sp));
}

// Communication of one layer's ops.
std::vector<std::string> communication_in(const Partitioned& result, int64_t layer) {
  ir::Graph only = result.graph;
  std::erase_if(only.ops, [&](const ir::Op& op) { return op.layer != LayerId(layer); });
  return test::communication(only);
}

using Texts = std::vector<std::string>;

TEST_CASE("a Megatron block has one all-reduce behind each row-parallel product") {
  const ir::Module module = test::gpt_net({});
  const Partitioned result = partitioned(module, cluster::Mesh({{"dp", 2}, {"tp", 2}}), false);
  CHECK(communication_in(result, 1) == Texts{"all_reduce{tp}", "all_reduce{tp}"});
  // The embedding's rows and the three numbers a token of the loss; the loss itself over its
  // samples.
  CHECK(communication_in(result, 0) == Texts{"all_reduce{tp}"});
  CHECK(communication_in(result, 3) == Texts{"all_reduce{tp}", "all_reduce{tp}", "all_reduce{tp}"});
}

TEST_CASE("sequence parallelism makes it a gather before and a scatter behind each region") {
  const ir::Module module = test::gpt_net({});
  const Partitioned result = partitioned(module, cluster::Mesh({{"dp", 2}, {"tp", 2}}), true);
  CHECK(communication_in(result, 1) == Texts{"all_gather{tp} dim 1", "reduce_scatter{tp} dim 1",
                                             "all_gather{tp} dim 1", "reduce_scatter{tp} dim 1"});
}

TEST_CASE("data parallelism alone communicates nothing in the forward pass but the loss") {
  const ir::Module module = test::gpt_net({});
  const Partitioned result = partitioned(module, cluster::Mesh({{"dp", 4}}), false);
  CHECK(test::communication(result.graph) == Texts{"all_reduce{dp}"});
}

TEST_CASE("a partitioned Megatron block reads as in the golden file") {
  const ir::Module module = test::gpt_net({.blocks = 1});
  std::string actual;
  for (const bool sp : {false, true}) {
    Partitioned result = partitioned(module, cluster::Mesh({{"dp", 2}, {"tp", 2}}), sp);
    result.graph.name = sp ? "sequence parallel" : "tensor parallel";
    actual += ir::to_text(result.graph) + "\n";
  }
  const std::string path = MW_SOURCE_DIR "/src/partition/megatron_block.golden";
  if (std::getenv("MW_BLESS") != nullptr) std::ofstream(path) << actual;
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  CHECK(actual == expected.str());
}

TEST_CASE("a gradient that only goes into its accumulator stays pending over data-parallel ranks") {
  ir::Module module;
  module.layers = {{"l", true}};
  ir::Graph graph;
  ops::Builder b(graph);
  b.layer = LayerId(0);
  ir::State state;
  state.name = "grad/w";
  state.type = ir::make_type(DType::kF32, {4, 6});
  state.kind = ir::StateKind::kGradient;
  state.logical = {"ffn", ""};
  const StateId grad = module.add_state(state);
  const ValueId x = graph.add_input(ir::make_type(DType::kF32, {8, 6}), "x");
  graph.value(x).logical = {"batch", ""};
  const ValueId dy = graph.add_input(ir::make_type(DType::kF32, {8, 4}), "dy");
  graph.value(dy).logical = {"batch", "ffn"};
  const ValueId acc = graph.add_input(state.type, "acc", grad);
  b.work = ir::Work::kWeightGrad;
  const ValueId dw = b.annotate(b.dot(dy, x, "bf,bd->fd"), "d.w", {"ffn", ""});
  graph.updates = {{grad, b.emit1(ir::OpKind::kAccumulate, ir::NoAttrs{}, {acc, dw})}};
  const Partitioned result =
      partitioned(graph, module, cluster::Mesh({{"dp", 2}, {"tp", 2}}), test::strategy(false));
  CHECK(test::communication(result.graph).empty());
  const ValueId sum = result.graph.updates.at(0).value;
  CHECK(to_string(result.shardings[sum.index()]) == R"([{"tp"}, {}] partial{"dp"})");
}

TEST_CASE("an op that is not linear in a pending sum gets it reduced") {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b(graph);
  const ValueId x = graph.add_input(ir::make_type(DType::kF32, {4, 8}), "x");
  graph.value(x).logical = {"batch", "ffn"};
  const ValueId w = graph.add_input(ir::make_type(DType::kF32, {6, 8}), "w");
  graph.value(w).logical = {"", "ffn"};
  const ValueId y = b.dot(x, w, "bf,df->bd");
  // A scale lets the sum pass, exp does not.
  const ValueId z = b.unary(ir::OpKind::kExp, b.scale(y, 2));
  graph.outputs = {z};
  const Partitioned result =
      partitioned(graph, module, cluster::Mesh({{"tp", 2}}), test::strategy(false));
  CHECK(test::communication(result.graph).size() == 1);
  CHECK(!result.shardings[result.graph.outputs[0].index()].is_partial());
}

TEST_CASE("a value is laid out by its own layer's strategy, a state by its layer's") {
  ir::Module module;
  module.layers = {{"first", true}, {"second", true}};
  ir::Graph graph;
  ops::Builder b(graph);
  std::vector<ValueId> values;
  for (int64_t layer = 0; layer < 2; ++layer) {
    ir::State state;
    state.name = fmt::format("w{}", layer);
    state.type = ir::make_type(DType::kF32, {4});
    state.layer = b.layer = LayerId(layer);
    if (layer == 1) state.logical = {"ffn"};
    values.push_back(graph.add_input(state.type, state.name, module.add_state(state)));
    values.push_back(b.annotate(b.unary(ir::OpKind::kExp, values.back()), "h", {"ffn"}));
  }
  const sharding::Strategy whole, split = test::strategy(false);
  const auto given = given_shardings(graph, module, cluster::Mesh({{"tp", 2}}),
                                     [&](LayerId layer) -> const sharding::Strategy& {
                                       return layer == LayerId(1) ? split : whole;
                                     });
  Texts texts;
  for (const ValueId v : values) texts.push_back(to_string(given[v.index()].value()));
  CHECK(texts == Texts{"[{}]", "[{}]", R"([{"tp"}])", R"([{"tp"}])"});
}

TEST_CASE("a memo is of one mesh") {
  const ir::Module module = test::mlp_net({});
  const cluster::Mesh mesh({{"tp", 2}});
  Memo memo(cluster::Mesh({{"tp", 4}}));
  const ir::Graph& graph = module.graphs[0];
  PartitionRequest request{graph, module, mesh, {}, &memo};
  request.given.resize(graph.values.size());
  CHECK_THROWS_WITH_AS(partition(request), doctest::Contains("a memo of another mesh"),
                       CheckFailure);
}

// --- partitioned graphs on interpreted ranks ---

std::vector<Tensor> inputs_of(const ir::Graph& graph, const NetSizes& n) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph.inputs) {
    const std::string& name = graph.value(input.value).name;
    Tensor tensor = test::random_tensor(graph.type(input.value), name);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      double& x = tensor.values[i];
      if (name == "tokens" || name == "targets")
        x = std::floor((x + 1) / 2 * static_cast<double>(n.V));
      if (name == "positions") x = static_cast<double>(static_cast<int64_t>(i) % n.S);
      if (name == "loss_scale") x = 0.25;
    }
    if (name == "targets") tensor.values[0] = -100;
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// Empty, or the first output that differs from the global graph's.
std::string difference(const ir::Module& module, const NetSizes& sizes, const cluster::Mesh& mesh,
                       bool sp) {
  const ir::Graph& graph = *module.find_graph("microbatch");
  const Partitioned result = partitioned(module, mesh, sp);
  const std::vector<Tensor> inputs = inputs_of(graph, sizes);
  // Only states have zeros in their tails.
  return test::difference(graph, inputs, result, mesh, {.tail = 1e3, .relative = 1});
}

const std::vector<cluster::Mesh>& meshes() {
  static const std::vector<cluster::Mesh> list{cluster::Mesh({{"tp", 2}}),
                                               cluster::Mesh({{"tp", 4}}),
                                               cluster::Mesh({{"dp", 2}, {"tp", 2}}),
                                               cluster::Mesh({{"tp", 2}, {"dp", 2}}),
                                               cluster::Mesh({{"dp", 2}, {"tp", 4}}),
                                               cluster::Mesh({{"dp", 4}})};
  return list;
}

TEST_CASE("a partitioned GPT computes what the global graph computes, every value of it") {
  // The last: batch, sequence, ffn and vocabulary that no axis divides.
  for (const NetSizes& sizes : {NetSizes{}, NetSizes{.S = 6, .F = 10, .V = 18},
                                NetSizes{.B = 3, .S = 5, .F = 11, .V = 13}}) {
    const ir::Module module = test::gpt_net(sizes);
    for (const cluster::Mesh& mesh : meshes()) {
      for (const bool sp : {false, true}) {
        CAPTURE(cluster::to_string(mesh));
        CAPTURE(sp);
        CAPTURE(sizes.S);
        CHECK(difference(module, sizes, mesh, sp) == "");
      }
    }
  }
}

TEST_CASE("a partitioned MLP computes what the global graph computes, every value of it") {
  for (const NetSizes& sizes :
       {NetSizes{}, NetSizes{.B = 8, .S = 7, .D = 9, .F = 13}, NetSizes{.B = 3, .D = 5, .F = 5}}) {
    const ir::Module module = test::mlp_net(sizes);
    for (const cluster::Mesh& mesh : meshes()) {
      CAPTURE(cluster::to_string(mesh));
      CAPTURE(sizes.F);
      CHECK(difference(module, sizes, mesh, false) == "");
    }
  }
}

// A module of one graph for difference().
ir::Module module_of(ir::Graph graph) {
  ir::Module module;
  graph.name = "microbatch";
  module.graphs.push_back(std::move(graph));
  return module;
}

TEST_CASE("what another stage sends may have garbage in its padded tail") {
  ir::Graph graph;
  ops::Builder b(graph);
  const ValueId x_BSD = graph.add_input(ir::make_type(DType::kF32, {2, 5, 3}), "x");
  const ValueId dy_BSD = graph.add_input(ir::make_type(DType::kF32, {2, 5, 4}), "dy");
  for (const ValueId v : {x_BSD, dy_BSD}) graph.value(v).logical = {"batch", "seq", "embed"};
  const ValueId dw = b.dot(dy_BSD, x_BSD, "bsn,bsk->nk");
  graph.outputs = {b.unary(ir::OpKind::kTanh, dw)};
  CHECK(difference(module_of(graph), {}, cluster::Mesh({{"tp", 4}}), true) == "");
}

TEST_CASE("rows of a table and columns of logits behind the vocabulary need no mask") {
  const ir::Module module = test::gpt_net({.V = 13});
  const Partitioned result = partitioned(module, cluster::Mesh({{"tp", 2}}), false);
  CHECK(std::none_of(result.graph.ops.begin(), result.graph.ops.end(),
                     [](const ir::Op& op) { return op.kind == ir::OpKind::kPadMask; }));
}

TEST_CASE("the gradient of a table adds no row of a padded tail") {
  ir::Graph graph;
  ops::Builder b(graph);
  const ValueId tokens_B = graph.add_input(ir::make_type(DType::kI32, {9}), "tokens");
  const ValueId dy_BD = graph.add_input(ir::make_type(DType::kF32, {9, 3}), "dy");
  for (const ValueId v : {tokens_B, dy_BD}) graph.value(v).logical = {"batch"};
  graph.value(dy_BD).logical.push_back("");
  ir::EmbeddingAttrs attrs;
  attrs.vocab = 2;
  graph.outputs = {b.emit1(ir::OpKind::kEmbeddingGrad, attrs, {tokens_B, dy_BD},
                           {ir::make_type(DType::kF32, {2, 3})})};
  CHECK(difference(module_of(graph), {.V = 2}, cluster::Mesh({{"dp", 2}}), false) == "");
}

// 0 / 0, 0 * inf: what a padded tail holds counts in a product though the other tail is zeros.
TEST_CASE("quotients, roots, logarithms and powers leave nothing infinite in a padded tail") {
  const auto difference_of = [](auto make) {
    ir::Module module;
    ir::Graph graph;
    ops::Builder b(graph);
    const auto weight = [&](const std::string& name) {  // with zeros in its tail
      ir::State state;
      state.name = name;
      state.type = ir::make_type(DType::kF32, {5});
      state.logical = {"ffn"};
      return graph.add_input(state.type, name, module.add_state(state));
    };
    const ValueId x_F = weight("x"), y_F = weight("y");
    graph.outputs = {make(b, x_F, y_F)};
    const cluster::Mesh mesh({{"tp", 2}});
    const Partitioned result = partitioned(graph, module, mesh, test::strategy(false));
    std::vector<Tensor> inputs;
    for (const ir::Input& input : graph.inputs) {
      inputs.push_back(test::random_tensor(graph.type(input.value), "positive"));
      for (double& value : inputs.back().values) value += 2;
    }
    return test::difference(graph, inputs, result, mesh);
  };
  using ir::OpKind;
  const auto sum = [](ops::Builder& b, ValueId v) { return b.reduce(v, ir::Reduction::kSum, {0}); };
  CHECK(difference_of([&](ops::Builder& b, ValueId x_F, ValueId y_F) {
          return sum(b, b.div(x_F, y_F));
        }) == "");
  CHECK(difference_of([&](ops::Builder& b, ValueId x_F, ValueId y_F) {
          return sum(b, b.mul(x_F, b.unary(OpKind::kRsqrt, y_F)));
        }) == "");
  CHECK(difference_of([](ops::Builder& b, ValueId x_F, ValueId y_F) {
          return b.dot(b.unary(OpKind::kLog, x_F), y_F, "f,f->");
        }) == "");
  // Behind x they hold the root of -1 and e^1000.
  CHECK(difference_of([](ops::Builder& b, ValueId x_F, ValueId y_F) {
          const ValueId less_F = b.sub(x_F, b.constant(1, b.type(x_F)));
          return b.dot(b.unary(OpKind::kSqrt, less_F), y_F, "f,f->");
        }) == "");
  CHECK(difference_of([](ops::Builder& b, ValueId x_F, ValueId y_F) {
          const ValueId less_F = b.sub(b.constant(1, b.type(x_F)), x_F);
          return b.dot(b.unary(OpKind::kExp, b.scale(less_F, 1e3)), y_F, "f,f->");
        }) == "");
}

TEST_CASE("of two pending operands of a product one is summed first, or an op's other operand") {
  ir::Graph graph;
  ops::Builder b(graph);
  const auto pending = [&](const std::string& name, int64_t rows, int64_t columns) {
    const ValueId x = graph.add_input(ir::make_type(DType::kF32, {rows, 4}), name);
    const ValueId w = graph.add_input(ir::make_type(DType::kF32, {columns, 4}), name + ".w");
    for (const ValueId v : {x, w}) graph.value(v).logical = {"", "ffn"};
    return b.dot(x, w, "rf,cf->rc");
  };
  const ValueId large = pending("large", 64, 8), small = pending("small", 8, 2);
  const ValueId tokens = graph.add_input(ir::make_type(DType::kI32, {64}), "tokens");
  ir::EmbeddingAttrs attrs;
  attrs.vocab = 16;
  const ValueId table = b.emit1(ir::OpKind::kEmbeddingGrad, attrs, {tokens, large},
                                {ir::make_type(DType::kF32, {16, 8})});
  graph.outputs = {b.unary(ir::OpKind::kTanh, b.dot(large, small, "ab,bc->ac")),
                   b.unary(ir::OpKind::kTanh, table)};
  CHECK(difference(module_of(graph), {.V = 16}, cluster::Mesh({{"tp", 2}}), false) == "");
}

// A clone is laid out as if it were its original, and no other op with the same operands.
TEST_CASE("two reshapes of one value in one recomputed layer are told apart") {
  ir::Module module;
  module.layers = {{"l", true}};
  ir::Graph graph;
  ops::Builder b(graph);
  b.layer = LayerId(0);
  const ValueId x_BF = graph.add_input(ir::make_type(DType::kF32, {4, 6}), "x");
  graph.value(x_BF).logical = {"batch", "ffn"};
  const ValueId y_BF = b.unary(ir::OpKind::kTanh, x_BF);
  const auto reshaped = [&] {
    const ValueId some = b.reshape(y_BF, {4, 2, 3}), all = b.reshape(y_BF, {24});
    return b.add(b.reduce(b.mul(some, some), ir::Reduction::kSum, {0, 1, 2}),
                 b.reduce(b.mul(all, all), ir::Reduction::kSum, {0}));
  };
  const ValueId forward = reshaped();
  const size_t ops = graph.ops.size();
  b.work = ir::Work::kInputGrad;
  const ValueId again = reshaped();
  for (size_t i = ops; i < graph.ops.size(); ++i) graph.ops[i].recompute = RegionId(0);
  graph.outputs = {b.add(forward, again)};
  CHECK(difference(module_of(graph), {}, cluster::Mesh({{"dp", 2}, {"tp", 2}}), false) == "");
}

TEST_CASE("the gradient of logits has zeros behind the vocabulary, not behind the sequence") {
  ir::Graph graph;
  ops::Builder b(graph);
  const NetSizes n{.B = 2, .S = 5, .D = 3, .V = 7};
  const ValueId x_BSD = graph.add_input(ir::make_type(DType::kF32, {n.B, n.S, n.D}), "x");
  graph.value(x_BSD).logical = {"batch", "seq", "embed"};
  const ValueId w_VD = graph.add_input(ir::make_type(DType::kF32, {n.V, n.D}), "w");
  const ValueId targets_BS = graph.add_input(ir::make_type(DType::kI32, {n.B, n.S}), "targets");
  const ValueId dloss_BS = graph.add_input(ir::make_type(DType::kF32, {n.B, n.S}), "dloss");
  graph.value(dloss_BS).logical = {"batch", "seq"};
  const ValueId logits_BSV =
      b.annotate(b.dot(x_BSD, w_VD, "bsd,vd->bsv"), "logits", {"batch", "seq", "vocab"});
  const ValueId loss_BS = b.cross_entropy(logits_BSV, targets_BS);
  const ir::Op loss = graph.op(graph.value(loss_BS).producer);
  const ValueId dlogits_BSV =
      b.annotate(b.emit1(ir::OpKind::kCrossEntropyGrad, loss.attrs,
                         {logits_BSV, loss.results[1], targets_BS, dloss_BS}),
                 "dlogits", {"batch", "seq", "vocab"});
  graph.outputs = {b.dot(dlogits_BSV, x_BSD, "bsv,bsd->vd")};
  CHECK(difference(module_of(graph), n, cluster::Mesh({{"tp", 4}}), true) == "");
  CHECK(difference(module_of(graph), n, cluster::Mesh({{"tp", 2}}), true) == "");
}

}  // namespace
}  // namespace mw::partition
