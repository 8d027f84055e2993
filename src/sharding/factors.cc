#include "sharding/factors.h"

#include <algorithm>

namespace mw::sharding {
namespace {

using ops::ShardingRule;

int64_t shards_of(const FactorAxes& axes, int factor, const cluster::Mesh& mesh) {
  return shards(axes[static_cast<size_t>(factor)], mesh);
}

}  // namespace

FactorAxes factors_of(const ShardingRule& rule, const ShardingRule::Dims& dims,
                      const Sharding& sharding, const cluster::Mesh& mesh) {
  FactorAxes axes(rule.factors.size());
  for (size_t d = 0; d < dims.size() && d < sharding.dims.size(); ++d) {
    if (dims[d].empty()) continue;
    if (dims[d].size() == 1) {
      axes[static_cast<size_t>(dims[d][0])] = sharding.dims[d];
      continue;
    }
    size_t at = 0;
    int64_t split = 1;
    for (const Name axis : sharding.dims[d]) {
      const auto size = [&] { return rule.factors[static_cast<size_t>(dims[d][at])].size; };
      while (split == size() && at + 1 < dims[d].size()) {
        ++at;
        split = 1;
      }
      split *= mesh.axis_size(axis);
      if (size() % split != 0) break;
      axes[static_cast<size_t>(dims[d][at])].push_back(axis);
    }
  }
  return axes;
}

Sharding sharding_of_factors(const ShardingRule::Dims& dims, const FactorAxes& axes) {
  Sharding sharding = replicated(static_cast<int>(dims.size()));
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const int factor : dims[d]) {
      const Axes& of = axes[static_cast<size_t>(factor)];
      sharding.dims[d].insert(sharding.dims[d].end(), of.begin(), of.end());
    }
  }
  return sharding;
}

bool can_shard(const ShardingRule& rule, const ShardingRule::Dims& dims, const FactorAxes& axes,
               const cluster::Mesh& mesh) {
  for (const std::vector<int>& dim : dims) {
    bool single = true;  // all factors before this one are split down to single elements
    for (const int f : dim) {
      const ops::Factor& factor = rule.factors[static_cast<size_t>(f)];
      const int64_t n = shards_of(axes, f, mesh);
      if (n > 1) {
        if (!factor.shardable || factor.size < n || !single) return false;
        if (dim.size() > 1 && factor.size % n != 0) return false;
      }
      single = single && factor.size == n;
    }
  }
  return true;
}

bool can_shard(const ShardingRule& rule, const FactorAxes& axes, const cluster::Mesh& mesh) {
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const ShardingRule::Dims& dims : *tensors) {
      if (!can_shard(rule, dims, axes, mesh)) return false;
    }
  }
  return true;
}

bool has_factor(const ShardingRule::Dims& dims, size_t factor) {
  return std::any_of(dims.begin(), dims.end(), [&](const std::vector<int>& dim) {
    return std::find(dim.begin(), dim.end(), static_cast<int>(factor)) != dim.end();
  });
}

bool reduced_in(const ShardingRule& rule, size_t factor, size_t result) {
  if (rule.factors[factor].contracted) return true;
  if (rule.factors[factor].ignored || has_factor(rule.results[result], factor)) return false;
  return std::any_of(rule.operands.begin(), rule.operands.end(),
                     [&](const ShardingRule::Dims& dims) { return has_factor(dims, factor); });
}

bool reduced_in_any(const ShardingRule& rule, size_t factor) {
  for (size_t r = 0; r < rule.results.size(); ++r) {
    if (reduced_in(rule, factor, r)) return true;
  }
  return false;
}

}  // namespace mw::sharding
