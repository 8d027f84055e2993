// Device groups of a program, seen from its pipeline ranks.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

// "dp", "dp,tp", "holders tbl", "holders tbl,dp": what figures are kept by.
std::string group_label(const ir::DeviceGroup& group);
// What the ranks of a collective's group divide there: a layer (axes of tensor parallelism alone),
// sequences (cp alone), experts (ep alone), or else the state and the batch. `of_weights`: it moves
// weights or sums their gradients, which ranks of cp and ep have as those of dp do.
enum class Divides : uint8_t { kTensor, kSequence, kExperts, kReplicas };
Divides divided_by(const ir::DeviceGroup& group, bool of_weights);
// Whether an op of a microbatch is a collective that reduces weights' gradients, or, `of_state`,
// gathers weights.
bool is_of_weights(const ir::Op& op, bool of_state);
// Under which exposed communication is told: "tp", "cp" and "ep" of what they divide, "dp" of
// weights and gradients over data axes, "dp of experts" where those of other weights are over more;
// "shared weights"; the axes of what else there is, such as a norm's sums.
std::string group_entry(const ir::DeviceGroup& group, Divides divides, const cluster::Mesh& mesh);
// The mesh axes that a group names: of holders, those along which they differ besides.
const ir::Axes& named_axes(const ir::DeviceGroup& group);
// Whether the pipeline rank holds the state.
bool holds(const RankProgram& rank, const std::string& state);
// Devices in the group that one device of the pipeline rank belongs to.
int64_t group_size(const Program& program, const ir::DeviceGroup& group);
// The pipeline ranks that its members lie on, ascending; one if it stays within a pipeline rank.
std::vector<int32_t> group_ranks(const Program& program, const ir::DeviceGroup& group,
                                 int32_t rank);

}  // namespace mw::pipeline
