// Seq1F1B [Sun 2024]: 1F1B whose unit is a slice of a microbatch's sequences. Slices go forward in
// order (a later one attends to the keys and values of the earlier ones) and backward in reverse.
// With s slices rank r of p starts with p - r - 2 + s forwards; the bubble is an s-th of 1F1B's.
#include <algorithm>

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

static std::vector<Action> order_of_seq_one_f_one_b(const ScheduleRequest& request, int32_t rank) {
  const int32_t s = request.slices, units = request.microbatches * s;
  std::vector<Action> actions;
  int32_t forwards = 0;
  const auto add = [&](ActionKind kind, int32_t microbatch, int32_t slice) {
    actions.push_back(action_of(kind, rank, microbatch));
    actions.back().slice = s == 1 ? -1 : slice;
  };
  const auto forward = [&] {
    add(ActionKind::kF, forwards / s, forwards % s);
    ++forwards;
  };
  while (forwards < std::min(units, request.ranks - rank - 2 + s)) forward();
  for (int32_t backwards = 0; backwards < units; ++backwards) {
    if (forwards < units) forward();
    add(ActionKind::kB, backwards / s, s - 1 - backwards % s);
  }
  return actions;
}

static Schedule make_seq_one_f_one_b(const ScheduleRequest& request) {
  Schedule schedule = rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    return order_of_seq_one_f_one_b(request, rank);
  });
  schedule.slices = request.slices;
  return schedule;
}

extern const ScheduleKind kSeqOneFOneB = {.name = "seq-1f1b",
                                          .summary = "1f1b over slices of the sequences",
                                          .since = 202406,
                                          .chunks = kOneChunk,
                                          .options = {.slices = true},
                                          .check = nullptr,
                                          .make = make_seq_one_f_one_b};

}  // namespace mw::pipeline
