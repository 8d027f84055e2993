// How the ops without a sharding rule change a sharding: collectives, local moves, views into flat
// groups, the norm and the optimizer. Private to room pipeline.
#pragma once

#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "sharding/sharding.h"

namespace mw::pipeline {

// Shardings are normalized.
struct StepValues {
  std::vector<const sharding::Sharding*> operands, results;
  std::vector<bool> operand_zero;  // known to be zeros
  std::vector<const ir::TensorType*> global_operands;
};

bool is_sharding_step(ir::OpKind kind);
// Each begins with a verb: "must not …". REQUIRES: is_sharding_step(op.kind); ranks of shardings
// and types agree.
std::vector<std::string> step_findings(const ir::Op& op, const StepValues& values,
                                       const cluster::Mesh& mesh);

}  // namespace mw::pipeline
