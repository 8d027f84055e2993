#include <algorithm>
#include <map>

#include "sharding/propagation_strategy.h"

namespace mw::sharding {
namespace {

bool is_prefix(const Axes& shorter, const Axes& longer) {
  return shorter.size() <= longer.size() &&
         std::equal(shorter.begin(), shorter.end(), longer.begin());
}

// Axes up to the first that another factor of the op claims in any tensor.
Axes unclaimed(const OpView& op, const Proposal& proposal) {
  Axes axes;
  for (const Name axis : proposal.axes) {
    for (const TensorView& tensor : op.tensors) {
      for (size_t f = 0; f < tensor.axes.size(); ++f) {
        const Axes& other = tensor.axes[f];
        if (f != proposal.factor && std::find(other.begin(), other.end(), axis) != other.end())
          return axes;
      }
    }
    axes.push_back(axis);
  }
  return axes;
}

Proposals propose(const OpView& op) {
  Proposals proposals;
  for (const std::optional<Proposal>& found : agreed(op)) {
    if (!found) continue;
    Proposal proposal = *found;
    proposal.axes = unclaimed(op, proposal);
    if (!proposal.axes.empty()) proposals.list.push_back(std::move(proposal));
  }
  return proposals;
}

}  // namespace

const PropagationStrategy kFactors{"factors", propose};

std::vector<std::optional<Proposal>> agreed(const OpView& op) {
  std::vector<std::optional<Proposal>> result(op.rule.factors.size());
  for (size_t f = 0; f < op.rule.factors.size(); ++f) {
    Proposal longest{f, {}, 0};
    for (size_t t = 0; t < op.tensors.size(); ++t) {
      if (op.tensors[t].axes[f].size() > longest.axes.size())
        longest = {f, op.tensors[t].axes[f], t};
    }
    const bool agree = std::all_of(
        op.tensors.begin(), op.tensors.end(),
        [&](const TensorView& tensor) { return is_prefix(tensor.axes[f], longest.axes); });
    if (agree && !longest.axes.empty()) result[f] = std::move(longest);
  }
  return result;
}

}  // namespace mw::sharding
