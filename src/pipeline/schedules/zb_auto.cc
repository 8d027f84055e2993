// The zero-bubble heuristic [Qi 2024, 2401.10241, section 3.1]: an order of F, I and W for given
// costs under a memory limit, from one stage's share of 1F1B (ZB-1p: p microbatches) over ZB-2p
// (2 p, close to no bubble without a flush) to any more.
//
// Forwards fill the wait for the first I as far as the memory goes. Then, microbatch by microbatch,
// the stages take one F each, where they may, and one I each; a W goes where it fits into the wait
// for either, where it would make the largest bubble of all stages no larger, and where memory must
// be freed. Three choices are open; all eight ways are tried and the one with the shortest span is
// kept, of equal ones that with the shortest makespan; so are those under less memory that the
// paper names, where more is there. Under less than one stage's share of 1F1B, which the paper does
// not go below, a fourth is. Where stages differ the paper's orders by hand, ZB-H1 and ZB-H2, may
// be shorter: they are taken then. With `exact` the order is that of an integer program
// (zb_exact.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "pipeline/schedule_timeline.h"
#include "pipeline/schedules/zb_exact.h"

namespace mw::pipeline {
namespace {

struct Choices {
  bool late_first_backward;  // an early F may delay the first I
  bool hold_forwards_back;   // a stage two F ahead of the next may leave one out
  bool early_weights;        // W go also where the stage's bubble is far below the largest
  // So many of p stages would hold all that the first one holds before its first I, and the others
  // their shares of it: an even fall to the last stage's none. 0: one less from stage to stage.
  int32_t even_start;
};

enum Kind : size_t { kForward, kInput, kWeight };

// What a step takes without a flush, and with one.
struct Length {
  double span = 0, makespan = 0;

  bool is_below(const Length& other) const {
    constexpr double kRounding = 1e-9;
    if (std::abs(span - other.span) > kRounding * other.span) return span < other.span;
    return makespan < other.makespan * (1 - kRounding);
  }
};

// One stage's state while the order is being made.
struct Stage {
  std::array<int32_t, 3> done{};
  std::array<double, 3> cost{};
  double clock = 0, memory = 0, bubble = 0, first_start = 0;
  std::vector<double> forward_end, input_end;  // [microbatch]
  std::vector<Action> order;

  bool has_weight() const { return done[kWeight] < done[kInput]; }
};

class Heuristic {
 public:
  Heuristic(const ScheduleRequest& request, Choices choices)
      : m_(request.microbatches),
        costs_(request.costs),
        limit_((request.memory_limit + kMemorySlack) * request.costs.mb),
        forward_limit_(limit_ - std::max(0.0, costs_.mw - costs_.mb)),
        choices_(choices),
        stages_(static_cast<size_t>(request.ranks)) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const StageId id(static_cast<int64_t>(s));
      stages_[s].cost = {costs_.f_of(id), costs_.b_of(id), costs_.w_of(id)};
    }
  }

  // False: the choices do not get along with the limit.
  bool run() {
    begin();
    for (int32_t k = 1; k < m_; ++k) {
      if (!forwards() || !inputs(k)) return false;
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      while (stages_[s].done[kWeight] < m_) put(s, kWeight);
    }
    return true;
  }

  Length length() const {
    Length longest;
    for (const Stage& stage : stages_) {
      longest.span = std::max(longest.span, stage.clock - stage.first_start);
      longest.makespan = std::max(longest.makespan, stage.clock);
    }
    return longest;
  }
  std::vector<Stage> take() { return std::move(stages_); }

 private:
  double delta(Kind kind) const {
    return kind == kForward ? costs_.mb : kind == kInput ? costs_.mw - costs_.mb : -costs_.mw;
  }

  // When what the stage's next F or I needs is there.
  double arrival(size_t s, Kind kind) const {
    const auto k = static_cast<size_t>(stages_[s].done[kind]);
    if (kind == kForward && s > 0) return stages_[s - 1].forward_end[k] + costs_.comm;
    if (kind == kInput && s + 1 < stages_.size()) return stages_[s + 1].input_end[k] + costs_.comm;
    return 0;
  }

  void put(size_t s, Kind kind) {
    constexpr std::array kActions = {ActionKind::kF, ActionKind::kI, ActionKind::kW};
    Stage& stage = stages_[s];
    const double start = std::max(stage.clock, arrival(s, kind));
    if (stage.done[kForward] > 0) {
      stage.bubble += start - stage.clock;
    } else {
      stage.first_start = start;
    }
    stage.clock = start + stage.cost[kind];
    stage.memory += delta(kind);
    stage.order.push_back(action_of(kActions[kind], static_cast<int32_t>(s), stage.done[kind]++));
    if (kind == kForward) stage.forward_end.push_back(stage.clock);
    if (kind == kInput) stage.input_end.push_back(stage.clock);
  }

  double largest_bubble() const {
    double largest = 0;
    for (const Stage& stage : stages_) largest = std::max(largest, stage.bubble);
    return largest;
  }

  // How many more forwards stage s takes before its first I, whose output is awaited at `ready`.
  int32_t early_forwards(size_t s, double ready) const {
    const Stage& stage = stages_[s];
    double memory = stage.memory, clock = stage.clock;
    int32_t count = 0;
    while (stage.done[kForward] + count < m_ && memory + costs_.mb <= forward_limit_) {
      const double until = choices_.late_first_backward ? clock + stage.cost[kForward] : clock;
      if (choices_.late_first_backward ? until > ready : until >= ready) break;
      memory += costs_.mb;
      clock += stage.cost[kForward];
      ++count;
    }
    return count;
  }

  // The first microbatch on all stages, with the forwards that go before its I.
  void begin() {
    const size_t p = stages_.size();
    for (size_t s = 0; s < p; ++s) put(s, kForward);
    std::vector<int32_t> early(p, 0);
    double input_end = stages_[p - 1].clock + stages_[p - 1].cost[kInput];
    for (size_t s = p - 1; s-- > 0;) {
      const double ready = input_end + costs_.comm;
      early[s] = early_forwards(s, ready);
      const double clock = stages_[s].clock + early[s] * stages_[s].cost[kForward];
      input_end = std::max(clock, ready) + stages_[s].cost[kInput];
    }
    // A later stage is at least one forward behind. Where memory holds the first stage back, that
    // would leave the last stages a microbatch at a time; an even fall keeps microbatches apart.
    for (size_t s = 1; s < p; ++s) {
      const auto share = static_cast<size_t>(choices_.even_start) * (p - s);
      const int32_t most = choices_.even_start > 0 ? static_cast<int32_t>((share + p - 1) / p) - 1
                                                   : early[s - 1] - 1;
      if (1 + early[s] < m_) early[s] = std::min(early[s], std::max(most, 0));
      early[s] = std::min(early[s], early[s - 1]);
    }
    for (size_t s = 0; s < p; ++s) {
      for (int32_t i = 0; i < early[s]; ++i) put(s, kForward);
    }
    for (size_t s = p; s-- > 0;) put(s, kInput);
  }

  // Whether stage s leaves its F out of this round, so that its I is not kept waiting.
  bool leaves_out(size_t s) const {
    if (!choices_.hold_forwards_back || s + 1 == stages_.size()) return false;
    const Stage &stage = stages_[s], &next = stages_[s + 1];
    if (stage.done[kForward] < next.done[kForward] + 2) return false;
    const double input_ready = next.clock + next.cost[kForward] + next.cost[kInput] + costs_.comm;
    if (stage.clock >= input_ready) return true;
    double memory = stage.memory + costs_.mb, weights = 0;
    for (int32_t w = stage.done[kWeight]; memory > forward_limit_ && w < stage.done[kInput]; ++w) {
      memory -= costs_.mw;
      weights += stage.cost[kWeight];
    }
    if (stage.clock + stage.cost[kForward] + weights <= input_ready) return false;
    return input_ready - stage.clock <= largest_bubble() - stage.bubble;
  }

  bool forwards() {
    const size_t p = stages_.size();
    std::vector<bool> takes(p, false);
    for (size_t s = 0; s < p; ++s) takes[s] = stages_[s].done[kForward] < m_ && !leaves_out(s);
    for (size_t s = p - 1; s-- > 0;) takes[s] = takes[s] && takes[s + 1];
    for (size_t s = 0; s < p; ++s) {
      if (!takes[s]) continue;
      if (!make_room(s, kForward)) return false;
      if (s > 0) fill_wait(s, kForward);
      put(s, kForward);
    }
    return true;
  }

  bool inputs(int32_t microbatch) {
    for (size_t s = stages_.size(); s-- > 0;) {
      MW_CHECK(stages_[s].done[kInput] == microbatch, "stage {} has {} I, not {}", s,
               stages_[s].done[kInput], microbatch);
      // At most one F of a round is left out, by a stage that is two ahead of the next.
      MW_CHECK(stages_[s].done[kForward] > microbatch, "stage {} has {} F in round {}", s,
               stages_[s].done[kForward], microbatch);
      if (!make_room(s, kInput)) return false;
      if (s + 1 < stages_.size()) fill_wait(s, kInput);
      if (s == 0 && stages_[s].done[kForward] == m_) {
        while (stages_[s].has_weight()) put(s, kWeight);
      }
      put(s, kInput);
    }
    return true;
  }

  bool make_room(size_t s, Kind kind) {
    while (stages_[s].memory + delta(kind) > (kind == kForward ? forward_limit_ : limit_)) {
      if (!stages_[s].has_weight()) return false;
      put(s, kWeight);
    }
    return true;
  }

  // W while the stage waits for its next F or I; one more where that does not make the largest
  // bubble larger or is asked for.
  void fill_wait(size_t s, Kind kind) {
    const double ready = arrival(s, kind);
    Stage& stage = stages_[s];
    while (stage.has_weight() && stage.clock + stage.cost[kWeight] <= ready) put(s, kWeight);
    if (!stage.has_weight() || stage.clock >= ready) return;
    const bool harmless = ready - stage.clock <= largest_bubble() - stage.bubble;
    if (!harmless || choices_.early_weights) put(s, kWeight);
  }

  int32_t m_;
  const ScheduleCosts& costs_;
  double limit_;
  double forward_limit_;  // an F leaves room for the I that holds more than it
  Choices choices_;
  std::vector<Stage> stages_;
};

void check_zb_auto(const ScheduleRequest& request, Diagnostics& out) {
  for (const std::string& finding : findings(request.costs, request.ranks)) out.add("{}", finding);
  if (!(request.costs.mb > 0)) return;
  const double least = std::max(1.0, request.costs.mw / request.costs.mb);
  if (request.memory_limit + kMemorySlack < least) {
    out.add(
        "schedule zb-auto: the memory limit of {} microbatches does not hold one; use at least {}",
        request.memory_limit, least);
  }
  if (request.exact) check_exact(request, out);
}

// ZB-H1 or ZB-H2 where it keeps to the limit and is shorter; else null.
std::optional<Schedule> shorter_by_hand(const ScheduleRequest& request, Length shortest) {
  std::optional<Schedule> best;
  for (const char* kind : {"zb-h1", "zb-h2"}) {
    Schedule schedule = find_kind(kind)->make(request);
    const Timeline times_of = timeline(schedule, request.costs);
    const double most =
        *std::max_element(times_of.peak_activations.begin(), times_of.peak_activations.end());
    if (most > request.memory_limit + kMemorySlack) continue;
    Length length = {.makespan = times_of.makespan};
    for (const std::vector<ActionTime>& rank : times_of.times)
      length.span = std::max(length.span, rank.back().end - rank.front().start);
    if (!length.is_below(shortest)) continue;
    shortest = length;
    best = std::move(schedule);
  }
  return best;
}

Schedule make_zb_auto(const ScheduleRequest& request) {
  std::vector<Stage> best;
  Length shortest;
  std::vector<int32_t> starts = {0};
  if (request.memory_limit + kMemorySlack < request.ranks) {
    const auto held = static_cast<int32_t>(request.memory_limit + kMemorySlack);
    starts.push_back(held);
    if (held > 1) starts.push_back(held - 1);
  }
  const auto try_ways = [&](double limit) {
    ScheduleRequest under = request;
    under.memory_limit = limit;
    for (int32_t way = 8 * static_cast<int32_t>(starts.size()) - 1; way >= 0; --way) {
      Heuristic heuristic(under, {(way & 4) != 0, (way & 2) != 0, (way & 1) != 0,
                                  starts[static_cast<size_t>(way) / 8]});
      if (!heuristic.run()) continue;
      if (!best.empty() && !heuristic.length().is_below(shortest)) continue;
      shortest = heuristic.length();
      best = heuristic.take();
    }
  };
  try_ways(request.memory_limit);
  // Early forwards that memory allows may be in the way of what is shorter.
  for (const double fewer : {2.0 * request.ranks, 1.0 * request.ranks}) {
    if (request.memory_limit > fewer) try_ways(fewer);
  }
  if (best.empty()) {
    throw_error(
        "schedule zb-auto: no order was found for {} ranks, {} microbatches and a memory limit of "
        "{}; use a limit of at least {}",
        request.ranks, request.microbatches, request.memory_limit, request.memory_limit + 1);
  }
  Schedule schedule = empty_schedule(request, looped_placement(request.ranks, 1));
  for (size_t s = 0; s < best.size(); ++s) schedule.ranks[s] = std::move(best[s].order);
  if (std::optional<Schedule> by_hand = shorter_by_hand(request, shortest))
    schedule = std::move(*by_hand);
  return request.exact ? exact_order(request, schedule) : schedule;
}

}  // namespace

// ZB-1p and ZB-2p [there, section 3].
static constexpr std::array kLimits = {NamedLimit{"zb-1p", 1}, NamedLimit{"zb-2p", 2}};

extern const ScheduleKind kZbAuto = {
    .name = "zb-auto",
    .summary = "zero bubble for given costs under a memory limit",
    .since = 202311,
    .chunks = kOneChunk,
    .options = {.memory_limit = true, .costs = true, .exact = true},
    .check = check_zb_auto,
    .make = make_zb_auto,
    .period = 0,
    .split_backward = true,
    .limits = kLimits};

}  // namespace mw::pipeline
