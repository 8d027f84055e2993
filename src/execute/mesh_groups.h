// Which ranks a device group of a program means for one rank.
#pragma once

#include <string>
#include <vector>

#include "pipeline/program.h"

namespace mw::execute {

// Coordinate of the rank along "pp"; 0 where the mesh has no such axis.
int32_t pipeline_coordinate(const cluster::Mesh& mesh, RankId rank);
// The rank with the same other coordinates at another pipeline coordinate.
RankId at_pipeline_coordinate(const cluster::Mesh& mesh, RankId rank, int32_t coordinate);

// Members in the group's order, `rank` among them. AxisGroup: ascending index along the axes. Holders: ascending
// pipeline coordinate. REQUIRES: the rank itself holds the state.
std::vector<RankId> members_of(const pipeline::Program& program, RankId rank, const ir::DeviceGroup& group);
// "ranks 0, 2": the same on all members and unlike any other group's.
std::string group_name(const std::vector<RankId>& members);
// "rank 3 (pp=1, dp=0, tp=1)".
std::string rank_text(const cluster::Mesh& mesh, RankId rank);

}  // namespace mw::execute
