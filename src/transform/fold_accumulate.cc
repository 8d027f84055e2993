#include "transform/fold_accumulate.h"

#include <algorithm>
#include <utility>

#include "ops/op_def.h"
#include "transform/edit.h"

namespace mw::transform {
namespace {

using ir::OpKind;

// How often each value is read, outputs and updates included.
std::vector<int> count_reads(const ir::Graph& graph) {
  std::vector<int> reads(graph.values.size(), 0);
  for (const ir::Op& op : graph.ops) {
    for (const ValueId operand : op.operands) ++reads[operand.index()];
  }
  for (const ValueId output : graph.outputs) ++reads[output.index()];
  for (const ir::StateUpdate& update : graph.updates) ++reads[update.value.index()];
  return reads;
}

bool can_fold(const ir::Graph& graph, const ir::Op& sum, const std::vector<int>& reads) {
  const ValueId accumulator = sum.operands[0], g = sum.operands[1];
  const OpId maker = graph.value(g).producer, before = graph.value(accumulator).producer;
  if (!maker.valid() || reads[g.index()] != 1 || reads[accumulator.index()] != 1) return false;
  const ir::Op& op = graph.op(maker);
  return ops::op_def(op.kind).can_accumulate && !op.accumulates && op.results.size() == 1 &&
         op.work == sum.work && op.layer == sum.layer && (!before.valid() || before < maker);
}

}  // namespace

ValueIds fold_accumulate(ir::Graph& graph) {
  const std::vector<int> reads = count_reads(graph);
  ValueIds replaced(graph.values.size());
  std::vector<bool> folded(graph.ops.size(), false);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const ir::Op& sum = graph.ops[i];
    if (sum.kind != OpKind::kAccumulate || !can_fold(graph, sum, reads)) continue;
    const ValueId g = sum.operands[1], result = sum.results[0];
    ir::Op& op = graph.op(graph.value(g).producer);
    op.accumulates = true;
    op.operands.push_back(sum.operands[0]);
    // It is the sum now.
    graph.value(g).name = graph.value(result).name;
    graph.value(result).name.clear();
    if (graph.value(g).logical.empty()) graph.value(g).logical = graph.value(result).logical;
    replaced[result.index()] = g;
    folded[i] = true;
  }
  std::vector<ir::Op> ops;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!folded[i]) ops.push_back(std::move(graph.ops[i]));
  }
  return replace_ops(graph, std::move(ops), replaced);
}

}  // namespace mw::transform
