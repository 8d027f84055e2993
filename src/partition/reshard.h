// The reshard planner: the cheapest chain of collectives from one sharding of a value to another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "sharding/sharding.h"

namespace mw::partition {

struct ReshardStep {
  ir::OpKind kind =
      ir::OpKind::kAllReduce;  // …, all_gather, reduce_scatter, all_to_all, permute, shard_slice
  ir::Axes axes;
  int dim = 0;  // all_gather: becomes whole; reduce_scatter, shard_slice, all_to_all: becomes
                // sharded; permute: lies on other axes or in another order of them
  int concat_dim = 0;  // all_to_all: becomes whole
  sharding::Sharding after;
};

struct ReshardPlan {
  std::vector<ReshardStep> steps;
  // Bytes that a device sends, by ring volume: all-reduce 2(n-1)/n, permute its shard, the others
  // (n-1)/n of the larger side.
  double bytes = 0;
};

// Shortest path over shardings (A*); the moves are gathering a suffix of a dimension's axes,
// slicing over the next ones of those it wants, moving the last axis of a dimension to another one,
// moving whole shards between devices so that a dimension lies on the wanted axes, reducing, and
// reducing with scattering. A dimension that its axes do not divide changes between no axes and all
// of them only, since its shards' borders depend on all. REQUIRES: both normalized on the mesh;
// `to` is partial at most over axes that `from` is partial over; they have at most 15 axes
// together.
ReshardPlan plan_reshard(const ir::TensorType& global, const sharding::Sharding& from,
                         const sharding::Sharding& to, const cluster::Mesh& mesh);

// Appends the ops of a plan to a local graph through `append(op, result type)`, which returns the
// new value; pads before splitting a dimension that is not divisible and trims after joining it.
// Returns the last value.
using AppendOp =
    std::function<ValueId(ir::Op op, ir::TensorType result, const sharding::Sharding& sharding)>;
ValueId emit_reshard(const ReshardPlan& plan, const ir::TensorType& global, ValueId local,
                     const sharding::Sharding& from, const cluster::Mesh& mesh,
                     const std::function<ir::TensorType(ValueId)>& type_of, const AppendOp& append);

}  // namespace mw::partition
