// The kinds of schedules. One file a kind defines a ScheduleKind; schedule.cc lists them. Private
// to room pipeline.
#pragma once

#include "base/error.h"
#include "pipeline/schedule.h"

namespace mw::pipeline {

struct ScheduleKind {
  const char* name;
  bool takes_chunks;
  // Findings beyond the ranges that hold for all kinds; null: none.
  void (*check)(const ScheduleRequest& request, Diagnostics& out);
  // One rank's order. REQUIRES: the request has no finding and ranks > 1, except for gpipe.
  std::vector<Action> (*order)(const ScheduleRequest& request, int32_t rank);
};

extern const ScheduleKind kGPipe;
extern const ScheduleKind kOneFOneB;
extern const ScheduleKind kInterleaved;

inline Action forward_action(int32_t stage, int32_t microbatch) {
  return {.kind = ActionKind::kF, .stage = StageId(stage), .first = microbatch};
}
inline Action backward_action(int32_t stage, int32_t microbatch) {
  return {.kind = ActionKind::kB, .stage = StageId(stage), .first = microbatch};
}

}  // namespace mw::pipeline
