// Mesh: a named grid of devices, e.g. {pp:4, dp:2, tp:8}. Ranks are numbered row-major: the last
// axis varies fastest, so the ranks that differ only along it are neighbours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/name.h"

namespace mw::cluster {

struct Axis {
  std::string name;
  int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

class Mesh {
 public:
  Mesh() = default;  // one device, no axes
  // Throws Error with all findings where a name is empty or there twice, or a size is below 1.
  explicit Mesh(std::vector<Axis> axes);

  const std::vector<Axis>& axes() const { return axes_; }
  // The number of devices.
  int64_t size() const { return size_; }
  bool has(std::string_view name) const;
  // 1 if the mesh lacks the axis.
  int64_t axis_size(std::string_view name) const;

  // In the functions below `axes` is a list of axis names, major first, that need not follow the
  // mesh's order. An axis that the mesh lacks counts as one of size 1. REQUIRES: no name twice, the
  // rank is of the mesh.

  // How many devices differ only along these axes.
  int64_t group_size(const Names& axes) const;
  // Index of the rank among them, in [0, group_size(axes)): the last of `axes` varies fastest.
  int64_t index(RankId rank, const Names& axes) const;
  // The ranks that differ from `rank` only along these axes, in order of index.
  std::vector<RankId> members(RankId rank, const Names& axes) const;

  // One number an axis, in the mesh's order.
  std::vector<int64_t> coordinates(RankId rank) const;
  RankId rank_at(const std::vector<int64_t>& coordinates) const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  // The distance in ranks between neighbours along an axis, 0 where the mesh lacks it.
  int64_t stride(std::string_view name) const;
  void check_rank(RankId rank) const;

  std::vector<Axis> axes_;
  int64_t size_ = 1;
};

// "{pp:4, dp:2, tp:8}"
std::string to_string(const Mesh& mesh);
// Reads what to_string writes; the braces may be missing. Throws Error.
Mesh parse_mesh(std::string_view text);

}  // namespace mw::cluster
