// GPipe [Huang 2019]: all forwards, then all backwards; every microbatch is alive in between.
#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

static Schedule make_gpipe(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    std::vector<Action> actions;
    for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(forward_action(rank, k));
    for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(backward_action(rank, k));
    return actions;
  });
}

extern const ScheduleKind kGPipe = {.name = "gpipe",
                                    .summary = "all forwards, then all backwards",
                                    .since = 201811,
                                    .chunks = kOneChunk,
                                    .options = {},
                                    .check = nullptr,
                                    .make = make_gpipe,
                                    .variant = {.less_memory = "1f1b"}};

}  // namespace mw::pipeline
