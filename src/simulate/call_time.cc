#include "simulate/call_time.h"

#include <algorithm>

#include "simulate/fragment_walk.h"

namespace mw::simulate {

std::vector<CallTime> call_times(const pipeline::Program& program, const cluster::Cluster& cluster,
                                 const Options& options, const std::vector<int32_t>& coordinates) {
  std::vector<int32_t> caller(program.fragments.size(), -1);
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    for (const pipeline::Command& command : program.ranks[r].commands) {
      if (command.kind != pipeline::Command::Kind::kCall) continue;
      int32_t& first = caller[command.fragment.index()];
      if (first < 0) first = static_cast<int32_t>(r);
    }
  }
  Labels labels;
  FragmentCoster coster(program, cluster, options, labels, coordinates);
  const Slowdowns slowdowns = slowdowns_of(options.overlap, cluster.device);
  std::vector<CallTime> times(program.fragments.size());
  for (size_t f = 0; f < times.size(); ++f) {
    if (caller[f] < 0) continue;
    const FragmentCost cost = coster.cost(program.fragments[f], caller[f]);
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    bool met = false;
    while (advance(cost, walk, {.slowdowns = slowdowns}, meet)) {
      if (!met) times[f].before = Seconds(meet);
      met = true;
      finish_cross(cost, walk, meet, meet + cost.ops[walk.next].device);
    }
    times[f].whole = Seconds(walk.end);
    times[f].gaps = Seconds(divide(cost, walk, 0, walk.end, labels.names().size()).gaps);
    times[f].lead = Seconds(std::max(0.0, walk.end - walk.host));
    if (!met) times[f].before = times[f].whole;
    for (const std::vector<Interval>& level : link_use(cost, walk.spans, ~uint32_t{0})) {
      double used = 0;
      for (const Interval& use : level) used += use.end - use.begin;
      times[f].links.emplace_back(used);
    }
  }
  return times;
}

}  // namespace mw::simulate
