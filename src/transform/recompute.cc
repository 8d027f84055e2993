#include "transform/recompute.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/op_def.h"
#include "transform/edit.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using ir::Work;

// The recomputed ops of one layer.
struct Region {
  LayerId layer;
  size_t first_backward = 0;      // op before which the clones go
  std::vector<bool> cloned;       // [op]
  std::vector<ValueId> clone_of;  // [value] invalid: not cloned
};

bool is_backward(const ir::Op& op) {
  return op.work == Work::kInputGrad || op.work == Work::kWeightGrad;
}

// An op that writes an operand's memory does not give the same result twice.
bool can_clone(const ir::Op& op, LayerId layer, RecomputeMode mode) {
  if (op.layer != layer || op.work != Work::kForward || op.accumulates ||
      ir::is_collective(op.kind))
    return false;
  if (!ops::op_def(op.kind).aliases.empty()) return false;
  return mode == RecomputeMode::kFull || op.kind == OpKind::kAttention;
}

// Marks what backward ops of the layer read, and what that is made of.
Region find_region(const ir::Graph& graph, LayerId layer, RecomputeMode mode) {
  Region region{layer, graph.ops.size(), std::vector<bool>(graph.ops.size(), false), {}};
  std::vector<bool> wanted(graph.values.size(), false);
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const ir::Op& op = graph.ops[i];
    if (op.layer != layer) continue;
    if (is_backward(op) && !op.recompute.valid()) {
      region.first_backward = i;
      for (const ValueId operand : op.operands) wanted[operand.index()] = true;
      continue;
    }
    const bool any = std::any_of(op.results.begin(), op.results.end(),
                                 [&](ValueId v) { return wanted[v.index()]; });
    if (!any || !can_clone(op, layer, mode)) continue;
    region.cloned[i] = true;
    for (const ValueId operand : op.operands) wanted[operand.index()] = true;
  }
  return region;
}

ir::Op clone(ir::Graph& graph, const ir::Op& op, Region& region) {
  ir::Op copy = op;
  copy.work = Work::kInputGrad;
  copy.recompute = RegionId(region.layer.value);
  for (ValueId& operand : copy.operands) {
    if (region.clone_of[operand.index()].valid()) operand = region.clone_of[operand.index()];
  }
  for (ValueId& result : copy.results) {
    const ir::Value original = graph.value(result);
    const ValueId value =
        graph.add_value(original.type, original.name.empty() ? "" : "re." + original.name);
    graph.value(value).logical = original.logical;
    region.clone_of[result.index()] = value;
    result = value;
  }
  return copy;
}

void recompute_layer(ir::Graph& graph, LayerId layer, RecomputeMode mode) {
  Region region = find_region(graph, layer, mode);
  if (std::find(region.cloned.begin(), region.cloned.end(), true) == region.cloned.end()) return;
  region.clone_of.resize(graph.values.size());
  std::vector<ir::Op> ops;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (i == region.first_backward) {
      for (size_t f = 0; f < i; ++f) {
        if (region.cloned[f]) ops.push_back(clone(graph, graph.ops[f], region));
      }
    }
    ops.push_back(graph.ops[i]);
    ir::Op& op = ops.back();
    if (op.layer != layer || !is_backward(op)) continue;
    for (ValueId& operand : op.operands) {
      if (region.clone_of[operand.index()].valid()) operand = region.clone_of[operand.index()];
    }
  }
  set_ops(graph, std::move(ops));
}

}  // namespace

const char* to_string(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::kNone: return "none";
    case RecomputeMode::kSelective: return "selective";
    case RecomputeMode::kFull: return "full";
  }
  return "?";
}

RecomputeOptions recompute_all(const ir::Module& module, RecomputeMode mode) {
  return {std::vector<RecomputeMode>(module.layers.size(), mode)};
}

std::vector<ValueId> recompute(ir::Graph& graph, const RecomputeOptions& options) {
  const size_t values = graph.values.size();
  for (size_t layer = 0; layer < options.layers.size(); ++layer) {
    if (options.layers[layer] == RecomputeMode::kNone) continue;
    recompute_layer(graph, LayerId(static_cast<int64_t>(layer)), options.layers[layer]);
  }
  std::vector<ValueId> map = ir::drop_dead(graph);
  map.resize(values);
  return map;
}

}  // namespace mw::transform
