#include "sharding/strategy.h"

#include <algorithm>

namespace mw::sharding {

Sharding sharding_of(const ir::LogicalAxes& logical, const Strategy& strategy,
                     const cluster::Mesh& mesh) {
  Sharding sharding;
  Axes taken;
  for (const std::string& name : logical) {
    Axes axes;
    if (const auto it = strategy.axes.find(name); it != strategy.axes.end()) {
      for (const Name axis : it->second) {
        if (mesh.axis_size(axis) == 1 || std::find(taken.begin(), taken.end(), axis) != taken.end())
          continue;
        axes.push_back(axis);
        taken.push_back(axis);
      }
    }
    sharding.dims.push_back(std::move(axes));
  }
  return sharding;
}

}  // namespace mw::sharding
