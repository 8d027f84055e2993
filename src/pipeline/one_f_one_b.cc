// 1F1B (PipeDream-flush, DAPPLE): rank r of p runs min(m, p - r) forwards, then backward and
// forward in turn, then the backwards that are left. So at most p - r microbatches are alive on it,
// whatever m is.
#include <algorithm>

#include "pipeline/generators.h"

namespace mw::pipeline {

static std::vector<Action> order(const ScheduleRequest& request, int32_t rank) {
  const int32_t m = request.microbatches;
  std::vector<Action> actions;
  int32_t forwards = 0;
  while (forwards < std::min(m, request.ranks - rank))
    actions.push_back(forward_action(rank, forwards++));
  for (int32_t backwards = 0; backwards < m; ++backwards) {
    actions.push_back(backward_action(rank, backwards));
    if (forwards < m) actions.push_back(forward_action(rank, forwards++));
  }
  return actions;
}

const ScheduleKind kOneFOneB = {"1f1b", false, nullptr, order};

}  // namespace mw::pipeline
