// Schedules of two folded chunks that repeat a building block every six slots [Qi 2024,
// 2405.15362]. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// The slots of one microbatch on one rank; the W follow in the next slots that no microbatch has.
struct BlockSlots {
  int32_t f0, f1, i1, i0;
};

// `slots(rank)` for every microbatch, six slots apart. REQUIRES: the four slots of a rank differ
// modulo six.
Schedule repeat_block(const ScheduleRequest& request, const std::vector<BlockSlots>& slots);

// Shortens a repeated block at its ends, under the peak memory that it has: packs the forwards of
// the warm-up, brings the last input gradients of the cool-down close to each other, and moves work
// into idle slots before it.
void reorder_ends(Schedule& schedule);

}  // namespace mw::pipeline
