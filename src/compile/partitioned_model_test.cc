#include <doctest/doctest.h>

#include "base/error.h"
#include "compile/compile.h"
#include "partition/test_nets.h"

namespace mw::compile {
namespace {

CompileRequest request_for(const ir::Module& model, const std::string& plan) {
  ModelShape shape;
  shape.global_batch = 64;
  return {model, nullptr, parse_plan(plan), shape, {}};
}

TEST_CASE("a partitioned model serves all plans that differ in ZeRO and schedule alone") {
  const ir::Module model = partition::test::gpt_net({.S = 16, .blocks = 8});
  const std::vector<std::vector<std::string>> alike = {
      {"dp=2,tp=2,pp=2,microbatches=4,sp", "dp=2,tp=2,pp=2,microbatches=4,sp,regather,zero=3",
       "dp=2,tp=2,pp=2,microbatches=4,sp,schedule=chimera",
       "dp=2,tp=2,pp=2,microbatches=4,sp,schedule=zb-h1,zero=1",
       "dp=2,tp=2,pp=2,microbatches=4,sp,schedule=dualpipe,zero=2",
       "dp=2,tp=2,pp=2,microbatches=4,sp,grad_reduce=microbatch"},
      {"pp=2,chunks=2,microbatches=4,schedule=zb-v,recompute=full",
       "pp=2,chunks=2,microbatches=4,schedule=interleaved-1f1b,recompute=full",
       "pp=2,chunks=2,microbatches=4,schedule=dualpipe-v,recompute=full"}};
  for (const std::vector<std::string>& plans : alike) {
    const PartitionedModel partitioned(request_for(model, plans.front()));
    for (const std::string& plan : plans) {
      CAPTURE(plan);
      CompileRequest request = request_for(model, plan);
      const CompiledPlan alone = compile(request);
      request.partitioned = &partitioned;
      CHECK(to_text(compile(request).train) == to_text(alone.train));
    }
  }
}

TEST_CASE("what decides nothing of how a model is partitioned does not stay") {
  Plan plan;
  plan.regather = plan.post_validation = true;
  plan.zero = 3;
  plan.grad_reduce = GradReduce::kStep;
  plan.bucket_mb = plan.prefetch_mb = 7;
  plan.group = plan.pairs = 2;
  plan.memory_limit = 3;
  plan.costs = {1, 1, 1};
  plan.schedule = "zb-auto";
  Plan none;
  none.slices = 1;
  CHECK(partitioning_plan(plan) == none);
}

TEST_CASE("a model that is partitioned under another plan is refused") {
  const ir::Module model = partition::test::gpt_net({.S = 16, .blocks = 8});
  const PartitionedModel partitioned(request_for(model, "dp=2,pp=2,microbatches=4"));
  CompileRequest request = request_for(model, "dp=2,pp=4,microbatches=4");
  request.partitioned = &partitioned;
  CHECK_THROWS_WITH_AS(compile(request), doctest::Contains("the model is partitioned under"),
                       CheckFailure);
}

TEST_CASE("what decides how a model is partitioned stays in partitioning_plan") {
  const Plan base = partitioning_plan(parse_plan("dp=2,tp=2,pp=2,microbatches=4,zero=1"));
  for (const std::string other :
       {"dp=4,tp=2,pp=2,microbatches=4", "dp=2,tp=4,pp=2,microbatches=4",
        "dp=2,tp=2,pp=4,microbatches=4", "dp=2,tp=2,pp=2,microbatches=2",
        "dp=2,tp=2,pp=2,microbatches=4,sp", "dp=2,tp=2,pp=2,microbatches=4,recompute=full",
        "dp=2,tp=2,pp=2,chunks=2,schedule=zb-v,microbatches=4",
        "dp=2,tp=2,pp=2,schedule=seq-1f1b,slices=2,microbatches=4",
        "dp=2,tp=2,pp=2,schedule=chimera-halving,microbatches=4"}) {
    CAPTURE(other);
    CHECK(!(partitioning_plan(parse_plan(other)) == base));
  }
}

}  // namespace
}  // namespace mw::compile
