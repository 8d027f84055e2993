#include "predict/order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <span>

#include "base/error.h"
#include "compile/replicas.h"
#include "pipeline/schedule_timeline.h"

namespace mw::predict {

using pipeline::Action;
using pipeline::ActionKind;

Order::Order(const pipeline::Schedule& folded)
    : ranks_(folded.placement.ranks), stages_(folded.placement.stages()), slices_(folded.slices) {
  const pipeline::Schedule schedule = compile::unfold(folded);
  rank_of_ = schedule.placement.rank_of_stage;
  Microbatches microbatches = sort_actions(schedule);
  sort_by(count_slots(microbatches), microbatches);
  assign_slots(microbatches);
}

int32_t Order::cost_of(const std::vector<Action>& actions, size_t at) {
  const Action& action = actions[at];
  const int32_t piece = piece_of(action.stage.value);
  const auto kinds = static_cast<int32_t>(kKinds);
  const auto cost = piece * kinds + static_cast<int32_t>(action.kind);
  if (action.paired_with < 0 || action.paired_with > static_cast<int32_t>(at)) return cost;
  const Action& first = actions[static_cast<size_t>(action.paired_with)];
  const bool whole = (action.kind == ActionKind::kF && first.kind == ActionKind::kB) ||
                     (action.kind == ActionKind::kB && first.kind == ActionKind::kF);
  if (!whole) return cost;
  const Pair pair{action.kind, piece, piece_of(first.stage.value)};
  const auto known = std::find(pairs_.begin(), pairs_.end(), pair);
  const auto number = static_cast<int32_t>(known - pairs_.begin());
  if (known == pairs_.end()) pairs_.push_back(pair);
  return pieces() * kinds + number;
}

ActionKind Order::kind_of(const Step& step) const {
  const auto cost = static_cast<size_t>(step.cost);
  const size_t single = static_cast<size_t>(pieces()) * kKinds;
  return cost < single ? static_cast<ActionKind>(cost % kKinds) : pairs_[cost - single].kind;
}

Order::Microbatches Order::sort_actions(const pipeline::Schedule& schedule) {
  const auto microbatches = static_cast<size_t>(schedule.microbatches);
  size_t actions = 0;
  for (const auto& rank : schedule.ranks) actions += rank.size();
  steps_.reserve(actions);
  Microbatches made_of{{}, microbatches};
  made_of.of_step.reserve(actions);
  // [stage, F or not][microbatch] the step that makes what a neighbour reads.
  std::vector<int32_t> made(2 * rank_of_.size() * microbatches, -1);
  const auto unit = [&](int32_t stage, bool forward, const Action& action) -> int32_t& {
    return made[static_cast<size_t>(2 * stage + (forward ? 0 : 1)) * microbatches +
                static_cast<size_t>(action.first)];
  };
  std::map<std::pair<int32_t, int32_t>, int16_t> hop_ids;
  std::vector<size_t> next(schedule.ranks.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < next.size(); ++r) {
      for (; next[r] < schedule.ranks[r].size(); ++next[r], moved = true) {
        const Action& action = schedule.ranks[r][next[r]];
        const bool forward = action.kind == ActionKind::kF;
        const int32_t stage = action.stage.value;
        const int32_t from = neighbour(stage, forward ? -1 : 1);
        Step step;
        step.rank = static_cast<int16_t>(r);
        step.cost = cost_of(schedule.ranks[r], next[r]);
        step.copy = stage;
        if (action.kind != ActionKind::kW && from >= 0) {
          step.need = unit(from, forward, action);
          if (step.need < 0) break;
        }
        const int32_t to = neighbour(stage, forward ? 1 : -1);
        if (action.kind != ActionKind::kW && to >= 0 && rank_of(to) != step.rank) {
          const auto [it, is_new] =
              hop_ids.try_emplace({step.rank, rank_of(to)}, static_cast<int16_t>(hops_.size()));
          if (is_new) hops_.emplace_back(step.rank, rank_of(to));
          step.hop = it->second;
        }
        has_whole_ = has_whole_ || action.kind == ActionKind::kB;
        has_split_ = has_split_ || action.kind == ActionKind::kI;
        if (action.kind != ActionKind::kW)
          unit(stage, forward, action) = static_cast<int32_t>(steps_.size());
        steps_.push_back(step);
        made_of.of_step.push_back(action.first);
      }
    }
  }
  for (size_t r = 0; r < next.size(); ++r)
    MW_CHECK(next[r] == schedule.ranks[r].size(), "schedule {} stops on rank {}", schedule.name, r);
  constexpr size_t kMost = std::numeric_limits<int16_t>::max();  // Step's numbers
  MW_CHECK(next.size() <= kMost && hops_.size() <= kMost, "schedule {} has {} ranks, {} hops",
           schedule.name, next.size(), hops_.size());
  return made_of;
}

std::vector<Order::Tail> Order::tails(const std::vector<double>& costs) const {
  std::vector<Tail> tails(rank_of_.size());
  std::vector<double> behind(static_cast<size_t>(ranks_), 0);
  std::vector<char> found(tails.size(), 0);
  size_t left = tails.size();
  for (size_t i = steps_.size(); i-- > 0 && left > 0;) {
    const Step& step = steps_[i];
    const double seconds = costs[static_cast<size_t>(step.cost)];
    double& here = behind[static_cast<size_t>(step.rank)];
    here += seconds;
    const ActionKind kind = kind_of(step);
    const auto copy = static_cast<size_t>(step.copy);
    if (found[copy] != 0 || (kind != ActionKind::kB && kind != ActionKind::kW)) continue;
    tails[copy] = {here, seconds};
    found[copy] = 1;
    --left;
  }
  return tails;
}

Order::Change Order::change_of(int32_t copy, ActionKind kind, const Kept& kept,
                               const Passed& passed) const {
  const auto passes = [&](int32_t other) {
    return other >= 0 && rank_of(other) == rank_of(copy) ? passed.bytes : 0;
  };
  const double received = passes(neighbour(copy, -1)), sent = passes(neighbour(copy, 1));
  const double held = passed.held ? received : 0;
  switch (kind) {
    case ActionKind::kF: return {kept.saved + sent, received - held};
    case ActionKind::kI:
      return {kept.by_input_grad + received, kept.saved + kept.by_input_grad - kept.for_weights};
    case ActionKind::kB: return {received, kept.saved + sent + held};
    default:  // weight gradients read the stage's input and its output's gradient
      return {0, kept.for_weights + sent + held};
  }
}

void Order::run_memory(const std::vector<Kept>& kept, const Passed& passed,
                       std::vector<double>& most) const {
  std::vector<Change> changes;  // [copy][kind]
  changes.reserve(rank_of_.size() * kKinds);
  for (int32_t copy = 0; copy < copies(); ++copy) {
    for (size_t kind = 0; kind < kKinds; ++kind)
      changes.push_back(change_of(copy, static_cast<ActionKind>(kind),
                                  kept[static_cast<size_t>(piece_of(copy))], passed));
  }
  most.assign(static_cast<size_t>(ranks_), 0);
  std::vector<double> now(static_cast<size_t>(ranks_), 0);
  for (const Step& step : steps_) {
    const auto rank = static_cast<size_t>(step.rank);
    const Change& change =
        changes[static_cast<size_t>(step.copy) * kKinds + static_cast<size_t>(kind_of(step))];
    now[rank] += change.begins;
    most[rank] = std::max(most[rank], now[rank]);
    now[rank] -= change.ends;
  }
}

namespace {

// A copy's work on one microbatch in units of time; b: to the end of W where it is split.
struct UnitTimes {
  int32_t f_start = 0, f_end = 0, b_start = 0, b_end = 0;
};

// The most microbatches at one time between `begin` of the makers' work on them and `end` of the
// readers'. `change`: the caller's to use again, as long as the run.
int32_t most_at_once(std::span<const UnitTimes> makers, int32_t UnitTimes::* begin,
                     std::span<const UnitTimes> readers, int32_t UnitTimes::* end,
                     std::vector<int32_t>& change) {
  std::fill(change.begin(), change.end(), 0);
  for (const UnitTimes& unit : makers) ++change[static_cast<size_t>(unit.*begin)];
  for (const UnitTimes& unit : readers) --change[static_cast<size_t>(unit.*end)];
  int32_t now = 0, most = 0;
  for (const int32_t by : change) most = std::max(most, now += by);
  return most;
}

}  // namespace

// Values that are there at one time under each of kBackwardTimes, where nobody waits for a slot: as
// compile/channels.cc counts slots of a program's channels, here of every boundary of an order
// (order_test.cc holds the two against each other).
std::vector<double> Order::count_slots(const Microbatches& microbatches) {
  const size_t copies = rank_of_.size(), count = microbatches.count;
  slots_.resize(copies);
  std::vector<UnitTimes> units(copies * count);  // [copy][microbatch]
  const auto units_of = [&](size_t copy) { return std::span(units).subspan(copy * count, count); };
  const size_t single = static_cast<size_t>(pieces()) * kKinds;
  std::vector<double> costs(single + pairs_.size(), 1), rank_ends;
  Room room;
  std::vector<Hop> hop_costs(hops_.size());
  for (size_t h = 0; h < hop_costs.size(); ++h)
    hop_costs[h].port = hop_costs[h].into = static_cast<int32_t>(h);
  for (const int32_t backward : pipeline::kBackwardTimes) {
    for (size_t p = 0; p < static_cast<size_t>(pieces()); ++p) {
      for (const ActionKind kind : {ActionKind::kB, ActionKind::kI})
        costs[p * kKinds + static_cast<size_t>(kind)] = backward;
    }
    for (size_t p = 0; p < pairs_.size(); ++p)
      costs[single + p] = pairs_[p].kind == ActionKind::kB ? backward : 1;
    run(costs, hop_costs, Slot::kForward, room, rank_ends);
    int32_t last = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const auto cost = static_cast<size_t>(step.cost);
      UnitTimes& unit =
          units_of(static_cast<size_t>(step.copy))[static_cast<size_t>(microbatches.of_step[i])];
      const auto end = static_cast<int32_t>(room.ends[i]);
      const ActionKind kind = kind_of(step);
      const int32_t start = end - static_cast<int32_t>(costs[cost]);
      last = std::max(last, end);
      if (kind == ActionKind::kF) {
        unit.f_start = start;
        unit.f_end = end;
      } else {
        if (kind != ActionKind::kW) unit.b_start = start;
        unit.b_end = end;
      }
    }
    std::vector<int32_t> change(static_cast<size_t>(last) + 1);
    for (size_t s = 0; s < copies; ++s) {
      const int32_t behind = neighbour(static_cast<int32_t>(s), 1);
      if (behind < 0 || rank_of(behind) == rank_of_[s]) continue;  // no channel
      const auto here = units_of(s), next = units_of(s + 1);
      const auto most = [&](auto from, auto begin, auto to, auto end, int32_t& slots) {
        slots = std::max(slots, most_at_once(from, begin, to, end, change));
      };
      most(here, &UnitTimes::f_start, next, &UnitTimes::f_end, slots_[s + 1].forward);
      most(here, &UnitTimes::f_start, next, &UnitTimes::b_end, slots_[s + 1].held);
      most(next, &UnitTimes::b_start, here, &UnitTimes::b_end, slots_[s].gradients);
    }
  }
  return room.ends;
}

// In the order of a run in which nobody waited for a slot, a slot's release comes before its use.
void Order::sort_by(const std::vector<double>& ends, Microbatches& microbatches) {
  // Ends are whole units of time: steps are counted into their places.
  const auto time = [&](size_t step) { return static_cast<size_t>(ends[step]); };
  std::vector<int32_t> order(steps_.size()), place(steps_.size());
  std::vector<size_t> first;  // [time] place of the next step that ends then
  for (size_t i = 0; i < ends.size(); ++i) {
    if (time(i) + 1 >= first.size()) first.resize(time(i) + 2, 0);
    ++first[time(i) + 1];
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  for (size_t i = 0; i < ends.size(); ++i) order[first[time(i)]++] = static_cast<int32_t>(i);
  std::vector<Step> sorted;
  std::vector<int32_t> sorted_microbatches;
  sorted.reserve(steps_.size());
  sorted_microbatches.reserve(steps_.size());
  for (const int32_t from : order) {
    place[static_cast<size_t>(from)] = static_cast<int32_t>(sorted.size());
    Step step = steps_[static_cast<size_t>(from)];
    if (step.need >= 0) step.need = place[static_cast<size_t>(step.need)];
    sorted.push_back(step);
    sorted_microbatches.push_back(microbatches.of_step[static_cast<size_t>(from)]);
  }
  steps_ = std::move(sorted);
  microbatches.of_step = std::move(sorted_microbatches);
}

// A ring: the n-th message of a channel has the slot of the one before it by as many as there are
// slots, which its receiver releases behind the last action that reads it.
void Order::assign_slots(const Microbatches& microbatches) {
  const size_t copies = rank_of_.size(), count = microbatches.count;
  struct Unit {
    int32_t forward = -1, backward = -1;  // the last step of each
  };
  std::vector<Unit> units(copies * count);
  const auto unit = [&](size_t copy, int32_t microbatch) -> Unit& {
    return units[copy * count + static_cast<size_t>(microbatch)];
  };
  std::vector<std::vector<int32_t>> forwards(copies), backwards(copies);  // [copy] steps that send
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    const auto copy = static_cast<size_t>(step.copy);
    const auto id = static_cast<int32_t>(i);
    if (kind_of(step) == ActionKind::kF) {
      unit(copy, microbatches.of_step[i]).forward = id;
      if (step.hop >= 0) forwards[copy].push_back(id);
    } else {
      unit(copy, microbatches.of_step[i]).backward = id;
      if (step.hop >= 0) backwards[copy].push_back(id);
    }
  }
  const auto assign = [&](const std::vector<int32_t>& senders, int32_t slots, Slot slot,
                          const auto& released) {
    for (size_t n = static_cast<size_t>(slots); n < senders.size(); ++n) {
      const auto before = static_cast<size_t>(senders[n - static_cast<size_t>(slots)]);
      const int32_t by = released(microbatches.of_step[before]);
      // Of an order that takes a channel's messages in another order than they were sent, behind
      // this one: nobody waits for it here.
      if (by < senders[n])
        steps_[static_cast<size_t>(senders[n])].slot[static_cast<size_t>(slot)] = by;
    }
  };
  for (size_t s = 0; s < copies; ++s) {
    if (neighbour(static_cast<int32_t>(s), 1) >= 0) {
      assign(forwards[s], slots_[s + 1].forward, Slot::kForward,
             [&](int32_t m) { return unit(s + 1, m).forward; });
      assign(forwards[s], slots_[s + 1].held, Slot::kHeld,
             [&](int32_t m) { return unit(s + 1, m).backward; });
    }
    if (neighbour(static_cast<int32_t>(s), -1) < 0) continue;
    for (const Slot slot : {Slot::kForward, Slot::kHeld}) {
      assign(backwards[s], slots_[s - 1].gradients, slot,
             [&](int32_t m) { return unit(s - 1, m).backward; });
    }
  }
}

void Order::run(const std::vector<double>& costs, const std::vector<Hop>& hop_costs, Slot slot,
                Room& room, std::vector<double>& rank_ends) const {
  rank_ends.assign(static_cast<size_t>(ranks_), 0);
  room.ports.assign(hops_.size(), 0);
  room.into.assign(hops_.size(), {0, 0});
  room.ends.resize(steps_.size());
  room.arrivals.resize(steps_.size());
  double* arrivals = room.arrivals.data();
  const bool gathers = std::any_of(hop_costs.begin(), hop_costs.end(),
                                   [](const Hop& hop) { return hop.gather > 0; });
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    double& free = rank_ends[static_cast<size_t>(step.rank)];
    double start = free;
    if (step.need >= 0) {
      start = std::max(start, arrivals[step.need]);
      const int32_t way = gathers ? steps_[static_cast<size_t>(step.need)].hop : -1;
      if (way >= 0) start += hop_costs[static_cast<size_t>(way)].gather;
    }
    if (const int32_t by = step.slot[static_cast<size_t>(slot)]; by >= 0)
      start = std::max(start, room.ends[static_cast<size_t>(by)]);
    free = room.ends[i] = arrivals[i] = start + costs[static_cast<size_t>(step.cost)];
    if (step.hop < 0) continue;
    const Hop& hop = hop_costs[static_cast<size_t>(step.hop)];
    double& port = room.ports[static_cast<size_t>(hop.port)];
    const double begin = std::max(port, free);
    port = begin + hop.port_seconds;
    // Beside a message that comes to the same rank at the same time it is half as fast.
    auto& [from, to] = room.into[static_cast<size_t>(hop.into)];
    if (begin < to && port > from) port += std::min(port, to) - std::max(begin, from);
    from = begin;
    to = port;
    arrivals[i] = port + hop.latency;
    if (hop.holds) free = arrivals[i];
  }
}

}  // namespace mw::predict
