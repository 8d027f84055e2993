#include "pipeline/schedules/bidirectional.h"

namespace mw::pipeline {

Placement chimera_placement(int32_t ranks, int32_t pairs) {
  std::vector<std::vector<int32_t>> replicas;
  for (const bool up : {false, true}) {
    for (int32_t j = 0; j < pairs; ++j) {
      std::vector<int32_t>& rank_of_stage = replicas.emplace_back();
      for (int32_t s = 0; s < ranks; ++s)
        rank_of_stage.push_back(((up ? ranks - 1 - s : s) + j * (ranks / pairs)) % ranks);
    }
  }
  return {.ranks = ranks,
          .rank_of_stage = replicas.front(),
          .rank_of_replica = {replicas.begin() + 1, replicas.end()}};
}

void check_chimera(const ScheduleRequest& request, Diagnostics& out) {
  if (request.ranks % 2 != 0) {
    out.add("schedule {}: ranks={} must be even; use {} or {}", request.kind, request.ranks,
            request.ranks == 1 ? 2 : request.ranks - 1, request.ranks == 1 ? 4 : request.ranks + 1);
    return;
  }
  const int32_t half = request.ranks / 2;
  if (half % request.pairs == 0) return;
  std::string allowed;
  for (int32_t f = 1; f <= half; ++f) {
    if (half % f == 0) allowed += (allowed.empty() ? "" : ", ") + std::to_string(f);
  }
  out.add("schedule {}: pairs={} must divide half of ranks={}; use {}", request.kind, request.pairs,
          request.ranks, allowed);
}

std::vector<int32_t> shares(int32_t count, int32_t replicas) {
  std::vector<int32_t> result;
  for (int32_t j = 0; j < replicas; ++j)
    result.push_back(count / replicas + (j < count % replicas ? 1 : 0));
  return result;
}

}  // namespace mw::pipeline
