#include "partition/memo.h"

#include <algorithm>

namespace mw::partition {
namespace {

using sharding::Sharding;

// What pends can be taken, not made again.
bool can_become(const Sharding& from, const Sharding& to) {
  if (to.is_partial() && to.reduction != from.reduction) return false;
  return std::includes(from.partial.begin(), from.partial.end(), to.partial.begin(),
                       to.partial.end());
}

}  // namespace

const ReshardPlan& Memo::reshard(int type, int from, int to) {
  const auto [it, is_new] = reshards_.try_emplace({type, from, to});
  if (is_new) {
    it->second = plan_reshard(this->type(type), sharding(from), sharding(to), mesh_);
  }
  return it->second;
}

Memo::Nearest Memo::nearest(int type, const Numbers& versions, int to) {
  Nearest nearest;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (!can_become(sharding(versions[i]), sharding(to))) continue;
    const double bytes = reshard(type, versions[i], to).bytes;
    if (bytes < nearest.bytes) nearest = {static_cast<int>(i), bytes};
  }
  return nearest;
}

const Assignment* Memo::chosen(const Problem& problem) const {
  const auto it = choices_.find(problem);
  return it == choices_.end() ? nullptr : &it->second;
}

const Assignment& Memo::keep(Problem problem, Assignment assignment) {
  return choices_.emplace(std::move(problem), std::move(assignment)).first->second;
}

}  // namespace mw::partition
