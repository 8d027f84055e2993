// 1F1B (PipeDream-flush, DAPPLE): rank r of p runs min(m, p - r) forwards, then backward and
// forward in turn, then the backwards that are left. So at most p - r microbatches are alive on it,
// whatever m is.
#include "pipeline/schedules/one_f_one_b.h"

#include <algorithm>

namespace mw::pipeline {

std::vector<Action> one_f_one_b_order(int32_t ranks, int32_t microbatches, int32_t rank) {
  std::vector<Action> actions;
  int32_t forwards = 0;
  while (forwards < std::min(microbatches, ranks - rank))
    actions.push_back(forward_action(rank, forwards++));
  for (int32_t backwards = 0; backwards < microbatches; ++backwards) {
    actions.push_back(backward_action(rank, backwards));
    if (forwards < microbatches) actions.push_back(forward_action(rank, forwards++));
  }
  return actions;
}

static Schedule make_one_f_one_b(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    return one_f_one_b_order(request.ranks, request.microbatches, rank);
  });
}

extern const ScheduleKind kOneFOneB = {
    .name = "1f1b",
    .summary = "a forward and a backward in turn (PipeDream-flush)",
    .since = 201806,
    .chunks = kOneChunk,
    .options = {},
    .check = nullptr,
    .make = make_one_f_one_b};

}  // namespace mw::pipeline
