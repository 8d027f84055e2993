// The clock of a fragment whose collectives share links, or are slower beside computation and it
// beside them. Private to room simulate.
#pragma once

#include "simulate/fragment_walk.h"

namespace mw::simulate {

// As advance() and finish_cross(), which leave to these such fragments. Ops run
// in order of time: a collective, behind its latency, has what it can take of every link that it
// shares, but no more than an even share where that is less than all want; it stands still while a
// collective over several pipeline ranks has one. What runs beside each other is slower by the
// collective's slowdown, computation by the worst of several.
bool advance_shared(const FragmentCost& cost, Walk& walk, const WalkOptions& options, double& meet);
void finish_cross_shared(const FragmentCost& cost, Walk& walk, double start, double end);

}  // namespace mw::simulate
