#include "predict/plan_groups.h"

#include <algorithm>

namespace mw::predict {
namespace {

using compile::Plan;

// To every place along the axis.
std::vector<RankId> moved_along(const Plan& plan, Name axis, const std::vector<RankId>& ranks) {
  std::vector<RankId> moved;
  const int64_t stride = stride_of(plan, axis), size = plan.axis_size(axis);
  for (const RankId rank : ranks) {
    for (int64_t d = 0; d < size; ++d) moved.emplace_back(rank.value + d * stride);
  }
  return moved;
}

}  // namespace

int64_t stride_of(const Plan& plan, std::string_view axis) {
  int64_t stride = 1;
  const compile::AxisOrder order = plan.mesh_order();
  for (auto inner = order.rbegin(); inner != order.rend() && *inner != axis; ++inner)
    stride *= plan.axis_size(*inner);
  return stride;
}

std::vector<RankId> group_along(const Plan& plan, const Names& axes, RankId rank) {
  std::vector<RankId> members = {rank};
  for (const Name axis : axes) members = moved_along(plan, axis, members);
  return members;
}

std::vector<RankId> beside(const cluster::Cluster& cluster, const Plan& plan, const Names& axes) {
  std::vector<RankId> shifts = {RankId(0)};
  for (const Name other : plan.mesh_order()) {
    if (other == "pp" || std::find(axes.begin(), axes.end(), other) != axes.end()) continue;
    shifts = cluster::distinct_shifts(cluster, moved_along(plan, other, shifts));
  }
  return shifts;
}

std::vector<cluster::GroupShape> shapes_along(const cluster::Cluster& cluster, const Plan& plan,
                                              const Names& axes) {
  return cluster::group_shapes(cluster, group_along(plan, axes, RankId(0)),
                               beside(cluster, plan, axes));
}

}  // namespace mw::predict
