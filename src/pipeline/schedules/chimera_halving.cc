// Chimera's backward halving [Li 2021, section 3.5]: forward doubling's schedule where a backward
// is of half a microbatch. Its microbatches are the halves, two of which go forward together;
// memory is that of Chimera.
#include "pipeline/schedules/chimera_doubling.h"

namespace mw::pipeline {

constexpr int32_t kHalves = 2;

static Schedule make_chimera_halving(const ScheduleRequest& request) {
  Schedule schedule = chimera_doubled(request, kHalves * request.microbatches);
  schedule.parts = kHalves;
  return schedule;
}

extern const ScheduleKind kChimeraHalving = {
    .name = "chimera-halving",
    .summary = "chimera, a backward is of half a microbatch",
    .since = 202107,
    .chunks = kOneChunk,
    .options = {.pairs = true, .sync = true},
    .check = check_chimera,
    .make = make_chimera_halving,
    .parts = kHalves,
    .period = 2,
    .replicas = 2};

}  // namespace mw::pipeline
