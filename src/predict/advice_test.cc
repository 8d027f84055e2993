#include "predict/advice.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

namespace {

Request planned(const std::string& plan) {
  Request request = small();
  request.plan = compile::parse_plan(plan);
  return request;
}

std::string text_of(const Settings& settings) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : settings)
    parts.push_back(value == "true" ? key : key + "=" + value);
  return join(parts, ",");
}

std::string plans_tried(const Request& request) {
  std::vector<std::string> texts;
  for (const Settings& settings : plan_changes(request)) texts.push_back(text_of(settings));
  return join(texts, "; ");
}

std::string options_tried(const Request& request) {
  std::vector<std::string> names;
  for (const auto& [name, options] : option_changes(request)) names.push_back(name);
  return join(names, "; ");
}

AdviceReport advised(const Request& request, Trials trials) {
  const Step step = compile_step(request);
  return advise(request, mw::predict::predict(request, step), step, trials);
}

// The advice that `predict` of every change gives, best first.
std::vector<Advice> simulated(const Request& request, double step) {
  std::vector<Advice> all;
  const auto add = [&](const std::string& name, const Request& other) {
    try {
      const Prediction prediction = mw::predict::predict(other);
      const double gain = 1 - prediction.step.value / step;
      if (gain >= kLeastGain && prediction.too_full().empty())
        all.push_back({name, prediction.step, gain, prediction.needed()});
    } catch (const Error&) {  // such a plan cannot be
    }
  };
  for (const auto& [name, options] : option_changes(request)) {
    Request other = request;
    other.options = options;
    add(name, other);
  }
  for (const Settings& settings : plan_changes(request))
    add(text_of(settings), changed(request, settings));
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.step < b.step; });
  return all;
}

}  // namespace

TEST_CASE("neighbours of a plan differ in one or two keys and have as many devices") {
  struct Case {
    const char *plan, *changes;
  };
  for (const Case& c : std::vector<Case>{
           {"microbatches=2", "microbatches=4; microbatches=1"},
           {"microbatches=16", "microbatches=8"},
           {"dp=4,microbatches=4", "microbatches=2; zero=1; dp=2,pp=2"},
           {"dp=4,microbatches=4,zero=1", "microbatches=2; dp=2,pp=2"},
           {"dp=4,microbatches=4,zero=3", "microbatches=2; zero=1; dp=2,pp=2"},
           {"cp=2,microbatches=16", "microbatches=8; zero=1"},
           {"tp=3,microbatches=1", "microbatches=2; sp"},
           {"tp=4,sp,microbatches=16,recompute=full",
            "microbatches=8; regather; recompute=selective; recompute=selective,regather; "
            "recompute=none; recompute=none,regather; tp=2,pp=2; tp=2,dp=2"},
           {"tp=2,sp,regather,microbatches=16,recompute=selective",
            "microbatches=8; regather=false; recompute=none; tp=1,pp=2; tp=1,dp=2"},
           {"pp=4,microbatches=16",
            "microbatches=8; schedule=interleaved-1f1b,chunks=2; schedule=zb-h1; "
            "schedule=zb-v,chunks=2; post_validation; pp=2,tp=2; pp=2,dp=2"},
           {"pp=2,layers=3:1,microbatches=16",
            "microbatches=8; schedule=interleaved-1f1b,chunks=2; schedule=zb-h1; post_validation"},
           {"dp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=8",
            "microbatches=4; schedule=interleaved-1f1b,chunks=4; schedule=1f1b,chunks=1; "
            "schedule=interleaved-zb,chunks=2; schedule=zb-v,chunks=2; "
            "post_validation; zero=1; "
            "pp=1,tp=2; pp=1,dp=4; dp=1,pp=4"},
           {"pp=2,schedule=interleaved-1f1b,chunks=3,microbatches=16",
            "microbatches=8; schedule=interleaved-1f1b,chunks=6; schedule=interleaved-zb,chunks=3; "
            "schedule=zb-v,chunks=2; post_validation; "
            "pp=1,tp=2; pp=1,dp=2"},
           {"pp=2,schedule=zb-v,chunks=2,microbatches=16",
            "microbatches=8; post_validation; pp=1,tp=2; pp=1,dp=2"},
           {"pp=2,layers=1:1:1:1,schedule=looped-bfs,chunks=2,microbatches=16",
            "microbatches=8; schedule=looped-bfs,chunks=4; schedule=gpipe,chunks=1; "
            "schedule=zb-v,chunks=2; post_validation"},
           {"pp=2,schedule=zb-h1,microbatches=16",
            "microbatches=8; schedule=zb-v,chunks=2; post_validation; pp=1,tp=2; pp=1,dp=2"},
           {"pp=2,schedule=zb-h1,post_validation,microbatches=16",
            "microbatches=8; schedule=zb-v,chunks=2; pp=1,tp=2; pp=1,dp=2"},
           {"pp=2,schedule=pipedream-2bw,microbatches=16",
            "microbatches=8; schedule=zb-v,chunks=2; pp=1,tp=2; pp=1,dp=2"}}) {
    CAPTURE(std::string(c.plan));
    CHECK(plans_tried(planned(c.plan)) == c.changes);
  }
}

TEST_CASE("experts are tried over twice as many ranks and half as many") {
  Request request = planned("dp=4,zero=1,microbatches=2");
  request.model.mixture.experts = 6;
  const std::string others = "microbatches=4; microbatches=1; ";
  for (const auto& [ep, changes] :
       std::vector<std::pair<int64_t, std::string>>{{1, "ep=2; "}, {2, "ep=1; "}, {4, "ep=2; "}}) {
    request.plan.ep = ep;
    CHECK(plans_tried(request) == others + changes + "dp=2,pp=2");
  }
  request.plan.ep = 2;
  request.model.mixture.experts = 8;
  CHECK(plans_tried(request) == others + "ep=4; ep=1; dp=2,pp=2");
}

TEST_CASE("sequences that parts of them do not divide are tried longer") {
  Request request = planned("dp=2,tp=4,sp,microbatches=4,zero=1");
  const std::string others = plans_tried(request);
  request.seq_len = 61;
  const std::string padded = plans_tried(request);
  CHECK(padded == replace_all(others, "regather", "regather; seq_len=64"));
  const AdviceReport report = advised(request, Trials::kPlans);
  const auto longer = std::find_if(report.advice.begin(), report.advice.end(),
                                   [](const Advice& a) { return a.change == "seq_len=64"; });
  REQUIRE(longer != report.advice.end());
  Request whole = request;
  whole.seq_len = 64;
  CHECK(longer->step == mw::predict::predict(whole).step);
  request.plan.sp = false;
  CHECK(plans_tried(request).find("seq_len") == std::string::npos);
}

TEST_CASE("options are tried that the request does not have and the plan has a use for") {
  const std::string early = "--overlap grad_reduce,param_gather";
  for (const auto& [plan, words, changes] : std::vector<std::array<std::string, 3>>{
           {"microbatches=2", "none no-messages", ""},
           {"pp=2,microbatches=2", "none no-messages", "--overlap messages"},
           {"pp=2,microbatches=2", "none messages", ""},
           {"tp=2,microbatches=2", "none no-messages", "--overlap collectives"},
           {"tp=2,microbatches=2", "collectives no-messages", ""},
           {"dp=2,microbatches=2", "none", "--overlap collectives; " + early},
           {"cp=2,microbatches=2", "none", "--overlap collectives; --overlap no-ring; " + early},
           {"cp=2,microbatches=2", "none no-ring", "--overlap collectives; " + early},
           {"dp=2,microbatches=2", "collectives grad_reduce", early},
           {"dp=2,microbatches=2", "collectives param_gather", early},
           {"dp=2,microbatches=2", "collectives grad_reduce param_gather", ""},
           {"dp=2,microbatches=2", "collectives grad_reduce_idle param_gather", early},
           {"dp=2,zero=2,microbatches=2", "collectives no-weights", "--overlap weights; " + early},
           {"dp=2,zero=1,microbatches=2", "collectives no-weights", early},
           {"tp=2,pp=2,microbatches=2", "collectives messages", "--scatter-gather"},
           {"tp=2,pp=2,sp,microbatches=2", "collectives messages", ""},
           {"pp=2,microbatches=2", "collectives messages", ""},
           {"tp=2,microbatches=2", "collectives messages", ""}}) {
    CAPTURE(plan);
    CAPTURE(words);
    Request request = planned(plan);
    for (const std::string_view word : split(words, ' '))
      REQUIRE(simulate::set_overlap(request.options.overlap, word));
    CHECK(options_tried(request) == changes);
    for (const auto& [name, options] : option_changes(request)) {
      if (name == "--overlap messages") CHECK(options.overlap.messages);
      if (name == "--overlap collectives") CHECK(options.overlap.collectives);
      if (name == "--overlap no-ring") CHECK(!options.overlap.ring);
      if (name == "--overlap weights") CHECK(options.overlap.weights);
      if (name == "--scatter-gather") CHECK(options.scatter_gather);
      if (name != early) continue;
      CHECK(options.overlap.grad_reduce);
      CHECK(!options.overlap.grad_reduce_idle);
      CHECK(options.overlap.param_gather);
    }
  }
}

TEST_CASE("advice is what every change takes where it is simulated, if it fits") {
  for (const char* plan : {"dp=2,pp=2,microbatches=8,recompute=full", "tp=2,dp=2,microbatches=4"}) {
    CAPTURE(std::string(plan));
    Request request = planned(plan);
    const Prediction base = mw::predict::predict(request);
    const std::vector<Advice> unlimited = simulated(request, base.step.value);
    REQUIRE(unlimited.size() >= 2);
    // Not enough for all of it.
    Bytes most;
    for (const Advice& one : unlimited) most = std::max(most, one.peak);
    for (const Bytes memory : {request.cluster.device.memory, most - Bytes(1)}) {
      request.cluster.device.memory = memory;
      const std::vector<Advice> expected = simulated(request, base.step.value);
      const AdviceReport report = advised(request, Trials::kPlans);
      CHECK(report.tried ==
            static_cast<int64_t>(option_changes(request).size() + plan_changes(request).size()));
      CHECK(!report.shared);
      REQUIRE(report.advice.size() == expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        CHECK(report.advice[i].change == expected[i].change);
        CHECK(report.advice[i].step == expected[i].step);
        CHECK(report.advice[i].gain == expected[i].gain);
        CHECK(report.advice[i].peak == expected[i].peak);
      }
    }
    CHECK(simulated(request, base.step.value).size() < unlimited.size());
  }
}

TEST_CASE("no change is tried that the stack's engine does not run") {
  Request request = planned("dp=2,pp=2,microbatches=8");
  const int64_t all = advised(request, Trials::kPlans).tried;
  request.cluster.stack.lacking = {cluster::Lacking::kSplitBackward,
                                   cluster::Lacking::kInterleaved};
  int64_t lacked = 0;
  for (const Settings& settings : plan_changes(request)) {
    const std::string text = text_of(settings);
    if (text.find("zb-") != std::string::npos || text.find("chunks") != std::string::npos) ++lacked;
  }
  CHECK(lacked >= 2);
  CHECK(advised(request, Trials::kPlans).tried == all - lacked);
}

TEST_CASE("advice without plans tries options alone, and none nothing") {
  const Request request = planned("dp=2,pp=2,microbatches=8");
  const AdviceReport options = advised(request, Trials::kOptions), none = advised(request, {});
  CHECK(options.tried == static_cast<int64_t>(option_changes(request).size()));
  CHECK(options.trials == Trials::kOptions);
  CHECK(!options.bounds.empty());
  CHECK(none.tried == 0);
  CHECK(none.advice.empty());
  CHECK(none.bounds.empty());
  CHECK(sentences(none).empty());
}

TEST_CASE("a figure that is twice as good saves what its change does, the most first") {
  Request request = planned("dp=2,pp=2,microbatches=8");
  request.cluster.links[0].name = "nvlink";
  request.cluster.device.attained.launch = Seconds(2e-6);
  const double base = mw::predict::predict(request).step.value;
  const AdviceReport report = advised(request, Trials::kOptions);
  std::vector<std::string> figures;
  for (const Bound& bound : report.bounds) {
    figures.push_back(bound.figure);
    const Settings settings =
        bound.figure == "matrix peak"            ? Settings{{"matrix_peak", "2"}}
        : bound.figure == "memory bandwidth"     ? Settings{{"memory_bandwidth", "2"}}
        : bound.figure == "host and launch time" ? Settings{{"host_time", "0.5"}}
        : bound.figure == "link latency"         ? Settings{{"link_latency", "0.5"}}
                                                 : Settings{{"link_bandwidth.nvlink", "2"}};
    const double step = mw::predict::predict(changed(request, settings)).step.value;
    CHECK(bound.gain == mw::test::close_to(1 - step / base).epsilon(1e-12));
    CHECK(bound.gain >= 0);
  }
  CHECK(std::is_sorted(report.bounds.begin(), report.bounds.end(),
                       [](const Bound& a, const Bound& b) { return a.gain > b.gain; }));
  std::sort(figures.begin(), figures.end());
  CHECK(join(figures, ", ") ==
        "host and launch time, link latency, matrix peak, memory bandwidth, nvlink bandwidth");
}

TEST_CASE("the ranks of one memory are told together") {
  Request request = planned("dp=2,microbatches=2");
  request.cluster.cores = 2;
  CHECK(advised(request, {}).shared);
}

TEST_CASE("advice in words and as JSON") {
  AdviceReport report;
  report.trials = Trials::kPlans;
  report.tried = 7;
  report.advice = {{"microbatches=4", Seconds(0.5), 0.25, Bytes(1 << 30), "dp=2,microbatches=4"},
                   {"--overlap ring", Seconds(0.6), 0.1, Bytes(1 << 20), ""}};
  report.bounds = {{"matrix peak", 0.3}, {"link latency", 0.005}, {"x", 0.0049}};
  using Lines = std::vector<std::string>;
  CHECK(sentences(report) ==
        Lines{"microbatches=4: 500 ms, 25.0 % less (1.00 GiB on the fullest rank)",
              "--overlap ring: 600 ms, 10.0 % less (1.00 MiB on the fullest rank)",
              "twice as good a cluster would save: matrix peak 30.0 %, link latency 0.5 %"});
  CHECK(
      to_json(report).dump() ==
      R"({"tried":7,"changes":[{"change":"microbatches=4","step_s":0.5,"gain":0.25,"plan":"dp=2,microbatches=4","memory_needed_bytes":1073741824},{"change":"--overlap ring","step_s":0.6,"gain":0.1,"memory_needed_bytes":1048576}],"twice_as_good":[{"figure":"matrix peak","gain":0.3},{"figure":"link latency","gain":0.005},{"figure":"x","gain":0.0049}]})");
  report.shared = true;
  CHECK(sentences(report)[0] == "microbatches=4: 500 ms, 25.0 % less (1.00 GiB of all ranks)");
  report.advice.clear();
  report.bounds.clear();
  const auto nothing = [&](int64_t tried, Trials trials) {
    report.tried = tried;
    report.trials = trials;
    return sentences(report);
  };
  CHECK(nothing(7, Trials::kPlans) ==
        Lines{"none of 7 changes that were tried saves 0.5 % or more and fits"});
  CHECK(nothing(1, Trials::kPlans) ==
        Lines{"the one change that was tried saves less than 0.5 %, or does not fit"});
  CHECK(nothing(0, Trials::kPlans) == Lines{"there are no changes to try"});
  const std::string hint = "these are options; --advice plans tries neighbours of the plan too";
  CHECK(nothing(1, Trials::kOptions).back() == hint);
  CHECK(nothing(0, Trials::kOptions) ==
        Lines{"there are no options to try", "--advice plans tries neighbours of the plan"});
  CHECK(nothing(0, Trials::kNone).empty());
}
