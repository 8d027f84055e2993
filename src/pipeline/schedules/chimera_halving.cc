// Chimera's backward halving [Li 2021, section 3.5]: forward doubling's schedule where a backward
// is of half a microbatch. Its microbatches are the halves, two of which go forward together;
// memory is that of Chimera.
#include "pipeline/schedules/chimera_doubling.h"

namespace mw::pipeline {

static Schedule make(const ScheduleRequest& request) {
  Schedule schedule = chimera_doubled(request, kChimeraHalving.parts * request.microbatches);
  schedule.parts = kChimeraHalving.parts;
  return schedule;
}

const ScheduleKind kChimeraHalving = {.name = "chimera-halving",
                                      .summary = "chimera, a backward is of half a microbatch",
                                      .chunks = kOneChunk,
                                      .options = {.pairs = true, .sync = true},
                                      .compiled = true,
                                      .check = check_chimera,
                                      .make = make,
                                      .parts = 2};

}  // namespace mw::pipeline
