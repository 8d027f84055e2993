// The planners. Private to room planner.
#pragma once

#include <optional>

#include "planner/planner.h"
#include "predict/coarse.h"

namespace mw::planner {

// Both leave `plans` empty if nothing fits. REQUIRES: findings(request) is empty.
Found exhaustive(const Request& request, predict::Coarse& coarse);
Found ptdp(const Request& request, predict::Coarse& coarse);

// Coarse memory may be so much above a device's before a plan is given up unsimulated. What a
// stack's own allocator keeps is estimated less well than what a program's plan holds.
inline double memory_slack(const Request& request) {
  return request.base.cluster.stack.allocator == cluster::Allocator::kPlan ? 1.03 : 1.15;
}

// What fills the devices at the least, and how many would do.
struct Needs {
  // Of the fullest rank, or of all that share a memory, under the plan that needs the least as far
  // as estimates tell: simulated, where it is near what there is.
  Bytes least;
  std::optional<compile::Plan> here;  // one that fits on the devices that were asked for
  // The least number of devices on which some plan fits; the most, where they share a memory; 0:
  // none was found.
  int64_t devices = 0;
  compile::Plan plan;  // one that fits there
};
Needs least_devices(const Request& request, predict::Coarse& coarse);

}  // namespace mw::planner
