// Strategy: which mesh axes each logical axis lies on. Tensor parallelism is heads, kv_heads, ffn
// and vocab on tp; Megatron's sequence parallelism is seq on tp; data parallelism is batch on dp.
#pragma once

#include <map>
#include <string>

#include "sharding/sharding.h"

namespace mw::sharding {

struct Strategy {
  std::map<std::string, Axes> axes;  // logical axis -> mesh axes
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

// The sharding that a strategy gives a value with these logical axes; a mesh axis that an earlier
// dimension took is not used again.
Sharding sharding_of(const ir::LogicalAxes& logical, const Strategy& strategy,
                     const cluster::Mesh& mesh);

}  // namespace mw::sharding
