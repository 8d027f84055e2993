#include "partition/choose.h"

#include <algorithm>

#include "sharding/pending.h"

namespace mw::partition {
namespace {

using sharding::Sharding;

// A weight that moves would move in every microbatch, and a carried sum that is taken early is
// taken twice: a byte of it counts for a million others.
constexpr double kDearFactor = 1e6;

// Bytes to bring an operand into a sharding; negative: impossible.
double operand_cost(const Memo::Operand& operand, const Sharding& needed, Memo& memo) {
  const int to = memo.number(needed);
  const Memo::Nearest nearest = memo.nearest(operand.type, operand.versions, to);
  if (nearest.version < 0) return -1;
  // As if it had been kept: whatever is recomputed, sums are made in the same order.
  const double bytes = std::min(nearest.bytes, memo.nearest(operand.type, operand.kept, to).bytes);
  const bool stops_carried =
      operand.carried_as && memo.sharding(*operand.carried_as).partial != needed.partial;
  return operand.is_weight || stops_carried ? bytes * kDearFactor : bytes;
}

// Bytes to bring a result into the sharding in which it will be held.
double result_cost(const Memo::Result& result, const Sharding& made, Memo& memo) {
  Sharding wanted = result.given ? memo.sharding(*result.given) : made.without_partial();
  if (result.may_pend) wanted = sharding::pending_as(std::move(wanted), made);
  const int from = memo.number(made);
  const double bytes = memo.reshard(result.type, from, memo.number(wanted)).bytes;
  if (result.given || result.may_pend) return bytes;
  // Whoever reads the value will want it as propagated, if that is cheaper than as it is made.
  const int advised = memo.number(memo.sharding(result.advice).without_partial());
  return std::min(bytes, memo.reshard(result.type, from, advised).bytes);
}

ops::OpCost cost_of(const Memo::Problem& problem, const Memo& memo) {
  ir::Graph alone;
  ir::Op op;
  op.kind = problem.kind;
  op.attrs = memo.attributes(problem.attributes);
  op.accumulates = problem.accumulates;
  for (const Memo::Operand& operand : problem.operands)
    op.operands.push_back(alone.add_value(memo.type(operand.type)));
  for (const Memo::Result& result : problem.results)
    op.results.push_back(alone.add_value(memo.type(result.type)));
  return ops::cost_of(alone, op);
}

Assignment cheapest(const Memo::Problem& problem, const ops::ShardingRule& rule, Memo& memo) {
  const ops::OpCost cost = cost_of(problem, memo);
  AssignmentProblem search{
      rule, memo.mesh(), {}, {}, {}, {}, {}, cost.flops, rule.streams ? cost.bytes : 0};
  for (const Memo::Operand& operand : problem.operands) {
    std::vector<Sharding>& have = search.operands.emplace_back();
    for (const auto* versions : {&operand.versions, &operand.kept}) {
      for (const int version : *versions) have.push_back(memo.sharding(version));
    }
  }
  for (const Memo::Result& result : problem.results) {
    search.results.emplace_back();
    if (result.given) search.results.back() = memo.sharding(*result.given);
    search.advice.push_back(memo.sharding(result.advice));
  }
  search.operand_cost = [&](int i, const Sharding& needed) {
    return operand_cost(problem.operands[static_cast<size_t>(i)], needed, memo);
  };
  search.result_cost = [&](int i, const Sharding& made) {
    return result_cost(problem.results[static_cast<size_t>(i)], made, memo);
  };
  return choose_assignment(search);
}

}  // namespace

const Assignment& choose(const Memo::Problem& problem, const ops::ShardingRule& rule, Memo& memo) {
  if (const Assignment* known = memo.chosen(problem)) return *known;
  return memo.keep(problem, cheapest(problem, rule, memo));
}

}  // namespace mw::partition
