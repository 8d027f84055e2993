// DualPipe [DeepSeek-V3, 2412.19437]: two pipelines of p stages run towards each other, each with
// its own replica of the weights and half of the microbatches; in the steady state the forward of
// one overlaps with the backward of the other, which hides the all-to-all of experts. Bubble (p / 2
// - 1)(F&B + B - 3 W), memory of p + 1 microbatches.
#include "pipeline/schedules/dual_pipe.h"

#include <algorithm>

namespace mw::pipeline {

static void check_dual_pipe(const ScheduleRequest& request, Diagnostics& out) {
  const int32_t p = request.ranks, m = request.microbatches;
  if (p % 2 != 0) {
    out.add("schedule dualpipe: ranks={} must be even; use {} or {}", p, p == 1 ? 2 : p - 1,
            p == 1 ? 4 : p + 1);
  }
  if (m % 2 != 0 || m < 2 * p) {
    out.add("schedule dualpipe: microbatches={} must be even and at least 2 x ranks={}; use {}", m,
            2 * p, std::max(2 * p, m + m % 2));
  }
}

static Schedule make_dual_pipe(const ScheduleRequest& request) {
  const int32_t p = request.ranks, each = request.microbatches / 2;
  Schedule schedule = empty_schedule(request, looped_placement(p, 1));
  const std::vector<int32_t>& down = schedule.placement.rank_of_stage;
  schedule.placement.rank_of_replica = {{down.rbegin(), down.rend()}};
  for (int32_t r = 0; r < p; ++r) {
    const int32_t depth = std::min(r, p - 1 - r);
    const int32_t replica = r < p / 2 ? 0 : 1;  // whose input end is nearer
    const DualStream near{depth, replica, replica * each};
    const DualStream far{p - 1 - depth, 1 - replica, (1 - replica) * each};
    schedule.ranks[static_cast<size_t>(r)] = dual_pipe_order(p / 2, depth, each, near, far);
  }
  return schedule;
}

extern const ScheduleKind kDualPipe = {
    .name = "dualpipe",
    .summary = "two pipelines towards each other, F and B overlapped",
    .since = 202412,
    .chunks = kOneChunk,
    .options = {.sync = true},
    .check = check_dual_pipe,
    .make = make_dual_pipe,
    .replicas = 2,
    .split_backward = true};

}  // namespace mw::pipeline
