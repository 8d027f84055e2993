// V-Half [Qi 2024, 2405.15362, table 9]: a building block on two folded chunks whose forwards and
// backwards move by two slots a rank one way and by one the other: about half of 1F1B's memory
// (p / 2 + 1 microbatches for even p), no bubble in the steady state as long as b <= f + w / 2.
// Ends are reordered under the same peak; at f = b = w and for even p >= 4 the makespan is 6 m + 3
// p - 7 for m >= p, and 4 p + 2 m - 1 for m <= p / 2, which is a microbatch's way there and back,
// and the others behind it.
#include "pipeline/schedules/block_schedule.h"

namespace mw::pipeline {

static Schedule make_v_half(const ScheduleRequest& request) {
  const int32_t p = request.ranks, g = p % 2 == 0 ? 3 : 0;
  std::vector<BlockSlots> slots;
  for (int32_t r = 0; r < p; ++r) {
    slots.push_back(
        {.f0 = 2 * r, .f1 = 3 * p - 2 - r, .i1 = 3 * p + g - 1 + 2 * r, .i0 = 6 * p + g - 2 - r});
  }
  Schedule schedule = repeat_block(request, slots);
  if (p > 1) reorder_ends(schedule);
  return schedule;
}

extern const ScheduleKind kVHalf = {.name = "v-half",
                                    .summary = "a folded building block with half of 1f1b's memory",
                                    .since = 202405,
                                    .chunks = kTwoChunks,
                                    .options = {},
                                    .check = nullptr,
                                    .make = make_v_half,
                                    .split_backward = true,
                                    .variant = {.for_memory = true}};

}  // namespace mw::pipeline
