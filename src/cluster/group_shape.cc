#include "cluster/group_shape.h"

#include <algorithm>

#include "base/error.h"

namespace mw::cluster {
namespace {

void add_torus(const Link& link, int64_t inner, const std::vector<RankId>& members,
               GroupShape& shape) {
  int64_t stride = inner;
  bool closed = true;
  for (size_t d = link.torus.size(); d-- > 0;) {
    std::vector<bool> there(static_cast<size_t>(link.torus[d]), false);
    int64_t least = link.torus[d], most = 0, filled = 0;
    for (const RankId rank : members) {
      const int64_t at = rank.value / stride % link.torus[d];
      least = std::min(least, at);
      most = std::max(most, at);
      if (!there[static_cast<size_t>(at)]) ++filled;
      there[static_cast<size_t>(at)] = true;
    }
    stride *= link.torus[d];
    if (filled <= 1) continue;
    ++shape.torus_dims;
    closed = closed && filled == link.torus[d];
    shape.torus_hops += filled == link.torus[d] ? link.torus[d] / 2 : most - least;
  }
  shape.torus_closed = closed && shape.torus_dims > 0;
}

}  // namespace

size_t GroupShape::level() const {
  size_t level = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (ways[i] > 1) level = i;
  }
  return level;
}

GroupShape group_shape(const Cluster& cluster, const std::vector<RankId>& members) {
  MW_CHECK(!members.empty(), "a group without members");
  GroupShape shape;
  shape.size = static_cast<int64_t>(members.size());
  // Units of the level inside that hold members; a device is a unit of its own.
  std::vector<int64_t> units;
  for (const RankId rank : members) units.push_back(rank.value);
  std::sort(units.begin(), units.end());
  int64_t inner = 1;
  for (const Link& link : cluster.links) {
    const int64_t devices = link.devices;
    std::vector<int64_t> outer;
    int64_t fullest = 0, run = 0;
    for (const int64_t unit : units) {
      const int64_t block = devices == 0 ? 0 : unit * inner / devices;
      if (outer.empty() || outer.back() != block) {
        outer.push_back(block);
        run = 0;
      }
      fullest = std::max(fullest, ++run);
    }
    shape.ways.push_back(fullest);
    if (link.kind == LinkKind::kTorus) add_torus(link, inner, members, shape);
    units = std::move(outer);
    inner = devices;
  }
  return shape;
}

GroupShape group_shape(const Cluster& cluster, const Mesh& mesh, RankId rank, const Names& axes) {
  return group_shape(cluster, mesh.members(rank, axes));
}

}  // namespace mw::cluster
