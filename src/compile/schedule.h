// The schedule that a plan is compiled for. Private to room compile.
#pragma once

#include <string>
#include <vector>

#include "compile/plan.h"
#include "pipeline/schedule.h"

namespace mw::compile {

// A replica without a microbatch would hold weights for nothing, and gradients that nothing adds
// to: one finding each, with how many microbatches the kind takes. Throws Error as make_schedule.
std::vector<std::string> idle_replicas(const pipeline::ScheduleRequest& request);
// What the schedule may not have under the plan: one finding each.
std::vector<std::string> schedule_findings(const pipeline::Schedule& schedule, const Plan& plan);
// The one that the plan names.
pipeline::Schedule schedule_of(const Plan& plan);
// That one, or `asked` where there is one. Throws Error with all that it may not have under the
// plan.
pipeline::Schedule given_schedule(const pipeline::Schedule* asked, const Plan& plan);
// Without backward passes.
pipeline::Schedule forward_only(pipeline::Schedule schedule);

}  // namespace mw::compile
