#include "predict/gathered_weights.h"

#include <algorithm>
#include <map>
#include <set>

namespace mw::predict {
namespace {

using pipeline::Fragment;
using pipeline::Program;

bool gathers_weight(const Fragment& fragment, const ir::Op& op) {
  if (op.kind != ir::OpKind::kAllGather) return false;
  return std::any_of(
      fragment.inputs.begin(), fragment.inputs.end(), [&](const pipeline::Port& port) {
        return port.kind == pipeline::PortKind::kState && port.value == op.operands[0];
      });
}

// Elements of weights that a graph gathers, by layer; one of both ends once, in the first.
std::map<LayerId, int64_t> gathers(const Fragment& fragment) {
  const ir::Graph& graph = fragment.graph;
  std::map<LayerId, int64_t> elements;
  std::set<ValueId> seen;
  for (const ir::Op& op : graph.ops) {
    if (gathers_weight(fragment, op) && op.layer.valid() && seen.insert(op.operands[0]).second)
      elements[op.layer] += graph.type(op.results[0]).elements();
  }
  return elements;
}

}  // namespace

const Fragment* forward_with_loss(const Program& program) {
  for (const Fragment& fragment : program.fragments) {
    const std::vector<ir::Op>& ops = fragment.graph.ops;
    if (fragment.kind == pipeline::ActionKind::kF &&
        std::any_of(ops.begin(), ops.end(),
                    [](const ir::Op& op) { return op.kind == ir::OpKind::kCrossEntropyLoss; }))
      return &fragment;
  }
  return nullptr;
}

int64_t gathered_ends(const Program& program) {
  const Fragment* forward = forward_with_loss(program);
  if (forward == nullptr) return 0;
  const std::map<LayerId, int64_t> elements = gathers(*forward);
  int64_t sum = 0;
  for (const auto& [layer, count] : elements) {
    const int64_t last = elements.rbegin()->first.value;
    const bool last_block = layer.value > 0 && layer.value + 1 == last;
    if (layer.value == 0 || layer.value == last || last_block) sum += count;
  }
  return sum;
}

int64_t gathered_at(const Fragment& fragment, size_t o) {
  const ir::Graph& graph = fragment.graph;
  std::set<ValueId> read;
  for (size_t later = o; later < graph.ops.size(); ++later)
    read.insert(graph.ops[later].operands.begin(), graph.ops[later].operands.end());
  int64_t sum = 0;
  for (size_t earlier = 0; earlier < o; ++earlier) {
    const ir::Op& op = graph.ops[earlier];
    if (gathers_weight(fragment, op) && read.count(op.results[0]) > 0)
      sum += graph.type(op.results[0]).elements();
  }
  return sum;
}

int64_t gather_buffers(const Program& program, const pipeline::RankProgram& rank) {
  int64_t most = 0;
  for (const pipeline::Command& command : rank.commands) {
    if (command.kind != pipeline::Command::Kind::kCall) continue;
    const Fragment& fragment = program.fragments[command.fragment.index()];
    if (fragment.kind != pipeline::ActionKind::kF) continue;
    int64_t before = 0;
    for (const auto& [layer, count] : gathers(fragment)) {
      most = std::max(most, before + count);
      before = count;
    }
  }
  return most;
}

}  // namespace mw::predict
