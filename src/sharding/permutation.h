// Moving whole shards: the split of a dimension over some axes becomes one over others of as many
// devices, or the same in another order.
#pragma once

#include <utility>
#include <vector>

#include "cluster/mesh.h"
#include "sharding/sharding.h"

namespace mw::sharding {

// The axes of both, those of `from` first: a permutation stays within a group of them.
Axes permutation_axes(const Axes& from, const Axes& to);

// (source, destination), both indices into a group of devices along `group`: every device gets the
// shard that it has with the dimension over `to`, from one that has it with the dimension over
// `from`; who has it already keeps it, the others are matched in ascending order. Every device is
// the source of one pair. REQUIRES: `group` has the axes of both; shards(from) == shards(to).
std::vector<std::pair<int, int>> shard_moves(const Axes& from, const Axes& to, const Axes& group,
                                             const cluster::Mesh& mesh);

}  // namespace mw::sharding
