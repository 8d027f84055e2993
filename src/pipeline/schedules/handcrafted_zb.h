// The order that ZB-H1 and ZB-H2 share. Private to room pipeline.
#pragma once

#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

// Stage `rank`: `warmup` forwards, then I and F in turn, where an I is followed by a W as soon as
// more than `lag` I are ahead of their W; at the end the W that are left.
std::vector<Action> handcrafted_zb_order(int32_t microbatches, int32_t rank, int32_t warmup,
                                         int32_t lag);

}  // namespace mw::pipeline
