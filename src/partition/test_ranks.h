// N interpreted ranks: global tensors cut into shards, a partitioned graph run on all of them at
// once with its collectives, shards put together again. Double precision, plain loops: what the
// partitioner's tests hold it against.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cluster/mesh.h"
#include "ir/graph.h"
#include "ops/interpret.h"
#include "partition/partitioner.h"
#include "sharding/sharding.h"

namespace mw::partition::test {

using ops::Tensor;
using PerRank = std::vector<Tensor>;  // [rank]

// Uniform numbers in [-1, 1).
Tensor random_tensor(const ir::TensorType& type, const std::string& site, uint64_t seed = 1);

// Every rank's shard. Padded tails hold `tail`. Over pending axes the value is split into parts
// that reduce to it: of a sum random ones, of a maximum or minimum the value on one rank and
// something smaller or larger on the others.
PerRank shard(const Tensor& global, const sharding::Sharding& sharding, const cluster::Mesh& mesh,
              double tail = 0);

// The global value, padding left out, pending reductions done; no value and a message in `problem`
// where two ranks that should hold the same element do not.
std::optional<Tensor> unshard(const PerRank& shards, const ir::TensorType& global,
                              const sharding::Sharding& sharding, const cluster::Mesh& mesh,
                              std::string& problem);

// [value][rank] of a local graph; `inputs` in the order of graph.inputs.
std::vector<PerRank> run_ranks(const ir::Graph& graph, const std::vector<PerRank>& inputs,
                               const cluster::Mesh& mesh);

// Runs the partitioned graph on all ranks of the mesh, the inputs' shards dealt out, beside the
// global one. Empty, or the first value that differs: which, where, what it is and must be.
struct Comparison {
  double tail = 0;      // in the padding of what is neither a state nor whole numbers
  double relative = 0;  // differences are at most 1e-9 (1 + relative |value|)
};
std::string difference(const ir::Graph& graph, const std::vector<Tensor>& inputs,
                       const Partitioned& partitioned, const cluster::Mesh& mesh,
                       const Comparison& comparison = {});

// "all_reduce{tp}", "reduce_scatter{tp} dim 1", … of every collective and shard_slice, in order.
std::vector<std::string> communication(const ir::Graph& graph);

}  // namespace mw::partition::test
