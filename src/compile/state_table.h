// The state buffers of one pipeline rank: flat groups, the parameters as views inside them, and
// metrics. The first buffers of every program of a compiled plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/flat_groups.h"
#include "pipeline/program.h"

namespace mw::compile {

struct StateTable {
  std::vector<pipeline::Buffer> buffers;
  std::map<std::string, BufferId> by_name;
  Bytes arena;

  BufferId at(const std::string& name) const;
};

// Names: a flat state's name; a weight's or accumulator's name for its view (where the flat buffer
// is whole); the name of a flat weight with "#own" for this rank's dp part of a whole weight
// buffer; metrics by name.
StateTable make_state_table(const std::vector<FlatGroup>& groups,
                            const std::vector<StateUse>& metrics, const Plan& plan,
                            const ir::Module& module);

// What kOwnNorms and kOwnLoss below are held as: a term of the sum over the pipeline ranks each.
StateUse own_norms_state(const ir::Module& module);
StateUse own_loss_state();
// The states of post-validation, of the groups of all pipeline ranks.
void add_kept_states(const std::vector<std::vector<FlatGroup>>& groups, ir::Module& module);

// Metrics that every rank has: what the last call of a program reported.
inline constexpr const char* kLossValue = "loss_value";  // mean over the batch's target tokens
inline constexpr const char* kGradNorm = "grad_norm";

// Of a plan with post-validation, what a step leaves for the next call to validate it.
inline constexpr const char* kOwnNorms = "own_norms";  // sums of squares of this pipeline rank
inline constexpr const char* kOwnLoss = "own_loss";    // sum over this pipeline rank's microbatches
inline constexpr const char* kUsedScale = "used_scale";  // that the step was made with
inline constexpr const char* kScale = "scale";           // that it should have been made with
inline constexpr const char* kAmended =
    "amended";  // 1: some rank's step is to be made again, else 0
// Behind the name of a flat weight or moment: a copy of what it was before the step, and behind
// that of a weight: of the gradient that the step took.
inline constexpr const char* kBefore = "#before";
inline constexpr const char* kTaken = "#taken";

}  // namespace mw::compile
