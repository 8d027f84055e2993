#include "simulate/call_time.h"

#include <algorithm>

#include "cluster/slice.h"
#include "simulate/fragment_walk.h"
#include "simulate/pair_cost.h"

namespace mw::simulate {
namespace {

// [fragment] the first rank that calls it, -1: none.
std::vector<int32_t> callers(const pipeline::Program& program) {
  std::vector<int32_t> caller(program.fragments.size(), -1);
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    for (const pipeline::Command& command : program.ranks[r].commands) {
      if (command.kind != pipeline::Command::Kind::kCall) continue;
      int32_t& first = caller[command.fragment.index()];
      if (first < 0) first = static_cast<int32_t>(r);
    }
  }
  return caller;
}

// [fragment] the first forward of the rank that calls it, where it is a whole backward; -1: it is
// none, or there is none.
std::vector<int32_t> forwards_beside(const pipeline::Program& program,
                                     const std::vector<int32_t>& caller) {
  std::vector<int32_t> of_rank(program.ranks.size(), -1), beside;
  for (size_t f = caller.size(); f-- > 0;) {
    if (caller[f] >= 0 && program.fragments[f].kind == pipeline::ActionKind::kF)
      of_rank[static_cast<size_t>(caller[f])] = static_cast<int32_t>(f);
  }
  for (size_t f = 0; f < caller.size(); ++f) {
    const bool whole = caller[f] >= 0 && program.fragments[f].kind == pipeline::ActionKind::kB;
    beside.push_back(whole ? of_rank[static_cast<size_t>(caller[f])] : -1);
  }
  return beside;
}

// `sums_before`: what reads only gradients is done before the call begins. `of_all`: [cross group]
// whether all pipeline ranks are in it.
CallTime time_of(const FragmentCost& cost, const Slowdowns& slowdowns, size_t labels,
                 bool sums_before = false, const std::vector<bool>& of_all = {}) {
  CallTime time;
  Walk walk;
  std::vector<double> state_ready;
  double begin = 0;
  if (sums_before) {
    for (const OpCost& op : cost.ops) begin += op.label >= 0 ? 2 * op.device : 0;
    int32_t ports = 0;
    for (const int32_t port : cost.state_reads) ports = std::max(ports, port + 1);
    state_ready.assign(static_cast<size_t>(ports), 0);
  }
  walk.begin(cost, begin);
  if (sums_before) std::fill(walk.streams.begin() + 1, walk.streams.end(), 0.0);
  const WalkOptions options{.slowdowns = slowdowns,
                            .state_ready = sums_before ? &state_ready : nullptr};
  double meet = 0;
  bool met = false;
  while (advance(cost, walk, options, meet)) {
    if (!met && meet >= begin && of_all[static_cast<size_t>(cost.ops[walk.next].cross)]) {
      time.before = Seconds(meet - begin);
      met = true;
    }
    finish_cross(cost, walk, meet, meet + cost.ops[walk.next].device);
  }
  const double end = std::max(walk.end, begin);
  time.whole = Seconds(end - begin);
  for (size_t o = 0; o < cost.ops.size() && sums_before; ++o) {
    if (cost.ops[o].label >= 0 && !cost.ops[o].alias && walk.spans[o].start < begin)
      time.sums = std::max(time.sums, Seconds(std::min(walk.spans[o].end, begin)));
  }
  time.gaps = Seconds(divide(cost, walk, begin, end, labels).gaps);
  time.lead = Seconds(std::max(0.0, walk.end - walk.host));
  if (!met) time.before = time.whole;
  for (const std::vector<Interval>& level : link_use(cost, walk.spans, ~uint32_t{0})) {
    double used = 0;
    for (const Interval& use : level) used += use.end - use.begin;
    time.links.emplace_back(used);
  }
  return time;
}

// That a backward and the forward beside it take less together.
Seconds saved(const FragmentCost& forward, const FragmentCost& backward, Seconds backward_alone,
              const Slowdowns& slowdowns, size_t labels) {
  constexpr uint32_t kNoLevels = 0;
  const Seconds both(time_pair(forward, backward, slowdowns, kNoLevels, labels).time.duration);
  return std::max(Seconds(0), time_of(forward, slowdowns, labels).whole + backward_alone - both);
}

}  // namespace

std::vector<CallTime> call_times(const pipeline::Program& program, const cluster::Cluster& whole,
                                 const Options& options,
                                 const std::vector<std::vector<int32_t>>& coordinates) {
  const cluster::Cluster cluster = cluster::slice_of(whole, program.mesh.size());
  // What a rank stands for besides its first place are ranks behind all others.
  std::vector<int32_t> places;
  std::vector<std::vector<int32_t>> places_of(program.ranks.size());
  for (size_t r = 0; r < places_of.size(); ++r) {
    places_of[r].push_back(static_cast<int32_t>(r));
    if (!coordinates.empty()) places.push_back(coordinates[r].front());
  }
  for (size_t r = 0; r < coordinates.size(); ++r) {
    for (size_t i = 1; i < coordinates[r].size(); ++i) {
      places_of[r].push_back(static_cast<int32_t>(places.size()));
      places.push_back(coordinates[r][i]);
    }
  }
  const std::vector<int32_t> caller = callers(program);
  Labels labels;
  FragmentCoster coster(program, cluster, options, labels, places);
  const Slowdowns slowdowns = slowdowns_of(options.overlap, cluster.device);
  const std::vector<int32_t> beside = forwards_beside(program, caller);
  std::vector<CallTime> times(program.fragments.size());
  for (size_t f = 0; f < times.size(); ++f) {
    if (caller[f] < 0) continue;
    const pipeline::Fragment& fragment = program.fragments[f];
    const std::vector<int32_t>& of = places_of[static_cast<size_t>(caller[f])];
    for (size_t i = 0; i < of.size(); ++i) {
      if (i > 0 && coster.lie_alike(fragment, of[0], of[i])) continue;
      FragmentCost cost = coster.cost(fragment, of[i]);
      const bool update = fragment.kind == pipeline::ActionKind::kUpdate;
      Seconds gathers;
      for (const int32_t o : cost.gathers) {
        if (!update || !options.overlap.param_gather) break;
        OpCost& op = cost.ops[static_cast<size_t>(o)];
        gathers += Seconds(op.device);
        op.alias = true;
      }
      std::vector<bool> of_all;
      for (const CrossGroup& group : coster.cross_groups())
        of_all.push_back(group.ranks.size() == program.ranks.size());
      CallTime time = time_of(
          cost, slowdowns, labels.size(),
          update && options.overlap.grad_reduce && !options.overlap.grad_reduce_idle, of_all);
      time.gathers = gathers;
      if (beside[f] >= 0 && options.overlap.pairs && has_exchanges(cost) && !cost.crosses) {
        const FragmentCost forward =
            coster.cost(program.fragments[static_cast<size_t>(beside[f])], of[i]);
        time.paired = saved(forward, cost, time.whole, slowdowns, labels.size());
      }
      if (i == 0 || time.whole > times[f].whole) times[f] = std::move(time);
    }
  }
  return times;
}

}  // namespace mw::simulate
