// When every action of a schedule runs, what of the time is idle and how much stays alive: a model
// of a schedule with costs as numbers. The simulator has the rank programs; this is for generators,
// drawings and comparisons of schedules.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pipeline/schedule.h"

namespace mw::pipeline {

// A backward (of a split one the input gradient, with what is recomputed) takes as long as a
// forward, twice as long, or three times with full recompute. Slots of channels are enough for
// each.
inline constexpr std::array<int32_t, 3> kBackwardTimes = {1, 2, 3};

struct ActionTime {
  double start = 0, end = 0;
};

// The sum of a stage's gradients over its replicas, on one rank.
struct SyncTime {
  StageId stage;
  int32_t replica = 0;
  double start = 0, end = 0;
};

struct Timeline {
  std::vector<std::vector<ActionTime>> times;  // [rank][action]
  std::vector<std::vector<SyncTime>> syncs;    // [rank]; none where costs.sync is 0
  double makespan =
      0;  // from 0 to the last end, sums of replicas included; without a flush: a step's period
  double bubble = 0;  // 1 - mean work of a rank / makespan
  // 1 - mean work of a rank / the longest rank's time from its first start to its last end: what is
  // idle where no flush joins two steps (the bubble rate of the zero-bubble papers).
  double span_bubble = 0;
  // From the begin of a step to that of the next, when the pipeline is full: the makespan, for all
  // ranks wait for one another between two steps; with post-validation each begins the next one
  // when it has ended its own. And 1 - mean work of a rank / period.
  double period = 0, period_bubble = 0;
  // [rank] in units of costs.mb, so in microbatches of the rank's full share (all its chunks).
  std::vector<double> peak_activations;
  int32_t weight_copies = 1;  // of every weight, on all ranks together
};

// An action begins when its rank is free and what it needs is there, `comm` later from another
// rank. F, I and W of n microbatches cost n f, n b, n w of their stage, a slice or a part its
// fraction; B costs b + w. A pair runs as one, and what it makes is there at its end. An activation
// is held from the start of its F: costs.mb to the end of its I, costs.mw from there to the end of
// its W; a pair's F begins before its B ends. REQUIRES: findings(schedule) is empty; a cost list
// has one value or one a stage.
Timeline timeline(const Schedule& schedule, const ScheduleCosts& costs);

// What is wrong with costs for a placement of `stages` stages: lists of another length, values that
// are negative or not finite, no time at all. `stages` 0: of any placement, the values alone.
std::vector<std::string> findings(const ScheduleCosts& costs, int32_t stages);

}  // namespace mw::pipeline
