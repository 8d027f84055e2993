#include "pipeline/schedule_timeline.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "pipeline/endless_period.h"

namespace mw::pipeline {
namespace {

bool is_backward(ActionKind kind) { return kind == ActionKind::kI || kind == ActionKind::kB; }

// What one action is of one whole microbatch.
double portion(const Schedule& schedule, const Action& action) {
  const double of_one = 1.0 / schedule.parts / (action.slice < 0 ? 1 : schedule.slices);
  return of_one * action.count;
}

// Never below 0: work that fills the time adds up to it but for rounding.
double idle_share(double work, double time) { return time > 0 ? std::max(0., 1 - work / time) : 0; }

double cost_of(const Schedule& schedule, const ScheduleCosts& costs, const Action& action) {
  double cost = 0;
  switch (action.kind) {
    case ActionKind::kF: cost = costs.f_of(action.stage); break;
    case ActionKind::kI: cost = costs.b_of(action.stage); break;
    case ActionKind::kW: cost = costs.w_of(action.stage); break;
    case ActionKind::kB: cost = costs.b_of(action.stage) + costs.w_of(action.stage); break;
    default: break;
  }
  return cost * portion(schedule, action);
}

class Runner {
 public:
  Runner(const Schedule& schedule, const ScheduleCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        stages_(schedule.placement.stages()),
        ended_(static_cast<size_t>(2 * stages_) * static_cast<size_t>(schedule.microbatches) *
                   static_cast<size_t>(schedule.slices),
               kNotYet),
        at_(schedule.ranks.size(), 0),
        free_(schedule.ranks.size(), 0) {}

  std::vector<std::vector<ActionTime>> run() {
    std::vector<std::vector<ActionTime>> times(schedule_.ranks.size());
    for (size_t r = 0; r < times.size(); ++r) times[r].resize(schedule_.ranks[r].size());
    // Forwards go up the ranks, backwards down.
    for (bool moved = true; moved;) {
      moved = false;
      const auto go_on = [&](size_t r) {
        while (at_[r] < times[r].size() && step(r, times[r])) moved = true;
      };
      for (size_t r = 0; r < times.size(); ++r) go_on(r);
      for (size_t r = times.size(); r-- > 0;) go_on(r);
    }
    for (size_t r = 0; r < times.size(); ++r) {
      MW_CHECK(at_[r] == times[r].size(), "rank {} waits at action {} of {}", r, at_[r],
               schedule_.name);
    }
    return times;
  }

 private:
  static constexpr double kNotYet = -1;

  double& ended(bool backward, int32_t stage, int32_t microbatch, int32_t slice) {
    const auto unit = (static_cast<size_t>(2 * stage + (backward ? 1 : 0)) *
                           static_cast<size_t>(schedule_.microbatches) +
                       static_cast<size_t>(microbatch)) *
                          static_cast<size_t>(schedule_.slices) +
                      static_cast<size_t>(std::max(slice, 0));
    return ended_[unit];
  }

  // When everything that the action needs is on its rank; kNotYet: something has not run.
  double ready(const Action& action, size_t rank) {
    const bool backward = is_backward(action.kind);
    const int32_t from = action.kind == ActionKind::kF ? action.stage.value - 1
                         : backward                    ? action.stage.value + 1
                                                       : -1;
    double when = 0;
    if (from < 0 || from >= stages_) return when;
    const bool same =
        schedule_.placement.rank_of(from, action.replica) == static_cast<int32_t>(rank);
    for (int32_t k = 0; k < action.count; ++k) {
      const double end = ended(backward, from, action.first + k, action.slice);
      if (end == kNotYet) return kNotYet;
      when = std::max(when, end + (same ? 0 : costs_.comm));
    }
    return when;
  }

  void finish(const Action& action, double end) {
    if (action.kind == ActionKind::kW) return;
    for (int32_t k = 0; k < action.count; ++k)
      ended(action.kind != ActionKind::kF, action.stage.value, action.first + k, action.slice) =
          end;
  }

  // Runs the rank's next action, or pair; false where it has to wait.
  bool step(size_t rank, std::vector<ActionTime>& times) {
    const std::vector<Action>& actions = schedule_.ranks[rank];
    const size_t first = at_[rank];
    const bool pair = actions[first].paired_with == static_cast<int32_t>(first) + 1;
    const size_t last = pair ? first + 1 : first;
    double start = free_[rank], cost = 0;
    for (size_t a = first; a <= last; ++a) {
      const double when = ready(actions[a], rank);
      if (when == kNotYet) return false;
      start = std::max(start, when);
      cost += cost_of(schedule_, costs_, actions[a]);
    }
    if (pair && costs_.pair >= 0) cost = costs_.pair * portion(schedule_, actions[first]);
    for (size_t a = first; a <= last; ++a) {
      times[a] = {start, start + cost};
      finish(actions[a], start + cost);
    }
    free_[rank] = start + cost;
    at_[rank] = last + 1;
    return true;
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  int32_t stages_;
  std::vector<double> ended_;  // [stage][F, B][microbatch][slice]
  std::vector<size_t> at_;
  std::vector<double> free_;
};

double peak_of(const Schedule& schedule, size_t rank, int32_t share, const ScheduleCosts& costs) {
  const std::vector<Action>& actions = schedule.ranks[rank];
  double alive = 0, peak = 0;
  const auto change = [&](const Action& action) {
    const double part = portion(schedule, action);
    switch (action.kind) {
      case ActionKind::kF: alive += part * costs.mb; break;
      case ActionKind::kI: alive += part * (costs.mw - costs.mb); break;
      case ActionKind::kW: alive -= part * costs.mw; break;
      case ActionKind::kB: alive -= part * costs.mb; break;
      default: break;
    }
    peak = std::max(peak, alive);
  };
  for (size_t a = 0; a < actions.size(); ++a) {
    const bool forward_second = actions[a].paired_with == static_cast<int32_t>(a) + 1 &&
                                actions[a + 1].kind == ActionKind::kF;
    if (!forward_second) {
      change(actions[a]);
      continue;
    }
    change(actions[a + 1]);
    change(actions[a++]);
  }
  return peak / share / costs.mb;
}

// Step after step, each rank for itself.
Schedule repeated(const Schedule& schedule, int32_t steps) {
  Schedule result = schedule;
  result.microbatches = steps * schedule.microbatches;
  for (std::vector<Action>& actions : result.ranks) {
    const std::vector<Action> once = actions;
    for (int32_t s = 1; s < steps; ++s) {
      for (Action action : once) {
        action.first += s * schedule.microbatches;
        if (action.paired_with >= 0) action.paired_with += s * static_cast<int32_t>(once.size());
        actions.push_back(action);
      }
    }
  }
  return result;
}

// [step][rank] when so many steps end, each rank for itself.
std::vector<std::vector<double>> ends_of_steps(const Schedule& schedule, const ScheduleCosts& costs,
                                               int32_t steps) {
  const Schedule many = repeated(schedule, steps);
  const std::vector<std::vector<ActionTime>> times = Runner(many, costs).run();
  std::vector<std::vector<double>> ends(static_cast<size_t>(steps));
  for (size_t s = 0; s < ends.size(); ++s) {
    for (size_t r = 0; r < times.size(); ++r) {
      const size_t once = schedule.ranks[r].size();
      if (once > 0) ends[s].push_back(times[r][(s + 1) * once - 1].end);
    }
  }
  return ends;
}

// By how much all ranks end later in the last step than `before` steps earlier, if it is the same.
std::optional<double> common_shift(const std::vector<std::vector<double>>& ends, size_t before) {
  constexpr double kDigits = 1e-9;
  const std::vector<double>&last = ends.back(), &earlier = ends[ends.size() - 1 - before];
  const double shift = last.front() - earlier.front();
  for (size_t r = 0; r < last.size(); ++r) {
    if (std::abs(last[r] - earlier[r] - shift) > kDigits * last[r]) return std::nullopt;
  }
  return shift;
}

// The time from one step to the next, when the pipeline is full: where steps take turns in their
// lengths, their mean [Baccelli 1992, Synchronization and Linearity, section 3.7: a max-plus system
// repeats itself after some steps].
double flowing_period(const Schedule& schedule, const ScheduleCosts& costs) {
  // The pipeline is full once as many microbatches have passed as it has stages.
  const int32_t filling = 1 + schedule.placement.stages() / schedule.microbatches;
  std::vector<std::vector<double>> ends = ends_of_steps(schedule, costs, filling + 1);
  if (const std::optional<double> shift = common_shift(ends, 1)) return *shift;
  const auto latest = [](const std::vector<double>& ranks) {
    return *std::max_element(ranks.begin(), ranks.end());
  };
  constexpr int32_t kMostTurns = 12, kMore = 3 * kMostTurns;
  constexpr double kMostActions = 2e7;  // seconds of work
  double actions = 0;
  for (const std::vector<Action>& rank : schedule.ranks)
    actions += static_cast<double>(rank.size());
  if (actions * (filling + kMore) > kMostActions)
    return latest(ends.back()) - latest(ends[ends.size() - 2]);
  ends = ends_of_steps(schedule, costs, filling + kMore);
  for (int32_t turns = 1; turns <= kMostTurns; ++turns) {
    if (const std::optional<double> shift = common_shift(ends, static_cast<size_t>(turns)))
      return *shift / turns;
  }
  return (latest(ends.back()) - latest(ends[ends.size() - 1 - kMostTurns])) / kMostTurns;
}

bool is_last(ActionKind kind) { return kind == ActionKind::kB || kind == ActionKind::kW; }

// When every rank may begin to add up the gradients of a stage and replica, by Schedule::sync.
class Launches {
 public:
  Launches(const Schedule& schedule, const Timeline& times) : schedule_(schedule), times_(times) {}

  double of(int32_t stage, int32_t replica) const {
    const auto r = static_cast<size_t>(schedule_.placement.rank_of(stage, replica));
    const std::vector<Action>& actions = schedule_.ranks[r];
    if (actions.empty()) return 0;
    const double end = times_.times[r].back().end;
    if (schedule_.sync == GradientSync::kEnd) return end;
    size_t last = actions.size();
    for (size_t a = 0; a < actions.size(); ++a) {
      const Action& action = actions[a];
      if (is_last(action.kind) && action.stage.value == stage && action.replica == replica)
        last = a;
    }
    if (last == actions.size()) return 0;  // no work, nothing to wait for
    if (schedule_.sync == GradientSync::kEagerOpt && !waits_after(r, last)) return end;
    return times_.times[r][last].end;
  }

 private:
  bool waits_after(size_t rank, size_t action) const {
    const std::vector<ActionTime>& times = times_.times[rank];
    for (size_t a = action + 1; a < times.size(); ++a) {
      if (times[a].start > times[a - 1].end) return true;
    }
    return false;
  }

  const Schedule& schedule_;
  const Timeline& times_;
};

// A sum begins when every rank with a replica has come to it and has no other one under way.
std::vector<std::vector<SyncTime>> sync_times(const Schedule& schedule, const Timeline& times,
                                              double cost) {
  const Placement& placement = schedule.placement;
  const Launches launches(schedule, times);
  std::vector<std::pair<double, int32_t>> order;  // when the last rank has come to it, stage
  for (int32_t s = 0; s < placement.stages(); ++s) {
    double launch = 0;
    for (int32_t j = 0; j < placement.replicas(); ++j) launch = std::max(launch, launches.of(s, j));
    order.emplace_back(launch, s);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::vector<SyncTime>> syncs(schedule.ranks.size());
  std::vector<double> free(schedule.ranks.size(), 0);
  for (const auto& [launch, stage] : order) {
    double start = launch;
    for (int32_t j = 0; j < placement.replicas(); ++j)
      start = std::max(start, free[static_cast<size_t>(placement.rank_of(stage, j))]);
    for (int32_t j = 0; j < placement.replicas(); ++j) {
      const auto r = static_cast<size_t>(placement.rank_of(stage, j));
      syncs[r].push_back({StageId(stage), j, start, start + cost});
      free[r] = start + cost;
    }
  }
  return syncs;
}

}  // namespace

Timeline timeline(const Schedule& schedule, const ScheduleCosts& costs) {
  Timeline result;
  result.times = Runner(schedule, costs).run();
  double work = 0, longest = 0;
  const std::vector<int32_t> shares = schedule.placement.shares();
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t a = 0; a < schedule.ranks[r].size(); ++a) {
      const Action& action = schedule.ranks[r][a];
      const bool second = action.paired_with == static_cast<int32_t>(a) - 1 && a > 0;
      const bool paired = action.paired_with >= 0 && costs.pair >= 0;
      if (!paired) work += cost_of(schedule, costs, action);
      if (paired && !second) work += costs.pair * portion(schedule, action);
    }
    result.peak_activations.push_back(peak_of(schedule, r, shares[r], costs));
    if (schedule.ranks[r].empty()) continue;
    const double end = result.times[r].back().end;
    result.makespan = std::max(result.makespan, end);
    longest = std::max(longest, end - result.times[r].front().start);
  }
  if (costs.sync > 0 && schedule.placement.replicas() > 1) {
    result.syncs = sync_times(schedule, result, costs.sync);
    for (size_t r = 0; r < result.syncs.size(); ++r) {
      if (result.syncs[r].empty() || result.times[r].empty()) continue;
      const double end = result.syncs[r].back().end;
      result.makespan = std::max(result.makespan, end);
      longest = std::max(longest, end - result.times[r].front().start);
    }
  }
  if (schedule.weight_versions > 1) result.makespan = longest = endless_period(schedule, costs);
  result.period = result.makespan;
  const double mean = work / static_cast<double>(schedule.ranks.size());
  if (schedule.post_validation) {
    const double flowing = flowing_period(schedule, costs);
    result.period = result.syncs.empty() ? flowing : std::max(flowing, longest);
  }
  result.bubble = idle_share(mean, result.makespan);
  result.period_bubble = idle_share(mean, result.period);
  result.span_bubble = idle_share(mean, longest);
  result.weight_copies = schedule.placement.replicas() * schedule.weight_versions;
  return result;
}

std::vector<std::string> findings(const ScheduleCosts& costs, int32_t stages) {
  constexpr double kMost = 1e12;  // sums of them keep the digits that are printed
  Diagnostics out;
  const auto check = [&](const char* name, double value, bool positive = false) {
    if (!(value >= 0) || (positive && value == 0) || !(value <= kMost))
      out.add("{}={} must be a number {} 0 and at most {}", name, value,
              positive ? "above" : "of at least", kMost);
  };
  const auto check_list = [&](const char* name, const std::vector<double>& list) {
    if (stages > 0 && list.size() != 1 && list.size() != static_cast<size_t>(stages)) {
      out.add("costs: {} has {} values; it must have one, or one for each of the {} stages", name,
              list.size(), stages);
    }
    for (const double value : list) check(fmt::format("costs: {}", name).c_str(), value);
  };
  check_list("f", costs.f);
  check_list("b", costs.b);
  check_list("w", costs.w);
  const auto none = [](const std::vector<double>& list) {
    return std::all_of(list.begin(), list.end(), [](double value) { return value == 0; });
  };
  if (none(costs.f) && none(costs.b) && none(costs.w))
    out.add("costs: f, b and w are 0; one of them must be above, for a step takes some time");
  check("costs: sync", costs.sync);
  check("costs: comm", costs.comm);
  if (costs.pair >= 0) check("costs: pair", costs.pair);
  check("memory: mb", costs.mb, true);
  if (costs.mw != costs.mb) check("memory: mw", costs.mw);  // else it was not given
  return out.findings();
}

}  // namespace mw::pipeline
