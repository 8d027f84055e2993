// What a call of each fragment takes, without running the program: what coarse estimates are made
// of. The same costs and dependencies as in the simulation.
#pragma once

#include <vector>

#include "cluster/hardware.h"
#include "pipeline/program.h"
#include "simulate/simulate.h"

namespace mw::simulate {

struct CallTime {
  Seconds whole;
  Seconds before;  // until the first collective over all pipeline ranks; without one, all of it
  std::vector<Seconds> links;  // [level] when collectives have the device's links there
  Seconds gaps;    // of it, in which the device waits for the host or for another stream
  Seconds paired;  // of a whole backward: what it and the rank's forward save, laid together
  // Of an update: sums of gradients that may go beside the backward pass, and gathers that go
  // beside the next step's first calls, both one after the other; neither is in `whole`.
  Seconds sums, gathers;
  Seconds lead;  // how far the host is ahead at the end: what could come then waits less for it
};

// [fragment] its time on the first pipeline rank that calls it, where nobody is waited for; zero
// for one that nobody calls. `coordinates`: [rank of the program] the places on the mesh's axis
// "pp" that it stands for, of which the one counts where its groups are slowest; the axis may have
// another size than the program has ranks. Empty: its number.
std::vector<CallTime> call_times(const pipeline::Program& program, const cluster::Cluster& cluster,
                                 const Options& options,
                                 const std::vector<std::vector<int32_t>>& coordinates = {});

}  // namespace mw::simulate
