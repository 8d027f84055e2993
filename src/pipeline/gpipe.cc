// GPipe [Huang 2019]: all forwards, then all backwards; every microbatch is alive in between.
#include "pipeline/generators.h"

namespace mw::pipeline {

static std::vector<Action> order(const ScheduleRequest& request, int32_t rank) {
  std::vector<Action> actions;
  for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(forward_action(rank, k));
  for (int32_t k = 0; k < request.microbatches; ++k) actions.push_back(backward_action(rank, k));
  return actions;
}

const ScheduleKind kGPipe = {"gpipe", false, nullptr, order};

}  // namespace mw::pipeline
