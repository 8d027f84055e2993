#include <algorithm>

#include "sharding/propagation_strategy.h"

namespace mw::sharding {
namespace {

// All tensors but scalars have all factors that can be split.
bool passes_through(const OpView& op) {
  for (size_t f = 0; f < op.rule.factors.size(); ++f) {
    if (!op.rule.factors[f].shardable) continue;
    for (const TensorView& tensor : op.tensors) {
      if (!tensor.dims->empty() && !has_factor(*tensor.dims, f)) return false;
    }
  }
  return true;
}

Proposals propose_pass_through(const OpView& op) {
  Proposals proposals;
  if (!passes_through(op)) return proposals;
  return kFactors.propose(op);
}

}  // namespace

const PropagationStrategy kPassThrough{"pass-through", propose_pass_through};

}  // namespace mw::sharding
