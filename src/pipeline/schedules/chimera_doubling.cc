// Chimera's forward doubling [Li 2021, section 3.5]: a forward carries two microbatches and so
// takes as long as the backward of one (b + w = 2 f). A unit of 2 D microbatches has then 3 D slots
// of work on every rank. With one pair, list scheduling (older units first, backwards before
// forwards, later stages before earlier ones) puts it into 4 D - 2: for N microbatches, a multiple
// of 2 D, the bubble is (D - 2) / (3 N / 2 + D - 2); more pairs wait less. Up to 2 D microbatches
// are alive.
//
// Other N end in units that are smaller, and in which forwards of one microbatch often take less
// time, as more pipelines have work: the shortest of several ends is taken, those of a few
// microbatches more among them, without the microbatches that are not there.
#include "pipeline/schedules/chimera_doubling.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "pipeline/schedule_timeline.h"
#include "pipeline/schedules/list_schedule.h"

namespace mw::pipeline {
namespace {

struct DoubledUnit {
  int32_t microbatches = 0;
  int32_t doubled = 0;  // forwards that carry two of them
};

struct DoubledOrder {
  Schedule schedule;
  int32_t makespan;
};
constexpr int32_t kAnyMakespan = std::numeric_limits<int32_t>::max();

// Empty: it takes as long as `sooner_than`, or finds no room for what is left.
std::optional<DoubledOrder> doubled_order(const ScheduleRequest& request,
                                          const std::vector<DoubledUnit>& units,
                                          int32_t sooner_than = kAnyMakespan) {
  const int32_t d = request.ranks, replicas = 2 * request.pairs;
  Schedule schedule = empty_schedule(request, chimera_placement(d, request.pairs));
  std::vector<std::vector<Action>> forwards(static_cast<size_t>(replicas));
  std::vector<int32_t> unit_of;
  for (size_t u = 0; u < units.size(); ++u) {
    int32_t left = units[u].doubled;
    const std::vector<int32_t> counts = shares(units[u].microbatches - left, replicas);
    for (size_t j = 0; j < forwards.size(); ++j) {
      for (int32_t i = 0; i < counts[j]; ++i) {
        Action forward = forward_action(0, static_cast<int32_t>(unit_of.size()));
        forward.count = left-- > 0 ? 2 : 1;
        unit_of.insert(unit_of.end(), static_cast<size_t>(forward.count), static_cast<int32_t>(u));
        forwards[j].push_back(forward);
      }
    }
  }
  schedule.microbatches = static_cast<int32_t>(unit_of.size());
  ListRules rules;
  rules.most_alive.assign(static_cast<size_t>(d), 2 * d);
  rules.sooner_than = sooner_than;
  rules.rank_of_action = [&](const Action& action) {
    return std::tuple(unit_of[static_cast<size_t>(action.first)],
                      action.kind == ActionKind::kB ? 0 : 1, -action.stage.value, action.first);
  };
  const std::optional<ListOutcome> made = list_schedule(schedule, forwards, rules);
  if (!made) return {};
  return DoubledOrder{std::move(schedule), made->makespan};
}

// How an order ends whose microbatches are no multiple of 2 D.
struct LastUnits {
  int32_t more = 0;  // microbatches that are left out again
  // The last whole unit and the rest are two units of one size, or are as they are; so many
  // quarters of the forwards that could carry two in what is not a whole unit do.
  bool evened = false;
  int32_t quarters = 4;
};
constexpr int32_t kMostMore = 16;

// REQUIRES: evened has at least two microbatches.
std::vector<DoubledUnit> doubled_units(int32_t ranks, int32_t microbatches, const LastUnits& end) {
  const int32_t whole = 2 * ranks;
  std::vector<DoubledUnit> units(static_cast<size_t>(microbatches / whole),
                                 DoubledUnit{whole, ranks});
  int32_t rest = microbatches % whole;
  if (rest == 0) return units;
  const auto add = [&](int32_t count) { units.push_back({count, count / 2 * end.quarters / 4}); };
  if (end.evened) {
    if (!units.empty()) {
      rest += whole;
      units.pop_back();
    }
    add(rest - rest / 2);
    rest /= 2;
  }
  add(rest);
  return units;
}

// [replica] its microbatches.
std::vector<std::vector<int32_t>> of_replicas(const Schedule& schedule) {
  std::vector<std::vector<int32_t>> of_replica(static_cast<size_t>(schedule.placement.replicas()));
  for (const Action& a : schedule.ranks.front()) {  // which has a stage of every replica
    if (a.kind == ActionKind::kB) of_replica[static_cast<size_t>(a.replica)].push_back(a.first);
  }
  for (std::vector<int32_t>& own : of_replica) std::sort(own.begin(), own.end());
  return of_replica;
}

bool leaves_none_idle(const Schedule& schedule) {
  int32_t working = 0;
  for (const std::vector<int32_t>& own : of_replicas(schedule)) working += own.empty() ? 0 : 1;
  return working == std::min(schedule.placement.replicas(), schedule.microbatches);
}

// Leaves out the last microbatch of the replica that has most, again and again: no rank waits
// longer for less.
Schedule with_fewer(Schedule schedule, int32_t fewer) {
  std::vector<std::vector<int32_t>> of_replica = of_replicas(schedule);
  std::vector<int32_t> number(static_cast<size_t>(schedule.microbatches), 0);
  for (int32_t i = 0; i < fewer; ++i) {
    const auto most = std::max_element(
        of_replica.rbegin(), of_replica.rend(),
        [](const auto& one, const auto& other) { return one.size() < other.size(); });
    number[static_cast<size_t>(most->back())] = -1;
    most->pop_back();
  }
  int32_t next = 0;
  for (int32_t& n : number) n = n < 0 ? n : next++;
  schedule.microbatches = next;
  for (std::vector<Action>& actions : schedule.ranks) {
    for (Action& a : actions) {
      const auto begin = number.begin() + a.first;
      a.count -= static_cast<int32_t>(std::count(begin, begin + a.count, -1));
      a.first = *begin;  // of two the second is left out first
    }
    std::erase_if(actions, [](const Action& a) { return a.count == 0; });
  }
  return schedule;
}

// The shortest, of an order with at most two whole units before it: behind more it is as good, or
// nearly.
LastUnits best_last_units(const ScheduleRequest& request) {
  const int32_t d = request.ranks, whole = 2 * d, rest = request.microbatches % whole;
  if (rest == 0) return {};
  const int32_t count = std::min(request.microbatches / whole, 2) * whole + rest;
  LastUnits best;
  double shortest = std::numeric_limits<double>::infinity();
  for (int32_t more = 0; more <= std::min(whole - rest, kMostMore); ++more) {
    std::optional<DoubledOrder> made;
    LastUnits end;
    for (const bool evened : {false, true}) {
      if (evened && (count + more < 2 || rest + more == whole)) continue;
      for (const int32_t quarters : {4, 3, 2, 1, 0}) {
        const LastUnits next{more, evened, quarters};
        const std::vector<DoubledUnit> units = doubled_units(d, count + more, next);
        std::optional<DoubledOrder> sooner =
            doubled_order(request, units, made ? made->makespan : kAnyMakespan);
        if (!sooner || !leaves_none_idle(sooner->schedule)) continue;
        made = std::move(sooner);
        end = next;
      }
    }
    if (!made) continue;
    const double length = more == 0
                              ? made->makespan
                              : timeline(with_fewer(std::move(made->schedule), more), {}).makespan;
    if (length >= shortest) continue;
    shortest = length;
    best = end;
  }
  return best;
}

Schedule make_chimera_doubling(const ScheduleRequest& request) {
  const LastUnits end = best_last_units(request);
  const int32_t microbatches = request.microbatches + end.more;
  std::optional<DoubledOrder> made =
      doubled_order(request, doubled_units(request.ranks, microbatches, end));
  if (!made) return chimera_doubled(request, request.microbatches);
  return with_fewer(std::move(made->schedule), end.more);
}

}  // namespace

Schedule chimera_doubled(const ScheduleRequest& request, int32_t microbatches) {
  std::optional<DoubledOrder> made =
      doubled_order(request, doubled_units(request.ranks, microbatches, {}));
  MW_CHECK(made.has_value(), "no order of {} microbatches", microbatches);
  return std::move(made->schedule);
}

extern const ScheduleKind kChimeraDoubling = {
    .name = "chimera-doubling",
    .summary = "chimera, a forward carries two microbatches",
    .since = 202107,
    .chunks = kOneChunk,
    .options = {.pairs = true, .sync = true},
    .check = check_chimera,
    .make = make_chimera_doubling,
    .period = 2,
    .replicas = 2};

}  // namespace mw::pipeline
