// Padded tails, seen through an op's sharding rule: where they are reduced over, and what lies in
// those of results.
#pragma once

#include <functional>
#include <vector>

#include "cluster/mesh.h"
#include "ops/op_def.h"
#include "sharding/sharding.h"

namespace mw::sharding {

// Whether a factor that is split over `axes` has a padded tail that some result reduces over and
// the kernel does not leave out.
bool reduces_tail(const ops::ShardingRule& rule, size_t factor, const Axes& axes,
                  const cluster::Mesh& mesh);

// [dimension] whether the padded tail of a result is known to hold zeros.
// `is_zero(operand, dimension)`: whether that of an operand is.
std::vector<bool> zero_tails(const ops::ShardingRule& rule, size_t result,
                             const std::function<bool(size_t operand, size_t dim)>& is_zero);

}  // namespace mw::sharding
