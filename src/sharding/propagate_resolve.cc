#include <algorithm>
#include <tuple>

#include "sharding/propagation_strategy.h"

namespace mw::sharding {
namespace {

// One tensor's wish for a factor.
struct Claim {
  size_t factor = 0, tensor = 0;
  Axes axes;
  Authority authority = Authority::kPropagated;
  double bytes = 0;
};

bool has_axis(const Axes& axes, Name axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// The strongest claim first. Bytes: what the tensors that have the factor so would have to move.
std::vector<Claim> claims_of(const OpView& op) {
  std::vector<Claim> claims;
  claims.reserve(2 * op.tensors.size());
  for (size_t t = 0; t < op.tensors.size(); ++t) {
    for (size_t f = 0; f < op.tensors[t].axes.size(); ++f) {
      if (op.tensors[t].axes[f].empty()) continue;
      claims.push_back({f, t, op.tensors[t].axes[f], op.tensors[t].authority, 0});
    }
  }
  for (Claim& claim : claims) {
    for (const Claim& other : claims) {
      if (other.factor == claim.factor && other.axes == claim.axes)
        claim.bytes += op.tensors[other.tensor].bytes;
    }
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::tuple(-static_cast<int>(a.authority), -a.bytes, a.factor, a.tensor) <
           std::tuple(-static_cast<int>(b.authority), -b.bytes, b.factor, b.tensor);
  });
  return claims;
}

// A claim gets its axes up to the first that a stronger claim has taken for another factor.
Proposals propose_resolve(const OpView& op) {
  Proposals result;
  result.list.reserve(op.rule.factors.size());
  const auto taken_by = [&](Name axis) -> const Proposal* {
    for (const Proposal& proposal : result.list) {
      if (has_axis(proposal.axes, axis)) return &proposal;
    }
    return nullptr;
  };
  for (const Claim& claim : claims_of(op)) {
    auto own = std::find_if(result.list.begin(), result.list.end(),
                            [&](const Proposal& p) { return p.factor == claim.factor; });
    Axes axes;
    for (const Name axis : claim.axes) {
      const Proposal* taken = taken_by(axis);
      if (taken != nullptr && taken->factor != claim.factor) {
        result.conflicts.push_back({taken->factor, claim.factor, taken->from, claim.tensor, axis});
        break;
      }
      axes.push_back(axis);
    }
    if (own == result.list.end()) {
      if (!axes.empty()) result.list.push_back({claim.factor, std::move(axes), claim.tensor});
      continue;
    }
    const size_t common = std::min(axes.size(), own->axes.size());
    const auto differs =
        std::mismatch(axes.begin(), axes.begin() + static_cast<int64_t>(common), own->axes.begin());
    if (differs.second != own->axes.begin() + static_cast<int64_t>(common)) {
      result.conflicts.push_back(
          {own->factor, claim.factor, own->from, claim.tensor, *differs.first});
    } else if (axes.size() > own->axes.size()) {
      own->axes = std::move(axes);
    }
  }
  return result;
}

}  // namespace

const PropagationStrategy kResolve{"resolve", propose_resolve};

}  // namespace mw::sharding
