// Interleaved 1F1B [Narayanan 2021, Megatron-LM's PTD-P]: rank r of p hosts the stages r, p + r, 2p
// + r, … (v chunks). Microbatches go through the chunks in groups of p: forward k of a rank is of
// chunk (k / p) mod v, backward k of chunk v - 1 - (k / p) mod v. Rank r starts with (v - 1) p + 2
// (p - 1 - r) forwards, then forward and backward in turn. The bubble is (p - 1) / (v m + p - 1).
#include <algorithm>

#include "pipeline/generators.h"

namespace mw::pipeline {

static void check(const ScheduleRequest& request, Diagnostics& out) {
  const int32_t p = request.ranks, m = request.microbatches;
  if (m % p == 0) return;
  const int32_t below = m / p * p;
  const std::string nearest =
      below == 0 ? std::to_string(p) : std::to_string(below) + " or " + std::to_string(below + p);
  out.add(
      "schedule interleaved-1f1b: microbatches={} is not a multiple of ranks={}; use "
      "microbatches={}",
      m, p, nearest);
}

static std::vector<Action> order(const ScheduleRequest& request, int32_t rank) {
  const int32_t p = request.ranks, v = request.chunks;
  const int32_t total = v * request.microbatches;
  const auto microbatch = [&](int32_t k) { return k / (p * v) * p + k % p; };
  const auto forward = [&](int32_t k) {
    return forward_action(k / p % v * p + rank, microbatch(k));
  };
  const auto backward = [&](int32_t k) {
    return backward_action((v - 1 - k / p % v) * p + rank, microbatch(k));
  };

  std::vector<Action> actions;
  int32_t forwards = 0;
  while (forwards < std::min(total, (v - 1) * p + 2 * (p - 1 - rank)))
    actions.push_back(forward(forwards++));
  for (int32_t backwards = 0; backwards < total; ++backwards) {
    if (forwards < total) actions.push_back(forward(forwards++));
    actions.push_back(backward(backwards));
  }
  return actions;
}

const ScheduleKind kInterleaved = {"interleaved-1f1b", true, check, order};

}  // namespace mw::pipeline
