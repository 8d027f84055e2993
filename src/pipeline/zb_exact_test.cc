// zb-auto's exact order against all orders, the heuristic, and itself cut off; the heuristic where
// there is a closed form.
#include <algorithm>
#include <array>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/text.h"
#include "pipeline/schedule_timeline.h"
#include "pipeline/schedules/zb_exact.h"

using namespace mw;
using namespace mw::pipeline;

static double highest_peak(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

// All orders of F, I and W of `microbatches` on a stage: each kind in order, each microbatch F, I,
// W.
static void add_orders(int32_t stage, int32_t microbatches, std::array<int32_t, 3> done,
                       std::vector<Action>& order, std::vector<std::vector<Action>>& all) {
  constexpr ActionKind kKinds[] = {ActionKind::kF, ActionKind::kI, ActionKind::kW};
  if (done[2] == microbatches) all.push_back(order);
  for (size_t kind = 0; kind < 3; ++kind) {
    if (done[kind] == (kind == 0 ? microbatches : done[kind - 1])) continue;
    order.push_back({.kind = kKinds[kind], .stage = StageId(stage), .first = done[kind]});
    ++done[kind];
    add_orders(stage, microbatches, done, order, all);
    --done[kind];
    order.pop_back();
  }
}

static double span_of(const Timeline& times) {
  double longest = 0;
  for (const auto& rank : times.times)
    longest = std::max(longest, rank.back().end - rank.front().start);
  return longest;
}

// True where the build has no solver: then a request for an exact order says so.
static bool no_solver() {
  try {
    make_schedule({.kind = "zb-auto", .ranks = 2, .microbatches = 2, .exact = true});
    return false;
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("no integer-program solver") != std::string::npos);
    return true;
  }
}

TEST_CASE("the exact order has the shortest span of all orders") {
  if (no_solver()) return;
  ScheduleRequest request{.kind = "zb-auto", .ranks = 2, .microbatches = 3};
  const ScheduleCosts all_costs[] = {
      {.f = {1}, .b = {2}, .w = {.3}},
      {.f = {1.3, .7}, .b = {.6, 1.7}, .w = {.4, .9}, .comm = .5},
      {.f = {1}, .b = {1}, .w = {1}, .mb = 1, .mw = .4},
      // The shortest ends later than the heuristic's.
      {.f = {1.25, .25}, .b = {1.75, .25}, .w = {.25, 3}, .comm = .5}};
  std::vector<std::vector<Action>> first, second;
  std::vector<Action> order;
  add_orders(0, 3, {}, order, first);
  add_orders(1, 3, {}, order, second);
  CHECK(first.size() == 42);
  for (const ScheduleCosts& costs : all_costs) {
    for (const double limit : {1., 2., 3.}) {
      request.costs = costs;
      request.memory_limit = limit;
      request.exact = true;
      const Schedule exact = make_schedule(request);
      double best = 1e9;
      Schedule tried = exact;
      for (const auto& a : first) {
        for (const auto& b : second) {
          tried.ranks = {a, b};
          if (!findings(tried).empty()) continue;
          const Timeline times = timeline(tried, costs);
          if (highest_peak(times.peak_activations) <= limit + 1e-6)
            best = std::min(best, span_of(times));
        }
      }
      CHECK(exact.name == "zb-auto, exact");
      CHECK(span_of(timeline(exact, costs)) == mw::test::close_to(best));
      CHECK(highest_peak(timeline(exact, costs).peak_activations) <= limit + 1e-6);
    }
  }
}

TEST_CASE("the exact order can be shorter than the heuristic's") {
  if (no_solver()) return;
  ScheduleRequest request{.kind = "zb-auto", .ranks = 3, .microbatches = 4, .memory_limit = 2};
  request.costs = {.f = {1}, .b = {2}, .w = {.3}};
  const double heuristic = span_of(timeline(make_schedule(request), request.costs));
  request.exact = true;
  CHECK(span_of(timeline(make_schedule(request), request.costs)) < heuristic - 1);
}

TEST_CASE("a search that is cut off keeps the best order so far and says how far it may be off") {
  if (no_solver()) return;
  ScheduleRequest request{.kind = "zb-auto", .ranks = 3, .microbatches = 5, .memory_limit = 3};
  request.costs = {.f = {1}, .b = {1.7}, .w = {.5, 2.7, 2.7}, .comm = .3, .mw = .4};
  const Schedule start = make_schedule(request);
  const double heuristic = span_of(timeline(start, request.costs));
  request.exact = true;
  const Schedule cut = exact_order(request, start, 1);
  CAPTURE(cut.name);
  REQUIRE(starts_with(cut.name, "zb-auto, within "));
  CHECK(ends_with(cut.name, " % of the exact one"));
  CHECK(findings(cut).empty());
  const Timeline times = timeline(cut, request.costs);
  CHECK(span_of(times) <= heuristic + 1e-6);
  CHECK(highest_peak(times.peak_activations) <= request.memory_limit + 1e-6);
  const Schedule whole = exact_order(request, start);
  CHECK(whole.name == "zb-auto, exact");
  const double best = span_of(timeline(whole, request.costs));
  CHECK(best <= span_of(times) + 1e-6);
  // The bound in the name holds.
  const size_t at = std::string("zb-auto, within ").size();
  const double percent = *parse_double(cut.name.substr(at, cut.name.find(" %") - at));
  CHECK(percent < 100);
  CHECK(best >= span_of(times) * (1 - (percent + .05) / 100) - 1e-6);
}

TEST_CASE("the exact order of costs whose sums round") {
  if (no_solver()) return;
  const ScheduleCosts costs{.f = {1.3, 1.3}, .b = {2, 1.5}, .w = {1, 3}, .mb = 1, .mw = .5};
  const Schedule exact = make_schedule({.kind = "zb-auto",
                                        .ranks = 2,
                                        .microbatches = 2,
                                        .memory_limit = 2,
                                        .exact = true,
                                        .costs = costs});
  CHECK(timeline(exact, costs).makespan >= 2 * (1.3 + 1.5 + 3));
}

TEST_CASE("works that take no time keep the limit and the heuristic's span") {
  if (no_solver()) return;
  struct Case {
    int32_t ranks, microbatches;
    double limit;
    ScheduleCosts costs;
  };
  const Case cases[] = {{2, 3, 2, {.f = {0, 1}, .b = {1}, .w = {1}}},
                        {2, 2, 2, {.f = {1, 0}, .b = {1}, .w = {1}}},
                        {2, 2, 2, {.f = {1}, .b = {1, 0}, .w = {1}}},
                        {2, 3, 2, {.f = {1}, .b = {1}, .w = {0}}},
                        {3, 4, 3, {.f = {0, 1, 0}, .b = {2}, .w = {0, 1, 1}}}};
  for (const Case& c : cases) {
    ScheduleRequest request{.kind = "zb-auto", .ranks = c.ranks, .microbatches = c.microbatches};
    request.memory_limit = c.limit;
    request.costs = c.costs;
    const Timeline start = timeline(make_schedule(request), c.costs);
    request.exact = true;
    const Schedule exact = make_schedule(request);
    CHECK(findings(exact).empty());
    const Timeline times = timeline(exact, c.costs);
    CHECK(span_of(times) <= span_of(start) + 1e-6);
    CHECK(highest_peak(times.peak_activations) <= c.limit + 1e-6);
  }
}

TEST_CASE("of orders with the shortest span the heuristic's is kept where it ends no later") {
  if (no_solver()) return;
  ScheduleRequest request{.kind = "zb-auto", .ranks = 2, .microbatches = 5, .memory_limit = 2};
  request.costs = {.f = {1}, .b = {1}, .w = {2}};
  const Schedule start = make_schedule(request);
  request.exact = true;
  const Schedule exact = make_schedule(request);
  CHECK(exact.name == "zb-auto, exact");
  CHECK(timeline(exact, request.costs).makespan <= timeline(start, request.costs).makespan);
}

TEST_CASE("the exact order is the same in whatever unit the costs are") {
  if (no_solver()) return;
  ScheduleRequest request{.kind = "zb-auto", .ranks = 3, .microbatches = 4, .memory_limit = 2};
  const ScheduleCosts all_costs[] = {
      {.f = {1}, .b = {2}, .w = {.3}},
      {.f = {.75, 1.25, 2}, .b = {2.25, 2.25, 1}, .w = {1.5, 2.25, 1.75}, .comm = .25},
      {.f = {1.75, 2.25, 2}, .b = {2, .25, .25}, .w = {.25, 1.5, .5}, .mb = 1, .mw = .5}};
  for (const ScheduleCosts& costs : all_costs) {
    request.costs = costs;
    request.exact = false;
    const double heuristic = span_of(timeline(make_schedule(request), costs));
    request.exact = true;
    const Schedule whole = make_schedule(request);
    CHECK(whole.name == "zb-auto, exact");
    CHECK(span_of(timeline(whole, costs)) < heuristic - 1);
    for (const double unit : {1e-9, 1e-6, 1e6, 1e9}) {
      CAPTURE(unit);
      request.costs = costs;
      for (auto* list : {&request.costs.f, &request.costs.b, &request.costs.w}) {
        for (double& cost : *list) cost *= unit;
      }
      request.costs.comm *= unit;
      const Schedule exact = make_schedule(request);
      CHECK(exact.name == whole.name);
      CHECK(exact.ranks == whole.ranks);
      request.costs = costs;
      request.costs.mb *= unit;
      request.costs.mw *= unit;
      CHECK(make_schedule(request).ranks == whole.ranks);
    }
  }
}

TEST_CASE("small costs beside large ones have an order") {
  if (no_solver()) return;
  struct Case {
    int32_t ranks, microbatches;
    ScheduleCosts costs;
    double limit = ranks;
  };
  const Case cases[] = {
      {1, 3, {.f = {0}, .b = {1e-7}, .w = {0}, .comm = 1e-3}},
      {3, 3, {.f = {1e-3, 1e-3, 0}, .b = {1e-7, 1e-7, 0}, .w = {1e-7, 1.258e-3, 0}, .comm = 1e-3}},
      {4, 6, {.f = {1e-8}, .b = {1e-8}, .w = {1e-8}, .comm = 0}},
      {4,
       5,
       {.f = {1e-6, 0, 0, 1e-8}, .b = {1e-6, 1e-5, 1e-8, 1e-8}, .w = {1, 0, 1, 0}, .comm = 1e-4},
       3},
      {4, 5, {.f = {1e-7, 0, 0, 1}, .b = {.7, 1, 0, 1e-8}, .w = {1, 1, 1e-8, 1e-6}, .comm = .3}, 4},
      {4,
       5,
       {.f = {1e-8, 1e-6, 1e-7, 1e-7}, .b = {1, 0, 0, 1e-7}, .w = {1, .7, 1, 2}, .comm = 1e-4},
       4}};
  for (const Case& c : cases) {
    ScheduleRequest request{.kind = "zb-auto", .ranks = c.ranks, .microbatches = c.microbatches};
    request.costs = c.costs;
    request.memory_limit = c.limit;
    const double heuristic = span_of(timeline(make_schedule(request), c.costs));
    request.exact = true;
    const Schedule exact = make_schedule(request);
    CHECK(exact.name == "zb-auto, exact");
    CHECK(findings(exact).empty());
    CHECK(span_of(timeline(exact, c.costs)) <= heuristic * (1 + 1e-12));
  }
}

TEST_CASE("the exact span is that of stages that begin as soon as they can") {
  if (no_solver()) return;
  // Stages 1 and 2 could begin later and end no later: that is no shorter time.
  ScheduleRequest request{.kind = "zb-auto", .ranks = 3, .microbatches = 4, .memory_limit = 4};
  request.costs = {.f = {1, .5, 1}, .b = {.37, 2, .5}, .w = {1, 1, 2.03}, .comm = .2};
  request.exact = true;
  const Schedule exact = make_schedule(request);
  CHECK(exact.name == "zb-auto, exact");
  CHECK(span_of(timeline(exact, request.costs)) == mw::test::close_to(15));
}

// Its only idle time is the way to the last stage and back, of which each stage waits at one end.
TEST_CASE(
    "zb-auto with twice 1F1B's memory has no bubble but the ends, from 2 p - 1 microbatches on") {
  for (int32_t p = 1; p <= 9; ++p) {
    for (int32_t m = 2 * p - 1; m <= 4 * p; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const Timeline times = timeline(
          make_schedule({.kind = "zb-auto", .ranks = p, .microbatches = m, .memory_limit = 2. * p}),
          {});
      CHECK(span_of(times) == 3 * m);
      CHECK(times.makespan == 3 * m + p - 1);
      CHECK(highest_peak(times.peak_activations) <= 2 * p);
    }
  }
}

TEST_CASE("an exact order of more than 600 order variables is refused") {
  const auto refused = [](int32_t p, int32_t m) {
    return join(request_findings({.kind = "zb-auto", .ranks = p, .microbatches = m, .exact = true}),
                "\n");
  };
  // 3 p m (m - 1) / 2 of them.
  CHECK(refused(20, 5) == "");
  CHECK(refused(4, 11) ==
        "schedule zb-auto: the exact order of ranks=4 and microbatches=11 has 660 order variables; "
        "at most 600 are solved");
}
