// What the files of this folder, each a kind of schedule (schedule_kind.h) or more, are made of.
// Private to room pipeline.
#pragma once

#include <utility>
#include <vector>

#include "base/error.h"
#include "pipeline/schedule.h"
#include "pipeline/schedule_kind.h"

namespace mw::pipeline {

// Stage s on rank s mod ranks.
Placement looped_placement(int32_t ranks, int32_t chunks);
// Chunk c of rank r is stage c p + r for even c and c p + p - 1 - r for odd c.
Placement folded_placement(int32_t ranks, int32_t chunks);

// A schedule without actions: kind, placement, microbatches.
Schedule empty_schedule(const ScheduleRequest& request, Placement placement);

// `order(rank)`, a list of actions, on every rank of a placement.
template <typename Order>
Schedule rank_by_rank(const ScheduleRequest& request, Placement placement, const Order& order) {
  Schedule schedule = empty_schedule(request, std::move(placement));
  for (int32_t r = 0; r < request.ranks; ++r) schedule.ranks[static_cast<size_t>(r)] = order(r);
  return schedule;
}

inline Action action_of(ActionKind kind, int32_t stage, int32_t microbatch, int32_t replica = 0) {
  return {.kind = kind, .stage = StageId(stage), .replica = replica, .first = microbatch};
}
inline Action forward_action(int32_t stage, int32_t microbatch) {
  return action_of(ActionKind::kF, stage, microbatch);
}
inline Action backward_action(int32_t stage, int32_t microbatch) {
  return action_of(ActionKind::kB, stage, microbatch);
}

// All stages of the only rank: one microbatch after the other, its backward in reverse.
std::vector<Action> accumulation_order(const ScheduleRequest& request);

}  // namespace mw::pipeline
