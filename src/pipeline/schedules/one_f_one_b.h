// The order of 1F1B, for the kinds that are built on it. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// Stage `rank` of `ranks` under 1F1B.
std::vector<Action> one_f_one_b_order(int32_t ranks, int32_t microbatches, int32_t rank);

}  // namespace mw::pipeline
