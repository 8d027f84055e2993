// Edits of a graph's op list that keep values and producers consistent. Private to room transform.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Replaces the ops; every result value gets its producer anew. Results of ops that went stay behind
// as values until ir::drop_dead. REQUIRES: `ops` is in topological order.
void set_ops(ir::Graph& graph, std::vector<ir::Op> ops);

// Every read of `value` (operands, outputs, updates) becomes one of map[value], where that is
// valid. REQUIRES: `map` has all values of the graph.
void replace_reads(ir::Graph& graph, const ValueIds& map);

// Replaces the ops and the reads of values that `replaced` has another one for, and drops what is
// then dead. Returns [old value] its new id, of a replaced one that of its stand-in; invalid: dead.
ValueIds replace_ops(ir::Graph& graph, std::vector<ir::Op> ops, const ValueIds& replaced);

}  // namespace mw::transform
