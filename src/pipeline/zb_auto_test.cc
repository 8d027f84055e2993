// The zero-bubble heuristic under a memory limit.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "base/rng.h"
#include "base/test_close_to.h"
#include "pipeline/schedule_timeline.h"

using namespace mw;
using namespace mw::pipeline;

static double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

TEST_CASE("zb-auto's memory is below its limit, and more memory makes no longer steps") {
  for (const int32_t m : {3, 8, 20}) {
    double last = 1e9;
    for (double limit = 1; limit <= 9; limit += 0.5) {
      CAPTURE(m);
      CAPTURE(limit);
      const ScheduleCosts costs{.f = {1}, .b = {1.1}, .w = {.8}, .comm = .05, .mb = 1, .mw = .4};
      const Timeline times = timeline(make_schedule({.kind = "zb-auto",
                                                     .ranks = 4,
                                                     .microbatches = m,
                                                     .memory_limit = limit,
                                                     .costs = costs}),
                                      costs);
      CHECK(largest(times.peak_activations) <= limit + 1e-6);
      CHECK(times.span_bubble <= last + .02);
      last = times.span_bubble;
    }
  }
}

TEST_CASE(
    "zb-auto with more memory than twice 1F1B's is no longer than with that, or with 1F1B's") {
  const ScheduleCosts uneven[] = {
      {.f = {1, 0, 0, .5}, .b = {1.37}, .w = {.3}, .comm = .1},
      {.f = {3, .5, 3, 1}, .b = {1}, .w = {1}},
      {.f = {.2, 2, .4, 1}, .b = {1, .1, 2, 1}, .w = {2, .3, .3, 1}, .comm = .5},
  };
  for (const ScheduleCosts& costs : uneven) {
    const auto span = [&](double limit) {
      const Timeline times = timeline(make_schedule({.kind = "zb-auto",
                                                     .ranks = 4,
                                                     .microbatches = 12,
                                                     .memory_limit = limit,
                                                     .costs = costs}),
                                      costs);
      double longest = 0;
      for (const auto& rank : times.times)
        longest = std::max(longest, rank.back().end - rank.front().start);
      return longest;
    };
    const double as_1f1b = span(4), twice = span(8);
    CHECK(twice <= as_1f1b + 1e-9);
    for (const double more : {9., 12., 16., 1e12}) CHECK(span(more) <= twice + 1e-9);
  }
}

TEST_CASE("zb-auto keeps its limit where W holds more than B") {
  const RngKey key{7};
  for (uint64_t i = 0; i < 300; ++i) {
    const auto draw = [&](uint64_t which, int32_t most) {
      return 1 + static_cast<int32_t>(random_u32(key, 8 * i + which) % static_cast<uint32_t>(most));
    };
    ScheduleRequest request{.kind = "zb-auto", .ranks = draw(0, 6), .microbatches = draw(1, 14)};
    request.costs.f = {static_cast<double>(draw(2, 4))};
    request.costs.b = {static_cast<double>(draw(3, 4))};
    request.costs.w = {static_cast<double>(draw(4, 4))};
    request.costs.mw = 0.5 * draw(5, 6);
    request.memory_limit = draw(6, 8);
    CAPTURE(i);
    if (request.memory_limit < request.costs.mw) continue;
    const Timeline times = timeline(make_schedule(request), request.costs);
    CHECK(largest(times.peak_activations) <= request.memory_limit + 1e-6);
  }
}

TEST_CASE("zb-auto below one stage's share of 1F1B keeps microbatches apart") {
  // A microbatch takes 2 p + 1 through all stages; `limit` of them are on their way, or 3 a stage.
  const int32_t p = 8, m = 96;
  for (int32_t limit = 2; limit < p; ++limit) {
    CAPTURE(limit);
    const Timeline times = timeline(make_schedule({.kind = "zb-auto",
                                                   .ranks = p,
                                                   .microbatches = m,
                                                   .memory_limit = static_cast<double>(limit)}),
                                    {});
    CHECK(largest(times.peak_activations) <= limit);
    CHECK(times.makespan < 1.4 * m * std::max(3.0, (2.0 * p + 1) / limit));
  }
}

TEST_CASE("zb-auto is no longer than the orders by hand that its limit allows") {
  const auto span = [](const ScheduleRequest& request, const ScheduleCosts& costs) {
    double longest = 0;
    for (const auto& rank : timeline(make_schedule(request), costs).times)
      longest = std::max(longest, rank.back().end - rank.front().start);
    return longest;
  };
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    uint64_t drawn = 0;
    const auto below = [&](uint32_t n) { return random_u32({.seed = seed}, drawn++) % n; };
    const auto p = static_cast<int32_t>(2 + below(6)), m = static_cast<int32_t>(p + below(16));
    const auto stage_costs = [&] {
      std::vector<double> costs;
      for (int32_t s = 0; s < p; ++s) costs.push_back(.5 * (1 + below(6)));
      return costs;
    };
    const ScheduleCosts costs{
        .f = stage_costs(), .b = stage_costs(), .w = stage_costs(), .comm = .5 * below(2)};
    for (const auto& [kind, limit] : {std::pair{"zb-h1", p}, {"zb-h2", 2 * p - 1}}) {
      const ScheduleRequest by_hand{.kind = kind, .ranks = p, .microbatches = m};
      const ScheduleRequest found{.kind = "zb-auto",
                                  .ranks = p,
                                  .microbatches = m,
                                  .memory_limit = static_cast<double>(limit),
                                  .costs = costs};
      CHECK(span(found, costs) <= span(by_hand, costs) * (1 + 1e-9));
      CHECK(largest(timeline(make_schedule(found), costs).peak_activations) <= limit + 1e-6);
    }
  }
}

TEST_CASE(
    "of orders that are as long without a flush zb-auto takes the one that is shorter with it") {
  const ScheduleCosts costs{.f = {1}, .b = {1}, .w = {1.3}, .comm = .1};
  const ScheduleRequest by_hand{.kind = "zb-h1", .ranks = 6, .microbatches = 6};
  const ScheduleRequest found{
      .kind = "zb-auto", .ranks = 6, .microbatches = 6, .memory_limit = 6, .costs = costs};
  const Timeline times = timeline(make_schedule(found), costs);
  const Timeline other = timeline(make_schedule(by_hand), costs);
  CHECK(times.span_bubble == mw::test::close_to(other.span_bubble));
  CHECK(times.makespan <= other.makespan * (1 + 1e-9));
  struct Case {
    int32_t ranks, microbatches;
    double w, limit, bubble, makespan;
  };
  // Ties among its own orders, and of those with the orders by hand.
  for (const Case& c : {Case{3, 6, 1.3, 4.5, .066038, 22.0},
                        {5, 5, 1.3, 5, .225352, 21.3},
                        {4, 6, 1.3, 4, .153846, 23.7},
                        {3, 3, 1.0, 3, .210526, 11.4}}) {
    CAPTURE(c.ranks);
    CAPTURE(c.microbatches);
    const ScheduleCosts of{.f = {1}, .b = {1}, .w = {c.w}, .comm = .1};
    const Timeline made = timeline(make_schedule({.kind = "zb-auto",
                                                  .ranks = c.ranks,
                                                  .microbatches = c.microbatches,
                                                  .memory_limit = c.limit,
                                                  .costs = of}),
                                   of);
    CHECK(made.span_bubble == mw::test::close_to(c.bubble).epsilon(1e-4));
    CHECK(made.makespan == mw::test::close_to(c.makespan));
  }
}

TEST_CASE("zb-auto finds an order for stages that differ a hundredfold") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    uint64_t drawn = 0;
    const auto below = [&](uint32_t n) { return random_u32({.seed = seed}, drawn++) % n; };
    const auto p = static_cast<int32_t>(2 + below(7)), m = static_cast<int32_t>(1 + below(20));
    const auto stage_costs = [&] {
      std::vector<double> costs;
      for (int32_t s = 0; s < p; ++s)
        costs.push_back(std::array{0., .5, 1., 2., 10., 100.}[below(6)]);
      return costs;
    };
    const ScheduleRequest request{
        .kind = "zb-auto",
        .ranks = p,
        .microbatches = m,
        .memory_limit = 1 + .5 * below(40),
        .costs = {
            .f = stage_costs(), .b = stage_costs(), .w = stage_costs(), .comm = 1. * below(3)}};
    const Schedule schedule = make_schedule(request);
    CHECK(findings(schedule).empty());
    CHECK(largest(timeline(schedule, request.costs).peak_activations) <=
          request.memory_limit + 1e-6);
  }
}
