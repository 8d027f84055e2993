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
  std::vector<int32_t> loss_ranks;       // pipeline coordinates of all that have one, ascending
  int32_t rank = 0;                      // pipeline coordinate
  std::vector<HeldGroup> held_elsewhere;
  OptimizerSpec optimizer;
  PassSet passes;
};

// A fragment and, for every port, the state, data or message it stands for.
struct StateFragment {
  pipeline::Fragment fragment;
  std::vector<std::string> inputs;   // names of buffers (of the state table), data or messages
  std::vector<std::string> outputs;  // of fragment.graph.outputs
  // Of ports of kind kBoundary, in order: the pipeline rank that the message is from or to.
  std::vector<int32_t> senders, receivers;
};

// "UPDATE": reduce, norm, clip, AdamW, gather, clear, report loss. With post-validation it makes
// the step with the clipping factor of this pipeline rank's norm alone, keeps what it takes to make
// the step again, and leaves norm and loss to the next call.
StateFragment build_update(const UpdateContext& context);
// With post-validation. "SHARE": the rank's norm and loss to all other pipeline ranks. "VALIDATE":
// the norm, factor and loss of all, and whether a rank took another factor. "AMEND": the step once
// more with the factor of all, from what was kept; where it had that factor it stays as it is.
StateFragment build_share(const UpdateContext& context);
StateFragment build_validate(const UpdateContext& context);
StateFragment build_amend(const UpdateContext& context);
// The loss alone, for evaluation.
StateFragment build_report(const UpdateContext& context);

}  // namespace mw::compile
