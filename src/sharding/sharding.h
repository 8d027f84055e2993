// Sharding: how a tensor is laid out on a mesh. Per dimension a list of mesh axes, major first;
// axes that are not listed replicate; `partial` marks a pending reduction: the true value is the
// reduction over those axes of what each device holds. Text form as in Shardy: [{"dp"}, {}, {"tp"}]
// partial{"cp"}, with partial<max>{…} for other reductions.
//
// A dimension that its axes do not divide is padded: every device holds ceil(size / n) elements and
// the tail of the last shards is padding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/attributes.h"
#include "ir/graph.h"
#include "ir/types.h"

namespace mw::sharding {

using ir::Axes;

struct Sharding {
  ir::DimAxes dims;
  Axes partial;  // sorted by name; empty: the value is whole
  ir::Reduction reduction = ir::Reduction::kSum;

  bool is_replicated() const;
  bool is_partial() const { return !partial.empty(); }
  Sharding without_partial() const;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

Sharding replicated(int rank);
std::string to_string(const Sharding& sharding);
// Throws Error with the column of what is wrong.
Sharding parse_sharding(const std::string& text);

// Drops axes that the mesh lacks or that have one device, so that equal layouts compare equal.
Sharding normalized(const Sharding& sharding, const cluster::Mesh& mesh);
// An axis used twice, an axis the mesh lacks, more dimensions than the type: findings, empty if
// none.
std::vector<std::string> findings(const Sharding& sharding, const ir::TensorType& type,
                                  const cluster::Mesh& mesh);

// Devices along all of `axes`.
int64_t shards(const Axes& axes, const cluster::Mesh& mesh);
// One device's shape: ceil(size / shards) in every dimension.
ir::TensorType local_type(const ir::TensorType& global, const Sharding& sharding,
                          const cluster::Mesh& mesh);
// Whether a dimension has a padded tail on some device.
bool is_padded(const ir::TensorType& global, const Sharding& sharding, int dim,
               const cluster::Mesh& mesh);

}  // namespace mw::sharding
