// Where the groups of a plan's mesh lie on a cluster, without the mesh. Private to room predict.
#pragma once

#include <string_view>
#include <vector>

#include "cluster/group_shape.h"
#include "cluster/hardware.h"
#include "compile/plan.h"

namespace mw::predict {

// Ranks from one coordinate of an axis to the next.
int64_t stride_of(const compile::Plan& plan, std::string_view axis);
// Ranks that differ from `rank` in their places along the axes alone. REQUIRES: its are 0.
std::vector<RankId> group_along(const compile::Plan& plan, const Names& axes, RankId rank);
// From rank 0 to those ranks of its stage that are not of its group along the axes; no axes: to
// all.
std::vector<RankId> beside(const cluster::Cluster& cluster, const compile::Plan& plan,
                           const Names& axes);
// Of all groups along the axes in a stage.
std::vector<cluster::GroupShape> shapes_along(const cluster::Cluster& cluster,
                                              const compile::Plan& plan, const Names& axes);

}  // namespace mw::predict
