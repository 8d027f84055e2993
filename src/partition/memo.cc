#include "partition/memo.h"

namespace mw::partition {

const ReshardPlan& Memo::reshard(int type, int from, int to) {
  const auto [it, is_new] = reshards_.try_emplace({type, from, to});
  if (is_new) {
    it->second =
        plan_reshard(types_[static_cast<size_t>(type)], shardings_[static_cast<size_t>(from)],
                     shardings_[static_cast<size_t>(to)], mesh_);
  }
  return it->second;
}

const Assignment* Memo::chosen(const Problem& problem) const {
  const auto it = choices_.find(problem);
  return it == choices_.end() ? nullptr : &it->second;
}

const Assignment& Memo::choose(Problem problem, Assignment assignment) {
  return choices_.emplace(std::move(problem), std::move(assignment)).first->second;
}

}  // namespace mw::partition
