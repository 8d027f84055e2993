#include "predict/without_effect.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

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
  if (request.plan.ep > 1) request.model = mw::predict::test::small_mixture();
  for (const char* word : overlap) REQUIRE(simulate::set_overlap(request.options.overlap, word));
  for (const char* text : slowdown)
    REQUIRE(simulate::set_slowdown(request.options.overlap, text).empty());
  request.asked = {{overlap.begin(), overlap.end()}, {slowdown.begin(), slowdown.end()}};
  return request;
}

// All that is said, of the plan and of words.
std::vector<std::string> said(const Request& request) {
  const Step step = compile_step(request);
  Prediction prediction = mw::predict::predict(request, step);
  add_without_effect(request, step, prediction);
  return prediction.without_effect;
}

constexpr const char* kAsLong = " (the step is as long without it)";

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
       {"overlap no-messages (one pipeline rank sends none)",
        "slowdown messages=2 (one pipeline rank sends no messages)"}},
      {"dp=2",
       {"async-tp", "serial"},
       {},
       {"overlap async-tp (no microbatch has collectives)",
        "overlap serial (no microbatch has collectives)"}},
      {"tp=2", {"messages"}, {}, {"overlap messages (that holds without it)"}},
      {"dp=2,zero=2,grad_reduce=step",
       {},
       {"other=3"},
       {"zero=2 (grad_reduce=step keeps gradients whole: it is zero=1)",
        "slowdown other=3 (ep is 1)"}},
      {"microbatches=2", {}, {"1.5"}, {"slowdown 1.5 (one rank communicates with none)"}},
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
       {"overlap no-ring (cp is 1)", "slowdown ring=1.5 (cp is 1)"}},
      {"dp=2,zero=1",
       {"no-weights"},
       {},
       {"overlap no-weights (no microbatch gathers or reduces any)"}},
      {"pp=2,microbatches=4,schedule=dualpipe", {"no-pairs"}, {}, {"overlap no-pairs (ep is 1)"}}};
  for (const Said& c : cases) {
    CAPTURE(std::string(c.plan));
    const Request request = request_of(c.plan, c.overlap, c.slowdown);
    CHECK(said(request) == c.without);
    Request usual = request;
    usual.options = {};
    usual.asked = {};
    const compile::Plan plain;
    usual.plan.bucket_mb = plain.bucket_mb;
    if (usual.plan.zero != 3 || usual.plan.dp == 1) usual.plan.prefetch_mb = plain.prefetch_mb;
    if (usual.plan.dp == 1) usual.plan.zero = 0;
    if (usual.plan.zero == 2) usual.plan.zero = 1;
    const Prediction with = mw::predict::predict(request), without = mw::predict::predict(usual);
    CHECK(with.step.value == mw::test::close_to(without.step.value));
    CHECK(with.needed() == without.needed());
    CHECK(with.result.events == without.result.events);
    CHECK(without.without_effect.empty());
  }
}

TEST_CASE("settings about what a step has are told where the step is as long without them") {
  const std::vector<Said> cases = {
      {"dp=2,zero=3,prefetch_mb=1,bucket_mb=1", {"collectives"}, {"1.5"}, {}},
      {"cp=2,zero=1", {"no-ring", "param_gather", "grad_reduce"}, {"ring=1.5"}, {}},
      {"dp=2,zero=2", {"param_gather"}, {"grad_reduce=2"}, {}},
      {"tp=2,sp,bucket_mb=0", {"async-tp"}, {"tensor=1.5"}, {}},
      {"pp=2,microbatches=2", {"no-messages"}, {"messages=2"}, {}},
      {"dp=2,ep=2,pp=2,microbatches=4,schedule=dualpipe", {"no-pairs"}, {}, {}},
      {"dp=2,zero=2", {"no-weights"}, {}, {}},
      // Of all kinds: about those that there are.
      {"pp=2,microbatches=2", {}, {"1.5"}, {}}};
  for (const Said& c : cases) {
    CAPTURE(std::string(c.plan));
    for (const std::string& text : said(request_of(c.plan, c.overlap, c.slowdown)))
      CHECK_MESSAGE(text.ends_with(kAsLong), text);
  }
  CHECK(said(request_of("dp=2,ep=2,pp=2,microbatches=4", {"no-pairs"}, {})) ==
        std::vector<std::string>{
            "overlap no-pairs (the schedule lays no forward and backward together)"});
}

TEST_CASE("words without which a step is as long are found by simulation") {
  struct Found {
    const char* plan;
    std::vector<const char*> overlap, slowdown;
    std::vector<std::string> without;
  };
  const std::vector<Found> cases = {
      // Senders wait: nothing is computed beside a message.
      {"pp=2,microbatches=4", {"no-messages"}, {"messages=3"}, {"slowdown messages=3"}},
      // Nothing is on the way while gradients are summed behind all computation.
      {"dp=2", {}, {"grad_reduce=3"}, {"slowdown grad_reduce=3"}},
      {"dp=2,bucket_mb=0", {"grad_reduce"}, {"grad_reduce=3"}, {}}};
  for (const Found& c : cases) {
    CAPTURE(std::string(c.plan));
    std::vector<std::string> expected;
    for (const std::string& word : c.without) expected.push_back(word + kAsLong);
    CHECK(said(request_of(c.plan, c.overlap, c.slowdown)) == expected);
  }
}

TEST_CASE("what changes the step is not told, whatever the plan seems to have") {
  Request request = mw::predict::test::small();
  request.cluster.stack.name = "stack";
  // The sums of the update begin with the last microbatch's, and its gathers beside the zeros.
  request.plan = compile::parse_plan("dp=2,zero=1,microbatches=2,bucket_mb=0");
  int changes = 0;
  for (const char* word : {"collectives", "async-tp", "param_gather", "grad_reduce"}) {
    CAPTURE(word);
    Request with = request;
    REQUIRE(simulate::set_overlap(with.options.overlap, word));
    with.asked.overlap = {word};
    const double step = mw::predict::predict(with).step.value,
                 without = mw::predict::predict(request).step.value;
    const std::vector<std::string> texts = said(with);
    const bool told = std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
      return text.starts_with("overlap");
    });
    CHECK(told == (std::abs(step - without) < 1e-9 * step));
    changes += told ? 0 : 1;
  }
  CHECK(changes == 4);
  // Buckets are of sums behind the step.
  request.plan = compile::parse_plan("dp=2,zero=3,bucket_mb=1");
  CHECK(said(request) == std::vector<std::string>{std::string("bucket_mb=1") + kAsLong});
  request.plan = compile::parse_plan("dp=2,bucket_mb=0");
  CHECK(said(request).empty());
}

TEST_CASE("words that a profile has on are told, and 'none' is about what there is") {
  Request request = mw::predict::test::small();
  request.cluster.stack.overlap = {"async-tp"};
  request.plan = compile::parse_plan("dp=2,zero=2");
  const auto of = [&](const char* word) {
    request.options = simulate::options_of(request.cluster.stack);
    REQUIRE(simulate::set_overlap(request.options.overlap, word));
    request.asked.overlap = {word};
    return said(request);
  };
  CHECK(of("async-tp") == std::vector<std::string>{"overlap async-tp (that holds without it)"});
  CHECK(of("none").empty());
  CHECK(of("no-messages") ==
        std::vector<std::string>{"overlap no-messages (one pipeline rank sends none)"});
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
