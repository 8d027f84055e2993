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

// Metrics that every rank has: what the last call of a program reported.
inline constexpr const char* kLossValue = "loss_value";  // mean over the batch's target tokens
inline constexpr const char* kGradNorm = "grad_norm";

}  // namespace mw::compile
