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

std::string group_entry(const ir::DeviceGroup& group, Divides divides, const cluster::Mesh& mesh) {
  switch (divides) {
    case Divides::kTensor: return "tp";
    case Divides::kSequence: return "cp";
    case Divides::kExperts: return "ep";
    case Divides::kReplicas: break;
  }
  const ir::Axes& axes = named_axes(group);
  if (axes.empty() && std::holds_alternative<ir::Holders>(group)) return "shared weights";
  const bool of_data =
      std::all_of(axes.begin(), axes.end(), [](Name a) { return is_data_axis(a); });
  if (!of_data) return join(axes, ",");
  const bool all =
      mesh.axis_size("ep") == 1 || std::find(axes.begin(), axes.end(), "ep") != axes.end();
  return all ? "dp" : "dp of experts";
}

bool is_of_weights(const ir::Op& op, bool of_state) {
  if (op.kind == ir::OpKind::kAllReduce || op.kind == ir::OpKind::kReduceScatter)
    return op.work == ir::Work::kWeightGrad;
  return op.kind == ir::OpKind::kAllGather && of_state;
}

Divides divided_by(const ir::DeviceGroup& group, bool of_weights) {
  const ir::Axes& axes = named_axes(group);
  if (std::holds_alternative<ir::Holders>(group) || axes.empty()) return Divides::kReplicas;
  if (std::all_of(axes.begin(), axes.end(), [](Name axis) { return is_tensor_axis(axis); }))
    return Divides::kTensor;
  if (of_weights || axes.size() > 1) return Divides::kReplicas;
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
