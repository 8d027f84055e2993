// Context parallelism's rings in a fragment's costs (fragment_cost.h).
#include <algorithm>

#include "simulate/fragment_cost.h"

namespace mw::simulate {
namespace {

using ir::OpKind;
using pipeline::Fragment;

// Collectives of one group run in their order, whatever holds some of them up.
void keep_orders(FragmentCost& cost) {
  std::vector<int32_t> last;  // [label]
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    OpCost& op = cost.ops[o];
    if (op.label < 0 || op.alias) continue;
    last.resize(std::max(last.size(), static_cast<size_t>(op.label) + 1), -1);
    int32_t& before = last[static_cast<size_t>(op.label)];
    if (before >= 0 && cost.ops[static_cast<size_t>(before)].stream != op.stream) {
      std::vector<int32_t> deps(cost.deps.begin() + op.first_dep,
                                cost.deps.begin() + op.first_dep + op.deps);
      deps.push_back(before);
      op.first_dep = static_cast<uint32_t>(cost.deps.size());
      op.deps = static_cast<uint32_t>(deps.size());
      cost.deps.insert(cost.deps.end(), deps.begin(), deps.end());
    }
    before = static_cast<int32_t>(o);
  }
}

}  // namespace

// Keys and values are gathered, their gradients scattered, right at the attention.
void FragmentCoster::find_rings(const Fragment& fragment, FragmentCost& cost) const {
  const ir::Graph& graph = fragment.graph;
  std::vector<ir::OpIds> users;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const ir::Op& op = graph.ops[o];
    if (op.kind != OpKind::kAttention && op.kind != OpKind::kAttentionGrad) continue;
    const auto& attrs = op.as<ir::AttentionAttrs>();
    if (attrs.queries.axes.empty()) continue;
    if (users.empty()) users = graph.users();
    const bool backward = op.kind == OpKind::kAttentionGrad;
    FragmentCost::Ring ring{true,
                            program_.mesh.group_size(attrs.queries.axes),
                            {static_cast<int32_t>(o)},
                            {},
                            Bytes(0)};
    const auto add = [&](OpId id, OpKind kind) {
      if (id.valid() && graph.op(id).kind == kind && cost.ops[id.index()].label >= 0)
        ring.collectives.push_back(id.value);
    };
    for (const size_t i : {1, 2})
      add(graph.value(op.operands[backward ? i + 1 : i]).producer, OpKind::kAllGather);
    for (const size_t i : {1, 2}) {
      if (!backward) break;
      for (const OpId user : users[op.results[i].index()]) add(user, OpKind::kReduceScatter);
    }
    if (!ring.collectives.empty()) cost.rings.push_back(std::move(ring));
  }
}

// A ring is a part of its attention: what it shows is beside nothing.
void FragmentCoster::hold_rings(FragmentCost& cost) const {
  if (!options_.overlap.ring || cost.rings.empty()) return;
  for (const FragmentCost::Ring& ring : cost.rings) {
    for (const int32_t o : ring.collectives) cost.ops[static_cast<size_t>(o)].stream = 0;
  }
  keep_orders(cost);
}

}  // namespace mw::simulate
