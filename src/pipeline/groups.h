// Device groups of a program, seen from its pipeline ranks.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

// "dp", "dp,tp", "holders tbl", "holders tbl,dp": what figures are kept by.
std::string group_label(const ir::DeviceGroup& group);
// Under which exposed communication is told: shared weights are one entry, whatever they are
// called; replicas that are summed with the ranks along axes are theirs.
std::string group_entry(const ir::DeviceGroup& group);
// What its ranks divide: a layer (axes of tensor parallelism alone), sequences (cp alone), experts
// (ep alone), or else the state and the batch.
enum class Divides : uint8_t { kTensor, kSequence, kExperts, kReplicas };
Divides divided_by(const ir::DeviceGroup& group);
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
