// Chimera whose forwards carry two microbatches. Private to room pipeline.
#pragma once

#include "pipeline/schedules/bidirectional.h"

namespace mw::pipeline {

// `microbatches` in place of the request's; all forwards carry two but, of an odd number, one.
Schedule chimera_doubled(const ScheduleRequest& request, int32_t microbatches);

}  // namespace mw::pipeline
