#include "transform/unfuse.h"

#include <utility>

#include "transform/edit.h"

namespace mw::transform {

void unfuse_activations(ir::Graph& graph) {
  std::vector<ir::Op> ops;
  for (ir::Op& op : graph.ops) {
    if (op.kind == ir::OpKind::kSwiglu) {
      const ValueId gate = op.operands[0], hidden = op.results[0];
      ir::Op silu = op;
      silu.kind = ir::OpKind::kSilu;
      silu.operands = {gate};
      silu.results = {graph.add_value(graph.type(hidden))};
      graph.value(silu.results[0]).logical = graph.value(hidden).logical;
      op.kind = ir::OpKind::kMul;
      op.operands[0] = silu.results[0];
      ops.push_back(std::move(silu));
    }
    ops.push_back(std::move(op));
  }
  set_ops(graph, std::move(ops));
}

}  // namespace mw::transform
