#include "compile/local_graph.h"

#include "base/error.h"

namespace mw::compile {

void LocalGraph::reserve(size_t values, size_t ops) {
  graph.reserve(values, ops);
  shardings.reserve(values);
  global_types.reserve(values);
}

ValueId LocalGraph::add_input(const Made& made, const std::string& name, StateId state) {
  const ValueId v = graph.add_input(made.local, name, state);
  shardings.push_back(made.sharding);
  global_types.push_back(made.global);
  return v;
}

ValueIds LocalGraph::add_op(ir::Op op, const std::vector<Made>& results) {
  std::vector<ir::TensorType> types;
  types.reserve(results.size());
  for (const Made& made : results) types.push_back(made.local);
  const OpId id = graph.add_op(std::move(op), types);
  for (const Made& made : results) {
    shardings.push_back(made.sharding);
    global_types.push_back(made.global);
  }
  return graph.op(id).results;
}

ValueIds LocalGraph::add_copy(ir::Op op, const LocalGraph& from) {
  for (const ValueId v : op.results) {
    shardings.push_back(from.shardings[v.index()]);
    global_types.push_back(from.global_types[v.index()]);
  }
  return graph.op(graph.add_copy(std::move(op), from.graph)).results;
}

void LocalGraph::renumber(const ValueIds& moved) {
  std::vector<sharding::Sharding> new_shardings(graph.values.size());
  std::vector<ir::TensorType> new_types(graph.values.size());
  for (size_t v = 0; v < moved.size(); ++v) {
    if (!moved[v].valid()) continue;
    new_shardings[moved[v].index()] = std::move(shardings[v]);
    new_types[moved[v].index()] = std::move(global_types[v]);
  }
  shardings = std::move(new_shardings);
  global_types = std::move(new_types);
}

ir::Op make_op(ir::OpKind kind, ir::Attributes attrs, ValueIds operands, ir::Work work,
               LayerId layer) {
  ir::Op op;
  op.kind = kind;
  op.attrs = std::move(attrs);
  op.operands = std::move(operands);
  op.work = work;
  op.layer = layer;
  return op;
}

LocalGraph::Made flat_type(int64_t elements, int64_t shards, const sharding::Axes& partial) {
  LocalGraph::Made made;
  made.global = ir::make_type(DType::kF32, {elements});
  made.local = ir::make_type(DType::kF32, {elements / shards});
  made.sharding = sharding::replicated(1);
  if (shards > 1) made.sharding.dims[0] = {"dp"};
  made.sharding.partial = partial;
  return made;
}

}  // namespace mw::compile
