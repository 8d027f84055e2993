#include "transform/edit.h"

#include <utility>

#include "base/error.h"

namespace mw::transform {

void set_ops(ir::Graph& graph, std::vector<ir::Op> ops) {
  graph.ops = std::move(ops);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const ir::Op& op = graph.ops[i];
    for (size_t r = 0; r < op.results.size(); ++r) {
      ir::Value& value = graph.value(op.results[r]);
      value.producer = OpId(static_cast<int64_t>(i));
      value.result = static_cast<int>(r);
    }
  }
}

void replace_reads(ir::Graph& graph, const ValueIds& map) {
  const auto replace = [&](ValueId& v) {
    if (map[v.index()].valid()) v = map[v.index()];
  };
  for (ir::Op& op : graph.ops) {
    for (ValueId& operand : op.operands) replace(operand);
  }
  for (ValueId& output : graph.outputs) replace(output);
  for (ir::StateUpdate& update : graph.updates) replace(update.value);
}

ValueIds replace_ops(ir::Graph& graph, std::vector<ir::Op> ops, const ValueIds& replaced) {
  set_ops(graph, std::move(ops));
  replace_reads(graph, replaced);
  ValueIds map = ir::drop_dead(graph);
  for (size_t v = 0; v < replaced.size(); ++v) {
    if (replaced[v].valid()) map[v] = map[replaced[v].index()];
  }
  return map;
}

}  // namespace mw::transform
