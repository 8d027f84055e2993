// Every schedule on a communicator that is worse than any real one: a message moves only in its
// receive, slots are two memories and filled with NaNs when they are free, and every operation
// starts after a random delay. The results' bits must not change.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "pipeline/schedule.h"
#include "small_training.h"

namespace mw {
namespace {

bool everything() {
  const char* all = std::getenv("MESHWRIGHT_TEST_ALL");
  return all != nullptr && std::string(all) == "1";
}

// Whether a plan's sums have another order than the base plan's (contract 9 of layout-invariance).
bool changes_rounding(const std::string& plan) {
  const pipeline::ScheduleNeeds needs = pipeline::needs(
      pipeline::make_schedule(compile::schedule_request(compile::parse_plan(plan))));
  return needs.reversed || needs.replicas || needs.slices;
}

const std::vector<std::string> kFeatures = {"", ",dp=2,zero=1", ",tp=2,sp,recompute=selective",
                                            ",dp=2,zero=3,recompute=full", ",dp=2,zero=2"};

// The plans of a kind that the compiler takes, each with the next feature of the list.
std::vector<std::string> plans_of(const std::string& kind) {
  static size_t next = 0;
  std::vector<std::string> plans;
  for (const char* shape :
       {"pp=2,microbatches=4", "pp=2,chunks=2,microbatches=4", "pp=4,microbatches=4",
        "pp=4,microbatches=8", "pp=2,microbatches=4,post_validation"}) {
    const std::string plan = fmt::format("{},schedule={}", shape, kind);
    const std::string feature =
        plan.find("microbatches=8") == std::string::npos ? kFeatures[next % kFeatures.size()] : "";
    const auto compiles = [](const std::string& text) {
      try {
        SmallTraining made(text);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    if (compiles(plan + feature)) {
      ++next;
      plans.push_back(plan + feature);
    } else if (!feature.empty() && compiles(plan)) {
      plans.push_back(plan);
    }
  }
  return plans;
}

execute::ExecutorOptions harsh(uint64_t seed, comm::Sends sends = comm::Sends::kRendezvous) {
  execute::ExecutorOptions options;
  options.stall_seconds = 30;
  options.world.sends = sends;
  options.world.copying = true;
  options.world.delay_seed = seed;
  options.world.max_delay = Seconds(100e-6);
  return options;
}

TEST_CASE("every schedule gives the same bits under rendezvous sends and random delays") {
  const uint64_t seeds = everything() ? 8 : 1;
  std::map<std::string, Trained> bases;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const std::vector<std::string> plans = plans_of(kind);
    CAPTURE(kind);
    CHECK(!plans.empty());
    for (const std::string& plan : plans) {
      CAPTURE(plan);
      const std::string base = short_form(compile::base_plan(compile::parse_plan(plan)));
      if (!bases.contains(base)) bases[base] = train(base);
      const Trained calm = train(plan);
      for (size_t i = 0; i < calm.losses.size(); ++i) {
        if (changes_rounding(plan)) {
          CHECK(calm.losses[i] == mw::test::close_to(bases[base].losses[i]).epsilon(1e-6));
        } else {
          CHECK(calm.losses[i] == bases[base].losses[i]);
          CHECK(calm.norms[i] == bases[base].norms[i]);
        }
      }
      for (uint64_t seed = 1; seed <= seeds; ++seed) {
        CAPTURE(seed);
        const Trained shaken = train(plan, harsh(seed));
        CHECK(shaken.losses == calm.losses);
        CHECK(shaken.norms == calm.norms);
        CHECK(shaken.states == calm.states);
      }
    }
  }
}

// What was sent before a step is amended is dropped, wherever the ranks are then.
TEST_CASE("with post-validation steps that are amended now and then have the same bits") {
  constexpr int kSteps = 4;
  std::vector<float> norms = train("dp=1,microbatches=4", {}, 0, kSteps).norms;
  std::sort(norms.begin(), norms.end());
  // Below all norms, between them, above: all steps are amended, some, none.
  for (const double max_norm : {0.5 * norms.front(), 0.5 * (norms[1] + norms[2]), 2.0 * norms[3]}) {
    CAPTURE(max_norm);
    for (const char* plan :
         {"pp=4,microbatches=8,schedule=zb-h2", "pp=4,microbatches=4,schedule=1f1b",
          "pp=2,chunks=2,microbatches=4,schedule=zb-v,dp=2,zero=1",
          "pp=2,microbatches=4,schedule=gpipe,tp=2,sp,recompute=full",
          "pp=2,chunks=2,microbatches=4,schedule=v-half,zero=3,dp=2",
          "pp=4,microbatches=8,schedule=dualpipe"}) {
      CAPTURE(plan);
      const Trained without = train(plan, {}, max_norm, kSteps);
      for (uint64_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        const Trained with =
            train(plan + std::string(",post_validation"),
                  seed == 0 ? execute::ExecutorOptions{} : harsh(seed), max_norm, kSteps);
        CHECK(with.norms == without.norms);
        CHECK(with.losses == without.losses);
      }
    }
  }
}

TEST_CASE(
    "gpipe runs even where a send waits for its receive; 1f1b does not, and the stall is named") {
  const std::string plan = "pp=2,microbatches=4,schedule=";
  CHECK(train(plan + "gpipe", harsh(1, comm::Sends::kBlocking)).losses ==
        train(plan + "gpipe").losses);
  execute::ExecutorOptions options = harsh(1, comm::Sends::kBlocking);
  options.stall_seconds = 1;
  try {
    train(plan + "1f1b", options);
    FAIL("no stall");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("rank 0 waits") != std::string::npos);
    CHECK(text.find("for rank 1 to receive message") != std::string::npos);
    CHECK(text.find("for rank 0 to receive message 0") != std::string::npos);
  }
}

TEST_CASE("gpipe, 1f1b and interleaved 1f1b have plans in that test") {
  for (const char* kind : {"gpipe", "1f1b", "interleaved-1f1b"}) {
    CAPTURE(kind);
    CHECK(plans_of(kind).size() >= 3);
  }
}

}  // namespace
}  // namespace mw
