// Common subexpressions: of two ops that compute the same, the first stays.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Two ops are the same if kind, attributes, operands, result types, layer and recompute region are:
// what a region computes is computed again on purpose, and an op belongs to one stage only. Left
// alone are ops that write an operand's memory, ops that call graphs, collectives, and results that
// are held in different logical axes. The op that stays does the earliest work of the two (forward,
// input gradient, weight gradient). Returns old value id -> new value id.
ValueIds merge_common(ir::Graph& graph);

}  // namespace mw::transform
