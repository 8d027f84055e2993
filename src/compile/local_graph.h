// LocalGraph: one device's graph with the layout of every value beside it; the fragments are cut
// from it.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "sharding/sharding.h"

namespace mw::compile {

struct LocalGraph {
  ir::Graph graph;
  std::vector<sharding::Sharding> shardings;  // [value]
  std::vector<ir::TensorType> global_types;   // [value]

  // What a new value is.
  struct Made {
    ir::TensorType local, global;
    sharding::Sharding sharding;
  };
  void reserve(size_t values, size_t ops);  // Graph::reserve
  ValueId add_input(const Made& made, const std::string& name, StateId state = StateId());
  ValueIds add_op(ir::Op op, const std::vector<Made>& results);
  ValueIds add_copy(ir::Op op, const LocalGraph& from);  // Graph::add_copy
  ValueId add_op1(ir::Op op, const Made& result) { return add_op(std::move(op), {result}).front(); }
  // After a pass over `graph` that moved values: old id -> new id, invalid: dropped.
  void renumber(const ValueIds& moved);
  Made like(ValueId v) const {
    return {graph.type(v), global_types[v.index()], shardings[v.index()]};
  }
};

// An op without results yet.
ir::Op make_op(ir::OpKind kind, ir::Attributes attrs, ValueIds operands, ir::Work work,
               LayerId layer = LayerId());

// A flat buffer of `elements` f32 in all, whole or as one shard over the axis dp.
LocalGraph::Made flat_type(int64_t elements, int64_t shards, const sharding::Axes& partial = {});

}  // namespace mw::compile
