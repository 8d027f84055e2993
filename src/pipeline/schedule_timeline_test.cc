// Times of small schedules, counted by hand.
#include "pipeline/schedule_timeline.h"

#include <doctest/doctest.h>

#include "base/test_close_to.h"

using namespace mw;
using namespace mw::pipeline;
using mw::test::close_to;

namespace {

Action action(ActionKind kind, int32_t stage, int32_t microbatch, int32_t paired_with = -1) {
  Action made;
  made.kind = kind;
  made.stage = StageId(stage);
  made.first = microbatch;
  made.paired_with = paired_with;
  return made;
}
constexpr ActionKind kF = ActionKind::kF, kB = ActionKind::kB;

// Four microbatches on four ranks, F of 1 and B of 2: 16 long. The last backward of the stages 0 to
// 3 ends at 16, 14, 12 and 9 on both of their ranks, the inner ranks' work at 14.
Schedule chimera(GradientSync sync) {
  ScheduleRequest request{.kind = "chimera", .ranks = 4, .microbatches = 4};
  request.sync = sync;
  return make_schedule(request);
}

}  // namespace

TEST_CASE("what stays on its rank takes no time to get there") {
  Schedule folded;
  folded.placement = {.ranks = 2, .rank_of_stage = {0, 1, 1, 0}};
  folded.ranks = {{action(kF, 0, 0), action(kF, 3, 0), action(kB, 3, 0), action(kB, 0, 0)},
                  {action(kF, 1, 0), action(kF, 2, 0), action(kB, 2, 0), action(kB, 1, 0)}};
  REQUIRE(findings(folded).empty());
  const Timeline times = timeline(folded, {.comm = 10});
  CHECK(times.makespan == 4 * 1 + 4 * 2 + 4 * 10);
  CHECK(times.times[1][1].start == times.times[1][0].end);
  CHECK(times.times[0][2].start == times.times[0][1].end);
}

TEST_CASE("a pair takes its own time, once") {
  Schedule schedule;
  schedule.placement = {.ranks = 2, .rank_of_stage = {0, 1}};
  schedule.microbatches = 2;
  schedule.ranks = {{action(kF, 0, 0), action(kF, 0, 1, 2), action(kB, 0, 0, 1), action(kB, 0, 1)},
                    {action(kF, 1, 0), action(kB, 1, 0), action(kF, 1, 1), action(kB, 1, 1)}};
  REQUIRE(findings(schedule).empty());
  struct Case {
    double pair, makespan;
  };
  for (const Case& c : {Case{-1, 6}, Case{2, 5}, Case{0, 3}}) {
    // The second rank's work takes no time, so that the first is the makespan.
    const ScheduleCosts costs{.f = {1, 0}, .b = {1, 0}, .w = {1, 0}, .pair = c.pair};
    for (const int32_t parts : {1, 2}) {  // of a microbatch that an action is one of
      schedule.parts = parts;
      const Timeline times = timeline(schedule, costs);
      CHECK(times.makespan == c.makespan / parts);
      CHECK(times.bubble == close_to(0.5));
      CHECK(times.times[0][1].end == times.times[0][2].end);
    }
  }
}

TEST_CASE("a pair is one in every step, where steps run into each other") {
  Schedule schedule;
  schedule.placement = {.ranks = 1, .rank_of_stage = {0}};
  schedule.microbatches = 2;
  schedule.post_validation = true;
  schedule.ranks = {{action(kF, 0, 0), action(kF, 0, 1, 2), action(kB, 0, 0, 1), action(kB, 0, 1)}};
  REQUIRE(findings(schedule).empty());
  CHECK(timeline(schedule, {.pair = 2}).period == 1 + 2 + 2);
}

TEST_CASE("of a pair the forward holds its activations before the backward gives up its own") {
  for (const bool forward_first : {false, true}) {
    Schedule schedule;
    schedule.placement = {.ranks = 1, .rank_of_stage = {0}};
    schedule.microbatches = 2;
    schedule.ranks = {
        {action(kF, 0, 0), action(kB, 0, 0, 2), action(kF, 0, 1, 1), action(kB, 0, 1)}};
    if (forward_first) {
      schedule.ranks[0][1] = action(kF, 0, 1, 2);
      schedule.ranks[0][2] = action(kB, 0, 0, 1);
    }
    REQUIRE(findings(schedule).empty());
    CHECK(timeline(schedule, {}).peak_activations[0] == 2);
  }
}

TEST_CASE("sums of replicas begin when both ranks have come to them, one after the other") {
  struct Case {
    GradientSync sync;
    std::vector<double> starts;  // [stage]
    double makespan;
  };
  const std::vector<Case> cases = {
      // Behind all work: of two that could begin the earlier stage's.
      {GradientSync::kEnd, {16, 14, 17, 19}, 22},
      {GradientSync::kEager, {16, 15, 12, 9}, 19},
      // The inner ranks do not wait behind the last backward of stage 2.
      {GradientSync::kEagerOpt, {16, 14, 17, 9}, 20},
  };
  for (const Case& c : cases) {
    const Timeline times = timeline(chimera(c.sync), {.sync = 3});
    CHECK(times.makespan == c.makespan);
    size_t found = 0;
    for (const auto& of_rank : times.syncs) {
      for (const SyncTime& sync : of_rank) {
        CHECK(sync.start == c.starts[sync.stage.index()]);
        CHECK(sync.end == sync.start + 3);
        ++found;
      }
    }
    CHECK(found == 8);
  }
}

TEST_CASE("a replica without work is not waited for") {
  // The only microbatch goes down the ranks and ends on stage s at 4 + 2 (4 - s).
  ScheduleRequest request{.kind = "chimera", .ranks = 4, .microbatches = 1};
  for (const GradientSync sync : {GradientSync::kEager, GradientSync::kEagerOpt}) {
    request.sync = sync;
    const Timeline times = timeline(make_schedule(request), {.sync = .5});
    for (const auto& of_rank : times.syncs) {
      CHECK(of_rank.size() == 2);
      for (const SyncTime& sum : of_rank) CHECK(sum.start == 12 - 2 * sum.stage.value);
    }
    CHECK(times.makespan == 12.5);
  }
}

TEST_CASE("a step that does not wait for the others still waits for its rank's sums") {
  // 9 to 19 and 19 to 29 on the outer ranks; 12 to 22 and 22 to 32 on the inner ones, which begin
  // at 1.
  Schedule schedule = chimera(GradientSync::kEager);
  schedule.post_validation = true;
  const Timeline times = timeline(schedule, {.sync = 10});
  CHECK(times.makespan == 32);
  CHECK(times.span_bubble == close_to(1 - 12. / 31));
  CHECK(times.period == 31);
  CHECK(times.period_bubble == close_to(1 - 12. / 31));
}

// 1F1B's ranks wait for the last backward, ZB-H2's for nothing: (p - 1) (f + b) and no time beyond
// the work.
TEST_CASE("steps that run into each other are as far apart as a rank's own time in one of them") {
  const ScheduleCosts uneven{.f = {1}, .b = {1.25}, .w = {.5}};
  for (int32_t p = 1; p <= 6; ++p) {
    for (int32_t m = 2 * p - 1; m <= 3 * p + 1; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const auto period = [&](const char* kind, const ScheduleCosts& costs) {
        const Timeline times = timeline(
            make_schedule({.kind = kind, .ranks = p, .microbatches = m, .post_validation = true}),
            costs);
        CHECK(times.period_bubble ==
              close_to(1 - m * (costs.f[0] + costs.b[0] + costs.w[0]) / times.period));
        return times.period;
      };
      CHECK(period("1f1b", uneven) == close_to((m + p - 1) * 2.75));
      CHECK(period("zb-h2", {}) == 3 * m);
    }
  }
}

TEST_CASE("where steps take turns in their lengths, the period is their mean") {
  // As one order of many steps has it: two steps of 72.55 and 73.15, and one whose ranks are in
  // step only after some.
  const auto period = [](int32_t p, int32_t m, int32_t pairs, const ScheduleCosts& costs) {
    const Schedule schedule = make_schedule({.kind = "chimera-doubling",
                                             .ranks = p,
                                             .microbatches = m,
                                             .pairs = pairs,
                                             .post_validation = true});
    return timeline(schedule, costs).period;
  };
  CHECK(period(8, 11, 2,
               {.b = {3, 0.5, 1, 0.5, 2, 2, 1.7, 1.7},
                .w = {1, 1.25, 3, 1, 1, 1, 1.7, 1},
                .comm = 1}) == close_to((72.55 + 73.15) / 2));
  CHECK(period(4, 9, 1, {.b = {2, 2, 2, 3}, .w = {2, 1.7, 1, 1.3}, .comm = 3}) == close_to(83.4));
}

TEST_CASE("costs that are no times are said") {
  using List = std::vector<std::string>;
  CHECK(findings(ScheduleCosts{.f = {2e12}}, 4) ==
        List{"costs: f=2000000000000 must be a number of at least 0 and at most 1000000000000"});
  const auto below = [](const char* name) {
    return List{std::string(name) + "=-1 must be a number of at least 0 and at most 1000000000000"};
  };
  CHECK(findings(ScheduleCosts{.f = {1, 1, 1, -1}}, 4) == below("costs: f"));
  CHECK(findings(ScheduleCosts{.b = {-1}}, 4) == below("costs: b"));
  CHECK(findings(ScheduleCosts{.w = {-1}}, 4) == below("costs: w"));
  CHECK(findings(ScheduleCosts{.comm = -1}, 4) == below("costs: comm"));
  CHECK(findings(ScheduleCosts{.sync = -1}, 4) == below("costs: sync"));
  CHECK(findings(ScheduleCosts{.pair = 2e12}, 4) ==
        List{"costs: pair=2000000000000 must be a number of at least 0 and at most 1000000000000"});
  CHECK(findings(ScheduleCosts{.f = {1, 2}}, 4) ==
        List{"costs: f has 2 values; it must have one, or one for each of the 4 stages"});
  CHECK(findings(ScheduleCosts{.f = {0}, .b = {0}, .w = {0}}, 4) ==
        List{"costs: f, b and w are 0; one of them must be above, for a step takes some time"});
  CHECK(findings(ScheduleCosts{.mw = -1}, 4) ==
        List{"memory: mw=-1 must be a number of at least 0 and at most 1000000000000"});
  CHECK(findings(ScheduleCosts{.mb = 0}, 4) ==
        List{"memory: mb=0 must be a number above 0 and at most 1000000000000"});
  CHECK(findings(ScheduleCosts{.f = {1e12}, .mb = 2, .mw = 0}, 4).empty());
}
