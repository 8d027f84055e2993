// Chimera [Li 2021]: f pairs of pipelines of D stages, one down and one up the ranks, each with its
// own replica of the weights. Units of D microbatches, D / 2f a pipeline, follow each other (direct
// concatenation).
//
// With a backward as long as a forward, microbatch i of a pipeline has F on stage s in slot 2 i + s
// and B in slot 2 i + 2 D - 1 - s, and the next unit begins 2 D slots later: no two of a rank meet,
// and the bubble is (D - 2f) / (2 f N + D - 2f). That is the order; a longer backward keeps it.
#include <algorithm>
#include <utility>

#include "pipeline/schedules/bidirectional.h"

namespace mw::pipeline {
namespace {

struct Slotted {
  int32_t slot;
  Action action;
};

Schedule make_chimera(const ScheduleRequest& request) {
  const int32_t d = request.ranks, replicas = 2 * request.pairs;
  Schedule schedule = empty_schedule(request, chimera_placement(d, request.pairs));
  std::vector<std::vector<Slotted>> ranks(static_cast<size_t>(d));
  int32_t microbatch = 0, begin = 0;
  for (; microbatch < request.microbatches; begin += 2 * d) {
    const std::vector<int32_t> counts =
        shares(std::min(d, request.microbatches - microbatch), replicas);
    for (int32_t j = 0; j < replicas; ++j) {
      for (int32_t i = 0; i < counts[static_cast<size_t>(j)]; ++i, ++microbatch) {
        for (int32_t s = 0; s < d; ++s) {
          auto& rank = ranks[static_cast<size_t>(schedule.placement.rank_of(s, j))];
          const int32_t first = begin + 2 * i;
          rank.push_back({first + s, action_of(ActionKind::kF, s, microbatch, j)});
          rank.push_back({first + 2 * d - 1 - s, action_of(ActionKind::kB, s, microbatch, j)});
        }
      }
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::stable_sort(ranks[r].begin(), ranks[r].end(),
                     [](const Slotted& a, const Slotted& b) { return a.slot < b.slot; });
    for (const Slotted& slotted : ranks[r]) schedule.ranks[r].push_back(slotted.action);
  }
  return schedule;
}

}  // namespace

extern const ScheduleKind kChimera = {
    .name = "chimera",
    .summary = "pipelines down and up the ranks, two weight replicas",
    .since = 202107,
    .chunks = kOneChunk,
    .options = {.pairs = true, .sync = true},
    .check = check_chimera,
    .make = make_chimera,
    .period = 2,
    .replicas = 2};

}  // namespace mw::pipeline
