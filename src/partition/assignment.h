// Choosing how an op is sharded: one factor of its rule (or none) for every mesh axis.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cluster/mesh.h"
#include "ops/op_def.h"
#include "sharding/factors.h"
#include "sharding/sharding.h"

namespace mw::partition {

// Axes of every factor, in mesh order.
struct Assignment {
  sharding::FactorAxes factors;
  // Axes over which the operands that the op is linear in stay partial.
  ir::Axes kept_partial;
};

// The sharding of operand i / result i under an assignment. Results get the partial axes of the
// factors that are reduced in them and of kept partial operands.
sharding::Sharding operand_sharding(const ops::ShardingRule& rule, int operand,
                                    const Assignment& assignment);
sharding::Sharding result_sharding(const ops::ShardingRule& rule, int result,
                                   const Assignment& assignment);

struct AssignmentProblem {
  const ops::ShardingRule& rule;
  const cluster::Mesh& mesh;
  // Shardings in which each operand can be had now.
  std::vector<std::vector<sharding::Sharding>> operands;
  // Wanted results, where given.
  std::vector<std::optional<sharding::Sharding>> results;
  // Propagated shardings of the results: they propose factors.
  std::vector<sharding::Sharding> advice;
  // Bytes to bring operand i into a sharding; negative: impossible.
  std::function<double(int operand, const sharding::Sharding&)> operand_cost;
  // Bytes to bring result i from a sharding into the wanted one (or to whole, if none is wanted).
  std::function<double(int result, const sharding::Sharding&)> result_cost;
  double flops = 0;
  double streamed = 0;  // bytes that the op reads and writes, where they count beside those moved
};

// Cheapest assignment; among equals the one that divides the work most, then the first proposed.
Assignment choose_assignment(const AssignmentProblem& problem);

}  // namespace mw::partition
