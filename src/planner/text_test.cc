// What is printed of plans that were found, from candidates that are made by hand.
#include <doctest/doctest.h>

#include "base/json.h"
#include "planner/planner.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::planner;

namespace {

constexpr int64_t kMiB = 1 << 20;

Candidate candidate(const char* plan, double step, int64_t mebibytes) {
  Candidate made;
  made.plan = compile::parse_plan(plan);
  made.step = Seconds(step);
  made.tokens_per_s = 1000 / step;
  made.mfu = 0.5 / step;
  made.peak = {Bytes(mebibytes * kMiB)};
  made.needed = Bytes(mebibytes * kMiB);
  made.seconds = {{"computation", step}};
  return made;
}

Request asked() {
  Request request;
  request.base = predict::test::small();
  cluster::Stack& stack = request.base.cluster.stack;
  stack.name = "stack";
  stack.error = 0.09;
  stack.measured = {{"dp", 1, 2}, {"hidden", 128, 256}, {"tp", 1, 4}};
  request.gpus = 8;
  return request;
}

// The last two need about as much memory as the one before each.
Found four() {
  Found found;
  found.plans = {candidate("dp=8", 1, 800), candidate("dp=2,tp=4", 1.25, 400),
                 candidate("dp=4,tp=2", 1.5, 390), candidate("tp=8", 2, 300)};
  found.front = {0, 1, 2, 3};
  found.memory_limit = Bytes(1000 * kMiB);
  found.candidates = 17;
  found.simulated = 5;
  found.search = Seconds(0.25);
  return found;
}

}  // namespace

TEST_CASE("plans in words: the best, the next ones, and the front as far as it saves a tenth") {
  Request request = asked();
  Found found = four();
  CHECK(to_text(request, found, 2) == R"(small.json on 8 of box, global batch 16
best plan     dp=8,tp=1,pp=1,microbatches=1
step          1.00 s +- 9 % or more   1.00 k tokens/s   MFU 50.0 %
memory        800 MiB of 954 MiB on the fullest rank
searched      17 plans, 5 simulated, 250 ms
outside of what the profile 'stack' was measured on: dp 8 (measured 1 to 2), hidden 64 (measured 128 to 256)

the fastest, and what the others lose and gain:
      1.00 s    50.0 %    800 MiB   80 %  dp=8,tp=1,pp=1,microbatches=1
      1.25 s    40.0 %    400 MiB   40 %  dp=2,tp=4,pp=1,microbatches=1
                                         +25.0 % (+250 ms): computation +250 ms

less memory for more time:
      1.00 s    50.0 %    800 MiB   80 %  dp=8,tp=1,pp=1,microbatches=1
      1.25 s    40.0 %    400 MiB   40 %  dp=2,tp=4,pp=1,microbatches=1
                                         +25.0 % (+250 ms): computation +250 ms
      2.00 s    25.0 %    300 MiB   30 %  dp=1,tp=8,pp=1,microbatches=1
                                         +100.0 % (+1.00 s): computation +1.00 s; outside of the profile: tp 8 (measured 1 to 4)
)");
  request.only.counts["tp"] = {1, 2};
  found.front = {0};
  found.shared = true;
  found.not_simulated = 3;
  found.choices = {{"tensor parallelism", "takeaway 1"}};
  CHECK(to_text(request, found, 1) == R"(small.json on 8 of box, global batch 16
best plan     dp=8,tp=1,pp=1,microbatches=1
step          1.00 s +- 9 % or more   1.00 k tokens/s   MFU 50.0 %
memory        800 MiB of 954 MiB that all ranks share
searched      17 plans with tp=1,2, 5 simulated, 250 ms
not simulated 3 of the best by estimates, as their programs are long
outside of what the profile 'stack' was measured on: dp 8 (measured 1 to 2), hidden 64 (measured 128 to 256)
tensor parallelism       takeaway 1
)");
}

TEST_CASE("what the search leaves out is said of long sequences and of mixtures by rules") {
  Request request = asked();
  request.base.model.mixture.experts = 8;
  for (const int64_t tokens : {8191, 8192}) {
    for (const Method method : {Method::kExhaustive, Method::kPtdP}) {
      request.base.seq_len = tokens;
      request.method = method;
      CHECK(notes(request).size() ==
            (tokens == 8192 ? 1U : 0U) + (method == Method::kPtdP ? 1U : 0U));
    }
  }
  request.method = Method::kExhaustive;
  request.base.cluster.stack.lacking = {cluster::Lacking::kReplicas, cluster::Lacking::kSlices};
  CHECK(notes(request).back() ==
        "not searched, as the engine of 'stack' has none: stages on several ranks, slices of "
        "sequences; --only takes what it names");
  const std::string text = to_text(request, four(), 1);
  for (const std::string& note : notes(request))
    CHECK_MESSAGE(text.find("\n" + note + "\n") != std::string::npos, note);
}

TEST_CASE("what a plan loses stands before what it gains, the most first, small parts together") {
  Candidate best = candidate("dp=8", 2, 800), other = candidate("tp=8", 3, 300);
  best.seconds = {{"a", 1}, {"e", 1}};
  other.seconds = {{"a", 1.5}, {"b", 0.04}, {"c", 0.03}, {"d", 1}, {"e", 0.43}};
  CHECK(loss(best, other) ==
        "+50.0 % (+1.00 s): d +1.00 s, a +500 ms, e -570 ms, the rest +70.0 ms");
  other.seconds = {{"a", 1.5}, {"b", 0.004}, {"c", 0.003}, {"d", 1}, {"e", 0.493}};
  CHECK(loss(best, other) == "+50.0 % (+1.00 s): d +1.00 s, a +500 ms, e -507 ms");
  CHECK(loss(best, best) == "equal");
}

TEST_CASE("plans as JSON: the best apart from the next ones") {
  const Request request = asked();
  const Json json = to_json(request, four(), 3);
  const auto at = [](const Json& of, const char* key) { return of.at(key, "plan").dump(); };
  CHECK(at(json, "planner") == "\"exhaustive\"");
  CHECK(at(json, "candidates") == "17");
  CHECK(at(json, "simulated") == "5");
  CHECK(at(json, "not_simulated") == "0");
  CHECK(at(json, "memory_limit_bytes") == "1048576000");
  CHECK(at(json, "step_error") == "0.09");
  const JsonArray others = json.at("alternatives", "plan").as_array("plan");
  REQUIRE(others.size() == 2);
  CHECK(at(others[0], "loses") == "\"+25.0 % (+250 ms): computation +250 ms\"");
  CHECK(at(others[1], "outside_profile") ==
        R"-(["dp 4 (measured 1 to 2)","hidden 64 (measured 128 to 256)"])-");
  CHECK(json.at("front", "plan").as_array("plan").size() == 4);
  Request by_rules = request;
  by_rules.method = Method::kPtdP;
  Found long_ones = four();
  long_ones.not_simulated = 3;
  const Json other = to_json(by_rules, long_ones, 3);
  CHECK(at(other, "planner") == "\"ptdp\"");
  CHECK(at(other, "not_simulated") == "3");
}
