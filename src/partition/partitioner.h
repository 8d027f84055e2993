// The SPMD partitioner: rewrites a graph from global shapes to one device's, with explicit
// collectives.
//
// First the given shardings are propagated (sharding/propagation.h). Then op by op, in order: every
// mesh axis may lie on any factor of the op's sharding rule that an operand or a result's given or
// propagated sharding proposes, or on none; of these assignments the one with the fewest bytes to
// move is taken, the bytes of weights a million times dearer than others. Given shardings are held
// exactly; a propagated one is advice, and an origin says where it was not taken. Contracting a
// sharded factor leaves the result partial; a partial value is reduced where an op is not linear in
// it, or at once where its sharding is fixed by an annotation. A partial gradient that only goes
// into its accumulator stays partial. Device groups stay symbolic: the cost does not depend on how
// many devices an axis has.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "partition/memo.h"
#include "sharding/propagation.h"
#include "sharding/sharding.h"
#include "sharding/strategy.h"

namespace mw::partition {

struct PartitionRequest {
  const ir::Graph& graph;
  const ir::Module& module;
  const cluster::Mesh& mesh;  // of the stage, without pipeline axes
  // [value] given shardings: annotated values and inputs are held exactly so; empty: the
  // partitioner chooses.
  std::vector<std::optional<sharding::Sharding>> given;
  // Of the same mesh: what other graphs' ops were found to be is not looked for again. Null: none.
  Memo* memo = nullptr;
};

struct Partitioned {
  ir::Graph graph;                            // local
  std::vector<sharding::Sharding> shardings;  // [local value]
  std::vector<ir::TensorType> global_types;   // [local value]
  ValueIds global_value;                      // [local value] the global value it is a version of
  ValueIds main_version;  // [global value] its version in its own sharding; invalid: dropped
  std::vector<sharding::Origin> origins;      // [global value] why it lies so
  std::vector<sharding::Decision> decisions;  // where two factors claimed one axis
};

// The sharding that annotations and states give to every value of a graph, before anything is
// partitioned. `strategy`: the layout of logical axes for a layer's values (invalid id: of values
// outside all layers).
std::vector<std::optional<sharding::Sharding>> given_shardings(
    const ir::Graph& graph, const ir::Module& module, const cluster::Mesh& mesh,
    const std::function<const sharding::Strategy&(LayerId)>& strategy);

// Ops that the partitioner adds have the layer of the op that needs them, and are input gradients
// in the backward pass; marking (transform/autodiff.h) comes after.
Partitioned partition(const PartitionRequest& request);

// Every value of the global graph with its sharding and the origin of it, one a line, then what was
// decided where two factors claimed one axis.
std::string layout_text(const Partitioned& partitioned, const ir::Graph& global,
                        const ir::Module& module);

}  // namespace mw::partition
