// V-Min [Qi 2024, 2405.15362, table 8]: a building block on two folded chunks whose forwards and
// backwards all move by one slot a rank: about a third of 1F1B's memory. Where f, b and w differ it
// has a bubble in every period.
#include "pipeline/schedules/block_schedule.h"

namespace mw::pipeline {

static Schedule make_v_min(const ScheduleRequest& request) {
  const int32_t p = request.ranks, g = p % 3 == 0 ? 2 : 0;
  std::vector<BlockSlots> slots;
  for (int32_t r = 0; r < p; ++r) {
    slots.push_back({.f0 = r, .f1 = 2 * p - 1 - r, .i1 = 2 * p + g + r, .i0 = 4 * p + g - 1 - r});
  }
  return repeat_block(request, slots);
}

extern const ScheduleKind kVMin = {
    .name = "v-min",
    .summary = "a folded building block with a third of 1f1b's memory",
    .since = 202405,
    .chunks = kTwoChunks,
    .options = {},
    .check = nullptr,
    .make = make_v_min,
    .split_backward = true,
    .variant = {.for_memory = true}};

}  // namespace mw::pipeline
