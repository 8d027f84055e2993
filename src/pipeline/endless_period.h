// How often a step of 1F1B ends that no flush ends (PipeDream-2BW): its last backwards run in turn
// with the first forwards of the next.
#pragma once

#include "pipeline/schedule_timeline.h"

namespace mw::pipeline {

// The mean time from one step to the next in the long run. A step by itself may take longer or
// shorter: where the ranks wait for messages, microbatches go round in bunches of up to as many as
// there are ranks, and a step need not end with a bunch. REQUIRES: every rank has one stage, whole
// backwards, and ends its warm-up within a step.
double endless_period(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace mw::pipeline
