// ZB-H2 [Qi 2024, 2401.10241]: ZB-H1 with as many more forwards first as fill the wait for the
// first backward: 2 (p - r) - 1 on rank r of p, and W that run 2 r microbatches behind. Without a
// flush there is no bubble at f = b = w; memory is that of 2 p - 1 microbatches.
#include "pipeline/schedules/handcrafted_zb.h"

namespace mw::pipeline {

static Schedule make_zb_h2(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    return handcrafted_zb_order(request.microbatches, rank, 2 * (request.ranks - rank) - 1,
                                2 * rank);
  });
}

extern const ScheduleKind kZbH2 = {.name = "zb-h2",
                                   .summary = "zero bubble by hand, with twice the memory of 1f1b",
                                   .since = 202311,
                                   .chunks = kOneChunk,
                                   .options = {},
                                   .check = nullptr,
                                   .make = make_zb_h2,
                                   .split_backward = true};

}  // namespace mw::pipeline
