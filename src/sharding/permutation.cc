#include "sharding/permutation.h"

#include <algorithm>

#include "base/error.h"

namespace mw::sharding {
namespace {

// The shard, over `axes`, of the device at `index` of a group along `group`.
int64_t shard_at(int64_t index, const Axes& axes, const Axes& group, const cluster::Mesh& mesh) {
  std::vector<int64_t> coordinate(group.size());
  for (size_t i = group.size(); i-- > 0;) {
    const int64_t size = mesh.axis_size(group[i]);
    coordinate[i] = index % size;
    index /= size;
  }
  int64_t shard = 0;
  for (const Name axis : axes) {
    const auto at = std::find(group.begin(), group.end(), axis);
    MW_CHECK(at != group.end() || mesh.axis_size(axis) == 1, "axis {} is not in the group", axis);
    if (at == group.end()) continue;
    shard = shard * mesh.axis_size(axis) + coordinate[static_cast<size_t>(at - group.begin())];
  }
  return shard;
}

}  // namespace

Axes permutation_axes(const Axes& from, const Axes& to) {
  Axes axes = from;
  for (const Name axis : to) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  }
  return axes;
}

std::vector<std::pair<int, int>> shard_moves(const Axes& from, const Axes& to, const Axes& group,
                                             const cluster::Mesh& mesh) {
  const int64_t count = shards(from, mesh);
  MW_CHECK(count == shards(to, mesh), "{} shards become {}", count, shards(to, mesh));
  std::vector<std::vector<int>> holders(static_cast<size_t>(count)), takers(holders.size());
  std::vector<std::pair<int, int>> moves;
  for (int64_t device = 0; device < shards(group, mesh); ++device) {
    const int64_t have = shard_at(device, from, group, mesh),
                  want = shard_at(device, to, group, mesh);
    const int index = static_cast<int>(device);
    if (have == want) {
      moves.emplace_back(index, index);
      continue;
    }
    holders[static_cast<size_t>(have)].push_back(index);
    takers[static_cast<size_t>(want)].push_back(index);
  }
  for (size_t shard = 0; shard < holders.size(); ++shard) {
    MW_CHECK(holders[shard].size() == takers[shard].size(), "{} devices give shard {} to {}",
             holders[shard].size(), shard, takers[shard].size());
    for (size_t i = 0; i < holders[shard].size(); ++i)
      moves.emplace_back(holders[shard][i], takers[shard][i]);
  }
  std::sort(moves.begin(), moves.end());
  return moves;
}

}  // namespace mw::sharding
