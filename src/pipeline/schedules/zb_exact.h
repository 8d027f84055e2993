// The order of F, I and W with the shortest span, as an integer program [Qi 2024, 2401.10241,
// appendix G]. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// Memory is compared with this much of a microbatch's to spare: a limit of p microbatches must hold
// p of them whatever their rounding.
inline constexpr double kMemorySlack = 1e-6;

// Programs of more than this many order variables are refused: they would not end.
inline constexpr int32_t kMostOrderVariables = 600;

void check_exact(const ScheduleRequest& request, Diagnostics& out);

// Of the search: a minute or so for the largest programs.
inline constexpr int32_t kMostNodes = 10'000;

// `start` is an order that fits the memory limit; its times are where the search begins. After
// `most_nodes` the best found so far is the answer, and its name says how far from the shortest it
// may be. REQUIRES: check_exact found nothing.
Schedule exact_order(const ScheduleRequest& request, const Schedule& start,
                     int32_t most_nodes = kMostNodes);

}  // namespace mw::pipeline
