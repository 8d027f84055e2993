// Plans under the event simulation. Private to room planner.
#pragma once

#include <optional>
#include <vector>

#include "planner/planner.h"

namespace mw::planner {

// One entry a plan, in order; empty: it needs more memory than a device has.
using Simulated = std::vector<std::optional<Candidate>>;
Simulated simulate_plans(const Request& request, const std::vector<compile::Plan>& plans);

// Adds those that fit to `found`, sorts by step, then by memory, and finds the front.
void add_fitting(Simulated simulated, Found& found);

int thread_count(const Request& request);

}  // namespace mw::planner
