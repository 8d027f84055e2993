#include "transform/cse.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/op_def.h"
#include "transform/edit.h"

namespace mw::transform {
namespace {

bool can_merge(const ir::Op& op) {
  return !op.accumulates && op.called.empty() && !ir::is_collective(op.kind) &&
         ops::op_def(op.kind).aliases.empty();
}

// Of what two ops that are the same have in common.
size_t hash_of(const ir::Op& op) {
  size_t hash = static_cast<size_t>(op.kind);
  const auto add = [&](int64_t number) {
    hash = (hash ^ static_cast<size_t>(number)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32U;
  };
  add(op.layer.value);
  add(op.recompute.value);
  for (const ValueId operand : op.operands) add(operand.value);
  return hash;
}

bool same_ops(const ir::Graph& graph, const ir::Op& a, const ir::Op& b) {
  if (a.kind != b.kind || a.layer != b.layer || a.recompute != b.recompute ||
      a.operands != b.operands || a.results.size() != b.results.size() || a.attrs != b.attrs)
    return false;
  for (size_t i = 0; i < a.results.size(); ++i) {
    if (graph.type(a.results[i]) != graph.type(b.results[i])) return false;
    const ir::LogicalAxes &x = graph.value(a.results[i]).logical,
                          &y = graph.value(b.results[i]).logical;
    if (!x.empty() && !y.empty() && x != y) return false;
  }
  return true;
}

// `stays` gets what only `goes` has.
void adopt(ir::Graph& graph, ir::Op& stays, const ir::Op& goes) {
  stays.work = std::min(stays.work, goes.work);
  for (size_t i = 0; i < stays.results.size(); ++i) {
    ir::Value &to = graph.value(stays.results[i]), &from = graph.value(goes.results[i]);
    if (to.logical.empty()) to.logical = from.logical;
    if (to.name.empty()) to.name = std::exchange(from.name, "");
  }
}

}  // namespace

ValueIds merge_common(ir::Graph& graph) {
  ValueIds replaced(graph.values.size());
  std::unordered_map<size_t, std::vector<size_t>> seen;  // hash -> places in `ops`
  std::vector<ir::Op> ops;
  ops.reserve(graph.ops.size());
  for (ir::Op& op : graph.ops) {
    for (ValueId& operand : op.operands) {
      if (replaced[operand.index()].valid()) operand = replaced[operand.index()];
    }
    if (!can_merge(op)) {
      ops.push_back(std::move(op));
      continue;
    }
    std::vector<size_t>& places = seen[hash_of(op)];
    const auto same = std::find_if(places.begin(), places.end(),
                                   [&](size_t place) { return same_ops(graph, ops[place], op); });
    if (same == places.end()) {
      places.push_back(ops.size());
      ops.push_back(std::move(op));
      continue;
    }
    adopt(graph, ops[*same], op);
    for (size_t i = 0; i < op.results.size(); ++i)
      replaced[op.results[i].index()] = ops[*same].results[i];
  }
  return replace_ops(graph, std::move(ops), replaced);
}

}  // namespace mw::transform
