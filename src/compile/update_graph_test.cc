#include "compile/update_graph.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/verifier.h"

namespace mw::compile {
namespace {

// Elements that the update's collectives of a kind take at once, in the order of the program.
std::vector<std::vector<int64_t>> collectives(const std::string& plan, ir::OpKind kind) {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan compiled = compile({model, &model, parse_plan(plan), shape, {}});
  std::vector<std::vector<int64_t>> found;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind != kind) continue;
      std::vector<int64_t> elements;
      const bool gathers = kind == ir::OpKind::kAllGather;
      for (const ValueId v : gathers ? op.results : op.operands)
        elements.push_back(fragment.graph.type(v).elements());
      found.push_back(std::move(elements));
    }
  }
  return found;
}

TEST_CASE("a bucket of no size is a layer: gradients last layer first, weights first layer first") {
  const auto reduced = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  auto gathered = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kAllGather);
  REQUIRE(reduced.size() > 3);
  for (const auto& bucket : reduced) CHECK(bucket.size() == 1);
  gathered.erase(gathered.begin());  // of the norm's sums
  CHECK(gathered == std::vector(reduced.rbegin(), reduced.rend()));
}

TEST_CASE("small layers share a bucket, in the order of the layers") {
  const auto apart = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  const auto together = collectives("dp=2,zero=1", ir::OpKind::kReduceScatter);
  REQUIRE(together.size() == 1);
  REQUIRE(together[0].size() == apart.size());
  for (size_t g = 0; g < apart.size(); ++g) CHECK(together[0][g] == apart[apart.size() - 1 - g][0]);
}

TEST_CASE("what tensor parallelism left pending comes last, in buckets of its own") {
  const auto reduced = collectives("dp=2,tp=2,sp", ir::OpKind::kAllReduce);
  const auto apart = collectives("dp=2,tp=2,sp,bucket_mb=0", ir::OpKind::kAllReduce);
  // Of matrices over dp; of norms and biases over tp, then over dp; the norm's and the loss's sums.
  REQUIRE(reduced.size() >= 3);
  CHECK(reduced[1] == reduced[2]);
  CHECK(reduced[0] != reduced[1]);
  const size_t matrices = reduced[0].size(), pending = reduced[1].size();
  REQUIRE(apart.size() == reduced.size() - 3 + matrices + 2 * pending);
  for (size_t i = 0; i < pending; ++i) CHECK(apart[matrices + i] == apart[matrices + pending + i]);
}

TEST_CASE("the step takes the optimizer's numbers, and decay from each weight") {
  ir::Module model = partition::test::gpt_net({.blocks = 3});
  model.states[1].decay = false;
  ModelShape shape;
  shape.global_batch = 64;
  OptimizerSpec optimizer;
  optimizer.beta1 = 0.5;
  optimizer.beta2 = 0.25;
  optimizer.epsilon = 0.125;
  optimizer.weight_decay = 0.75;
  optimizer.max_norm = 3;
  const CompiledPlan compiled =
      compile({model, nullptr, parse_plan("dp=2,zero=1"), shape, optimizer});
  int steps = 0, without_decay = 0;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      const auto* attrs = std::get_if<ir::FlatAttrs>(&op.attrs);
      if (attrs == nullptr) continue;
      CHECK(attrs->max_norm == 3);
      if (op.kind != ir::OpKind::kAdamW) continue;
      ++steps;
      CHECK(attrs->beta1 == 0.5);
      CHECK(attrs->beta2 == 0.25);
      CHECK(attrs->epsilon == 0.125);
      CHECK(attrs->weight_decay == 0.75);
      for (const ir::Segment& segment : attrs->groups.at(0)) {
        CHECK(segment.decay == (segment.parameter != 1));
        without_decay += segment.decay ? 0 : 1;
      }
    }
  }
  CHECK(steps > 0);
  CHECK(without_decay == 1);
}

TEST_CASE("weights and moments that are not what adamw made of them are found") {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan sound =
      compile({model, nullptr, parse_plan("dp=2,zero=1,bucket_mb=0,microbatches=2"), shape, {}});
  const auto update = [](pipeline::Program& program) -> ir::Graph& {
    const auto it = std::find_if(
        program.fragments.begin(), program.fragments.end(),
        [](const pipeline::Fragment& f) { return f.kind == pipeline::ActionKind::kUpdate; });
    return it->graph;
  };
  // All-gathers of weights of as many elements, which lie apart.
  const auto gathers = [](ir::Graph& graph) {
    std::vector<ir::Op*> found;
    for (ir::Op& op : graph.ops) {
      if (op.kind == ir::OpKind::kAllGather && graph.type(op.operands[0]).dtype == DType::kF32)
        found.push_back(&op);
    }
    return found;
  };
  struct Case {
    const char *name, *finding;
    std::function<void(ir::Graph&)> edit;
  };
  for (const Case& c : std::vector<Case>{
           {"weights gathered in each other's place", "what adamw makes of 'weight/",
            [&](ir::Graph& graph) {
              const std::vector<ir::Op*> all = gathers(graph);
              for (ir::Op* a : all) {
                for (ir::Op* b : all) {
                  if (a == b || !(graph.type(a->operands[0]) == graph.type(b->operands[0])))
                    continue;
                  return std::swap(a->operands, b->operands);
                }
              }
              FAIL("no two gathers of one size");
            }},
           {"weights gathered as they were", "what adamw makes of nothing",
            [&](ir::Graph& graph) {
              ir::Op& gather = *gathers(graph)[0];
              const OpId by = graph.value(gather.operands[0]).producer;
              gather.operands[0] = graph.op(by).operands[0];
            }},
           {"moments in each other's place", "what adamw makes of 'v/", [](ir::Graph& graph) {
              const auto step =
                  std::find_if(graph.ops.begin(), graph.ops.end(),
                               [](const ir::Op& op) { return op.kind == ir::OpKind::kAdamW; });
              REQUIRE(step != graph.ops.end());
              std::swap(step->operands[2], step->operands[3]);
            }}}) {
    CAPTURE(std::string(c.name));
    pipeline::Program program = sound.train;
    REQUIRE(pipeline::verify(program, {.module = &sound.module}).sound());
    c.edit(update(program));
    const std::string found =
        join(pipeline::verify(program, {.module = &sound.module}).findings, "\n");
    CAPTURE(found);
    CHECK(found.find(c.finding) != std::string::npos);
  }
}

}  // namespace
}  // namespace mw::compile
