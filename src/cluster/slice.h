// Slice: the part of a torus that a job takes which needs fewer devices than it has.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/hardware.h"

namespace mw::cluster {

// The cluster as a job on so many devices has it. Of a torus that is the innermost level it has the
// most cubic box of as many devices whose sides divide the torus's, the shorter sides first; where
// there is no such box, or no fewer devices, the cluster as it is. `devices` stays what there are.
Cluster slice_of(Cluster cluster, int64_t devices);
// "TPU v4 pod, 4x4x4 of it", or the cluster's name alone.
std::string slice_name(const Cluster& cluster, int64_t devices);

}  // namespace mw::cluster
