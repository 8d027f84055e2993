#include "predict/without_effect.h"

#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using simulate::Beside;

namespace {

// What is said of a plan and words of --overlap and --slowdown.
struct Said {
  const char* plan;
  std::vector<const char*> overlap, slowdown;
  std::vector<std::string> without;
};

Request request_of(const char* plan, const std::vector<const char*>& overlap,
                   const std::vector<const char*>& slowdown) {
  Request request = mw::predict::test::small();
  request.plan = compile::parse_plan(plan);
  for (const char* word : overlap) REQUIRE(simulate::set_overlap(request.options.overlap, word));
  for (const char* text : slowdown)
    REQUIRE(simulate::set_slowdown(request.options.overlap, text).empty());
  return request;
}

}  // namespace

TEST_CASE("settings about what a step does not have are told, and change nothing") {
  const std::vector<Said> cases = {
      {"microbatches=2,zero=1", {}, {}, {"zero=1 (dp and cp are 1)"}},
      {"microbatches=2,tp=2,zero=3,prefetch_mb=1",
       {},
       {},
       {"zero=3 (dp and cp are 1)", "prefetch_mb=1 (dp and cp are 1)"}},
      {"pp=2,microbatches=4,schedule=chimera,zero=2", {}, {}, {"zero=2 (dp and cp are 1)"}},
      {"dp=2,zero=1,prefetch_mb=0", {}, {}, {"prefetch_mb=0 (it is of zero=3)"}},
      {"tp=2,bucket_mb=0", {}, {}, {"bucket_mb=0 (every gradient is on one rank)"}},
      {"dp=2,tp=2",
       {"no-messages"},
       {"messages=2"},
       {"overlap of messages (one pipeline rank sends none)",
        "slowdown messages=2 (one pipeline rank sends no messages)"}},
      {"tp=2", {"async-tp"}, {}, {"overlap async-tp (it is of sp's gathers and scatters)"}},
      {"dp=2", {}, {"tensor=1.5"}, {"slowdown tensor=1.5 (tp is 1)"}},
      {"tp=2",
       {"grad_reduce"},
       {"grad_reduce=3"},
       {"overlap grad_reduce (every gradient is on one rank)",
        "slowdown grad_reduce=3 (every gradient is on one rank)"}},
      {"dp=2",
       {"param_gather"},
       {},
       {"overlap param_gather (the update gathers none; it does with zero=1 or 2)"}},
      {"dp=2,zero=3",
       {"param_gather"},
       {},
       {"overlap param_gather (the update gathers none; it does with zero=1 or 2)"}},
      {"dp=2",
       {"no-ring"},
       {"ring=1.5"},
       {"overlap of the ring (cp is 1)", "slowdown ring=1.5 (cp is 1)"}},
      {"dp=2,zero=1",
       {"no-weights"},
       {},
       {"overlap of weights (no microbatch gathers or reduces any)"}},
      {"pp=2,microbatches=4,schedule=dualpipe", {"no-pairs"}, {}, {"overlap of pairs (ep is 1)"}}};
  for (const Said& c : cases) {
    CAPTURE(std::string(c.plan));
    const Request request = request_of(c.plan, c.overlap, c.slowdown);
    CHECK(without_effect(request) == c.without);
    Request usual = request;
    usual.options = {};
    // async-tp is collectives too.
    usual.options.overlap.collectives = request.options.overlap.collectives;
    const compile::Plan plain;
    usual.plan.bucket_mb = plain.bucket_mb;
    if (usual.plan.zero != 3 || usual.plan.dp == 1) usual.plan.prefetch_mb = plain.prefetch_mb;
    if (usual.plan.dp == 1) usual.plan.zero = 0;
    const Prediction with = mw::predict::predict(request), without = mw::predict::predict(usual);
    CHECK(with.without_effect == c.without);
    CHECK(with.step.value == mw::test::close_to(without.step.value));
    CHECK(with.needed() == without.needed());
    CHECK(with.result.events == without.result.events);
    CHECK(without.without_effect.empty());
  }
}

TEST_CASE("settings about what a step has are not told") {
  const std::vector<Said> cases = {
      {"dp=2,zero=3,prefetch_mb=1,bucket_mb=1", {"collectives"}, {"1.5"}, {}},
      {"cp=2,zero=1", {"no-ring", "param_gather", "grad_reduce"}, {"ring=1.5"}, {}},
      {"dp=2,zero=2", {"param_gather"}, {"grad_reduce=2"}, {}},
      {"tp=2,sp,bucket_mb=0", {"async-tp"}, {"tensor=1.5"}, {}},
      {"pp=2,microbatches=2", {"no-messages"}, {"messages=2"}, {}},
      {"dp=2,ep=2,pp=2,microbatches=4,schedule=dualpipe", {"no-pairs"}, {}, {}},
      {"dp=2,zero=2", {"no-weights"}, {}, {}},
      // Of all kinds: about those that there are.
      {"microbatches=2", {}, {"1.5"}, {}}};
  for (const Said& c : cases) {
    CAPTURE(std::string(c.plan));
    CHECK(without_effect(request_of(c.plan, c.overlap, c.slowdown)).empty());
  }
  CHECK(without_effect(request_of("dp=2,ep=2,pp=2,microbatches=4", {"no-pairs"}, {})) ==
        std::vector<std::string>{
            "overlap of pairs (the schedule lays no forward and backward together)"});
}

TEST_CASE(
    "what a profile has on is no setting, and scatter/gather is of messages between tp ranks") {
  Request request = mw::predict::test::small();
  request.cluster.stack.scatter_gather = true;
  request.cluster.stack.overlap = {"param_gather", "no-ring"};
  request.options = simulate::options_of(request.cluster.stack);
  CHECK(without_effect(request).empty());
  request.options.scatter_gather = false;
  const auto without = [&](const char* plan) {
    request.plan = compile::parse_plan(plan);
    return without_effect(request);
  };
  using Texts = std::vector<std::string>;
  CHECK(without("tp=2") == Texts{"scatter_gather (one pipeline rank sends no messages)"});
  CHECK(without("pp=2,microbatches=2") == Texts{"scatter_gather (tp is 1)"});
  CHECK(without("tp=2,pp=2,microbatches=2,sp") ==
        Texts{"scatter_gather (with sp messages are parts already)"});
  CHECK(without("tp=2,pp=2,microbatches=2").empty());
}
