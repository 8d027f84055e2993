// Interleaved 1F1B with B split, as torch.distributed.pipelining's ScheduleInterleavedZeroBubble
// has it: rank r of p starts with (v - 1) g + p - 1 - r forwards, then F and I in turn; a W follows
// as soon as more than r I are ahead of theirs.
#include <algorithm>

#include "pipeline/schedules/rounds.h"

namespace mw::pipeline {

static std::vector<Action> order_of_interleaved_zb(const ScheduleRequest& request, int32_t rank) {
  const int32_t p = request.ranks;
  const Rounds rounds = rounds_of(request);
  const auto total = static_cast<int32_t>(rounds.forward.size());
  std::vector<Action> actions;
  int32_t forwards = 0, inputs = 0, weights = 0;
  const auto add = [&](ActionKind kind, const std::vector<Rounds::Turn>& turns, int32_t& count) {
    const Rounds::Turn turn = turns[static_cast<size_t>(count++)];
    actions.push_back(action_of(kind, turn.chunk * p + rank, turn.microbatch));
  };
  const int32_t first = (request.chunks - 1) * request.group + p - 1 - rank;
  while (forwards < std::min(total, first)) add(ActionKind::kF, rounds.forward, forwards);
  while (inputs < total) {
    if (forwards < total) add(ActionKind::kF, rounds.forward, forwards);
    add(ActionKind::kI, rounds.backward, inputs);
    if (inputs - weights > rank) add(ActionKind::kW, rounds.backward, weights);
  }
  while (weights < total) add(ActionKind::kW, rounds.backward, weights);
  return actions;
}

static Schedule make_interleaved_zb(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, request.chunks),
                      [&](int32_t rank) { return order_of_interleaved_zb(request, rank); });
}

extern const ScheduleKind kInterleavedZb = {.name = "interleaved-zb",
                                            .summary = "interleaved 1f1b with B split into I and W",
                                            .since = 202311,
                                            .chunks = kAnyChunks,
                                            .options = {.group = true},
                                            .check = check_rounds,
                                            .make = make_interleaved_zb,
                                            .split_backward = true,
                                            .variant = {.whole_backward = "interleaved-1f1b"}};

}  // namespace mw::pipeline
