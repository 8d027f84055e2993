#include "transform/recompute.h"

#include <doctest/doctest.h>

#include "ops/op_def.h"
#include "transform/autodiff.h"
#include "transform/cse.h"
#include "transform/test_models.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using ir::Work;
using test::microbatch;

void check_same(const std::map<std::string, ops::Tensor>& a,
                const std::map<std::string, ops::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    CHECK(tensor.values == b.at(name).values);  // bit for bit
  }
}

ir::Module recomputed(const ir::Module& module, const RecomputeOptions& options) {
  ir::Module copy = module;
  recompute(microbatch(copy), options);
  ir::verify(microbatch(copy), &copy);
  ops::verify_types(microbatch(copy));
  return copy;
}

TEST_CASE("recomputing changes no bit of the gradients, with dropout too") {
  ir::Module module = test::gpt(0.2);
  differentiate(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(microbatch(module));
  const auto expected = test::outcome(module, microbatch(module), inputs);
  for (const Recompute mode : {Recompute::kSelective, Recompute::kFull, Recompute::kSelectiveOp}) {
    CAPTURE(name_of(mode));
    ir::Module copy = recomputed(module, recompute_all(module, mode));
    check_same(test::outcome(copy, microbatch(copy), inputs), expected);
    merge_common(microbatch(copy));
    ir::verify(microbatch(copy), &copy);
    check_same(test::outcome(copy, microbatch(copy), inputs), expected);
  }
}

TEST_CASE("whole layers are recomputed to their ends, and stay") {
  ir::Module module = test::gpt(0.2);
  differentiate(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(microbatch(module));
  const auto expected = test::outcome(module, microbatch(module), inputs);
  RecomputeOptions options = recompute_all(module, Recompute::kFull);
  const auto counts = [](const ir::Graph& graph) {
    int forward = 0, again = 0, kept = 0;
    for (const ir::Op& op : graph.ops) {
      forward += op.work == Work::kForward && op.layer.valid() && op.kind == OpKind::kDot ? 1 : 0;
      again += op.recompute.valid() && op.kind == OpKind::kDot ? 1 : 0;
      kept += op.kept ? 1 : 0;
    }
    return std::vector<int>{forward, again, kept};
  };
  ir::Module needed = recomputed(module, options);
  options.whole = true;
  ir::Module whole = recomputed(module, options);
  check_same(test::outcome(whole, microbatch(whole), inputs), expected);
  const std::vector<int> some = counts(microbatch(needed)), all = counts(microbatch(whole));
  CHECK(some[1] < some[0]);
  CHECK(some[2] == 0);
  CHECK(all[0] == some[0]);
  CHECK(all[1] == all[0]);
  CHECK(all[2] > 0);
  ir::drop_dead(microbatch(whole));
  CHECK(counts(microbatch(whole)) == all);
  const ir::Graph& graph = microbatch(whole);
  for (const ir::Op& op : graph.ops) {
    CHECK((!op.recompute.valid() || ops::op_def(op.kind).aliases.empty()));  // no sum twice
    if (op.work == Work::kForward) continue;
    for (const ValueId operand : op.operands) {
      const OpId maker = graph.value(operand).producer;
      CHECK((!maker.valid() || graph.op(maker).work != Work::kForward ||
             graph.op(maker).layer != op.layer));
    }
  }
  // Of the other modes nothing that is not read.
  options = recompute_all(module, Recompute::kSelectiveOp);
  options.whole = true;
  CHECK(counts(microbatch(module = recomputed(module, options)))[2] == 0);
}

// A graph that nobody differentiated, as of evaluation.
TEST_CASE("without a backward pass nothing is recomputed") {
  ir::Module module = test::gpt(0);
  for (const bool whole : {false, true}) {
    RecomputeOptions options = recompute_all(module, Recompute::kFull);
    options.whole = whole;
    ir::Module same = recomputed(module, options);
    CHECK(ir::to_text(microbatch(same)) == ir::to_text(microbatch(module)));
  }
}

TEST_CASE("a checkpointed attention's result stays, for the product behind it") {
  ir::Module module = test::gpt(0);
  differentiate(module);
  const std::vector<ops::Tensor> inputs = test::inputs_of(microbatch(module));
  const auto expected = test::outcome(module, microbatch(module), inputs);
  RecomputeOptions options = recompute_all(module, Recompute::kSelective);
  options.whole = true;
  ir::Module copy = recomputed(module, options);
  check_same(test::outcome(copy, microbatch(copy), inputs), expected);
  const ir::Graph& graph = microbatch(copy);
  int again = 0, products = 0, gradients = 0;
  for (const ir::Op& op : graph.ops) {
    again += op.recompute.valid() ? 1 : 0;
    for (const ValueId v : op.operands) {
      const OpId made = graph.value(v).producer;
      if (!made.valid() || graph.op(made).kind != OpKind::kAttention) continue;
      const bool clone = graph.op(made).recompute.valid();
      CHECK(clone == (op.kind == OpKind::kAttentionGrad));
      products += !clone && op.work == Work::kWeightGrad ? 1 : 0;
      gradients += clone ? 1 : 0;
    }
  }
  CHECK(again > 0);
  CHECK(products == again);
  CHECK(gradients == 2 * again);  // result and lse
}

TEST_CASE("selective recomputes attention alone, and nothing of the backward reads the forward's") {
  ir::Module module = test::gpt(0);
  differentiate(module);
  const ir::Module copy = recomputed(module, recompute_all(module, Recompute::kSelective));
  const ir::Graph& graph = *copy.find_graph("microbatch");
  int cloned = 0;
  for (const ir::Op& op : graph.ops) {
    if (op.recompute.valid()) {
      CHECK(op.kind == OpKind::kAttention);
      CHECK(op.work == Work::kInputGrad);
      CHECK(op.recompute.value == op.layer.value);
      ++cloned;
    } else if (op.work != Work::kForward) {
      for (const ValueId operand : op.operands) {
        const OpId producer = graph.value(operand).producer;
        if (producer.valid() && graph.op(producer).kind == OpKind::kAttention)
          CHECK(graph.op(producer).recompute.valid());
      }
    }
  }
  CHECK(cloned == 2);
}

TEST_CASE("selective-op keeps attention and every second product, and what devices sum") {
  ir::Module module = test::gpt(0.1);
  differentiate(module);
  ir::Graph& graph = microbatch(module);
  for (const ir::Op& op : graph.ops) {  // as the models name what tensor parallelism divides
    if (op.kind == OpKind::kAttention && op.work == Work::kForward)
      graph.value(op.results[0]).logical = {"batch", "seq", "heads", ""};
  }
  const auto products = [&](const std::set<std::string>& divided) {
    RecomputeOptions options = recompute_all(module, Recompute::kSelectiveOp);
    options.layers[0] = options.layers[3] = Recompute::kNone;
    options.divided = divided;
    const ir::Module copy = recomputed(module, options);
    std::vector<std::string> einsums;
    for (const ir::Op& op : copy.find_graph("microbatch")->ops) {
      if (!op.recompute.valid()) continue;
      CHECK(op.kind != OpKind::kAttention);
      if (op.kind == OpKind::kDot) einsums.push_back(op.as<ir::DotAttrs>().rhs);
    }
    return einsums;
  };
  // qkv, proj, up, down: the first and the third are kept, and nobody reads the last.
  CHECK(products({}) == std::vector<std::string>{"dhe", "dhe"});
  CHECK(products({"ffn"}) == std::vector<std::string>{"dhe", "dhe"});
  CHECK(products({"heads", "ffn"}).empty());
  // What the product keeps is not summed.
  CHECK(products({"batch", "seq"}) == std::vector<std::string>{"dhe", "dhe"});
}

TEST_CASE(
    "after full recomputation a layer's backward reads only what enters the layer, and clones") {
  ir::Module module = test::gpt(0.1);
  differentiate(module);
  const ir::Module copy = recomputed(module, recompute_all(module, Recompute::kFull));
  const ir::Graph& graph = *copy.find_graph("microbatch");
  for (const ir::Op& op : graph.ops) {
    if (op.work == Work::kForward) continue;
    for (const ValueId operand : op.operands) {
      const OpId producer = graph.value(operand).producer;
      if (!producer.valid() || graph.op(producer).work != Work::kForward) continue;
      CHECK(graph.op(producer).layer != op.layer);
    }
  }
}

TEST_CASE("the mode is the layer's own, and clones stand before the layer's first backward op") {
  ir::Module module = test::mlp(2);
  differentiate(module);
  const std::vector<Recompute> first_two{Recompute::kNone, Recompute::kFull};
  const ir::Module copy = recomputed(module, {first_two});
  const ir::Graph& graph = *copy.find_graph("microbatch");
  bool backward_begun = false;
  int cloned = 0;
  for (const ir::Op& op : graph.ops) {
    if (op.recompute.valid()) {
      CHECK(op.layer == LayerId(1));
      CHECK_FALSE(backward_begun);
      ++cloned;
    } else if (op.layer == LayerId(1) && op.work != Work::kForward) {
      backward_begun = true;
    }
  }
  // A layer beyond the list is as it was.
  const ir::Module whole = recomputed(module, {first_two, {}, true});
  for (const ir::Op& op : whole.find_graph("microbatch")->ops)
    CHECK((!op.recompute.valid() || op.layer == LayerId(1)));
  CHECK(cloned == 2);  // dot, bias_add; ReLU's gradient reads its operand
}

TEST_CASE("what is recomputed already stays as it is, and ops without a layer are left alone") {
  for (ir::Module module : {test::mlp(2), test::gpt(0)}) {
    for (ir::Op& op : microbatch(module).ops) {
      if (op.layer == LayerId(2)) op.layer = LayerId();
    }
    differentiate(module);
    const RecomputeOptions options = recompute_all(module, Recompute::kFull);
    const std::vector<ops::Tensor> inputs = test::inputs_of(microbatch(module));
    const auto expected = test::outcome(module, microbatch(module), inputs);
    module = recomputed(module, options);
    check_same(test::outcome(module, microbatch(module), inputs), expected);
    CHECK(ir::to_text(microbatch(module)) ==
          ir::to_text(*recomputed(module, options).find_graph("microbatch")));
  }
}

TEST_CASE("a clone has its value's axes; what sums into memory or over devices has none") {
  const auto clones = [](const std::string& made) {
    ir::Graph graph = ir::parse_graph("graph one {\n  in %x : f32[4]\n  in %dy : f32[4]\n" + made +
                                      "  %dx = mul(%y, %dy) : f32[4] @0 I\n  out %dx\n}");
    recompute(graph, {{Recompute::kFull}});
    const ir::Op& last = graph.ops.back();
    const ir::Op& maker = graph.op(graph.value(last.operands[0]).producer);
    if (maker.recompute.valid())
      CHECK(graph.value(maker.results[0]).logical == ir::LogicalAxes{"embed"});
    return maker.recompute.valid();
  };
  CHECK(clones("  %y = exp(%x) : f32[4] <embed> @0 F\n"));
  CHECK_FALSE(clones("  %y = exp(%x) : f32[4] <embed> @1 F\n"));
  CHECK_FALSE(clones("  %y = accumulate(%x, %x) : f32[4] <embed> @0 F\n"));
  CHECK_FALSE(clones("  %y = reduce{op=sum, dims=[]}(%x, %x) : f32[4] <embed> @0 F accumulates\n"));
  CHECK_FALSE(clones("  %y = all_reduce{group=axes[dp], op=sum}(%x) : f32[4] <embed> @0 F\n"));
}

TEST_CASE("with mode none nothing changes") {
  ir::Module module = test::mlp(1);
  differentiate(module);
  const std::string before = ir::to_text(microbatch(module));
  recompute(microbatch(module), recompute_all(module, Recompute::kNone));
  CHECK(ir::to_text(microbatch(module)) == before);
}

}  // namespace
}  // namespace mw::transform
