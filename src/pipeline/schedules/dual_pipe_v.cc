// DualPipeV ["cut in half" DualPipe]: one half of DualPipe's ranks, each with two chunks on a
// folded placement, so that no weight is there twice. The order is that of DualPipe with 2 p ranks.
#include <algorithm>

#include "pipeline/schedules/dual_pipe.h"

namespace mw::pipeline {

static void check_dual_pipe_v(const ScheduleRequest& request, Diagnostics& out) {
  if (request.microbatches >= 2 * request.ranks) return;
  out.add("schedule dualpipe-v: microbatches={} must be at least 2 x ranks={}",
          request.microbatches, 2 * request.ranks);
}

static Schedule make_dual_pipe_v(const ScheduleRequest& request) {
  const int32_t p = request.ranks;
  return rank_by_rank(request, folded_placement(p, 2), [&](int32_t r) {
    return dual_pipe_order(p, r, request.microbatches, {r, 0, 0}, {2 * p - 1 - r, 0, 0});
  });
}

extern const ScheduleKind kDualPipeV = {
    .name = "dualpipe-v",
    .summary = "dualpipe folded onto half of the ranks, no replicas",
    .since = 202502,
    .chunks = kTwoChunks,
    .options = {},
    .check = check_dual_pipe_v,
    .make = make_dual_pipe_v,
    .split_backward = true};

}  // namespace mw::pipeline
