// Rings in a fragment's costs (fragment_cost.h): context parallelism's, and products in parts.
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

// Whether all levels that are crossed are of the innermost one's kind. There devices read each
// other's memory, as products in parts do: within one NVLink domain [PyTorch's symmetric memory,
// Transformer Engine's user buffers, from memory].
bool reads_directly(const cluster::Cluster& cluster, uint32_t levels) {
  for (size_t l = 0; l < cluster.links.size(); ++l) {
    if ((levels >> l & 1) != 0 && cluster.links[l].kind != cluster.links[0].kind) return false;
  }
  return true;
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

// Products along a dimension that they gather before, or scatter their result's sum after.
void FragmentCoster::find_product_rings(const Fragment& fragment, FragmentCost& cost) const {
  const ir::Graph& graph = fragment.graph;
  const std::vector<ir::OpIds> users = graph.users();
  for (const FragmentCost::Collective& collective : cost.collectives_of) {
    const ir::Op& op = graph.ops[static_cast<size_t>(collective.op)];
    const OpCost& moves = cost.ops[static_cast<size_t>(collective.op)];
    if (moves.beside != Beside::kTensor || !reads_directly(cluster_, moves.levels)) continue;
    FragmentCost::Ring ring{false, collective.size, {}, {collective.op}, Bytes(0)};
    if (op.kind == OpKind::kAllGather) {
      const auto dim = static_cast<size_t>(op.as<ir::CollectiveAttrs>().dim);
      for (const OpId id : users[op.results[0].index()]) {
        const ir::Op& user = graph.op(id);
        if (user.kind != OpKind::kDot) continue;
        const auto& dot = user.as<ir::DotAttrs>();
        const char letter = (user.operands[0] == op.results[0] ? dot.lhs : dot.rhs)[dim];
        if (dot.out.find(letter) != std::string::npos) ring.computes.push_back(id.value);
      }
    } else if (op.kind == OpKind::kReduceScatter) {
      const OpId made = graph.value(op.operands[0]).producer;
      const bool product =
          made.valid() && (graph.op(made).kind == OpKind::kDot ||
                           cost.works[made.index()].kind == cost::OpWork::Kind::kProduct);
      if (product) ring.computes = {made.value};
      ring.summed = collective.bytes;
    }
    if (!ring.computes.empty()) cost.rings.push_back(std::move(ring));
  }
}

}  // namespace mw::simulate
