// The step graph of one pipeline rank: sums gradients over uses and ranks, takes the global norm,
// clips, updates, gathers the weights and clears the accumulators; and the loss. All on flat
// groups, so that the verifier and the simulator see it.
#pragma once

#include <optional>
#include <vector>

#include "compile/flat_groups.h"
#include "compile/local_graph.h"
#include "compile/optimizer.h"
#include "compile/passes.h"
#include "compile/state_table.h"

namespace mw::compile {

// A flat group that several pipeline ranks hold: its parameter's uses lie on several, or its stage
// has replicas.
struct HeldGroup {
  StateId weight;                    // FlatGroup::weight
  std::vector<int32_t> ranks;        // ascending; the first counts for the norm
  bool replicated = false;           // several ranks add to one use
  std::vector<int32_t> rank_of_use;  // in model order, where not replicated
};

struct UpdateContext {
  const ResolvedPlan& plan;
  const ir::Module& module;              // extended with flat states
  const std::vector<FlatGroup>& groups;  // of this rank
  std::optional<StateUse> loss;          // the loss accumulator, if the rank has it
  int32_t rank = 0;                      // pipeline coordinate
  std::vector<HeldGroup> held_elsewhere;
  OptimizerSpec optimizer;
  PassSet passes;
};

// A fragment and, for every port, the state or data it stands for.
struct StateFragment {
  pipeline::Fragment fragment;
  std::vector<std::string> inputs;   // buffer names (of the state table) or data names
  std::vector<std::string> outputs;  // of fragment.graph.outputs
};

// "UPDATE": reduce, norm, clip, AdamW, gather, clear, report loss.
StateFragment build_update(const UpdateContext& context);
// The loss alone, for evaluation.
StateFragment build_report(const UpdateContext& context);

}  // namespace mw::compile
