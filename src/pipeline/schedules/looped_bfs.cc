// Looped breadth-first [Lamy-Poirier 2023]: every chunk's forwards of all microbatches before the
// next chunk's, so that a chunk's weights are gathered once; backwards in exactly the reverse
// order.
#include <algorithm>

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

static Schedule make(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, looped_placement(request.ranks, request.chunks));
  for (int32_t r = 0; r < request.ranks; ++r) {
    std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(r)];
    for (int32_t c = 0; c < request.chunks; ++c) {
      for (int32_t k = 0; k < request.microbatches; ++k)
        actions.push_back(forward_action(c * request.ranks + r, k));
    }
    for (size_t i = actions.size(); i-- > 0;)
      actions.push_back(backward_action(actions[i].stage.value, actions[i].first));
  }
  return schedule;
}

extern const ScheduleKind kLoopedBfs = {.name = "looped-bfs",
                                        .summary = "chunk after chunk, each with all microbatches",
                                        .since = 202211,
                                        .chunks = kAnyChunks,
                                        .options = {},
                                        .check = nullptr,
                                        .make = make,
                                        .period = 0,
                                        .variant = {.one_chunk = "gpipe"}};

}  // namespace mw::pipeline
