// Bounds of coarse estimates where they are known exactly, and what has no estimate.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/test_close_to.h"
#include "predict/coarse.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

namespace {

double bytes(Bytes of) { return static_cast<double>(of.value); }

}  // namespace

TEST_CASE("without a pipeline the bound of a step is its estimate") {
  Coarse coarse(small());
  for (const char* text :
       {"microbatches=1", "microbatches=2", "microbatches=16", "tp=4,microbatches=4",
        "tp=4,sp,regather,microbatches=4,recompute=selective", "dp=2,microbatches=8,recompute=full",
        "dp=4,microbatches=2,zero=1"}) {
    CAPTURE(std::string(text));
    const compile::Plan plan = compile::parse_plan(text);
    CHECK(coarse.least(plan).step.value ==
          mw::test::close_to(coarse.step(plan).value).epsilon(1e-9));
    CHECK(coarse.least_scheduled(plan).step.value ==
          mw::test::close_to(coarse.step(plan).value).epsilon(1e-9));
  }
}

TEST_CASE("with a pipeline the bound lacks the bubble and what messages take") {
  Coarse coarse(small());
  for (const int64_t microbatches : {4, 8, 16}) {
    compile::Plan plan = compile::parse_plan("pp=4");
    plan.microbatches = microbatches;
    CAPTURE(microbatches);
    const auto m = static_cast<double>(microbatches);
    const double full = coarse.step(plan).value * m / (m + 3);
    CHECK(coarse.least(plan).step.value <= coarse.step(plan).value);
    CHECK(coarse.least(plan).step.value > 0.5 * full);
  }
}

TEST_CASE("with the ends on one rank alone the bound of a step has what their vocabulary takes") {
  Request request = small();
  request.model.vocab_size = 1 << 14;
  Coarse coarse(request);
  // The last stage is on one of two ranks, beside another: half of what both take a microbatch.
  const compile::Plan plan = compile::parse_plan("pp=2,microbatches=16");
  CHECK(coarse.least(plan).step.value > 0.7 * coarse.step(plan).value);
  CHECK(coarse.least(plan).step.value <= coarse.step(plan).value);
}

TEST_CASE("bounds of memory are the states and what one microbatch takes at the least") {
  Coarse coarse(small());
  for (const char* text : {"microbatches=1", "microbatches=16", "tp=2,microbatches=2",
                           "dp=2,zero=1,microbatches=2", "pp=2,microbatches=4"}) {
    CAPTURE(std::string(text));
    const compile::Plan plan = compile::parse_plan(text);
    const Bytes states = coarse.states(plan), least = coarse.least(plan).peak,
                peak = coarse.memory(plan).peak;
    CHECK(states < least);
    CHECK(least <= peak);
    // The smallest microbatch holds little beside them.
    compile::Plan one = plan;
    one.microbatches = 16 / plan.dp;
    if (plan.pp == 1) CHECK(bytes(coarse.least(one).peak) > 0.5 * bytes(coarse.memory(one).peak));
  }
}

TEST_CASE("a bound of memory has a microbatch's activations by half, and a block's workspace") {
  Coarse coarse(small());
  struct Case {
    const char* plan;
    double share;  // of what is held beside the states
  };
  for (const Case& c : {Case{"microbatches=1", 0.48}, Case{"microbatches=1,recompute=full", 0.38},
                        Case{"microbatches=16,recompute=full", 0.38}}) {
    CAPTURE(std::string(c.plan));
    const compile::Plan plan = compile::parse_plan(c.plan);
    const double states = bytes(coarse.states(plan));
    CHECK(bytes(coarse.least(plan).peak) - states >
          c.share * (bytes(coarse.memory(plan).peak) - states));
  }
}

TEST_CASE("ranks in one memory are counted together, in estimates and in bounds") {
  Request request = small();
  const Request own = request;
  request.cluster.cores = 16;
  REQUIRE(request.cluster.shares_memory());
  Coarse coarse(request), alone(own);
  for (const char* text : {"dp=2,microbatches=4", "tp=2,microbatches=4", "pp=2,microbatches=8",
                           "dp=2,tp=2,pp=2,microbatches=4", "dp=4,pp=4,microbatches=4"}) {
    CAPTURE(std::string(text));
    request.plan = compile::parse_plan(text);
    const double needed = bytes(mw::predict::predict(request).needed());
    CHECK(bytes(coarse.memory(request.plan).peak) == mw::test::close_to(needed).epsilon(0.1));
    CHECK(bytes(coarse.least(request.plan).peak) <= 1.001 * needed);
    const double ranks = static_cast<double>(request.plan.ranks());
    if (request.plan.pp > 1) continue;
    CHECK(bytes(coarse.states(request.plan)) == ranks * bytes(alone.states(request.plan)));
    CHECK(bytes(coarse.least(request.plan).peak) ==
          mw::test::close_to(ranks * bytes(alone.least(request.plan).peak)).epsilon(1e-6));
  }
}

TEST_CASE("where ZeRO's collectives are all, a bound counts them by microbatch, stage and kind") {
  Request request = small();
  for (cluster::Link& link : request.cluster.links) {
    link.bandwidth = link.bus_bandwidth = cluster::BytesPerSecond(1e6);
    link.latency = Seconds(0);
  }
  Coarse coarse(request);
  const auto least = [&](const std::string& text) {
    const compile::Plan plan = compile::parse_plan(text);
    const double seconds = coarse.least(plan).step.value;
    CHECK(seconds <= coarse.step(plan).value * 1.0001);
    CHECK(coarse.least_scheduled(plan).step.value >= seconds * 0.9999);
    return seconds;
  };
  const double one = least("dp=4,zero=2,microbatches=2");
  // A gather for the forward pass, another for the backward pass; as many bytes as the scatter.
  CHECK(least("dp=4,zero=3,microbatches=2") == mw::test::close_to(3 * one).epsilon(1e-3));
  CHECK(least("dp=4,zero=2,microbatches=4") == mw::test::close_to(2 * one).epsilon(1e-3));
  CHECK(least("dp=4,zero=0,grad_reduce=microbatch,microbatches=2") >= one);
  // 2 bytes an element of all weights, three quarters of them sent, twice.
  const double elements = 4 * (12 * 64 * 64 + 13 * 64) + 256 * 64 + 64 * 64 + 2 * 64;
  CHECK(one == mw::test::close_to(2 * 0.75 * 2 * elements / 1e6).epsilon(0.03));
}

TEST_CASE("whether a schedule takes a plan is told as if it had been made") {
  Request request = small();
  request.global_batch = 27720;  // as many microbatches as one likes
  request.model.layers = 16;
  Coarse coarse(request);
  for (const std::string& schedule : pipeline::schedule_kinds()) {
    for (const auto& [pp, chunks] :
         {std::pair(2, 1), std::pair(2, 2), std::pair(4, 1), std::pair(4, 2)}) {
      for (int64_t microbatches = 1; microbatches <= 12; ++microbatches) {
        compile::Plan plan;
        plan.schedule = schedule;
        plan.pp = pp;
        plan.chunks = chunks;
        plan.microbatches = microbatches;
        if (schedule == "zb-auto" && microbatches > 2) continue;  // an integer program each
        CAPTURE(short_form(plan));
        CHECK(coarse.takes_order(plan) == coarse.has_order(plan));
      }
    }
  }
}

TEST_CASE("what facts and orders are not told apart by has no order") {
  Coarse coarse(small());
  const auto has = [&](const compile::Plan& plan) {
    CHECK(coarse.takes_order(plan) == coarse.has_order(plan));
    return coarse.has_order(plan);
  };
  for (const char* text :
       {"microbatches=2", "pp=4,microbatches=16", "dp=4,microbatches=4",
        "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4",
        "pp=2,schedule=zb-auto,microbatches=4", "pp=2,schedule=chimera,microbatches=4",
        "pp=2,schedule=seq-1f1b,slices=2,microbatches=4"}) {
    CAPTURE(std::string(text));
    CHECK(has(compile::parse_plan(text)));
  }
  for (const char* text : {"cp=2,microbatches=2", "pp=4,schedule=chimera,pairs=2,microbatches=8",
                           "pp=2,schedule=zb-auto,memory_limit=4,microbatches=4",
                           "pp=2,schedule=zb-auto,costs=1:1:1,microbatches=4",
                           // 16 sequences in 3, or in 4 of each of 8.
                           "microbatches=3", "dp=8,microbatches=4",
                           // 64 tokens in slices of a third; slices without a pipeline.
                           "pp=2,schedule=seq-1f1b,slices=3,microbatches=4",
                           "schedule=seq-1f1b,slices=2,microbatches=4"}) {
    CAPTURE(std::string(text));
    CHECK(!has(compile::parse_plan(text)));
  }
  // Rounds are of as many microbatches as there are ranks, and 1F1B has one chunk.
  for (const auto& [schedule, microbatches] :
       {std::pair("interleaved-1f1b", 2), std::pair("1f1b", 16)}) {
    compile::Plan plan;
    plan.pp = 4;
    plan.chunks = schedule == std::string("1f1b") ? 4 : 2;
    plan.schedule = schedule;
    plan.microbatches = microbatches;
    CHECK(!has(plan));
  }
}

TEST_CASE("long schedules are continued from shorter ones, whatever the rest of a round") {
  Request request = small();
  request.model.layers = 8;
  request.global_batch = 120;
  Coarse coarse(request);
  for (const std::string& schedule : pipeline::schedule_kinds()) {
    for (const auto& [chunks, microbatches] :
         {std::pair(1, 30), std::pair(1, 40), std::pair(2, 40)}) {
      compile::Plan& plan = request.plan;
      plan = compile::Plan();
      plan.pp = 4;
      plan.schedule = schedule;
      plan.chunks = chunks;
      plan.microbatches = microbatches;
      if (!coarse.has_order(plan)) continue;
      CAPTURE(short_form(plan));
      CHECK(coarse.step(plan).value ==
            mw::test::close_to(mw::predict::predict(request).step.value).epsilon(0.05));
    }
  }
}
