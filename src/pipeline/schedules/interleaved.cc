// Interleaved 1F1B [Narayanan 2021, Megatron-LM's PTD-P]: rank r of p hosts the stages r, p + r, 2p
// + r, … (v chunks). Microbatches go through the chunks in rounds of g (p unless asked otherwise).
// Rank r starts with (v - 1) g + 2 (p - 1 - r) forwards, then forward and backward in turn. With
// g = p the bubble is (p - 1) / (v m + p - 1). With one chunk it is 1F1B, as Megatron-LM then runs.
#include <algorithm>

#include "pipeline/schedules/rounds.h"

namespace mw::pipeline {

static std::vector<Action> order_of_interleaved(const ScheduleRequest& request, int32_t rank) {
  const int32_t p = request.ranks;
  const Rounds rounds = rounds_of(request);
  const auto total = static_cast<int32_t>(rounds.forward.size());
  std::vector<Action> actions;
  int32_t forwards = 0;
  const auto forward = [&] {
    const Rounds::Turn turn = rounds.forward[static_cast<size_t>(forwards++)];
    actions.push_back(forward_action(turn.chunk * p + rank, turn.microbatch));
  };
  const int32_t behind = p - 1 - rank;
  const int32_t first =
      request.chunks == 1 ? behind : (request.chunks - 1) * request.group + 2 * behind;
  while (forwards < std::min(total, first)) forward();
  for (const Rounds::Turn turn : rounds.backward) {
    if (forwards < total) forward();
    actions.push_back(backward_action(turn.chunk * p + rank, turn.microbatch));
  }
  return actions;
}

static Schedule make_interleaved(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, request.chunks), [&](int32_t rank) {
    return request.ranks == 1 ? accumulation_order(request) : order_of_interleaved(request, rank);
  });
}

extern const ScheduleKind kInterleaved = {.name = "interleaved-1f1b",
                                          .summary = "1f1b over several chunks a rank (PTD-P)",
                                          .since = 202104,
                                          .chunks = kAnyChunks,
                                          .options = {.group = true},
                                          .check = check_rounds,
                                          .make = make_interleaved,
                                          .variant = {.one_chunk = "1f1b"}};

}  // namespace mw::pipeline
