#include "predict/lacking.h"

#include <doctest/doctest.h>

#include "predict/test_request.h"

using namespace mw;
using cluster::Lacking;

TEST_CASE("what a plan has of what an engine lacks is told") {
  struct Case {
    Lacking lacking;
    std::vector<const char*> with, without;
    const char* words;
  };
  const std::vector<Case> cases = {
      {Lacking::kTensor, {"tp=2,microbatches=4"}, {"pp=2,microbatches=4"}, "tensor parallelism"},
      {Lacking::kPipelines, {"pp=2,microbatches=4"}, {"tp=2,microbatches=4"}, "pipelines"},
      {Lacking::kDividedPipelines,
       {"dp=2,pp=2,microbatches=4,zero=2", "dp=2,pp=2,microbatches=4,zero=3"},
       {"dp=2,pp=2,microbatches=4,zero=1", "dp=2,microbatches=4,zero=3"},
       "ZeRO 2 and 3 with pipelines"},
      {Lacking::kInterleaved,
       {"pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4",
        "pp=2,schedule=zb-v,chunks=2,microbatches=4"},
       {"pp=2,microbatches=4"},
       "several stages a rank"},
      {Lacking::kSelective,
       {"microbatches=2,recompute=selective", "microbatches=2,recompute=selective-op"},
       {"microbatches=2", "microbatches=2,recompute=full"},
       "selective recomputation"},
      {Lacking::kSplitBackward,
       {"pp=2,schedule=zb-h1,microbatches=4", "pp=2,schedule=dualpipe,microbatches=4"},
       {"pp=2,microbatches=4,recompute=full", "pp=1,schedule=zb-h1,microbatches=4"},
       "I and W apart"},
      {Lacking::kSplitRecompute,
       {"pp=2,schedule=zb-h1,microbatches=4,recompute=full",
        "pp=2,schedule=v-half,chunks=2,microbatches=4,recompute=selective-op"},
       {"pp=2,schedule=zb-h1,microbatches=4", "pp=2,microbatches=4,recompute=full"},
       "I and W apart of what is recomputed"},
      {Lacking::kReplicas,
       {"pp=2,schedule=chimera,microbatches=4", "pp=2,schedule=dualpipe,microbatches=4"},
       {"pp=2,schedule=dualpipe-v,chunks=2,microbatches=4"},
       "stages on several ranks"},
      {Lacking::kSlices,
       {"pp=2,schedule=seq-1f1b,microbatches=4"},
       {"pp=2,microbatches=4"},
       "slices of sequences"},
  };
  for (const Case& c : cases) {
    cluster::Stack stack;
    CHECK(predict::all_lacking(stack).empty());
    const std::vector<std::string> told = {c.words};
    for (const char* plan : c.with) {
      CAPTURE(std::string(plan));
      stack.lacking = {};
      CHECK(predict::lacking(stack, compile::parse_plan(plan)).empty());
      stack.lacking = {c.lacking};
      CHECK(predict::lacking(stack, compile::parse_plan(plan)) == told);
    }
    for (const char* plan : c.without) {
      CAPTURE(std::string(plan));
      CHECK(predict::lacking(stack, compile::parse_plan(plan)).empty());
    }
    CHECK(predict::all_lacking(stack) == told);
  }
}

TEST_CASE("what another plan lacks too is not more") {
  cluster::Stack stack;
  const auto no_more = [&](const char* plan, const char* other) {
    return predict::lacks_no_more(stack, compile::parse_plan(plan), compile::parse_plan(other));
  };
  const char *split = "pp=2,schedule=zb-h1,microbatches=4",
             *slices = "pp=2,schedule=seq-1f1b,microbatches=4";
  CHECK(no_more(split, slices));
  stack.lacking = {Lacking::kSplitBackward, Lacking::kSlices};
  CHECK_FALSE(no_more(split, slices));
  CHECK_FALSE(no_more(split, "pp=2,microbatches=4"));
  CHECK(no_more(split, "pp=4,schedule=zb-h2,microbatches=8"));
  CHECK(no_more("pp=2,microbatches=4", slices));
}

TEST_CASE("of a schedule that was read from a file its actions tell what it has") {
  compile::Plan plan = compile::parse_plan("pp=2,schedule=zb-h1,microbatches=4");
  const pipeline::ScheduleRequest request{.kind = "zb-h1", .ranks = 2, .microbatches = 4};
  plan.schedule = "own.csv";
  plan.written.schedule =
      std::make_shared<const pipeline::Schedule>(pipeline::make_schedule(request));
  cluster::Stack stack;
  stack.lacking = {Lacking::kSplitBackward, Lacking::kReplicas};
  CHECK(predict::lacking(stack, plan) == std::vector<std::string>{"I and W apart"});
}

TEST_CASE("a plan that its stack's engine does not run is outside of the profile") {
  predict::Request request = predict::test::small();
  request.cluster.stack.name = "engine";
  request.cluster.stack.measured = {{"tp", 1, 8}};
  request.cluster.stack.lacking = {Lacking::kReplicas};
  request.plan = compile::parse_plan("pp=2,microbatches=4");
  CHECK(predict::outside_profile(request).empty());
  request.plan = compile::parse_plan("pp=2,schedule=chimera,microbatches=4");
  CHECK(predict::outside_profile(request) ==
        std::vector<std::string>{"stages on several ranks (its engine has none)"});
}
