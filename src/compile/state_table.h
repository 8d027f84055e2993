// The state buffers of one pipeline rank: flat groups, the parameters as views inside them, and
// metrics. The first buffers of every program of a compiled plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/flat_groups.h"
#include "pipeline/metric_names.h"
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

using pipeline::kAmended;
using pipeline::kGradNorm;
using pipeline::kLossValue;
using pipeline::kOwnLoss;
using pipeline::kOwnNorms;
using pipeline::kScale;
using pipeline::kUsedScale;
// Behind the name of a flat weight or moment: a copy of what it was before the step, and behind
// that of a weight: of the gradient that the step took.
inline constexpr const char* kBefore = "#before";
inline constexpr const char* kTaken = "#taken";

}  // namespace mw::compile
