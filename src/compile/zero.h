// ZeRO inside a stage: where weights are sharded (stage 3) they are gathered a group at a time
// before their first use in the forward and again in the backward pass; where gradients are reduced
// in every microbatch they go to a temporary flat buffer that is reduced and then added to the
// accumulator.
#pragma once

#include "compile/flat_groups.h"
#include "compile/local_graph.h"

namespace mw::compile {

struct ZeroResult {
  LocalGraph local;
  ValueIds
      moved;  // [value of the stage's graph] -> value of `local`; invalid: replaced by a flat state
};

// The stage's graph with parameter inputs replaced by flat states where the plan asks for it.
ZeroResult apply_zero(const LocalGraph& stage, const Plan& plan,
                      const std::vector<FlatGroup>& groups);

}  // namespace mw::compile
