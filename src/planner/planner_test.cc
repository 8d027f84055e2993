#include "planner/planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/divisors.h"
#include "base/error.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "pipeline/schedule.h"
#include "planner/search.h"
#include "planner/simulated.h"
#include "planner/space.h"
#include "planner/test_small.h"
#include "predict/coarse.h"

using namespace mw;
using namespace mw::planner;
using namespace mw::planner::test;

namespace {

struct Timed {
  Seconds step;
  Bytes peak;
};

// Every plan of the space that fits, under the event simulation.
std::vector<Timed> time_all(const Request& request) {
  std::vector<Timed> all;
  for (const Layout& layout : layouts(request, request.gpus)) {
    for (compile::Plan plan : layout_plans(request, layout)) {
      for (const Pipelining& pipelining : pipelinings(request, plan)) {
        lay(pipelining, plan);
        predict::Request one = request.base;
        one.plan = plan;
        try {
          const predict::Prediction prediction = predict::predict(one);
          if (!prediction.too_full().empty()) continue;
          all.push_back({prediction.step, prediction.needed()});
        } catch (const Error&) {  // a schedule that does not take these microbatches or chunks
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("the exhaustive planner finds what simulating every plan finds") {
  for (const Request& request : {small(1), small(2), small(4), small_uneven(2), small_mixture(2),
                                 small_torch(2), small_nodes(6)}) {
    CAPTURE(request.base.model.source);
    CAPTURE(request.base.model.layers);
    CAPTURE(request.gpus);
    const Found found = search(request);
    REQUIRE(!found.plans.empty());
    const std::vector<Timed> all = time_all(request);
    const Timed& best = *std::min_element(
        all.begin(), all.end(), [](const Timed& a, const Timed& b) { return a.step < b.step; });
    CHECK(found.plans.front().step == best.step);
    // For each plan one of the front is as fast and needs as little memory: to a tenth of the
    // memory, and to the coarse estimate's error in both (docs/planner.md).
    const double off = memory_slack(request) + 0.01;
    for (const Timed& timed : all) {
      if (timed.step.value > 1.45 * best.step.value) continue;
      CHECK(std::any_of(found.front.begin(), found.front.end(), [&](size_t i) {
        const Candidate& here = found.plans[i];
        return here.step.value <= 1.04 * timed.step.value &&
               static_cast<double>(here.needed.value) <=
                   off / 0.9 * static_cast<double>(timed.peak.value);
      }));
    }
  }
}

TEST_CASE("stages with a block less, and parts of dp for experts, are in the space") {
  std::set<std::pair<int64_t, int64_t>> depths;  // pp, chunks
  const Request uneven = small_uneven(8);
  for (const Layout& layout : layouts(uneven, 8)) {
    compile::Plan plan;
    plan.pp = layout.pp;
    for (const Pipelining& pipelining : pipelinings(uneven, plan))
      depths.emplace(layout.pp, pipelining.chunks);
  }
  CHECK(depths == std::set<std::pair<int64_t, int64_t>>{
                      {1, 1}, {2, 1}, {2, 2}, {2, 3}, {4, 1}, {4, 2}});  // not 12 stages, nor pp=8
  std::set<std::pair<int64_t, int64_t>> experts;                         // dp, ep
  const Request mixture = small_mixture(8);
  for (const Layout& layout : layouts(mixture, 8)) {
    for (const compile::Plan& plan : layout_plans(mixture, layout))
      experts.emplace(plan.dp, plan.ep);
  }
  CHECK(experts == std::set<std::pair<int64_t, int64_t>>{
                       {1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}});
}

TEST_CASE("a search looks at what --only takes, and finds the fastest of that") {
  Diagnostics diagnostics;
  const auto with = [&](Request request, const std::vector<std::string>& only) {
    request.only = parse_only(only, diagnostics);
    return request;
  };
  const Request request =
      with(small(4), {"tp=1,2", "zero=2,3", "schedule=gpipe,zb-h1", "recompute=full", "sp=off"});
  CHECK(to_string(request.only) == "sp=off tp=1,2 zero=2,3 recompute=full schedule=gpipe,zb-h1");
  const Found found = search(request);
  REQUIRE(!found.plans.empty());
  for (const Candidate& here : found.plans) {
    CAPTURE(compile::short_form(here.plan));
    CHECK(here.plan.tp <= 2);
    CHECK(here.plan.recompute == compile::Recompute::kFull);
    CHECK(!here.plan.sp);
    if (here.plan.dp > 1) CHECK(here.plan.zero >= 2);
    if (here.plan.pp > 1) CHECK((here.plan.schedule == "gpipe" || here.plan.schedule == "zb-h1"));
  }
  const std::vector<Timed> all = time_all(request);
  CHECK(found.plans.front().step ==
        std::min_element(all.begin(), all.end(), [](const Timed& a, const Timed& b) {
          return a.step < b.step;
        })->step);
  CHECK(search(small(4)).plans.front().step <= found.plans.front().step);
  CHECK(search(with(small_mixture(4), {"ep=4"})).plans.front().plan.ep == 4);
  CHECK(search(with(small(4), {"pp=2", "chunks=2", "microbatches=8"})).plans.front().plan.chunks ==
        2);
  CHECK(diagnostics.findings().empty());
  CHECK(message_of(with(small(4), {"tp=3"})) ==
        "--gpus: no plan with tp=3 has 4 ranks: tp must divide the 4 heads, pp the 4 layers or up "
        "to a quarter more, and dp the global batch of 8; use another batch or --only");
  CHECK(message_of(with(small(4), {"pp=2", "chunks=3"})) ==
        "--only: no plan of 4 ranks has chunks=3 pp=2");
  CHECK(message_of(with(small(4), {"pp=2", "chunks=2", "schedule=1f1b"})) ==
        "--only: no plan of 4 ranks has chunks=2 pp=2 schedule=1f1b: no schedule of these takes "
        "such chunks and microbatches");
  CHECK(message_of(with(small(4), {"pp=4", "microbatches=1", "schedule=dualpipe"})) ==
        "--only: no plan of 4 ranks has microbatches=1 pp=4 schedule=dualpipe: no schedule of "
        "these takes such chunks and microbatches");
  // What is needed at the least is told where no schedule that is taken fits.
  const std::string full = message_of(with(small(2, 0.0018), {"schedule=gpipe"}));
  CAPTURE(full);
  CHECK(full.find("the fullest rank needs at least ") != std::string::npos);
  CHECK(full.find("at least 0 B") == std::string::npos);
  const std::string chunked = message_of(with(small(2, 0.0018), {"pp=2", "chunks=2"}));
  CAPTURE(chunked);
  CHECK(chunked.find("the fullest rank needs at least ") != std::string::npos);
  CHECK(chunked.find("at least 0 B") == std::string::npos);
  // The least that would do has them too.
  CHECK(message_of(with(small(1, 0.0018), {"tp=1", "dp=1"}))
            .find("; the least that would do is 4 devices, with dp=1,tp=1,pp=4") !=
        std::string::npos);
}

TEST_CASE("what --only is not") {
  Diagnostics diagnostics;
  const Only only = parse_only({"tp", "pq=1", "tp=0", "zero=4", "sp=1", "recompute=all",
                                "schedule=1f2b", "tp=2", "sp=on,tp=2", "dp=4,pp=2"},
                               diagnostics);
  CHECK(diagnostics.findings() ==
        std::vector<std::string>{
            "--only: must be KEY=VALUE,VALUE… such as tp=1,2,4,8, is 'tp'",
            "--only: there is no key 'pq', did you mean 'pp'?; there are tp, pp, dp, ep, chunks, "
            "microbatches, zero, sp, recompute, schedule",
            "--only tp: must be a whole number from 1 on, is '0'",
            "--only zero: must be a whole number from 0 to 3, is '4'",
            "--only sp: must be on or off, is '1'",
            "--only recompute: must be none, selective, selective-op or full, is 'all'",
            "--only schedule: there is no '1f2b', did you mean '1f1b'?; known are " +
                join(pipeline::schedule_kinds(), ", "),
            "--only tp: is there twice", "--only sp: is there twice",
            "--only dp: must be a whole number from 1 on, is 'pp=2'; give --only pp=2 for itself"});
  // Nor are keys with such values in what is said of the space.
  CHECK(to_string(only) == "");
}

TEST_CASE("schedules with replicas and with slices are in the space") {
  Request request = small(2);
  request.simulated = 100000;
  std::set<std::string> schedules;
  for (const Candidate& candidate : search(request).plans)
    schedules.insert(candidate.plan.schedule);
  for (const char* kind : {"1f1b", "chimera", "dualpipe", "dualpipe-v", "seq-1f1b", "zb-v"}) {
    CAPTURE(kind);
    CHECK(schedules.contains(kind));
  }
}

TEST_CASE("plans are sorted, fit, and the front falls in memory") {
  const Request request = small(8);
  const Found found = search(request);
  CHECK(found.candidates > 500);
  for (size_t i = 0; i < found.plans.size(); ++i) {
    const Candidate& here = found.plans[i];
    CHECK(here.needed <= found.memory_limit);
    CHECK(here.plan.ranks() == 8);
    if (i > 0) CHECK(found.plans[i - 1].step <= here.step);
    double sum = 0;
    for (const auto& [name, seconds] : here.seconds) sum += seconds;
    CHECK(sum == mw::test::close_to(here.step.value).epsilon(1e-3));
  }
  for (size_t i = 1; i < found.front.size(); ++i) {
    CHECK(found.plans[found.front[i]].needed < found.plans[found.front[i - 1]].needed);
  }
  CHECK(found.front.front() == 0);
}

TEST_CASE("of plans with one step the one with the least memory is the best") {
  const auto candidate = [](double step, int64_t bytes) {
    Candidate made;
    made.step = Seconds(step);
    made.needed = Bytes(bytes);
    return made;
  };
  const Simulated simulated = {candidate(2, 30), candidate(1, 60), std::nullopt, candidate(1, 50),
                               candidate(2, 20)};
  Found found;
  add_fitting(simulated, found);
  std::vector<int64_t> needed;
  for (const Candidate& one : found.plans) needed.push_back(one.needed.value);
  CHECK(needed == std::vector<int64_t>{50, 60, 20, 30});
  CHECK(found.front == std::vector<size_t>{0, 2});  // no other is as fast with as little memory
}

TEST_CASE("sequence parallelism may save what it gathers") {
  Request request = small(4);
  request.simulated = 100000;
  const Found found = search(request);
  int64_t saved = 0;
  for (const Candidate& here : found.plans) {
    if (!here.plan.regather) continue;
    const auto twin = std::find_if(found.plans.begin(), found.plans.end(), [&](const auto& other) {
      compile::Plan plan = other.plan;
      plan.regather = true;
      return !other.plan.regather && plan == here.plan;
    });
    REQUIRE(twin != found.plans.end());
    CHECK(twin->step <= here.step);
    CHECK(twin->needed >= here.needed);
    ++saved;
  }
  CHECK(saved > 0);
}

TEST_CASE("what a plan loses and gains adds up to the difference") {
  const auto taking = [](std::map<std::string, double> seconds) {
    Candidate made;
    for (const auto& [name, value] : seconds) made.step += Seconds(value);
    made.seconds = std::move(seconds);
    return made;
  };
  const Candidate best = taking({{"computation", 8}, {"bubble", 1.5}, {"exposed tp", 0.5}});
  CHECK(loss(best, taking({{"computation", 8}, {"bubble", 0.25}, {"exposed dp", 2.25}})) ==
        "+5.0 % (+500 ms): exposed dp +2.25 s, exposed tp -500 ms, bubble -1.25 s");
  CHECK(loss(best, taking({{"computation", 9.96},
                           {"bubble", 1.54},
                           {"exposed tp", 0.46},
                           {"host gaps", 0.06}})) ==
        "+20.2 % (+2.02 s): computation +1.96 s, the rest +60.0 ms");
  CHECK(loss(best, best) == "equal");
}

TEST_CASE("the same request gives the same plans, whatever the threads") {
  Request request = small(4);
  const Found two = search(request);
  request.threads = 1;
  const Found one = search(request);
  REQUIRE(one.plans.size() == two.plans.size());
  for (size_t i = 0; i < one.plans.size(); ++i) CHECK(one.plans[i].plan == two.plans[i].plan);
}

TEST_CASE("the rules of PTD-P name themselves") {
  Request request = small(4);
  request.method = Method::kPtdP;
  const Found found = search(request);
  REQUIRE(!found.plans.empty());
  REQUIRE(found.choices.size() >= 5);
  CHECK(found.choices[0].what == "tp=1");
  CHECK(found.choices[2].rule ==
        "takeaway 2: 1 is the least tp*pp that fits; data parallelism for the other devices");
  request.method = Method::kExhaustive;
  CHECK(search(request).plans.front().step <= found.plans.front().step);
}

TEST_CASE("ranks that are threads of one machine are one node to the rules of PTD-P") {
  Request request = small(16);
  request.method = Method::kPtdP;
  request.base.global_batch = 3;  // no data parallelism, and 8 layers have no 16 stages
  request.base.cluster.cores = 4;
  request.base.cluster.links[0].devices = 0;
  const Found found = search(request);
  REQUIRE(!found.plans.empty());
  CHECK(found.plans.front().plan.tp > 1);
}

TEST_CASE("sequences may be as long as positions go") {
  Request request = small(4);
  request.base.model.max_positions = request.base.seq_len = 1 << 19;
  request.base.global_batch = 4;
  request.base.cluster.device.memory = Bytes(int64_t{1} << 46);
  CHECK(!search(request).plans.empty());
}

TEST_CASE("the plans of the space are those that their schedules take") {
  for (const int64_t gpus : {2, 4}) {
    Request request = small(gpus);
    request.simulated = 1;  // one plan at most is tried without regather
    predict::Coarse coarse(request.base);
    int64_t plans = 0;
    for (const Layout& layout : layouts(request, gpus)) {
      for (compile::Plan plan : layout_plans(request, layout)) {
        for (const Pipelining& pipelining : pipelinings(request, plan)) {
          lay(pipelining, plan);
          CAPTURE(compile::short_form(plan));
          CHECK(coarse.takes_order(plan) == coarse.has_order(plan));
          plans += coarse.has_order(plan) ? 1 : 0;
        }
      }
    }
    const int64_t found = search(request).candidates;
    CHECK(found >= plans);
    CHECK(found <= plans + 1);
  }
}

TEST_CASE("the rules of PTD-P count the plans that they look at") {
  Request request = small(1);
  request.method = Method::kPtdP;
  request.base.global_batch = 4;  // one device: microbatches of 1, 2 and 4 sequences
  CHECK(search(request).candidates == 3);
}

TEST_CASE("the rules of PTD-P take the fastest microbatch that fits") {
  Request request = small(1);
  request.method = Method::kPtdP;
  request.base.global_batch = 16;
  const auto simulated = [&](int64_t microbatches) {
    predict::Request one = request.base;
    one.plan = {};
    one.plan.microbatches = microbatches;
    return predict::predict(one);
  };
  const double largest = static_cast<double>(simulated(1).needed().value);
  for (const double memory : {2.0, 0.8, 0.6}) {  // of what one microbatch of all 16 needs
    CAPTURE(memory);
    request.base.cluster.device.memory = Bytes(static_cast<int64_t>(memory * largest));
    const compile::Plan plan = search(request).plans.front().plan;
    CHECK(plan.recompute == compile::Recompute::kNone);
    CHECK((plan.microbatches == 1) == (memory > 1));
    const Seconds step = simulated(plan.microbatches).step;
    for (const int64_t microbatches : divisors(16)) {
      const predict::Prediction other = simulated(microbatches);
      if (other.too_full().empty()) CHECK(step <= other.step);
    }
  }
}

TEST_CASE("the rules of PTD-P take what heads and batch leave, and say so") {
  Request request = small(8);  // nodes of 4, of which 2 heads can take 2
  request.method = Method::kPtdP;
  request.base.cluster.links.push_back(request.base.cluster.links.front());
  request.base.cluster.links.front().devices = 4;
  request.base.model.heads = request.base.model.kv_heads = 2;
  request.base.global_batch = 1;
  const Found found = search(request);
  REQUIRE(found.choices.size() >= 5);
  CHECK(found.choices[0].what == "tp=2");
  CHECK(found.choices[0].rule ==
        "takeaway 1: tensor parallelism inside a node of 4 devices, as far as it divides the 2 "
        "heads and 8 devices");
  CHECK(found.choices[1].what == "pp=4");
  CHECK(found.choices[1].rule ==
        "takeaway 1: pipeline parallelism for the devices that data parallelism cannot take");
  CHECK(found.choices[2].rule ==
        "takeaway 2: 8 is the least tp*pp that 8 devices and a global batch of 1 leave; data "
        "parallelism for the other devices");
}

TEST_CASE("ranks that share a memory fit together or not at all") {
  Request request = small(4);
  const Found apart = search(request);
  CHECK(!apart.shared);
  CHECK(apart.plans.front().needed ==
        *std::max_element(apart.plans.front().peak.begin(), apart.plans.front().peak.end()));

  request.base.cluster.cores = 4;
  const Found all = search(request);
  CHECK(all.shared);
  for (const Candidate& here : all.plans) {
    Bytes sum;
    for (const Bytes peak : here.peak) sum += peak;
    CHECK(here.needed.value == sum.value * 4 / static_cast<int64_t>(here.peak.size()));
  }
  // Enough for one, not for four.
  Request one = request;
  one.gpus = 1;
  Bytes least = request.base.cluster.device.memory;
  for (const Candidate& here : search(one).plans) least = std::min(least, here.needed);
  request.base.cluster.device.memory = Bytes(least.value * 11 / 10);
  const std::string message = message_of(request);
  CAPTURE(message);
  CHECK(message.find("does not fit on 4 devices of box: the ranks need at least ") !=
        std::string::npos);
  CHECK(message.find(" would do, with dp=") != std::string::npos);
}

TEST_CASE("the rules of PTD-P interleave where that is faster and fits") {
  Request request = small(8);  // without a node: what does not fit on a device is in a pipeline
  request.method = Method::kPtdP;
  request.base.model.layers = 8;
  request.base.global_batch = 32;
  const auto simulated = [&](const char* plan) {
    predict::Request one = request.base;
    one.plan = compile::parse_plan(plan);
    return predict::predict(one);
  };
  const predict::Prediction usual = simulated("dp=2,pp=4,microbatches=8"),
                            chunks = simulated(
                                "dp=2,pp=4,schedule=interleaved-1f1b,chunks=2,microbatches=8");
  REQUIRE(chunks.step < usual.step);
  request.base.cluster.device.memory =
      Bytes(std::max(usual.needed(), chunks.needed()).value * 11 / 10);
  const Candidate best = search(request).plans.front();
  CAPTURE(short_form(best.plan));
  CHECK(best.plan.chunks > 1);
  predict::Request other = request.base;
  other.plan = best.plan;
  other.plan.schedule = pipeline::kUsualKind;
  other.plan.chunks = 1;
  CHECK(best.step < predict::predict(other).step);
}

TEST_CASE("the rules take no more units of work than a plan may have") {
  Request request = small(3);  // three stages: nothing else has three ranks
  request.base.model.layers = 3;
  request.base.global_batch = 1 << 20;
  request.method = Method::kPtdP;
  const Found found = search(request);
  CHECK(found.plans.front().plan.pp == 3);
  CHECK(found.candidates == 9);  // 2^16 microbatches to 2^8, of 2^12 sequences: too many
}
