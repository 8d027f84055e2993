// Chimera's kinds where the microbatches are no multiple of their units.
#include <algorithm>

#include <doctest/doctest.h>

#include "pipeline/schedule_timeline.h"

using namespace mw;
using namespace mw::pipeline;

static double highest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

static Timeline timed(const char* kind, int32_t d, int32_t m, int32_t pairs = 1) {
  const Schedule schedule =
      make_schedule({.kind = kind, .ranks = d, .microbatches = m, .pairs = pairs});
  CHECK(findings(schedule).empty());
  return timeline(schedule, {});
}

TEST_CASE("no step of chimera's kinds is longer than one of more microbatches") {
  struct Case {
    const char* kind;
    int32_t alive;  // at most, in ranks
  };
  for (const Case& c : {Case{"chimera", 1}, {"chimera-doubling", 2}, {"chimera-halving", 1}}) {
    for (int32_t d = 2; d <= 8; d += 2) {
      for (int32_t pairs = 1; pairs <= d / 2; ++pairs) {
        if (d / 2 % pairs != 0) continue;
        double before = 0;
        for (int32_t m = 1; m <= 6 * d + 1; ++m) {
          CAPTURE(std::string(c.kind));
          CAPTURE(d);
          CAPTURE(pairs);
          CAPTURE(m);
          const Timeline times = timed(c.kind, d, m, pairs);
          CHECK(times.makespan >= before);
          CHECK(highest(times.peak_activations) <= c.alive * d);
          before = times.makespan;
        }
      }
    }
  }
}

TEST_CASE("chimera-doubling is at most as long as 1f1b, whatever is left of a unit") {
  for (int32_t d = 2; d <= 8; d += 2) {
    for (int32_t m = 1; m <= 8 * d; ++m) {
      CAPTURE(d);
      CAPTURE(m);
      CHECK(timed("chimera-doubling", d, m).makespan <= 3 * (m + d - 1));
    }
  }
}

TEST_CASE("chimera-doubling's ends, of 4 ranks") {
  const std::vector<double> makespans = {12, 12, 16, 16, 22, 24, 26, 28,
                                         31, 37, 41, 41, 46, 48, 50, 52};
  for (size_t m = 1; m <= makespans.size(); ++m)
    CHECK(timed("chimera-doubling", 4, static_cast<int32_t>(m)).makespan == makespans[m - 1]);
}

TEST_CASE("chimera-doubling ends behind many units as behind two, or nearly") {
  for (const int32_t d : {2, 4, 8}) {
    for (int32_t rest = 1; rest < 2 * d; ++rest) {
      CAPTURE(d);
      CAPTURE(rest);
      const double behind_two = timed("chimera-doubling", d, 4 * d + rest).makespan + 3 * 36 * d;
      const double behind_many = timed("chimera-doubling", d, 40 * d + rest).makespan;
      CHECK(behind_many >= behind_two);
      CHECK(behind_many <= behind_two + d / 2);
    }
  }
}

TEST_CASE("every replica of chimera-doubling has work from as many microbatches on as there are") {
  for (int32_t d = 2; d <= 8; d += 2) {
    for (int32_t pairs = 1; pairs <= d / 2; ++pairs) {
      if (d / 2 % pairs != 0) continue;
      for (int32_t m = 2 * pairs; m <= 4 * d; ++m) {
        const Schedule schedule = make_schedule(
            {.kind = "chimera-doubling", .ranks = d, .microbatches = m, .pairs = pairs});
        std::vector<bool> works(static_cast<size_t>(2 * pairs), false);
        for (const Action& action : schedule.ranks[0])
          works[static_cast<size_t>(action.replica)] = true;
        CAPTURE(d);
        CAPTURE(pairs);
        CAPTURE(m);
        CHECK(std::find(works.begin(), works.end(), false) == works.end());
      }
    }
  }
}
