// GPipe [Huang 2019]: all forwards, then all backwards; every microbatch is alive in between.
#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

static Schedule make(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, looped_placement(request.ranks, 1));
  for (int32_t r = 0; r < request.ranks; ++r) {
    std::vector<Action>& actions = schedule.ranks[static_cast<size_t>(r)];
    for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(forward_action(r, k));
    for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(backward_action(r, k));
  }
  return schedule;
}

extern const ScheduleKind kGPipe = {.name = "gpipe",
                                    .summary = "all forwards, then all backwards",
                                    .since = 201811,
                                    .chunks = kOneChunk,
                                    .options = {},
                                    .check = nullptr,
                                    .make = make,
                                    .variant = {.less_memory = "1f1b"}};

}  // namespace mw::pipeline
