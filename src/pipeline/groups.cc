#include "pipeline/groups.h"

#include <algorithm>

#include "base/text.h"

namespace mw::pipeline {

bool holds(const RankProgram& rank, const std::string& state) {
  return std::any_of(rank.buffers.begin(), rank.buffers.begin() + rank.states,
                     [&](const Buffer& buffer) { return buffer.value == state; });
}

std::string group_label(const ir::DeviceGroup& group) {
  const auto* holders = std::get_if<ir::Holders>(&group);
  if (holders == nullptr) return join(std::get<ir::AxisGroup>(group).axes, ",");
  std::string label = "holders " + holders->state;
  if (!holders->axes.empty()) label += "," + join(holders->axes, ",");
  return label;
}

int64_t group_size(const Program& program, const ir::DeviceGroup& group) {
  if (const auto* axes = std::get_if<ir::AxisGroup>(&group))
    return program.mesh.group_size(axes->axes);
  return static_cast<int64_t>(group_ranks(program, group, 0).size()) *
         program.mesh.group_size(std::get<ir::Holders>(group).axes);
}

std::vector<int32_t> group_ranks(const Program& program, const ir::DeviceGroup& group,
                                 int32_t rank) {
  const auto ranks = static_cast<int32_t>(program.ranks.size());
  std::vector<int32_t> members;
  if (const auto* axes = std::get_if<ir::AxisGroup>(&group)) {
    const bool crosses = std::find(axes->axes.begin(), axes->axes.end(), "pp") != axes->axes.end();
    if (!crosses) return {rank};
    for (int32_t r = 0; r < ranks; ++r) members.push_back(r);
    return members;
  }
  for (int32_t r = 0; r < ranks; ++r) {
    if (holds(program.ranks[static_cast<size_t>(r)], std::get<ir::Holders>(group).state))
      members.push_back(r);
  }
  return members;
}

}  // namespace mw::pipeline
