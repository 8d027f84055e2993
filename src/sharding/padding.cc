#include "sharding/padding.h"

#include <algorithm>

#include "sharding/factors.h"

namespace mw::sharding {
namespace {

using ops::ShardingRule;

// Of one dimension of a result: the kernel leaves the tail out, a factor of a product is zero
// there, or all that is read there is zero and stays so.
bool is_zero_tail(const ShardingRule& rule, const std::vector<int>& dim,
                  const std::function<bool(size_t operand, size_t dim)>& is_zero) {
  if (dim.empty()) return false;
  if (dim.size() == 1 && rule.factors[static_cast<size_t>(dim[0])].masked) return true;
  const bool product = rule.linearity == ShardingRule::Linearity::kEach && rule.finite_preserving;
  bool any = false, all = rule.zero_preserving, seen = false;
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    const bool linear =
        std::find(rule.linear.begin(), rule.linear.end(), static_cast<int>(i)) != rule.linear.end();
    for (size_t d = 0; d < rule.operands[i].size(); ++d) {
      if (rule.operands[i][d] != dim) continue;
      const bool zero = is_zero(i, d);
      seen = true;
      all = all && zero;
      any = any || (product && linear && zero);
    }
  }
  return any || (all && seen);
}

}  // namespace

bool reduces_tail(const ShardingRule& rule, size_t factor, const Axes& axes,
                  const cluster::Mesh& mesh) {
  const ops::Factor& reduced = rule.factors[factor];
  return !reduced.masked && reduced.size % shards(axes, mesh) != 0 && reduced_in_any(rule, factor);
}

std::vector<bool> zero_tails(const ShardingRule& rule, size_t result,
                             const std::function<bool(size_t operand, size_t dim)>& is_zero) {
  std::vector<bool> zero;
  for (const std::vector<int>& dim : rule.results[result])
    zero.push_back(is_zero_tail(rule, dim, is_zero));
  return zero;
}

}  // namespace mw::sharding
