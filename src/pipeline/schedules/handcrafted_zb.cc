#include "pipeline/schedules/handcrafted_zb.h"

#include <algorithm>

namespace mw::pipeline {

std::vector<Action> handcrafted_zb_order(int32_t microbatches, int32_t rank, int32_t warmup,
                                         int32_t lag) {
  std::vector<Action> actions;
  int32_t forwards = 0, weights = 0;
  const auto forward = [&] { actions.push_back(forward_action(rank, forwards++)); };
  const auto weight = [&] { actions.push_back(action_of(ActionKind::kW, rank, weights++)); };
  while (forwards < std::min(microbatches, warmup)) forward();
  for (int32_t k = 0; k < microbatches; ++k) {
    actions.push_back(action_of(ActionKind::kI, rank, k));
    if (k + 1 - weights > lag) weight();
    if (forwards < microbatches) forward();
  }
  while (weights < microbatches) weight();
  return actions;
}

}  // namespace mw::pipeline
