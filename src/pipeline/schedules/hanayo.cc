// Hanayo [Liu 2023, 2308.15762]: w waves, so 2 w chunks a rank on a folded placement: the pipeline
// runs down and up the ranks w times, without Chimera's second copy of the weights. The order is
// that of list scheduling with b + w = 2 f, backwards first: of some rules for a tie and some
// limits of what is alive when a chunk begins, the one with the shortest makespan among those that
// hold no more than 1F1B does; or equal parts of the microbatches one after the other, where that
// is shorter. (Of one wave only two orders are tried: for up to 8 ranks and 48 microbatches nothing
// else is shorter.)
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "pipeline/schedule_timeline.h"
#include "pipeline/schedules/list_schedule.h"

namespace mw::pipeline {
namespace {

// Which of two forwards, or of two backwards, goes first: of the older microbatch; of the later
// stage; of the older group of as many microbatches as ranks, and there of the later stage.
enum class Tie { kOlder, kLater, kLaterOfGroup };

ListRules::Key key_of(const Action& action, Tie tie, int32_t ranks) {
  const int32_t forward = action.kind == ActionKind::kB ? 0 : 1;
  const int32_t age = action.first, before_end = -action.stage.value;
  switch (tie) {
    case Tie::kOlder: return {forward, age, before_end, 0};
    case Tie::kLater: return {forward, before_end, age, 0};
    case Tie::kLaterOfGroup: return {forward, age / ranks, before_end, age};
  }
  return {};
}

// `more`: chunks alive when another begins, beyond those that never hold more than 1F1B.
struct Try {
  Tie tie;
  int32_t more;
};
constexpr std::array<Try, 5> kTries = {{{Tie::kOlder, 0},
                                        {Tie::kLater, 0},
                                        {Tie::kLaterOfGroup, 0},
                                        {Tie::kLater, 2},
                                        {Tie::kLaterOfGroup, 2}}};

struct Made {
  Schedule schedule;
  double makespan = 0;
};

Made listed(const ScheduleRequest& request) {
  const int32_t p = request.ranks, v = request.chunks;
  std::vector<std::vector<Action>> forwards(1);
  for (int32_t k = 0; k < request.microbatches; ++k) forwards[0].push_back(forward_action(0, k));
  const int32_t as_1f1b = std::min(p, request.microbatches) * v;  // chunks alive on a rank
  Made best;
  for (const Try& one : std::span(kTries).first(v == 2 ? 2 : kTries.size())) {
    ListRules rules;
    // A later chunk always finds room, so that earlier ones cannot block it.
    for (int32_t s = 0; s < p * v; ++s)
      rules.most_alive.push_back(as_1f1b - v + s / p + 1 + one.more);
    rules.rank_of_action = [&](const Action& action) { return key_of(action, one.tie, p); };
    rules.alive_at_most = as_1f1b;
    if (best.makespan > 0) rules.sooner_than = static_cast<int32_t>(best.makespan);
    Schedule schedule = empty_schedule(request, folded_placement(p, v));
    const std::optional<ListOutcome> made = list_schedule(schedule, forwards, rules);
    if (made) best = {std::move(schedule), static_cast<double>(made->makespan)};
  }
  return best;
}

// As many microbatches as `request` in parts of so many, each in the order of `part`.
Made in_parts(const ScheduleRequest& request, const Schedule& part) {
  Made made{part, 0};
  made.schedule.microbatches = request.microbatches;
  for (std::vector<Action>& actions : made.schedule.ranks) {
    const std::vector<Action> once = actions;
    for (int32_t first = part.microbatches; first < request.microbatches;
         first += part.microbatches) {
      for (Action action : once) {
        action.first += first;
        actions.push_back(action);
      }
    }
  }
  made.makespan = timeline(made.schedule, ScheduleCosts{}).makespan;
  return made;
}

// [microbatches] what was found, of one pipeline.
using Known = std::map<int32_t, Made>;

const Made& shortest(const ScheduleRequest& request, Known& known) {
  const auto [it, is_new] = known.try_emplace(request.microbatches);
  Made& best = it->second;
  if (!is_new) return best;
  best = listed(request);
  if (request.chunks == 2) return best;
  const auto try_parts = [&](int32_t of) {
    ScheduleRequest part = request;
    part.microbatches = of;
    Made made = in_parts(request, shortest(part, known).schedule);
    if (made.makespan < best.makespan) best = std::move(made);
  };
  const int32_t m = request.microbatches, half = m / 2;
  if (m % 2 == 0) try_parts(half);
  if (m % request.ranks == 0 && m > request.ranks && half != request.ranks)
    try_parts(request.ranks);
  return best;
}

Schedule make_hanayo(const ScheduleRequest& request) {
  Known known;
  return shortest(request, known).schedule;
}

}  // namespace

extern const ScheduleKind kHanayo = {.name = "hanayo",
                                     .summary = "waves down and up the ranks",
                                     .since = 202308,
                                     .chunks = {.usual = 2, .least = 2, .most = 0, .step = 2},
                                     .options = {},
                                     .check = nullptr,
                                     .make = make_hanayo,
                                     .period = 0};

}  // namespace mw::pipeline
