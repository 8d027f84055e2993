// Factors: a sharding seen through an op's sharding rule. The axes of a dimension belong to its
// factors, major first: in "(k g)" the first axes split k, and only when k is split down to single
// elements do the next split g.
#pragma once

#include <vector>

#include "cluster/mesh.h"
#include "ops/op_def.h"
#include "sharding/sharding.h"

namespace mw::sharding {

using FactorAxes = absl::InlinedVector<Axes, 6>;  // [factor of the rule]

// The axes of a tensor's factors; what does not follow the factors' borders is left out, so
// sharding_of_factors of the result is a prefix of the sharding in every dimension. A tensor of
// another rank than the rule's, or a factor that it lacks, has no axes.
FactorAxes factors_of(const ops::ShardingRule& rule, const ops::ShardingRule::Dims& dims,
                      const Sharding& sharding, const cluster::Mesh& mesh);
// The dimensions' axes; nothing pends.
Sharding sharding_of_factors(const ops::ShardingRule::Dims& dims, const FactorAxes& axes);

// Whether the factors of one tensor may be split so: a factor that the op needs whole is whole, no
// factor has fewer elements than shards, and where factors share a dimension, each is split evenly
// and only if those before it are split down to single elements.
bool can_shard(const ops::ShardingRule& rule, const ops::ShardingRule::Dims& dims,
               const FactorAxes& axes, const cluster::Mesh& mesh);
// The same for all operands and results.
bool can_shard(const ops::ShardingRule& rule, const FactorAxes& axes, const cluster::Mesh& mesh);

bool has_factor(const ops::ShardingRule::Dims& dims, size_t factor);
// Whether a split of the factor leaves this result a pending reduction: it stands in an operand and
// not in the result, and the kernel reads it.
bool reduced_in(const ops::ShardingRule& rule, size_t factor, size_t result);
bool reduced_in_any(const ops::ShardingRule& rule, size_t factor);  // result

}  // namespace mw::sharding
