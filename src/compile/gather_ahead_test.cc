#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include <fmt/core.h>

#include "compile/compile.h"
#include "compile/passes.h"
#include "partition/test_nets.h"
#include "pipeline/verifier.h"

namespace mw::compile {
namespace {

constexpr int64_t kBlocks = 4;

CompiledPlan compiled(const std::string& plan, bool ahead) {
  const ir::Module model = partition::test::gpt_net({.blocks = kBlocks});
  ModelShape shape;
  shape.global_batch = 64;
  CompileRequest request{model, nullptr, parse_plan(plan), shape, {}};
  if (!ahead) request.without = {std::string(kGatherAhead)};
  return compile(request);
}

// "g0 c0 g1 c1 …": of the layers whose weights a fragment gathers, in which order it gathers them
// and computes; equal neighbours once.
std::string order_of(const pipeline::Fragment& fragment) {
  std::set<ValueId> states;
  for (const pipeline::Port& port : fragment.inputs) {
    if (port.kind == pipeline::PortKind::kState) states.insert(port.value);
  }
  std::string text, before;
  for (const ir::Op& op : fragment.graph.ops) {
    if (!op.layer.valid()) continue;
    const bool gathers = op.kind == ir::OpKind::kAllGather && states.contains(op.operands[0]);
    const bool computes = op.kind == ir::OpKind::kDot;
    if (!gathers && !computes) continue;
    std::string here = fmt::format("{}{} ", gathers ? 'g' : 'c', op.layer.value);
    if (here != before) text += here;
    before = std::move(here);
  }
  return text;
}

std::string order_of(const CompiledPlan& plan, pipeline::ActionKind kind) {
  for (const pipeline::Fragment& fragment : plan.train.fragments) {
    if (fragment.kind == kind) return order_of(fragment);
  }
  return "";
}

TEST_CASE("ZeRO 3 gathers a layer's weights before the layer ahead of it computes") {
  using pipeline::ActionKind;
  // Layers: embedding, four blocks, head.
  const CompiledPlan ahead = compiled("dp=2,zero=3", true), late = compiled("dp=2,zero=3", false);
  CHECK(order_of(late, ActionKind::kF) == "g0 g1 c1 g2 c2 g3 c3 g4 c4 g5 c5 ");
  CHECK(order_of(ahead, ActionKind::kF) == "g0 g1 g2 c1 g3 c2 g4 c3 g5 c4 c5 ");
  CHECK(order_of(late, ActionKind::kB) == "g5 c5 g5 c5 g4 c4 g3 c3 g2 c2 g1 c1 ");
  CHECK(order_of(ahead, ActionKind::kB) == "g5 g4 c5 g3 c4 g2 c3 g1 c2 c1 ");
}

// Of how many layers gathered weights are in memory at once, at most; but for the embedding's, the
// first layer, whose table the head may read too.
size_t most_layers_gathered(const pipeline::Fragment& fragment) {
  const ir::Graph& graph = fragment.graph;
  std::set<ValueId> states;
  for (const pipeline::Port& port : fragment.inputs) {
    if (port.kind == pipeline::PortKind::kState) states.insert(port.value);
  }
  std::map<ValueId, ValueId> gathered;  // a part of it -> the whole
  std::map<ValueId, std::pair<size_t, size_t>> lives;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const ir::Op& op = graph.ops[o];
    if (op.kind == ir::OpKind::kAllGather && states.contains(op.operands[0])) {
      gathered[op.results[0]] = op.results[0];
      lives[op.results[0]] = {o, o};
    }
    for (const ValueId v : op.operands) {
      const auto whole = gathered.find(v);
      if (whole == gathered.end()) continue;
      lives[whole->second].second = o;
      if (op.kind == ir::OpKind::kView || op.kind == ir::OpKind::kReshape)
        gathered[op.results[0]] = whole->second;
    }
  }
  size_t most = 0;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    std::set<int64_t> layers;
    for (const auto& [whole, life] : lives) {
      const int64_t layer = graph.op(graph.value(whole).producer).layer.value;
      if (layer > 0 && life.first <= o && o <= life.second) layers.insert(layer);
    }
    most = std::max(most, layers.size());
  }
  return most;
}

TEST_CASE("two layers' gathered weights are in memory at a time, however the backward is split") {
  for (const std::string schedule :
       {"", ",pp=2,schedule=zb-h1,microbatches=4", ",pp=2,schedule=zb-v,microbatches=4",
        ",pp=2,schedule=dualpipe,microbatches=8", ",pp=2,schedule=zb-h1,microbatches=4,sp,tp=2"}) {
    for (const std::string recompute : {"none", "selective", "full"}) {
      for (const auto& [ahead, most] : {std::pair{"", 2}, std::pair{",prefetch_mb=0", 1}}) {
        const std::string plan = "dp=2,zero=3" + schedule + ",recompute=" + recompute + ahead;
        CAPTURE(plan);
        for (const pipeline::Fragment& fragment : compiled(plan, true).train.fragments) {
          CAPTURE(fragment.name);
          CHECK(most_layers_gathered(fragment) <= static_cast<size_t>(most));
        }
      }
    }
  }
}

TEST_CASE("no more is gathered ahead than prefetch_mb says") {
  using pipeline::ActionKind;
  const auto order = [](int64_t D, int64_t prefetch_mb, ActionKind kind) {
    const ir::Module model = partition::test::gpt_net({.D = D, .blocks = kBlocks});
    ModelShape shape;
    shape.global_batch = 64;
    Plan plan = parse_plan("dp=2,zero=3");
    plan.prefetch_mb = prefetch_mb;
    return order_of(compile({model, nullptr, plan, shape, {}}), kind);
  };
  const std::string all = "g0 g1 g2 c1 g3 c2 g4 c3 g5 c4 c5 ",
                    none = "g0 g1 c1 g2 c2 g3 c3 g4 c4 g5 c5 ";
  CHECK(order(8, 1, ActionKind::kF) == all);
  CHECK(order(8, 0, ActionKind::kF) == none);
  // A block has some 64 D elements, 4 MiB and a little; the last layer has a norm.
  CHECK(order(16384, 1, ActionKind::kF) == "g0 g1 c1 g2 c2 g3 c3 g4 g5 c4 c5 ");
  CHECK(order(16384, 5, ActionKind::kF) == all);
}

TEST_CASE("what ZeRO 3 gathers in the forward pass is not saved for the backward pass") {
  for (const std::string plan :
       {"dp=2,zero=3", "dp=2,zero=3,recompute=selective", "dp=2,tp=2,sp,zero=3,regather",
        "dp=2,pp=2,zero=3,schedule=zb-h1,microbatches=4",
        "dp=2,pp=2,zero=3,schedule=zb-v,microbatches=4", "dp=2,zero=3,recompute=full"}) {
    CAPTURE(plan);
    const CompiledPlan made = compiled(plan, true);
    CHECK(pipeline::verify(made.train).sound());
    for (const pipeline::Fragment& fragment : made.train.fragments) {
      const ir::Graph& graph = fragment.graph;
      std::set<ValueId> states;
      for (const pipeline::Port& port : fragment.inputs) {
        if (port.kind == pipeline::PortKind::kState) states.insert(port.value);
      }
      for (const pipeline::Port& port : fragment.outputs) {
        if (port.kind != pipeline::PortKind::kSaved) continue;
        const OpId made_by = graph.value(port.value).producer;
        const bool gathered = made_by.valid() && graph.op(made_by).kind == ir::OpKind::kAllGather &&
                              states.contains(graph.op(made_by).operands[0]);
        CHECK_FALSE(gathered);
      }
    }
  }
}

TEST_CASE("activations that are gathered again stay where they are") {
  for (const std::string plan :
       {"tp=2,sp,regather", "tp=2,dp=2,sp,regather,zero=2", "tp=2,sp,recompute=full"}) {
    CAPTURE(plan);
    const CompiledPlan ahead = compiled(plan, true), late = compiled(plan, false);
    REQUIRE(ahead.train.fragments.size() == late.train.fragments.size());
    for (size_t f = 0; f < ahead.train.fragments.size(); ++f) {
      const auto &x = ahead.train.fragments[f].graph.ops, &y = late.train.fragments[f].graph.ops;
      REQUIRE(x.size() == y.size());
      for (size_t o = 0; o < x.size(); ++o) {
        CHECK(x[o].kind == y[o].kind);
        CHECK(x[o].operands == y[o].operands);
      }
    }
  }
}

TEST_CASE("what is gathered for products of weights alone makes no layer wait for sums of others") {
  const auto over = [](const ir::Op& op, ir::OpKind kind, const char* axis) {
    if (op.kind != kind) return false;
    const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
    return group != nullptr && group->axes == sharding::Axes{axis};
  };
  const CompiledPlan made = compiled("dp=2,tp=2,sp,zero=2,recompute=selective-op", true);
  int gathered = 0, added = 0;
  for (const pipeline::Fragment& fragment : made.train.fragments) {
    const auto& ops = fragment.graph.ops;
    std::set<ValueId> scattered;
    for (size_t o = 0; o < ops.size(); ++o) {
      if (ops[o].work != ir::Work::kWeightGrad) continue;
      gathered += over(ops[o], ir::OpKind::kAllGather, "tp");
      if (over(ops[o], ir::OpKind::kReduceScatter, "dp")) scattered.insert(ops[o].results[0]);
      if (ops[o].kind != ir::OpKind::kAccumulate || !scattered.contains(ops[o].operands[1]))
        continue;
      ++added;
      // No product lies between a sum and the next one that goes out.
      for (size_t next = o + 1; next < ops.size(); ++next) {
        if (over(ops[next], ir::OpKind::kReduceScatter, "dp")) break;
        CHECK(ops[next].kind != ir::OpKind::kDot);
      }
    }
  }
  CHECK(gathered > 0);
  CHECK(added >= kBlocks);
}

}  // namespace
}  // namespace mw::compile
