// PipeDream-2BW [Narayanan 2021]: the order of 1F1B without a flush. A step's first forwards run
// beside the last backwards of the step before, on the weights of the step before that one; so
// every rank keeps two versions of its weights, and its updates lag by a step. For simulation only.
#include "pipeline/schedules/one_f_one_b.h"

namespace mw::pipeline {

// Two versions do where a step has as many microbatches as ranks [there, section 3.1].
static void check_pipedream_2bw(const ScheduleRequest& request, Diagnostics& out) {
  if (request.microbatches >= request.ranks) return;
  out.add(
      "schedule pipedream-2bw: microbatches={} must be at least ranks={}: with fewer, those of "
      "a third step would be under way on weights of a third version",
      request.microbatches, request.ranks);
}

static Schedule make_pipedream_2bw(const ScheduleRequest& request) {
  return rank_by_rank(request, looped_placement(request.ranks, 1), [&](int32_t rank) {
    return one_f_one_b_order(request.ranks, request.microbatches, rank);
  });
}

extern const ScheduleKind kPipeDream2Bw = {.name = "pipedream-2bw",
                                           .summary = "1f1b without a flush, on stale weights",
                                           .since = 202006,
                                           .chunks = kOneChunk,
                                           .options = {},
                                           .check = check_pipedream_2bw,
                                           .make = make_pipedream_2bw,
                                           .weight_versions = 2,
                                           .simulated_only = "a step of it would use older weights",
                                           .variant = {.flushed = "1f1b"}};

}  // namespace mw::pipeline
