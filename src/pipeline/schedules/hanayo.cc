// Hanayo [Liu 2023, 2308.15762]: w waves, so 2 w chunks a rank on a folded placement: the pipeline
// runs down and up the ranks w times, without Chimera's second copy of the weights. The order is
// that of list scheduling with b + w = 2 f, backwards first, and no more alive than 1F1B has; of
// the two rules for a tie (older microbatch, later stage) the one with the shorter makespan.
#include <algorithm>

#include "pipeline/schedules/list_schedule.h"

namespace mw::pipeline {

static Schedule make(const ScheduleRequest& request) {
  const int32_t p = request.ranks, v = request.chunks;
  std::vector<std::vector<Action>> forwards(1);
  for (int32_t k = 0; k < request.microbatches; ++k) forwards[0].push_back(forward_action(0, k));
  ListRules rules;
  // A later chunk always finds room, so that earlier ones cannot block it.
  for (int32_t s = 0; s < p * v; ++s)
    rules.most_alive.push_back((std::min(p, request.microbatches) - 1) * v + s / p + 1);

  Schedule best;
  int32_t shortest = 0;
  for (const bool older_first : {true, false}) {
    rules.rank_of_action = [&](const Action& action) {
      const int32_t backward_first = action.kind == ActionKind::kB ? 0 : 1;
      const int32_t age = action.first, depth = -action.stage.value;
      return older_first ? std::tuple(backward_first, age, depth, 0)
                         : std::tuple(backward_first, depth, age, 0);
    };
    Schedule schedule = empty_schedule(request, folded_placement(p, v));
    const int32_t makespan = list_schedule(schedule, forwards, rules);
    if (best.ranks.empty() || makespan < shortest) {
      best = std::move(schedule);
      shortest = makespan;
    }
  }
  return best;
}

extern const ScheduleKind kHanayo = {.name = "hanayo",
                                     .summary = "waves down and up the ranks",
                                     .since = 202308,
                                     .chunks = {.usual = 2, .least = 2, .most = 0, .step = 2},
                                     .options = {},
                                     .compiled = true,
                                     .check = nullptr,
                                     .make = make,
                                     .period = 0};

}  // namespace mw::pipeline
