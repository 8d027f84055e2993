// Where the members of a device group lie: which link levels it crosses, and how many members each
// unit of a level holds.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/hardware.h"
#include "cluster/mesh.h"

namespace mw::cluster {

// A group seen from the inside out: the first level joins `ways[0]` members, the next one
// `ways[1]` such sets, and so on; levels that join nothing new have 1. Product = size, where every
// unit holds as many members as the others; otherwise `ways` is of the fullest unit, rounded up
// outside.
struct GroupShape {
  int64_t size = 1;
  std::vector<int64_t> ways;  // [level]
  // Where a level is a torus, whose last dimension varies fastest over devices: in how many
  // dimensions the members differ, whether they fill each of these (so that the way around is
  // closed), and the farthest hops between two of them.
  int64_t torus_dims = 0, torus_hops = 0;
  bool torus_closed = false;

  // The outermost level that the group crosses. REQUIRES: size > 1.
  size_t level() const;
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// Ranks are dealt out to devices in order. REQUIRES: members are not empty.
GroupShape group_shape(const Cluster& cluster, const std::vector<RankId>& members);
// Of the devices that differ from `rank` only along these axes.
GroupShape group_shape(const Cluster& cluster, const Mesh& mesh, RankId rank, const Names& axes);

}  // namespace mw::cluster
