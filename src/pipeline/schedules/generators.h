// The kinds of schedules. Every `extern const ScheduleKind k… = {` of a file in this folder is one:
// the build lists them (listed_kinds.cc.in), so a new kind is one new file. Private to room
// pipeline.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "pipeline/schedule.h"

namespace mw::pipeline {

// Stages a rank: what is usual, the least and the most (0: any), in steps.
struct ChunkRange {
  int32_t usual = 1, least = 1, most = 1, step = 1;
};
inline constexpr ChunkRange kOneChunk = {};
inline constexpr ChunkRange kAnyChunks = {.usual = 2, .least = 1, .most = 0};
inline constexpr ChunkRange kTwoChunks = {.usual = 2, .least = 2, .most = 2};

// Options of a request that only some kinds have.
struct KindOptions {
  bool group = false, slices = false, pairs = false, memory_limit = false, sync = false;
};

struct ScheduleKind {
  const char* name;
  const char* summary;
  int32_t since;  // year and month in which it was published, 202104; kinds are listed by it
  ChunkRange chunks;
  KindOptions options;
  bool compiled;  // the compiler lowers it
  // Findings beyond the ranges that hold for all kinds; null: none. Like `make`, it gets a request
  // with the usual values filled in.
  void (*check)(const ScheduleRequest& request, Diagnostics& out);
  // REQUIRES: the request has no finding.
  Schedule (*make)(const ScheduleRequest& request);
  int32_t parts = 1;            // Schedule::parts
  int32_t weight_versions = 1;  // Schedule::weight_versions
  // The order comes again after as many microbatches as this many pipelines have ranks; 0: never.
  int32_t period = 1;
};

// All kinds, the oldest first, those of one month by name.
std::span<const ScheduleKind* const> listed_kinds();

// Stage s on rank s mod ranks.
Placement looped_placement(int32_t ranks, int32_t chunks);
// Chunk c of rank r is stage c p + r for even c and c p + p - 1 - r for odd c.
Placement folded_placement(int32_t ranks, int32_t chunks);

// A schedule without actions: kind, placement, microbatches.
Schedule empty_schedule(const ScheduleRequest& request, Placement placement);

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
