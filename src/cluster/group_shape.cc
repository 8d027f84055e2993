#include "cluster/group_shape.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace mw::cluster {
namespace {

// `dimension`: of the tori inside.
void add_torus(const Link& link, int64_t inner, const std::vector<RankId>& members,
               int32_t& dimension, GroupShape& shape) {
  int64_t stride = inner;
  for (size_t d = link.torus.size(); d-- > 0; ++dimension) {
    const int64_t size = link.torus[d];
    std::vector<int64_t> at;
    for (const RankId rank : members) at.push_back(rank.value / stride % size);
    std::sort(at.begin(), at.end());
    at.erase(std::unique(at.begin(), at.end()), at.end());
    stride *= size;
    if (at.size() <= 1) continue;
    // From each to the next one around; the group's line is open where it is farthest.
    std::vector<int64_t> gaps = {at.front() + size - at.back()};
    for (size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
    std::sort(gaps.begin(), gaps.end());
    const int64_t widest = gaps.back(), apart = gaps[gaps.size() - 2];
    const bool closed = size > 2 && widest == gaps.front();
    shape.torus.push_back({static_cast<int64_t>(at.size()),
                           (closed ? 2.0 : 1.0) / static_cast<double>(apart), dimension});
    shape.torus_hops += closed ? size / 2 : size - widest;
  }
}

// Devices of each unit and of each row of a torus.
std::vector<int64_t> units_of(const Cluster& cluster) {
  std::vector<int64_t> units;
  int64_t inner = 1;
  for (const Link& link : cluster.links) {
    if (link.kind == LinkKind::kTorus) {
      for (size_t d = link.torus.size(); d-- > 0;) units.push_back(inner *= link.torus[d]);
    } else if (link.devices > 0) {
      units.push_back(link.devices);
    }
    inner = link.devices;
  }
  return units;
}

// Whether all members stay in their units, whichever shift moves them.
bool stay(const Cluster& cluster, const std::vector<RankId>& members,
          const std::vector<RankId>& shifts) {
  const std::vector<int64_t> units = units_of(cluster);
  return std::all_of(units.begin(), units.end(), [&](int64_t unit) {
    const auto farthest = [&](const std::vector<RankId>& ranks) {
      int64_t most = 0;
      for (const RankId rank : ranks) most = std::max(most, rank.value % unit);
      return most;
    };
    return farthest(members) + farthest(shifts) < unit;
  });
}

// Groups that are moved by it lie as before: every unit of the levels inside holds as many devices.
int64_t period(const Cluster& cluster) {
  int64_t period = 1;
  for (const Link& link : cluster.links) {
    const bool grid = link.kind == LinkKind::kTorus;
    if (link.devices > 0 && (grid || &link != &cluster.links.back()))
      period = std::lcm(period, link.devices);
  }
  return period;
}

}  // namespace

double GroupShape::torus_links() const {
  double links = 0;
  for (const TorusSide& side : torus) links += side.links;
  return links;
}

size_t GroupShape::level() const {
  size_t level = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    if (ways[i] > 1) level = i;
  }
  return level;
}

double GroupShape::fullest_unit(size_t level) const {
  double members = 1;
  for (size_t l = 0; l < level; ++l) members *= static_cast<double>(ways[l]);
  return members;
}

double GroupShape::emptiest_unit(size_t level) const {
  return fewest.empty() ? fullest_unit(level) : static_cast<double>(fewest[level]);
}

GroupShape group_shape(const Cluster& cluster, const std::vector<RankId>& members) {
  MW_CHECK(!members.empty(), "a group without members");
  GroupShape shape;
  shape.size = static_cast<int64_t>(members.size());
  // Units of the level inside that hold members; a device is a unit of its own.
  std::vector<int64_t> units;
  units.reserve(members.size());
  for (const RankId rank : members) units.push_back(rank.value);
  std::sort(units.begin(), units.end());
  // [unit] members that it holds.
  std::vector<int64_t> held(units.size(), 1);
  int64_t inner = 1;
  int32_t dimension = 0;
  bool even = true;
  shape.ways.reserve(cluster.links.size());
  shape.fewest.reserve(cluster.links.size());
  for (const Link& link : cluster.links) {
    const int64_t devices = link.devices;
    shape.fewest.push_back(*std::min_element(held.begin(), held.end()));
    even = even && shape.fewest.back() == *std::max_element(held.begin(), held.end());
    // The units outside take the places of those inside: there are no more of them.
    size_t outer = 0;
    int64_t fullest = 0, run = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      const int64_t block = devices == 0 ? 0 : units[u] * inner / devices, members_here = held[u];
      if (outer == 0 || units[outer - 1] != block) {
        units[outer] = block;
        held[outer++] = 0;
        run = 0;
      }
      held[outer - 1] += members_here;
      fullest = std::max(fullest, ++run);
    }
    shape.ways.push_back(fullest);
    units.resize(outer);
    held.resize(outer);
    if (link.kind == LinkKind::kTorus) add_torus(link, inner, members, dimension, shape);
    inner = devices;
  }
  if (even) shape.fewest.clear();
  return shape;
}

GroupShape group_shape(const Cluster& cluster, const Mesh& mesh, RankId rank, const Names& axes) {
  return group_shape(cluster, mesh.members(rank, axes));
}

std::vector<RankId> distinct_shifts(const Cluster& cluster, const std::vector<RankId>& shifts) {
  const int64_t whole = period(cluster);
  std::vector<bool> seen(static_cast<size_t>(whole), false);
  std::vector<RankId> distinct;
  for (const RankId shift : shifts) {
    const auto at = static_cast<size_t>(shift.value % whole);
    if (!seen[at]) distinct.push_back(shift);
    seen[at] = true;
  }
  return distinct;
}

std::vector<GroupShape> group_shapes(const Cluster& cluster, const std::vector<RankId>& members,
                                     const std::vector<RankId>& shifts) {
  if (stay(cluster, members, shifts)) return {group_shape(cluster, members)};
  std::vector<GroupShape> shapes;
  std::vector<RankId> moved(members.size());
  for (const RankId shift : shifts) {
    for (size_t m = 0; m < members.size(); ++m) moved[m] = RankId(members[m].value + shift.value);
    GroupShape shape = group_shape(cluster, moved);
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end())
      shapes.push_back(std::move(shape));
  }
  return shapes;
}

size_t level_between(const Cluster& cluster, RankId a, RankId b,
                     const std::vector<RankId>& shifts) {
  size_t level = 0;
  for (const RankId shift : shifts)
    level = std::max(level, cluster.level_between(a.value + shift.value, b.value + shift.value));
  return level;
}

}  // namespace mw::cluster
