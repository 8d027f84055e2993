// Placements of Chimera: pairs of a pipeline that runs down the ranks and one that runs up. Private
// to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// Replicas 0 to f - 1 run down, stage s of replica j on rank (s + j D / f) mod D; replicas f to
// 2 f - 1 run up, stage s on rank (D - 1 - s + j D / f) mod D [Li 2021, Chimera, section 3.6].
Placement chimera_placement(int32_t ranks, int32_t pairs);

// An even number of ranks, and pairs that divide half of it.
void check_chimera(const ScheduleRequest& request, Diagnostics& out);

// [replica] how many of `count` microbatches it gets: as evenly as that goes, the first ones more.
std::vector<int32_t> shares(int32_t count, int32_t replicas);

}  // namespace mw::pipeline
