// ZB-H1 [Qi 2024, 2401.10241]: 1F1B with B split; on rank r of p the W run r microbatches behind
// their I, so the I chain is not held up. Bubble (p - 1)(f + b - w), memory that of 1F1B.
#include "pipeline/schedules/handcrafted_zb.h"

namespace mw::pipeline {

static Schedule make_zb_h1(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    return handcrafted_zb_order(request.microbatches, rank, request.ranks - rank, rank);
  });
}

extern const ScheduleKind kZbH1 = {.name = "zb-h1",
                                   .summary = "zero bubble by hand, with the memory of 1f1b",
                                   .since = 202311,
                                   .chunks = kOneChunk,
                                   .options = {},
                                   .check = nullptr,
                                   .make = make_zb_h1,
                                   .split_backward = true,
                                   .variant = {.whole_backward = "1f1b"}};

}  // namespace mw::pipeline
