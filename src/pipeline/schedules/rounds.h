// The order in which interleaved kinds take their chunks. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// Rounds of `group` microbatches go through all chunks of a rank, chunk after chunk; the last round
// may be smaller.
struct Rounds {
  struct Turn {
    int32_t chunk, microbatch;
  };
  std::vector<Turn> forward, backward;  // backward: the chunks from the last to the first
};
Rounds rounds_of(const ScheduleRequest& request);

// Rounds are at least as long as the pipeline, so that a chunk's output is there when the first
// rank turns to the next chunk; or there is one round, whose
// backwards begin in the last chunk, as in 1f1b.
void check_rounds(const ScheduleRequest& request, Diagnostics& out);

}  // namespace mw::pipeline
