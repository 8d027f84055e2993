#include "transform/autodiff.h"

#include <cmath>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "transform/test_models.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using ir::Work;
using test::microbatch;

ir::Module differentiated(ir::Module module) {
  differentiate(module);
  ir::verify(microbatch(module), &module);
  ops::verify_types(microbatch(module));
  return module;
}

const ir::Op* producer_of(const ir::Graph& graph, const std::string& name) {
  for (const ir::Value& value : graph.values) {
    if (value.name == name && value.producer.valid()) return &graph.op(value.producer);
  }
  return nullptr;
}

// Every gradient of the module against central differences of the loss.
void check_gradients(const ir::Module& forward) {
  ir::Module module = forward;
  differentiate(module);
  const ir::Graph& graph = microbatch(module);
  std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  const std::map<std::string, ops::Tensor> result = test::outcome(module, graph, inputs);
  const size_t scale_at = 2 + (graph.value(graph.inputs[2].value).name == "positions");
  REQUIRE(graph.value(graph.inputs[scale_at].value).name == "loss_scale");
  const double scale = inputs[scale_at].values[0];
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const StateId state = graph.inputs[i].state;
    if (!state.valid() || module.state(state).kind != ir::StateKind::kWeight) continue;
    CAPTURE(module.state(state).name);
    for (size_t e = 0; e < inputs[i].values.size(); e += 1 + inputs[i].values.size() / 7) {
      const double h = 1e-5, x = inputs[i].values[e];
      inputs[i].values[e] = x + h;
      const double above = test::outcome(module, graph, inputs).at("loss_sum").values[0];
      inputs[i].values[e] = x - h;
      const double below = test::outcome(module, graph, inputs).at("loss_sum").values[0];
      inputs[i].values[e] = x;
      // Of all layers together, less what was in the accumulators.
      double gradient = 0;
      for (size_t a = 0; a < graph.inputs.size(); ++a) {
        const StateId acc = graph.inputs[a].state;
        if (!acc.valid() || module.state(acc).kind != ir::StateKind::kGradient) continue;
        if (module.state(acc).parameter != state) continue;
        gradient += result.at(module.state(acc).name).values[e] - inputs[a].values[e];
      }
      CHECK(std::abs(scale * (above - below) / (2 * h) - gradient) <
            1e-7 * std::max(1.0, std::abs(gradient)));
    }
  }
}

TEST_CASE("gradients of whole models are those of finite differences") {
  check_gradients(test::mlp(2));
  check_gradients(test::gpt(0));
  check_gradients(test::gpt(0.2));
}

TEST_CASE("an MLP's backward has one product for dX and one for dW a layer, marked I and W") {
  const ir::Module module = differentiated(test::mlp(2));
  const ir::Graph& graph = *module.find_graph("microbatch");
  int input_products = 0, weight_products = 0;
  for (const ir::Op& op : graph.ops) {
    if (op.kind != OpKind::kDot) continue;
    input_products += op.work == Work::kInputGrad;
    weight_products += op.work == Work::kWeightGrad;
  }
  CHECK(input_products == 3);  // the first layer's input is data
  CHECK(weight_products == 4);
  CHECK(producer_of(graph, "d.block.0.out")->work == Work::kInputGrad);
  CHECK(producer_of(graph, "d.block.0.w")->work == Work::kWeightGrad);
  CHECK(producer_of(graph, "d.block.0.b")->work == Work::kWeightGrad);
  CHECK(producer_of(graph, "d.block.0.b")->kind == OpKind::kReduce);
}

TEST_CASE(
    "a backward op is in the layer of its forward op, and no input gradient depends on a weight "
    "gradient") {
  for (const ir::Module& forward : {test::mlp(3), test::gpt(0.1)}) {
    const ir::Module module = differentiated(forward);
    const ir::Graph& graph = *module.find_graph("microbatch");
    CHECK(producer_of(graph, module.layers.size() == 5 ? "d.block.1.b" : "d.h.0.up.b")->layer ==
          LayerId(2 - (module.layers.size() == 4)));
    for (const ir::Op& op : graph.ops) {
      CHECK(op.layer.valid());
      for (const ValueId operand : op.operands) {
        const OpId producer = graph.value(operand).producer;
        if (!producer.valid() || graph.op(producer).work != Work::kWeightGrad) continue;
        CHECK(op.work == Work::kWeightGrad);
        CHECK(op.layer == graph.op(producer).layer);
      }
      if (op.work == Work::kForward) {
        for (const ValueId operand : op.operands) {
          const OpId producer = graph.value(operand).producer;
          CHECK((!producer.valid() || graph.op(producer).work == Work::kForward));
        }
      }
    }
  }
}

TEST_CASE("a gradient has the name and the logical axes of its value") {
  const ir::Module module = differentiated(test::gpt(0));
  const ir::Graph& graph = *module.find_graph("microbatch");
  for (const char* name :
       {"d.embed.out", "d.h.0.attn.out", "d.h.0.out", "d.h.1.attn.out", "d.h.1.out"}) {
    const ir::Op* op = producer_of(graph, name);
    CAPTURE(name);
    REQUIRE(op != nullptr);
    CHECK(graph.value(op->results[0]).logical == ir::LogicalAxes{"batch", "seq", "embed"});
  }
}

TEST_CASE("a weight that two layers use has an accumulator in each") {
  const ir::Module module = differentiated(test::gpt(0));
  CHECK_FALSE(module.find_state("grad/tbl").has_value());
  const ir::State& embed = module.state(*module.find_state("grad/tbl@embed"));
  const ir::State& head = module.state(*module.find_state("grad/tbl@head"));
  CHECK(embed.parameter == *module.find_state("tbl"));
  CHECK(head.parameter == *module.find_state("tbl"));
  CHECK(embed.use == LayerId(0));
  CHECK(head.use == LayerId(3));
  CHECK(head.layer == LayerId(3));
  CHECK(head.kind == ir::StateKind::kGradient);
  CHECK(head.type == module.state(*module.find_state("tbl")).type);
  const ir::State& one = module.state(*module.find_state("grad/ptb"));
  CHECK(one.use == LayerId(0));
  CHECK(module.state(*module.find_state("loss")).kind == ir::StateKind::kMetric);
  CHECK(module.state(*module.find_state("loss")).layer == LayerId(3));
}

TEST_CASE("uses of a weight in one layer are added in order, then accumulated once") {
  ir::Module module;
  module.layers = {{"only"}};
  ir::Graph graph;
  graph.name = "microbatch";
  ops::Builder b(graph);
  b.layer = LayerId(0);
  const ValueId x = graph.add_input(ir::make_type(DType::kF32, {4}), "x");
  graph.add_input(ir::make_type(DType::kF32, {}), "loss_scale");
  ir::State state;
  state.name = "w";
  state.type = ir::make_type(DType::kF32, {4});
  state.layer = LayerId(0);
  const ValueId w = graph.add_input(state.type, "w", module.add_state(state));
  const ValueId first = b.mul(x, w), second = b.mul(first, w), third = b.mul(w, w);
  const ValueId loss = b.reduce(b.add(b.add(first, second), third), ir::Reduction::kSum, {0});
  graph.outputs.push_back(b.annotate(loss, "loss_sum", {}));
  module.graphs.push_back(graph);
  check_gradients([&] {
    ir::Module copy = module;  // check_gradients wants the scale as the third input
    std::swap(copy.graphs[0].inputs[1], copy.graphs[0].inputs[2]);
    return copy;
  }());
  const ir::Module done = differentiated(module);
  const ir::Graph& g = *done.find_graph("microbatch");
  CHECK(test::count_ops(g, OpKind::kAccumulate) == 2);  // the weight's and the loss'
  // ((first + second) + third's lhs) + third's rhs: the sum's last addend is that of the last use.
  const ir::Op* sum = producer_of(g, "d.w");
  REQUIRE(sum->kind == OpKind::kAdd);
  const ir::Op& before = g.op(g.value(sum->operands[0]).producer);
  REQUIRE(before.kind == OpKind::kAdd);
  const ir::Op& first_two = g.op(g.value(before.operands[0]).producer);
  REQUIRE(first_two.kind == OpKind::kAdd);
  const ir::Op& of_first = g.op(g.value(first_two.operands[0]).producer);
  CHECK(of_first.operands[1] == x);
}

// One layer "only"; "x" is data, "w" a weight.
const std::string kSmall = R"(module small {
  layer only
  layer other
  state w : f32[4] <embed> weight @only
  state seen : f32[4] moment @only
  state ids : i32[4] weight @only
  graph microbatch {
    in %x : f32[4]
    in %loss_scale : f32[]
    in %w : f32[4] <embed> state w
    in %seen : f32[4] state seen
    in %ids : i32[4] state ids
BODY    out %loss_sum
  }
})";

ir::Module small(const std::string& body) {
  std::string text = kSmall;
  return ir::parse_module(text.replace(text.find("BODY"), 4, body));
}

TEST_CASE("only weights of floating numbers are parameters") {
  const ir::Module module =
      differentiated(small("    %wx = mul(%w, %x) : f32[4] @only F\n"
                           "    %wxs = mul(%wx, %seen) : f32[4] @only F\n"
                           "    %loss_sum = reduce{op=sum, dims=[0]}(%wxs) : f32[] @only F\n"));
  CHECK(module.find_state("grad/w").has_value());
  CHECK_FALSE(module.find_state("grad/seen").has_value());
  CHECK_FALSE(module.find_state("grad/ids").has_value());
}

TEST_CASE("what no weight goes through needs no gradient, and what nothing needs is gone") {
  const ir::Module module =
      differentiated(small("    %no_gradient = silu_grad(%x, %x) : f32[4] @only F\n"
                           "    %unread = exp(%w) : f32[4] @only F\n"
                           "    %wx = mul(%w, %no_gradient) : f32[4] @only F\n"
                           "    %loss_sum = reduce{op=sum, dims=[0]}(%wx) : f32[] @only F\n"));
  const ir::Graph& graph = *module.find_graph("microbatch");
  CHECK(test::count_ops(graph, OpKind::kSiluGrad) == 1);
  CHECK(test::count_ops(graph, OpKind::kExp) == 0);
}

TEST_CASE("an accumulator is held and decays as its weight") {
  ir::Module module = small(
      "    %wx = mul(%w, %x) : f32[4] @only F\n"
      "    %loss_sum = reduce{op=sum, dims=[0]}(%wx) : f32[] @only F\n");
  for (const bool decay : {false, true}) {
    ir::Module copy = module;
    copy.states[copy.find_state("w")->index()].decay = decay;
    copy = differentiated(std::move(copy));
    const StateId id = *copy.find_state("grad/w");
    CHECK(copy.state(id).decay == decay);
    CHECK(copy.state(id).logical == ir::LogicalAxes{"embed"});
    const ir::Graph& graph = microbatch(copy);
    for (const ir::Input& input : graph.inputs) {
      if (input.state == id) CHECK(graph.value(input.value).logical == ir::LogicalAxes{"embed"});
    }
    for (const ir::StateUpdate& update : graph.updates) {
      if (update.state == id) CHECK(graph.value(update.value).logical == ir::LogicalAxes{"embed"});
    }
  }
}

TEST_CASE("the loss is added to what its state has") {
  ir::Module module = differentiated(test::mlp(1));
  const ir::Graph& graph = microbatch(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  double before = 0;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (graph.inputs[i].state == module.find_state("loss")) before = inputs[i].values[0];
  }
  const auto after = test::outcome(module, graph, inputs);
  CHECK(before != 0);
  CHECK(after.at("loss").values[0] == before + after.at("loss_sum").values[0]);
}

// h is of layer "only"; each layer uses it twice.
TEST_CASE("uses of a value are added in their layer, the layers' sums where the value is from") {
  const ir::Module module =
      differentiated(small("    %h = mul(%w, %x) : f32[4] <embed> @only F\n"
                           "    %a = exp(%h) : f32[4] @only F\n"
                           "    %b = exp(%h) : f32[4] @other F\n"
                           "    %c = tanh(%h) : f32[4] @only F\n"
                           "    %d = tanh(%h) : f32[4] @other F\n"
                           "    %ac = add(%a, %c) : f32[4] @other F\n"
                           "    %bd = mul(%b, %d) : f32[4] @other F\n"
                           "    %all = mul(%ac, %bd) : f32[4] @other F\n"
                           "    %loss_sum = reduce{op=sum, dims=[0]}(%all) : f32[] @other F\n"));
  const ir::Graph& graph = *module.find_graph("microbatch");
  const ir::Op& total = *producer_of(graph, "d.h");
  REQUIRE(total.kind == OpKind::kAdd);
  CHECK(total.layer == LayerId(0));
  for (const int i : {0, 1}) {
    const ir::Value& sum = graph.value(total.operands[static_cast<size_t>(i)]);
    REQUIRE(sum.producer.valid());
    CHECK(graph.op(sum.producer).kind == OpKind::kAdd);
    CHECK(graph.op(sum.producer).layer == LayerId(i));
    CHECK(sum.logical == ir::LogicalAxes{"embed"});
    CHECK(sum.name.empty());
  }
  CHECK(graph.value(total.results[0]).logical == ir::LogicalAxes{"embed"});
}

TEST_CASE("a gradient of several values has the name of the last") {
  const ir::Module module =
      differentiated(small("    %first = mul(%w, %x) : f32[4] @only F\n"
                           "    %last = add(%first, %x) : f32[4] @only F\n"
                           "    %square = mul(%last, %last) : f32[4] @only F\n"
                           "    %loss_sum = reduce{op=sum, dims=[0]}(%square) : f32[] @only F\n"));
  const ir::Graph& graph = *module.find_graph("microbatch");
  CHECK(producer_of(graph, "d.last") != nullptr);
  CHECK(producer_of(graph, "d.first") == nullptr);
}

TEST_CASE("layers whose uses of a weight take turns have each its own gradient") {
  ir::Module module = small(
      "    %a = mul(%x, %w) : f32[4] @only F\n"
      "    %b = mul(%a, %w) : f32[4] @other F\n"
      "    %c = exp(%w) : f32[4] @only F\n"
      "    %d = mul(%b, %c) : f32[4] @other F\n"
      "    %loss_sum = reduce{op=sum, dims=[0]}(%d) : f32[] @other F\n");
  module = differentiated(std::move(module));
  const ir::Graph& graph = microbatch(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(graph);
  const auto result = test::outcome(module, graph, inputs);
  const auto at = [&](const std::string& name) {
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      if (graph.value(graph.inputs[i].value).name == name) return inputs[i].values[0];
    }
    return 0.0;
  };
  // loss = x w^2 e^w: of layer "other" one w.
  const double x = at("x"), w = at("w"), scale = at("loss_scale");
  CHECK(result.at("grad/w@other").values[0] - at("grad/w@other") ==
        mw::test::close_to(scale * x * w * std::exp(w)).epsilon(1e-12));
  CHECK(result.at("grad/w@only").values[0] - at("grad/w@only") ==
        mw::test::close_to(scale * (x * w + x * w * w) * std::exp(w)).epsilon(1e-12));
}

TEST_CASE("what leaves the graph is no weight gradient, and what nobody reads says nothing") {
  ir::Graph graph = ir::parse_graph(R"(graph backward {
    in %x : f32[4]
    in %acc : f32[4] state 0
    in %more : f32[4] state 1
    %sent = exp(%x) : f32[4] @0 I
    %kept = tanh(%x) : f32[4] @0 I
    %both = exp(%sent) : f32[4] @0 I
    %again = exp(%x) : f32[4] @0 I recompute 0
    %1 = accumulate(%acc, %kept) : f32[4] @0 I
    %2 = accumulate(%more, %again) : f32[4] @0 W
    out %sent, %both
    update 0 = %1
    update 1 = %2
  })");
  mark_work(graph);
  const auto work = [&](const std::string& name) { return producer_of(graph, name)->work; };
  CHECK(work("sent") == Work::kInputGrad);
  CHECK(work("both") == Work::kInputGrad);
  CHECK(work("kept") == Work::kWeightGrad);
  CHECK(work("again") == Work::kInputGrad);
}

TEST_CASE("an op that makes an input gradient and a weight gradient is refused") {
  ir::Graph graph = ir::parse_graph(R"(graph backward {
    in %x : f32[2,4]
    in %gamma : f32[4]
    in %acc : f32[2] state 0
    %y, %rstd = rms_norm{epsilon=1e-05}(%x, %gamma) : f32[2,4], f32[2] @0 I
    %sum = accumulate(%acc, %rstd) : f32[2] @0 I
    out %y
    update 0 = %sum
  })");
  CHECK_THROWS_WITH_AS(mark_work(graph),
                       doctest::Contains("op 0 (rms_norm -> y) makes an input gradient and a "
                                         "weight gradient"),
                       CheckFailure);
  graph.outputs.clear();  // nobody reads y
  mark_work(graph);
  CHECK(graph.ops[0].work == Work::kWeightGrad);
  graph.outputs = {graph.ops[0].results[0]};
  graph.updates.clear();
  graph.ops.pop_back();  // nobody reads rstd
  mark_work(graph);
  CHECK(graph.ops[0].work == Work::kInputGrad);
}

std::string error_of(ir::Module module, const AutodiffOptions& options = {}) {
  return mw::test::thrown_by([&] { differentiate(module, options); });
}

TEST_CASE("a loss of another type, a parameter beside the loss and a pass begun are refused") {
  ir::Module wide = test::mlp(1);
  microbatch(wide).value(microbatch(wide).inputs[2].value).type.dtype = DType::kF64;
  CHECK(error_of(wide) ==
        "graph 'microbatch': the input 'loss_scale' is f64[]; it must have the type f32[] of the "
        "loss");
  ir::Module counts = test::mlp(1);
  microbatch(counts).value(microbatch(counts).outputs[0]).type.dtype = DType::kI32;
  CHECK(error_of(counts) ==
        "graph 'microbatch': the loss 'loss_sum' is i32[]; it must be a floating scalar");
  // Read, but by nothing that the loss depends on.
  CHECK(error_of(small("    %side = exp(%w) : f32[4] @only F\n"
                       "    %unread = exp(%side) : f32[4] @only F\n"
                       "    %loss_sum = reduce{op=sum, dims=[0]}(%x) : f32[] @only F\n")) ==
        "graph 'microbatch': parameter 'w' does not reach the loss 'loss_sum'; without a gradient "
        "it cannot be trained");
  ir::Module begun = test::mlp(1);
  microbatch(begun).ops.back().work = Work::kInputGrad;
  CHECK_THROWS_WITH_AS(differentiate(begun), doctest::Contains("is differentiated already"),
                       CheckFailure);
}

TEST_CASE("what cannot be differentiated is an error that names it") {
  CHECK(error_of(test::mlp(1), {.graph = "step"}) ==
        "module 'test' has no graph 'step' to differentiate");
  CHECK(error_of(test::mlp(1), {.loss = "nll"}) ==
        "graph 'microbatch' has no output 'nll'; the loss to differentiate must be one of its "
        "outputs");
  CHECK(error_of(test::mlp(1), {.loss_scale = "scale"}) ==
        "graph 'microbatch' has no input 'scale'; it is the gradient that the loss starts with");
  CHECK(error_of(test::mlp(1), {.loss_scale = "target"}) ==
        "graph 'microbatch': the input 'target' is f32[3,2]; it must have the type f32[] of the "
        "loss");

  ir::Module unused = test::mlp(1);
  for (const char* name : {"one", "two"}) {
    ir::State state;
    state.name = name;
    state.type = ir::make_type(DType::kF32, {2});
    microbatch(unused).add_input(state.type, state.name, unused.add_state(state));
  }
  CHECK(error_of(unused) ==
        "graph 'microbatch': parameter 'one' does not reach the loss 'loss_sum'; without a "
        "gradient it cannot be trained\n"
        "graph 'microbatch': parameter 'two' does not reach the loss 'loss_sum'; without a "
        "gradient it cannot be trained");

  ir::Module no_gradient = test::mlp(1);
  ir::Graph& graph = microbatch(no_gradient);
  ops::Builder b(graph);
  const ValueId old = graph.outputs[0];
  graph.value(old).name.clear();
  const ValueId loss = b.binary(OpKind::kSiluGrad, old, old);
  graph.outputs = {b.annotate(loss, "loss_sum", {})};
  CHECK(error_of(no_gradient) ==
        "graph 'microbatch': silu_grad -> loss_sum has no gradient, but the loss depends on a "
        "parameter through it");

  ir::Module vector = test::mlp(1);
  microbatch(vector).value(microbatch(vector).outputs[0]).name.clear();
  const ValueId y = microbatch(vector)
                        .op(microbatch(vector).value(microbatch(vector).outputs[0]).producer)
                        .operands[0];
  microbatch(vector).value(y).name = "loss_sum";
  microbatch(vector).outputs = {y};
  CHECK(error_of(vector) ==
        "graph 'microbatch': the loss 'loss_sum' is f32[3,2]; it must be a floating scalar");

  ir::Module twice = differentiated(test::mlp(1));
  CHECK_THROWS_AS(differentiate(twice), CheckFailure);
}

}  // namespace
}  // namespace mw::transform
