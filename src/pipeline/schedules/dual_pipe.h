// The order that DualPipe and DualPipeV share. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// A rank's two streams of work: a stage near the input of its pipeline, and one near the output.
struct DualStream {
  int32_t stage, replica, first;  // first: its first microbatch
};

// The eight steps of a rank that is `depth` ranks from the end of a half pipe of `half` ranks, with
// `count` microbatches in each stream. REQUIRES: 0 <= depth < half, count >= 2 half.
std::vector<Action> dual_pipe_order(int32_t half, int32_t depth, int32_t count, DualStream near,
                                    DualStream far);

}  // namespace mw::pipeline
