#include "transform/cse.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>

#include "ops/op_def.h"
#include "transform/edit.h"

namespace mw::transform {
namespace {

bool can_merge(const ir::Op& op) {
  return !op.accumulates && op.called.empty() && !ir::is_collective(op.kind) &&
         ops::op_def(op.kind).aliases.empty();
}

// All that makes two ops the same but the attributes, which are compared.
std::string key_of(const ir::Graph& graph, const ir::Op& op) {
  std::string key =
      fmt::format("{} {} {}:", static_cast<int>(op.kind), op.layer.value, op.recompute.value);
  for (const ValueId operand : op.operands) key += fmt::format(" {}", operand.value);
  for (const ValueId result : op.results) key += " " + ir::to_string(graph.type(result));
  return key;
}

bool same_axes(const ir::Graph& graph, const ir::Op& a, const ir::Op& b) {
  for (size_t i = 0; i < a.results.size(); ++i) {
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
  std::unordered_map<std::string, std::vector<size_t>> seen;  // key -> places in `ops`
  std::vector<ir::Op> ops;
  for (ir::Op& op : graph.ops) {
    for (ValueId& operand : op.operands) {
      if (replaced[operand.index()].valid()) operand = replaced[operand.index()];
    }
    if (!can_merge(op)) {
      ops.push_back(std::move(op));
      continue;
    }
    std::vector<size_t>& places = seen[key_of(graph, op)];
    const auto same = std::find_if(places.begin(), places.end(), [&](size_t place) {
      return ops[place].attrs == op.attrs && same_axes(graph, ops[place], op);
    });
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
