#include <doctest/doctest.h>

#include <algorithm>

#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

TEST_CASE(
    "computation beside communication takes as much longer as the device says, or the plan's "
    "options") {
  Request request = small();
  request.plan = compile::parse_plan("tp=2,sp,microbatches=2");
  const pipeline::Program program = program_of(request);
  simulate::Options options;
  REQUIRE(simulate::set_overlap(options.overlap, "async-tp"));
  const auto step = [&] {
    return simulate::simulate(program, request.cluster, options).step.value;
  };
  const double plain = step();
  options.overlap.slowdown.fill(1.5);
  const double asked = step();
  CHECK(asked > plain);
  options.overlap.slowdown.fill(0);
  request.cluster.device.attained.overlap_slowdown = 1.5;
  CHECK(step() == asked);
  options.overlap.slowdown.fill(1);
  CHECK(step() == plain);
}

TEST_CASE("computation beside one kind of communication is slowed down by that kind alone") {
  struct Case {
    const char *plan, *overlap;
    std::vector<simulate::Beside> has;
  };
  using simulate::Beside;
  const std::vector<Case> cases = {
      {"pp=2,microbatches=4", "messages", {Beside::kMessages}},
      {"tp=2,sp,microbatches=2", "async-tp", {Beside::kTensor}},
      {"dp=4,microbatches=2,bucket_mb=0", "grad_reduce", {Beside::kGradReduce}},
      {"dp=4,zero=1,microbatches=2,bucket_mb=0", "param_gather", {Beside::kParamGather}},
      {"cp=4,microbatches=2", "ring", {Beside::kRing}},
      {"dp=4,zero=3,microbatches=2", "collectives", {Beside::kGradReduce, Beside::kParamGather}}};
  for (const Case& c : cases) {
    CAPTURE(std::string(c.plan));
    Request request = small();
    request.plan = compile::parse_plan(c.plan);
    const pipeline::Program program = program_of(request);
    simulate::Options options;
    REQUIRE(simulate::set_overlap(options.overlap, c.overlap));
    const auto step = [&] {
      return simulate::simulate(program, request.cluster, options).step.value;
    };
    const double plain = step();
    for (size_t b = 0; b < simulate::kBesides; ++b) {
      const auto kind = static_cast<Beside>(b);
      CAPTURE(std::string(simulate::beside_name(kind)));
      options.overlap.slowdown = {};
      REQUIRE(
          simulate::set_slowdown(options.overlap, std::string(simulate::beside_name(kind)) + "=1.5")
              .empty());
      if (std::find(c.has.begin(), c.has.end(), kind) != c.has.end()) {
        CHECK(step() > plain);
      } else {
        CHECK(step() == plain);
      }
    }
  }
}
