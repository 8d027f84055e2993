// Which values may keep a pending sum though an annotation or their readers would have it whole,
// and how they lie then.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"
#include "sharding/sharding.h"

namespace mw::sharding {

// [value] A value may pend where all that reads it is an accumulator, directly or through ops that
// are linear in it alone or in all their operands alike: the sum is taken once, in the update.
std::vector<bool> accumulated_only(const ir::Graph& graph);

// [value] A gradient may also pend where a product that reads it sums over a dimension that is
// split in its given sharding, so that the product pends in any case and one reduction does for
// both, and all others that read it only accumulate. Ops that move or scale elements may lie
// between. Example: the gradients of keys whose heads are replicated over a sub-axis.
std::vector<bool> carried(const ir::Graph& graph, const std::vector<std::optional<Sharding>>& given,
                          const std::vector<bool>& accumulated);

// The dimensions of `wanted` with what pends of `made`, but for the axes that split one of them.
Sharding pending_as(Sharding wanted, const Sharding& made);

}  // namespace mw::sharding
