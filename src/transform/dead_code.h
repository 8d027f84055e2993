// Drops ops whose results nothing reads, in whatever recompute region.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Returns old value id -> new value id (invalid: dropped).
ValueIds drop_dead_code(ir::Graph& graph);

}  // namespace mw::transform
