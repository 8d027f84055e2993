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

// Members in the group's order, `rank` among them. AxisGroup: ascending index along the axes.
// Holders: the same, and for each index by ascending pipeline coordinate. REQUIRES: the rank itself
// holds the state.
std::vector<RankId> members_of(const pipeline::Program& program, RankId rank,
                               const ir::DeviceGroup& group);
// The groups of more than one rank that the rank's programs run collectives in, each once, in the
// order of their members: the same order on all ranks.
std::vector<std::vector<RankId>> groups_of(const std::vector<const pipeline::Program*>& programs,
                                           RankId rank);
// Throws CheckFailure if a member of a group has no collective in it: opening the group would wait
// for ever.
void check_groups(const std::vector<const pipeline::Program*>& programs);
// The fragments that the rank's commands call, ascending.
std::vector<FragmentId> called_fragments(const pipeline::Program& program,
                                         const pipeline::RankProgram& rank);
// "ranks 0, 2": the same on all members and unlike any other group's.
std::string group_name(const std::vector<RankId>& members);
// "rank 3 (pp=1, dp=0, tp=1)".
std::string rank_text(const cluster::Mesh& mesh, RankId rank);

}  // namespace mw::execute
