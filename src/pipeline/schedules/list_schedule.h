// List scheduling in integer time: whenever a rank is free it takes, of the work that is ready,
// what comes first under a rule. Private to room pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

struct ListRules {
  int32_t f = 1, b = 2;  // time of one microbatch
  // [stage] a forward begins only if at most so many microbatches are alive on its rank with it.
  std::vector<int32_t> most_alive;
  // Smaller goes first.
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t>;
  std::function<Key(const Action&)> rank_of_action;
  // What is to be had in the end: a makespan below this, no more alive on a rank than this.
  int32_t sooner_than = std::numeric_limits<int32_t>::max();
  int32_t alive_at_most = std::numeric_limits<int32_t>::max();
};

struct ListOutcome {
  int32_t makespan = 0;
  int32_t most_alive = 0;  // microbatches alive on a rank, counted for each of its stages
};

// Fills in the order of `schedule`, whose placement is given: `forwards[replica]` are the forwards
// of a replica (first, count), in order, the same on every stage; backwards are of single
// microbatches. Empty, the order then of no use: it was given up, as it cannot be what is to be
// had, or as all that is left waits for room under most_alive.
std::optional<ListOutcome> list_schedule(Schedule& schedule,
                                         const std::vector<std::vector<Action>>& forwards,
                                         const ListRules& rules);

}  // namespace mw::pipeline
