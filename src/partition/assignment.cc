#include "partition/assignment.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "sharding/factors.h"

namespace mw::partition {
namespace {

using ir::Axes;
using ops::ShardingRule;
using sharding::Sharding;

// Computing is a tie-breaker among layouts that move the same bytes: bytes an operation counts for.
constexpr double kBytesPerFlop = 1e-7;
// A device's memory is some ten times as fast as its links: a byte that an operation reads or
// writes beside one that is moved between devices.
constexpr double kMovedPerStreamed = 0.1;

bool contains(const Axes& axes, Name axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void add_axes(Axes& to, const Axes& from) {
  for (const Name axis : from) {
    if (!contains(to, axis)) to.push_back(axis);
  }
  std::sort(to.begin(), to.end());
}

bool is_linear_in(const ShardingRule& rule, int operand) {
  return std::find(rule.linear.begin(), rule.linear.end(), operand) != rule.linear.end();
}

class Chooser {
 public:
  explicit Chooser(const AssignmentProblem& problem) : p_(problem) {
    for (const cluster::Axis& axis : p_.mesh.axes()) {
      if (axis.size > 1) axes_.push_back(axis.name);
    }
    for (const Name axis : axes_) proposals_.push_back(proposals(axis));
  }

  Assignment choose() {
    Assignment assignment;
    assignment.factors.resize(p_.rule.factors.size());
    enumerate(0, assignment);
    MW_CHECK(best_cost_ < std::numeric_limits<double>::infinity(),
             "no sharding of the op is possible: {}", p_.rule.to_string());
    return best_;
  }

 private:
  std::vector<int> proposals(const std::string& axis) const {
    std::vector<int> found;
    const auto propose = [&](const ShardingRule::Dims& dims, const Sharding& sharding) {
      const sharding::FactorAxes axes = sharding::factors_of(p_.rule, dims, sharding, p_.mesh);
      for (size_t f = 0; f < axes.size(); ++f) {
        if (!contains(axes[f], axis) || !p_.rule.factors[f].shardable ||
            p_.rule.factors[f].size < p_.mesh.axis_size(axis))
          continue;
        const int factor = static_cast<int>(f);
        if (std::find(found.begin(), found.end(), factor) == found.end()) found.push_back(factor);
      }
    };
    for (size_t i = 0; i < p_.operands.size(); ++i) {
      for (const Sharding& s : p_.operands[i]) propose(p_.rule.operands[i], s);
    }
    for (size_t i = 0; i < p_.results.size(); ++i) {
      if (p_.results[i]) propose(p_.rule.results[i], *p_.results[i]);
    }
    for (size_t i = 0; i < p_.advice.size(); ++i) propose(p_.rule.results[i], p_.advice[i]);
    return found;
  }

  void enumerate(size_t axis, Assignment& assignment) {
    if (axis == axes_.size()) {
      if (sharding::can_shard(p_.rule, assignment.factors, p_.mesh)) consider(assignment);
      return;
    }
    for (const int f : proposals_[axis]) {
      Axes& axes = assignment.factors[static_cast<size_t>(f)];
      axes.push_back(axes_[axis]);
      enumerate(axis + 1, assignment);
      axes.pop_back();
    }
    enumerate(axis + 1, assignment);
  }

  // With and without letting pending sums pass.
  void consider(Assignment& assignment) {
    price(assignment);
    for (Axes& pending : passing_sums(assignment)) {
      assignment.kept_partial = std::move(pending);
      price(assignment);
    }
    assignment.kept_partial.clear();
  }

  // Over which axes sums may pass: those of all versions together, those of each; without the axes
  // that the assignment itself uses.
  std::vector<Axes> passing_sums(const Assignment& assignment) const {
    Axes all;
    std::vector<Axes> each;
    for (const int i : p_.rule.linear) {
      for (const Sharding& s : p_.operands[static_cast<size_t>(i)]) {
        if (!s.is_partial() || s.reduction != ir::Reduction::kSum) continue;
        add_axes(all, s.partial);
        each.push_back(s.partial);
      }
    }
    std::vector<Axes> sums;
    const auto add = [&](Axes pending) {
      for (const Axes& used : assignment.factors)
        pending.erase(std::remove_if(pending.begin(), pending.end(),
                                     [&](Name axis) { return contains(used, axis); }),
                      pending.end());
      std::sort(pending.begin(), pending.end());
      if (!pending.empty() && std::find(sums.begin(), sums.end(), pending) == sums.end())
        sums.push_back(std::move(pending));
    };
    add(std::move(all));
    for (Axes& pending : each) add(std::move(pending));
    return sums;
  }

  void price(const Assignment& assignment) {
    double cost = 0;
    bool some_partial = false;
    for (size_t i = 0; i < p_.operands.size(); ++i) {
      const int operand = static_cast<int>(i);
      Sharding needed = operand_sharding(p_.rule, operand, assignment);
      double bytes = p_.operand_cost(operand, needed);
      // Linear in each: one operand stays partial, the first that can; linear jointly: all of them
      // must.
      if (needed.is_partial() && p_.rule.linearity == ShardingRule::Linearity::kEach) {
        if (some_partial || bytes < 0) {
          bytes = p_.operand_cost(operand, needed.without_partial());
        } else {
          some_partial = true;
        }
      }
      if (bytes < 0) return;
      cost += bytes;
      if (cost >= best_cost_) return;
    }
    if (!assignment.kept_partial.empty() && p_.rule.linearity == ShardingRule::Linearity::kEach &&
        !some_partial)
      return;
    for (size_t i = 0; i < p_.results.size(); ++i) {
      cost += p_.result_cost(static_cast<int>(i),
                             result_sharding(p_.rule, static_cast<int>(i), assignment));
    }
    int64_t parts = 1;
    for (const Axes& axes : assignment.factors) parts *= sharding::shards(axes, p_.mesh);
    cost +=
        (kBytesPerFlop * p_.flops + kMovedPerStreamed * p_.streamed) / static_cast<double>(parts);
    if (cost < best_cost_) {
      best_cost_ = cost;
      best_ = assignment;
    }
  }

  const AssignmentProblem& p_;
  std::vector<std::string> axes_;
  std::vector<std::vector<int>> proposals_;
  double best_cost_ = std::numeric_limits<double>::infinity();
  Assignment best_;
};

}  // namespace

Sharding operand_sharding(const ShardingRule& rule, int operand, const Assignment& assignment) {
  Sharding sharding = sharding::sharding_of_factors(rule.operands[static_cast<size_t>(operand)],
                                                    assignment.factors);
  if (is_linear_in(rule, operand)) sharding.partial = assignment.kept_partial;
  return sharding;
}

Sharding result_sharding(const ShardingRule& rule, int result, const Assignment& assignment) {
  Sharding sharding =
      sharding::sharding_of_factors(rule.results[static_cast<size_t>(result)], assignment.factors);
  add_axes(sharding.partial, assignment.kept_partial);
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (assignment.factors[f].empty() ||
        !sharding::reduced_in(rule, f, static_cast<size_t>(result)))
      continue;
    add_axes(sharding.partial, assignment.factors[f]);
    sharding.reduction = rule.factors[f].reduction;
  }
  return sharding;
}

Assignment choose_assignment(const AssignmentProblem& problem) { return Chooser(problem).choose(); }

}  // namespace mw::partition
