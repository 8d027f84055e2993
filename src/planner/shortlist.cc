#include "planner/shortlist.h"

#include <algorithm>
#include <numeric>

namespace mw::planner {

int64_t pieces_of(const compile::Plan& plan) {
  return plan.stages() * plan.units() * plan.sequence_slices();
}

Shortlist shortlist(const std::vector<Estimated>& plans) {
  std::vector<size_t> order(plans.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return faster(plans[a], plans[b]); });
  Shortlist list;
  std::vector<char> is_first(plans.size(), 0);
  int64_t together = 0;
  for (const size_t i : order) {
    const int64_t pieces = pieces_of(plans[i].plan);
    if (pieces <= Shortlist::kShort) {
      is_first[i] = 1;
      continue;
    }
    const bool reached = plans[i].step.value <= Front::kReach * plans[order[0]].step.value;
    if (reached && (together == 0 || together + pieces <= Shortlist::kTogether)) {
      is_first[i] = 1;
      together += pieces;
    } else {
      list.later.push_back(plans[i]);
    }
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (is_first[i]) list.first.push_back(plans[i]);
  }
  return list;
}

}  // namespace mw::planner
