// Gradients against central finite differences, expansions against the interpreter's own loops; all
// in double.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/test_close_to.h"
#include "ops/builder.h"
#include "ops/interpret.h"
#include "ops/op_def.h"
#include "ops/op_examples.h"

namespace mw::ops {
namespace {

using test::op_examples;
using test::OpExample;

bool close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)});
}

// A graph of the op, of the gradient of sum(dy * y), y being its first result, and of dy as the
// last input.
struct GradientGraph {
  ir::Graph graph;
  ValueIds operands, results, gradients;

  explicit GradientGraph(const OpExample& example) {
    Builder builder(graph);
    for (const std::string& text : example.operands)
      operands.push_back(graph.add_input(test::parse_type(text), ""));
    results =
        builder.emit(example.kind, example.attrs, operands, test::parse_types(example.declared));
    const ValueId dy = graph.add_input(graph.type(results[0]), "dy");
    ValueIds result_grads(results.size());
    result_grads[0] = dy;
    std::vector<bool> needed;
    for (const ValueId operand : operands) needed.push_back(is_floating(graph.type(operand).dtype));
    GradientContext context(builder, graph.ops[0], result_grads, needed);
    op_def(example.kind).gradient(context);
    gradients = context.operand_grads();
    verify_types(graph);
  }
};

double objective(const OpExample& example, const std::vector<Tensor>& operands, const Tensor& dy) {
  const ir::Op op = test::op_of(example);
  std::vector<ir::TensorType> types;
  for (const Tensor& operand : operands) types.push_back(operand.type);
  const std::vector<Tensor> y =
      interpret_op(op, operands, infer(op, types, test::parse_types(example.declared)));
  double sum = 0;
  for (size_t i = 0; i < y[0].values.size(); ++i) sum += y[0].values[i] * dy.values[i];
  return sum;
}

void check_gradient(const OpExample& example) {
  CAPTURE(ir::op_name(example.kind));
  CAPTURE(ir::to_string(example.attrs));
  const GradientGraph g(example);
  std::vector<Tensor> operands = test::samples(example);
  std::vector<Tensor> inputs = operands;
  const ir::TensorType& y = g.graph.type(g.results[0]);
  inputs.push_back(zeros(y));
  const RngKey key{3, 0, 0};
  for (size_t i = 0; i < inputs.back().values.size(); ++i)
    inputs.back().values[i] = random_normal(key, i);
  const Tensor dy = inputs.back();
  const std::vector<Tensor> values = interpret(g.graph, inputs);
  const double h = 1e-5;
  for (size_t o = 0; o < operands.size(); ++o) {
    if (!is_floating(operands[o].type.dtype)) continue;
    CAPTURE(o);
    REQUIRE(g.gradients[o].valid());
    const Tensor& gradient = values[g.gradients[o].index()];
    REQUIRE(gradient.type == operands[o].type);
    for (size_t i = 0; i < operands[o].values.size(); ++i) {
      const double x = operands[o].values[i];
      operands[o].values[i] = x + h;
      const double above = objective(example, operands, dy);
      operands[o].values[i] = x - h;
      const double below = objective(example, operands, dy);
      operands[o].values[i] = x;
      CAPTURE(i);
      CHECK(close((above - below) / (2 * h), gradient.values[i], 1e-7));
    }
  }
}

TEST_CASE("every op's gradient is that of finite differences") {
  for (const OpExample& example : op_examples()) {
    const bool integers =
        !example.operands.empty() && !is_floating(test::parse_type(example.operands[0]).dtype);
    if (op_def(example.kind).gradient == nullptr || example.kind == ir::OpKind::kCrossEntropyLoss)
      continue;
    if (integers && example.kind == ir::OpKind::kConvert) continue;
    if (example.kind == ir::OpKind::kRope) {  // cos and sin are tables, not differentiated
      const GradientGraph g(example);
      CHECK_FALSE(g.gradients[1].valid());
      continue;
    }
    check_gradient(example);
  }
}

TEST_CASE("a norm's weights have a gradient where any one of them is wanted") {
  for (const int wanted : {0, 1, 2}) {
    ir::Graph graph;
    Builder b(graph);
    const ValueId x = graph.add_input(test::parse_type("f32[2,4]"), "x"),
                  gamma = graph.add_input(test::parse_type("f32[4]"), "gamma"),
                  beta = graph.add_input(test::parse_type("f32[4]"), "beta");
    b.layer_norm(x, gamma, beta, 1e-5);
    const ir::Op op = graph.ops[0];
    std::vector<bool> needed(3, false);
    needed[static_cast<size_t>(wanted)] = true;
    GradientContext context(b, op, {x, ValueId(), ValueId()}, needed);
    op_def(op.kind).gradient(context);
    CHECK(context.operand_grads()[static_cast<size_t>(wanted)].valid());
    CHECK(graph.ops.size() == 2);  // one op more, not both gradients
  }
}

TEST_CASE("rope's gradient turns back: with a table of true angles it is the inverse") {
  ir::Graph graph;
  Builder b(graph);
  const ValueId x = graph.add_input(test::parse_type("f32[2,3,2,4]"), "x");
  const ValueId positions = graph.add_input(test::parse_type("i32[2,3]"), "positions");
  const Builder::RopeTable table = b.rope_table(positions, {10000, 4, {}});
  const ValueId y = b.rope(x, table);
  const ValueId back = b.emit1(ir::OpKind::kRopeGrad, ir::NoAttrs{}, {y, table.cos, table.sin});
  const std::vector<Tensor> values = interpret(
      graph,
      std::vector<Tensor>{test::sample("f32[2,3,2,4]", 1), test::sample("i32[2,3] positions", 1)});
  CHECK(values[table.cos.index()].values[0] == 1);
  CHECK(values[table.cos.index()].values[2] == std::cos(1.0));
  CHECK(values[table.sin.index()].values[3] == mw::test::close_to(std::sin(0.01)));
  bool turned = false;
  for (size_t i = 0; i < values[x.index()].values.size(); ++i) {
    CHECK(close(values[back.index()].values[i], values[x.index()].values[i], 1e-12));
    turned = turned || values[y.index()].values[i] != values[x.index()].values[i];
  }
  CHECK(turned);
}

TEST_CASE(
    "the gradient of cross-entropy is that of the whole chain, zero where the target is ignored") {
  ir::Graph graph;
  Builder b(graph);
  const ValueId logits = graph.add_input(test::parse_type("f32[2,3,7]"), "logits");
  const ValueId targets = graph.add_input(test::parse_type("i32[2,3]"), "targets");
  const ValueId loss = b.cross_entropy(logits, targets);
  const ir::Op op = graph.ops.back();
  const ValueId dloss = graph.add_input(test::parse_type("f32[2,3]"), "dloss");
  GradientContext context(b, op, {dloss, ValueId()}, {true, true, true, false, true});
  op_def(op.kind).gradient(context);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(context.operand_grads()[static_cast<size_t>(i)].valid());
  const ValueId dlogits = context.operand_grads()[4];

  std::vector<Tensor> inputs{test::sample("f32[2,3,7]", 1), test::sample("i32[2,3] targets 7", 2),
                             test::sample("f32[2,3]", 3)};
  const Tensor gradient = interpret(graph, inputs)[dlogits.index()];
  const auto objective = [&] {
    const Tensor y = interpret(graph, inputs)[loss.index()];
    double sum = 0;
    for (size_t i = 0; i < y.values.size(); ++i) sum += y.values[i] * inputs[2].values[i];
    return sum;
  };
  CHECK(interpret(graph, inputs)[loss.index()].values[1] == 0);
  for (size_t i = 0; i < gradient.values.size(); ++i) {
    const double h = 1e-5, x = inputs[0].values[i];
    inputs[0].values[i] = x + h;
    const double above = objective();
    inputs[0].values[i] = x - h;
    const double below = objective();
    inputs[0].values[i] = x;
    CHECK(close((above - below) / (2 * h), gradient.values[i], 1e-7));
    if (i / 7 == 1) CHECK(gradient.values[i] == 0);
  }
}

TEST_CASE("every composite computes what its expansion computes") {
  int expanded = 0;
  for (const OpExample& example : op_examples()) {
    const OpDef& def = op_def(example.kind);
    if (def.expand == nullptr) continue;
    const auto* attention = std::get_if<ir::AttentionAttrs>(&example.attrs);
    if (attention != nullptr && attention->dropout > 0) continue;
    CAPTURE(ir::op_name(example.kind));
    CAPTURE(ir::to_string(example.attrs));
    ir::Graph graph;
    Builder builder(graph);
    ValueIds operands;
    for (const std::string& text : example.operands)
      operands.push_back(graph.add_input(test::parse_type(text), ""));
    const ValueIds whole =
        builder.emit(example.kind, example.attrs, operands, test::parse_types(example.declared));
    const ir::Op op = graph.ops[0];
    const ValueIds parts = expand(builder, op, operands);
    verify_types(graph);
    for (size_t i = 1; i < graph.ops.size(); ++i)
      CHECK((op_def(graph.ops[i].kind).expand == nullptr));
    REQUIRE(parts.size() == whole.size());
    const std::vector<Tensor> values = interpret(graph, test::samples(example));
    for (size_t r = 0; r < parts.size(); ++r) {
      const Tensor &a = values[whole[r].index()], &b = values[parts[r].index()];
      REQUIRE(a.type == b.type);
      for (size_t i = 0; i < a.values.size(); ++i) CHECK(close(a.values[i], b.values[i], 1e-12));
    }
    ++expanded;
  }
  CHECK(expanded >= 40);
}

TEST_CASE("a query with a window of one key has the value at its own position") {
  ir::Graph graph;
  Builder b(graph);
  ValueIds qkv;
  for (const char* type : {"f32[1,2,4,2]", "f32[1,5,2,2]", "f32[1,5,2,3]"})
    qkv.push_back(graph.add_input(test::parse_type(type), ""));
  const ValueId positions = graph.add_input(test::parse_type("i32[1,5]"), "positions");
  ir::AttentionAttrs attrs;
  attrs.window = 1;
  const ValueIds y = b.emit(ir::OpKind::kAttention, attrs, {qkv[0], qkv[1], qkv[2], positions});
  const std::vector<Tensor> values = interpret(
      graph,
      std::vector<Tensor>{test::sample("f32[1,2,4,2]", 1), test::sample("f32[1,5,2,2]", 2),
                          test::sample("f32[1,5,2,3]", 3), test::sample("i32[1,5] positions", 4)});
  const std::vector<double>&out = values[y[0].index()].values, &v = values[qkv[2].index()].values;
  REQUIRE(out.size() == 24);  // the last two positions, four heads of three
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t s = 3 + i / 12, h = i / 3 % 4, d = i % 3;
    CHECK(close(out[i], v[(s * 2 + h / 2) * 3 + d], 1e-12));
  }
}

TEST_CASE("what accumulates adds to its last operand") {
  for (const OpExample& example : op_examples()) {
    if (!op_def(example.kind).can_accumulate) continue;
    CAPTURE(ir::op_name(example.kind));
    ir::Op op = test::op_of(example);
    std::vector<Tensor> operands = test::samples(example);
    const std::vector<ir::TensorType> results = infer(op, test::parse_types(example.operands));
    const Tensor plain = interpret_op(op, operands, results)[0];
    op.accumulates = true;
    operands.push_back(test::sample(ir::to_string(results[0]), 9));
    const Tensor sum = interpret_op(op, operands, results)[0];
    for (size_t i = 0; i < sum.values.size(); ++i) {
      CHECK(sum.values[i] == plain.values[i] + operands.back().values[i]);
    }
  }
}

}  // namespace
}  // namespace mw::ops
