#include "predict/kept_products.h"

#include <map>
#include <set>

namespace mw::predict {

std::vector<OpId> kept_products(const pipeline::Fragment& forward) {
  const auto root = [&](ValueId v) {
    const ValueId of = forward.alias_of.empty() ? ValueId() : forward.alias_of[v.index()];
    return of.valid() ? of : v;
  };
  std::set<ValueId> leave;
  for (const ValueId v : forward.graph.outputs) leave.insert(root(v));
  std::map<LayerId, int> products;
  std::vector<OpId> kept;
  for (size_t o = 0; o < forward.graph.ops.size(); ++o) {
    const ir::Op& op = forward.graph.ops[o];
    if (op.kind != ir::OpKind::kDot || !op.layer.valid() || products[op.layer]++ % 2 == 1) continue;
    if (leave.count(root(op.results[0])) == 0) kept.emplace_back(static_cast<int64_t>(o));
  }
  return kept;
}

}  // namespace mw::predict
