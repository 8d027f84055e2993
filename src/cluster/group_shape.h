// Where the members of a device group lie: which link levels it crosses, and how many members each
// unit of a level holds.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/hardware.h"
#include "cluster/mesh.h"

namespace mw::cluster {

// One dimension of a torus as a group uses it.
struct TorusSide {
  int64_t members = 1;  // places along it that members have
  // Links' worth that a member has there: two where the way around is closed, else one, also where
  // the side is of two devices; groups whose members lie between each other's share them.
  double links = 0;
  int32_t dimension = 0;  // which one of all tori's, from the inside out
  friend bool operator==(const TorusSide&, const TorusSide&) = default;
};

// A group seen from the inside out: the first level joins `ways[0]` members, the next one
// `ways[1]` such sets, and so on; levels that join nothing new have 1. Product = size, where every
// unit holds as many members as the others; otherwise `ways` is of the fullest unit, rounded up
// outside.
struct GroupShape {
  int64_t size = 1;
  std::vector<int64_t> ways;  // [level]
  // [level] members in the emptiest of the units that the level joins; empty: as many as in all.
  std::vector<int64_t> fewest;
  // Where a level is a torus, whose last dimension varies fastest over devices: the dimensions in
  // which the members differ, and the farthest hops between two of them.
  std::vector<TorusSide> torus;
  int64_t torus_hops = 0;

  double torus_links() const;  // of all dimensions
  // The outermost level that the group crosses. REQUIRES: size > 1.
  size_t level() const;
  // Members in the fullest and in the emptiest of the units that the level joins.
  double fullest_unit(size_t level) const;
  double emptiest_unit(size_t level) const;
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

// Ranks are dealt out to devices in order. REQUIRES: members are not empty.
GroupShape group_shape(const Cluster& cluster, const std::vector<RankId>& members);
// Of the devices that differ from `rank` only along these axes.
GroupShape group_shape(const Cluster& cluster, const Mesh& mesh, RankId rank, const Names& axes);

// The first of those shifts that differ by whole units of all levels: groups lie alike, moved by
// one or by the other.
std::vector<RankId> distinct_shifts(const Cluster& cluster, const std::vector<RankId>& shifts);
// Of the groups whose members are these, each moved by one of `shifts`: every shape that is there,
// once. Where groups do not divide a node some of them straddle two. REQUIRES: neither is empty.
std::vector<GroupShape> group_shapes(const Cluster& cluster, const std::vector<RankId>& members,
                                     const std::vector<RankId>& shifts);
// The outermost level that joins any of `a` and `b` moved by one of `shifts`.
size_t level_between(const Cluster& cluster, RankId a, RankId b, const std::vector<RankId>& shifts);

}  // namespace mw::cluster
