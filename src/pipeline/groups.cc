#include "pipeline/groups.h"

#include <algorithm>

#include "base/text.h"
#include "pipeline/axes.h"

namespace mw::pipeline {

bool holds(const RankProgram& rank, const std::string& state) {
  return std::any_of(rank.buffers.begin(), rank.buffers.begin() + rank.states,
                     [&](const Buffer& buffer) { return buffer.value == state; });
}

const ir::Axes& named_axes(const ir::DeviceGroup& group) {
  const auto* holders = std::get_if<ir::Holders>(&group);
  return holders != nullptr ? holders->axes : std::get<ir::AxisGroup>(group).axes;
}

std::string group_label(const ir::DeviceGroup& group) {
  const std::string axes = join(named_axes(group), ",");
  const auto* holders = std::get_if<ir::Holders>(&group);
  if (holders == nullptr) return axes;
  return "holders " + holders->state + (axes.empty() ? "" : "," + axes);
}

std::string group_entry(const ir::DeviceGroup& group) {
  const std::string axes = join(named_axes(group), ",");
  return axes.empty() && std::holds_alternative<ir::Holders>(group) ? "shared weights" : axes;
}

Divides divided_by(const ir::DeviceGroup& group) {
  const ir::Axes& axes = named_axes(group);
  if (std::holds_alternative<ir::Holders>(group) || axes.empty()) return Divides::kReplicas;
  if (std::all_of(axes.begin(), axes.end(), [](Name axis) { return is_tensor_axis(axis); }))
    return Divides::kTensor;
  if (axes.size() > 1) return Divides::kReplicas;
  return axes.front() == "cp"   ? Divides::kSequence
         : axes.front() == "ep" ? Divides::kExperts
                                : Divides::kReplicas;
}

int64_t group_size(const Program& program, const ir::DeviceGroup& group) {
  const int64_t along = program.mesh.group_size(named_axes(group));
  if (std::holds_alternative<ir::AxisGroup>(group)) return along;
  return along * static_cast<int64_t>(group_ranks(program, group, 0).size());
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
