#include "execute/mesh_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "comm/waiting.h"
#include "pipeline/groups.h"

namespace mw::execute {
namespace {

const Names& pipeline_axis() {
  static const Names axis = {"pp"};
  return axis;
}

}  // namespace

int32_t pipeline_coordinate(const cluster::Mesh& mesh, RankId rank) {
  return static_cast<int32_t>(mesh.index(rank, pipeline_axis()));
}

RankId at_pipeline_coordinate(const cluster::Mesh& mesh, RankId rank, int32_t coordinate) {
  return mesh.members(rank, pipeline_axis())[static_cast<size_t>(coordinate)];
}

std::vector<RankId> members_of(const pipeline::Program& program, RankId rank,
                               const ir::DeviceGroup& group) {
  if (const auto* axes = std::get_if<ir::AxisGroup>(&group))
    return program.mesh.members(rank, axes->axes);
  const auto& [state, axes] = std::get<ir::Holders>(group);
  const std::vector<int32_t> coordinates = pipeline::group_ranks(program, group, 0);
  std::vector<RankId> members;
  for (const RankId beside : program.mesh.members(rank, axes)) {
    for (const int32_t p : coordinates)
      members.push_back(at_pipeline_coordinate(program.mesh, beside, p));
  }
  MW_CHECK(std::find(members.begin(), members.end(), rank) != members.end(),
           "rank {} takes part in a collective of the holders of '{}', which it does not hold",
           rank.value, state);
  return members;
}

std::vector<FragmentId> called_fragments(const pipeline::Program& program,
                                         const pipeline::RankProgram& rank) {
  std::set<FragmentId> called;
  for (const pipeline::Command& command : rank.commands) {
    if (command.kind != pipeline::Command::Kind::kCall) continue;
    MW_CHECK(command.fragment.valid() && command.fragment.index() < program.fragments.size(),
             "no fragment {}", command.fragment.value);
    called.insert(command.fragment);
  }
  return {called.begin(), called.end()};
}

std::vector<std::vector<RankId>> groups_of(const std::vector<const pipeline::Program*>& programs,
                                           RankId rank) {
  std::set<std::vector<RankId>> groups;
  for (const pipeline::Program* program : programs) {
    const auto coordinate = static_cast<size_t>(pipeline_coordinate(program->mesh, rank));
    for (const FragmentId id : called_fragments(*program, program->ranks[coordinate])) {
      for (const ir::Op& op : program->fragments[id.index()].graph.ops) {
        if (!ir::is_collective(op.kind)) continue;
        std::vector<RankId> members =
            members_of(*program, rank, op.as<ir::CollectiveAttrs>().group);
        if (members.size() > 1) groups.insert(std::move(members));
      }
    }
  }
  return {groups.begin(), groups.end()};
}

void check_groups(const std::vector<const pipeline::Program*>& programs) {
  std::map<std::vector<RankId>, std::vector<RankId>> callers;
  for (int64_t r = 0; r < programs.at(0)->mesh.size(); ++r) {
    for (auto& members : groups_of(programs, RankId(r)))
      callers[std::move(members)].push_back(RankId(r));
  }
  for (const auto& [members, calling] : callers) {
    MW_CHECK(members.size() == calling.size(), "of the group {} only {} run collectives in it",
             group_name(members), comm::describe_ranks(calling));
  }
}

std::string group_name(const std::vector<RankId>& members) { return comm::describe_ranks(members); }

std::string rank_text(const cluster::Mesh& mesh, RankId rank) {
  std::string text = fmt::format("rank {}", rank.value);
  const std::vector<int64_t> coordinates = mesh.coordinates(rank);
  for (size_t i = 0; i < coordinates.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? " (" : ", ", mesh.axes()[i].name, coordinates[i]);
  }
  return coordinates.empty() ? text : text + ")";
}

}  // namespace mw::execute
