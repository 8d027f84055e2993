// With post-validation: which actions a rank may take before it knows whether the step before
// stands.
#pragma once

#include <cstddef>
#include <vector>

#include "compile/lower.h"
#include "pipeline/schedule.h"

namespace mw::compile {

// [pipeline rank] how many of its first actions it may take, and take again: forwards that add to
// no state, of values that their senders send among theirs. REQUIRES: `stages` are the schedule's.
std::vector<size_t> repeatable_actions(const pipeline::Schedule& schedule,
                                       const std::vector<StageCode>& stages);

}  // namespace mw::compile
