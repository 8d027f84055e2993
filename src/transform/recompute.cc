#include "transform/recompute.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "ops/op_def.h"
#include "transform/edit.h"

namespace mw::transform {
namespace {

using ir::OpKind;
using ir::Work;

// The recomputed ops of one layer, in order.
struct Region {
  LayerId layer;
  size_t first_backward = 0;  // op before which the clones go
  std::vector<size_t> ops;    // that are cloned
  std::set<size_t> unread;    // those of them that the backward pass does not need
  std::vector<ir::Op> clones;
};

// What a value is in the backward pass of the layer that made it.
struct Clone {
  LayerId layer;
  ValueId value;
};

bool is_backward(const ir::Op& op) {
  return op.work == Work::kInputGrad || op.work == Work::kWeightGrad;
}

// Whether a product sums over one of these logical axes.
bool sums_over(const ir::Graph& graph, const ir::Op& op, const std::set<std::string>& axes) {
  const auto& dot = op.as<ir::DotAttrs>();
  const ir::LogicalAxes& logical = graph.value(op.operands[0]).logical;
  for (size_t d = 0; d < std::min(logical.size(), dot.lhs.size()); ++d) {
    if (dot.out.find(dot.lhs[d]) == std::string::npos && axes.contains(logical[d])) return true;
  }
  return false;
}

// What kSelectiveOp keeps of the layer's ops.
std::set<size_t> kept_ops(const ir::Graph& graph, const std::vector<size_t>& ops,
                          const std::set<std::string>& divided) {
  std::set<size_t> kept;
  int products = 0;
  for (const size_t i : ops) {
    const ir::Op& op = graph.ops[i];
    if (op.work != Work::kForward) continue;
    const bool product = op.kind == OpKind::kDot;
    if (op.kind == OpKind::kAttention || (product && products % 2 == 0) ||
        (product && sums_over(graph, op, divided)))
      kept.insert(i);
    products += product ? 1 : 0;
  }
  return kept;
}

// An op that writes an operand's memory does not give the same result twice.
bool can_clone(const ir::Op& op, Recompute mode) {
  if (op.work != Work::kForward || op.accumulates || ir::is_collective(op.kind)) return false;
  if (!ops::op_def(op.kind).aliases.empty()) return false;
  return mode != Recompute::kSelective || op.kind == OpKind::kAttention;
}

// [layer] its ops, in order.
std::vector<std::vector<size_t>> ops_by_layer(const ir::Graph& graph, size_t layers) {
  std::vector<std::vector<size_t>> found(layers);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const LayerId layer = graph.ops[i].layer;
    if (layer.valid() && layer.index() < layers) found[layer.index()].push_back(i);
  }
  return found;
}

// Finds what backward ops of the layer read, and what that is made of. `wanted`: [value] the last
// layer whose backward ops read it.
Region find_region(const ir::Graph& graph, LayerId layer, const std::vector<size_t>& ops,
                   const RecomputeOptions& options, std::vector<LayerId>& wanted) {
  const Recompute mode = options.layers[layer.index()];
  const std::set<size_t> kept =
      mode == Recompute::kSelectiveOp ? kept_ops(graph, ops, options.divided) : std::set<size_t>();
  Region region{layer, graph.ops.size(), {}, {}, {}};
  for (auto i = ops.rbegin(); i != ops.rend(); ++i) {
    const ir::Op& op = graph.ops[*i];
    const bool backward = is_backward(op) && !op.recompute.valid();
    if (backward) {
      region.first_backward = *i;
    } else {
      const bool any = std::any_of(op.results.begin(), op.results.end(),
                                   [&](ValueId v) { return wanted[v.index()] == layer; });
      const bool again = options.whole && mode == Recompute::kFull;
      if ((!any && !again) || !can_clone(op, mode) || kept.contains(*i)) continue;
      region.ops.push_back(*i);
      if (!any) region.unread.insert(*i);
    }
    for (const ValueId operand : op.operands) wanted[operand.index()] = layer;
  }
  std::reverse(region.ops.begin(), region.ops.end());
  return region;
}

void read_clones(ir::Op& op, LayerId layer, const std::vector<Clone>& clone_of) {
  for (ValueId& operand : op.operands) {
    if (operand.index() >= clone_of.size()) continue;
    const Clone& clone = clone_of[operand.index()];
    if (clone.value.valid() && clone.layer == layer) operand = clone.value;
  }
}

ir::Op clone(ir::Graph& graph, const ir::Op& op, LayerId layer, std::vector<Clone>& clone_of) {
  ir::Op copy = op;
  copy.work = Work::kInputGrad;
  copy.recompute = RegionId(layer.value);
  read_clones(copy, layer, clone_of);
  for (ValueId& result : copy.results) {
    const ir::Value original = graph.value(result);
    const ValueId value =
        graph.add_value(original.type, original.name.empty() ? "" : "re." + original.name);
    graph.value(value).logical = original.logical;
    clone_of[result.index()] = {layer, value};
    result = value;
  }
  return copy;
}

// The graph with every region's clones before its first backward op, whose layer reads them.
void insert(ir::Graph& graph, std::vector<Region>& regions, const std::vector<Clone>& clone_of,
            const RecomputeOptions& options) {
  const auto reads = [&](const ir::Op& op) {
    if (!is_backward(op) || op.recompute.valid()) return false;
    const bool keeps_result = options.whole && op.layer.valid() &&
                              op.layer.index() < options.layers.size() &&
                              options.layers[op.layer.index()] == Recompute::kSelective;
    return !keeps_result || op.kind == OpKind::kAttentionGrad;
  };
  std::vector<Region*> at(graph.ops.size(), nullptr);
  size_t clones = 0;
  for (Region& region : regions) {
    at[region.first_backward] = &region;
    clones += region.clones.size();
  }
  std::vector<ir::Op> ops;
  ops.reserve(graph.ops.size() + clones);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (at[i] != nullptr)
      std::move(at[i]->clones.begin(), at[i]->clones.end(), std::back_inserter(ops));
    ops.push_back(std::move(graph.ops[i]));
    ir::Op& op = ops.back();
    if (reads(op)) read_clones(op, op.layer, clone_of);
  }
  set_ops(graph, std::move(ops));
}

}  // namespace

RecomputeOptions recompute_all(const ir::Module& module, Recompute mode) {
  return {std::vector<Recompute>(module.layers.size(), mode), {}, false};
}

ValueIds recompute(ir::Graph& graph, const RecomputeOptions& options) {
  const size_t values = graph.values.size();
  const std::vector<std::vector<size_t>> ops = ops_by_layer(graph, options.layers.size());
  std::vector<LayerId> wanted(values);
  std::vector<Clone> clone_of(values);
  std::vector<Region> regions;
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const LayerId layer(static_cast<int64_t>(l));
    if (options.layers[l] == Recompute::kNone) continue;
    Region region = find_region(graph, layer, ops[l], options, wanted);
    // Without a backward pass nothing reads it again (a layer whose gradients nobody asked for).
    if (region.first_backward == graph.ops.size()) continue;
    for (const size_t op : region.ops) {
      region.clones.push_back(clone(graph, graph.ops[op], layer, clone_of));
      region.clones.back().kept = region.unread.contains(op);
    }
    regions.push_back(std::move(region));
  }
  insert(graph, regions, clone_of, options);
  ValueIds map = ir::drop_dead(graph);
  map.resize(values);
  return map;
}

}  // namespace mw::transform
