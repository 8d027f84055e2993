// Chimera's forward doubling [Li 2021, section 3.5]: a forward carries two microbatches and so
// takes as long as the backward of one (b + w = 2 f). A unit of 2 D microbatches has then 3 D slots
// of work on every rank. With one pair, list scheduling (older units first, backwards before
// forwards, later stages before earlier ones) puts it into 4 D - 2: for N microbatches, a multiple
// of 2 D, the bubble is (D - 2) / (3 N / 2 + D - 2); more pairs wait less. Up to 2 D microbatches
// are alive.
#include "pipeline/schedules/chimera_doubling.h"

#include <algorithm>

#include "pipeline/schedules/list_schedule.h"

namespace mw::pipeline {

Schedule chimera_doubled(const ScheduleRequest& request, int32_t microbatches) {
  const int32_t d = request.ranks, replicas = 2 * request.pairs;
  Schedule schedule = empty_schedule(request, chimera_placement(d, request.pairs));
  schedule.microbatches = microbatches;
  std::vector<std::vector<Action>> forwards(static_cast<size_t>(replicas));
  std::vector<int32_t> unit_of(static_cast<size_t>(microbatches));
  int32_t unit = 0;
  for (int32_t next = 0; next < microbatches; ++unit) {
    const int32_t left = std::min(2 * d, microbatches - next);
    const std::vector<int32_t> counts = shares((left + 1) / 2, replicas);
    for (size_t j = 0; j < forwards.size(); ++j) {
      for (int32_t i = 0; i < counts[j]; ++i) {
        Action forward = forward_action(0, next);
        forward.count = std::min(2, microbatches - next);
        for (int32_t k = 0; k < forward.count; ++k) unit_of[static_cast<size_t>(next + k)] = unit;
        next += forward.count;
        forwards[j].push_back(forward);
      }
    }
  }
  ListRules rules;
  rules.most_alive.assign(static_cast<size_t>(d), 2 * d);
  rules.rank_of_action = [&](const Action& action) {
    return std::tuple(unit_of[static_cast<size_t>(action.first)],
                      action.kind == ActionKind::kB ? 0 : 1, -action.stage.value, action.first);
  };
  const bool made = list_schedule(schedule, forwards, rules).has_value();
  MW_CHECK(made, "no order of {} microbatches", microbatches);
  return schedule;
}

static Schedule make_chimera_doubling(const ScheduleRequest& request) {
  return chimera_doubled(request, request.microbatches);
}

extern const ScheduleKind kChimeraDoubling = {
    .name = "chimera-doubling",
    .summary = "chimera, a forward carries two microbatches",
    .since = 202107,
    .chunks = kOneChunk,
    .options = {.pairs = true, .sync = true},
    .check = check_chimera,
    .make = make_chimera_doubling,
    .period = 2};

}  // namespace mw::pipeline
