// Looped breadth-first [Lamy-Poirier 2023]: every chunk's forwards of all microbatches before the
// next chunk's, so that a chunk's weights are gathered once; backwards in exactly the reverse
// order.
#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

static Schedule make_looped_bfs(const ScheduleRequest& request) {
  const int32_t p = request.ranks;
  return rank_by_rank(request, looped_placement(p, request.chunks), [&](int32_t rank) {
    std::vector<Action> actions;
    for (int32_t c = 0; c < request.chunks; ++c) {
      for (int32_t k = 0; k < request.microbatches; ++k)
        actions.push_back(forward_action(c * p + rank, k));
    }
    for (size_t i = actions.size(); i-- > 0;)
      actions.push_back(backward_action(actions[i].stage.value, actions[i].first));
    return actions;
  });
}

extern const ScheduleKind kLoopedBfs = {.name = "looped-bfs",
                                        .summary = "chunk after chunk, each with all microbatches",
                                        .since = 202211,
                                        .chunks = kAnyChunks,
                                        .options = {},
                                        .check = nullptr,
                                        .make = make_looped_bfs,
                                        .period = 0,
                                        .variant = {.one_chunk = "gpipe"}};

}  // namespace mw::pipeline
