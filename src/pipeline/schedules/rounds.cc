#include "pipeline/schedules/rounds.h"

#include <algorithm>

namespace mw::pipeline {

Rounds rounds_of(const ScheduleRequest& request) {
  Rounds rounds;
  const int32_t v = request.chunks, m = request.microbatches;
  for (int32_t first = 0; first < m; first += request.group) {
    const int32_t end = std::min(m, first + request.group);
    for (int32_t c = 0; c < v; ++c) {
      for (int32_t k = first; k < end; ++k) {
        rounds.forward.push_back({c, k});
        rounds.backward.push_back({v - 1 - c, k});
      }
    }
  }
  return rounds;
}

int32_t shortest_rounds(int32_t ranks, int32_t microbatches) {
  int32_t rounds = std::min(ranks, microbatches);
  while (microbatches % rounds != 0 && microbatches % rounds < ranks) ++rounds;
  return rounds;
}

void check_rounds(const ScheduleRequest& request, Diagnostics& out) {
  const int32_t p = request.ranks, m = request.microbatches, group = request.group;
  if (group == p) {
    if (m % p == 0) return;
    const int32_t below = m / p * p;
    const std::string nearest =
        below == 0 ? std::to_string(p) : std::to_string(below) + " or " + std::to_string(below + p);
    out.add(
        "schedule {}: microbatches={} is not a multiple of ranks={}; use microbatches={}, or "
        "rounds of group={}",
        request.kind, m, p, nearest, shortest_rounds(p, m));
    return;
  }
  if (group == m) return;
  if (m < p) {
    out.add("schedule {}: group={} must be microbatches={}, which are fewer than ranks={}",
            request.kind, group, m, p);
  } else if (group < p || group > m) {
    out.add("schedule {}: group={} must be from ranks={} to microbatches={}", request.kind, group,
            p, m);
  } else if (const int32_t rest = m % group; rest != 0 && rest < p) {
    out.add(
        "schedule {}: group={} leaves {} of microbatches={} to the last round, which must have at "
        "least ranks={} of them",
        request.kind, group, rest, m, p);
  }
}

}  // namespace mw::pipeline
