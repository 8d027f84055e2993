#include "simulate/fragment_walk.h"

#include <algorithm>

#include "simulate/shared_walk.h"

namespace mw::simulate {

double beside_others(const OpCost& op, double start, const WalkOptions& options) {
  const double sending = op.device - op.latency;
  double longest = sending;
  const auto see = [&](const std::vector<std::vector<Interval>>* others, uint32_t levels) {
    for (size_t level = 0; others != nullptr && level < others->size(); ++level) {
      if ((levels >> level & 1) != 0)
        longest = std::max(longest, takes_beside((*others)[level], start + op.latency, sending));
    }
  };
  see(options.messages, op.levels);
  see(options.taken, op.fills);
  return op.latency + longest;
}

// Whether computation or collectives wait for more than their streams and what they read.
static bool runs_by_time(const FragmentCost& cost, const Slowdowns& slowdowns) {
  if (cost.shared_levels != 0) return true;
  for (size_t b = 0; cost.besides >> b != 0; ++b) {
    if ((cost.besides >> b & 1) != 0 && slowdowns[b] != 1) return true;
  }
  return false;
}

void Walk::begin(const FragmentCost& cost, double at) {
  next = 0;
  host = end = at;
  streams.assign(static_cast<size_t>(cost.streams), at);
  spans.assign(cost.ops.size(), OpSpan{});
  if (cost.queues.empty()) return;
  shared = {};
  shared.heads.assign(streams.size(), 0);
  shared.ended.assign(cost.ops.size(), false);
  double issued = at;
  for (const OpCost& op : cost.ops) {
    if (!op.alias) issued += op.host;
    shared.issued.push_back(issued);
  }
}

bool advance(const FragmentCost& cost, Walk& walk, const WalkOptions& options, double& meet) {
  walk.by_time = runs_by_time(cost, options.slowdowns);
  if (walk.by_time) return advance_shared(cost, walk, options, meet);
  const std::vector<double>* state_ready = options.state_ready;
  for (; walk.next < cost.ops.size(); ++walk.next) {
    const OpCost& op = cost.ops[walk.next];
    // By data alone an alias is there with what it is of; on a stream also behind all before it.
    const bool queues = !op.alias || cost.in_order;
    double start = queues ? walk.streams[static_cast<size_t>(op.stream)] : 0;
    for (uint32_t d = op.first_dep; d < op.first_dep + op.deps; ++d)
      start = std::max(start, walk.spans[static_cast<size_t>(cost.deps[d])].end);
    if (state_ready != nullptr) {
      for (uint32_t s = op.first_state; s < op.first_state + op.states; ++s)
        start = std::max(start, (*state_ready)[static_cast<size_t>(cost.state_reads[s])]);
    }
    OpSpan& span = walk.spans[walk.next];
    if (op.alias) {
      span = {start, start};
      // What comes after it on its stream need not wait for the same again.
      if (cost.in_order) walk.streams[static_cast<size_t>(op.stream)] = start;
      continue;
    }
    walk.host += op.host;
    // A collective that starts before the call was issued by the host long ago.
    if (op.stream == 0 || state_ready == nullptr) start = std::max(start, walk.host);
    if (op.cross >= 0) {
      meet = start;
      return true;
    }
    double takes = op.device;
    if (op.levels != 0) takes = beside_others(op, start, options);
    span = {start, start + takes};
    walk.streams[static_cast<size_t>(op.stream)] = span.end;
    walk.end = std::max(walk.end, span.end);
  }
  return false;
}

void finish_cross(const FragmentCost& cost, Walk& walk, double start, double end) {
  if (walk.by_time) return finish_cross_shared(cost, walk, start, end);
  const OpCost& op = cost.ops[walk.next];
  walk.spans[walk.next] = {start, end};
  walk.streams[static_cast<size_t>(op.stream)] = end;
  walk.end = std::max(walk.end, end);
  ++walk.next;
}

std::vector<std::vector<Interval>> link_use(const FragmentCost& cost,
                                            const std::vector<OpSpan>& spans, uint32_t levels,
                                            uint32_t OpCost::* of) {
  std::vector<std::vector<Interval>> use;
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    const OpCost& op = cost.ops[o];
    if (op.alias || spans[o].end <= spans[o].start + op.latency) continue;
    for (size_t level = 0; (op.*of & levels) >> level != 0; ++level) {
      if (((op.*of & levels) >> level & 1) == 0) continue;
      use.resize(std::max(use.size(), level + 1));
      use[level].push_back({spans[o].start + op.latency, spans[o].end});
    }
  }
  for (std::vector<Interval>& of_level : use) of_level = joined(std::move(of_level));
  return use;
}

FragmentTime divide(const FragmentCost& cost, const Walk& walk, double begin, double end,
                    size_t labels) {
  FragmentTime time;
  time.duration = end - begin;
  time.comm.assign(labels, 0);
  time.exposed.assign(labels, 0);
  std::vector<OpSpan> compute;
  std::vector<std::pair<OpSpan, int32_t>> comm;
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    if (cost.ops[o].alias) continue;
    const OpSpan span{std::max(begin, walk.spans[o].start), std::min(end, walk.spans[o].end)};
    if (cost.ops[o].label >= 0)
      time.comm[static_cast<size_t>(cost.ops[o].label)] += walk.spans[o].end - walk.spans[o].start;
    if (span.end <= span.start) continue;
    if (cost.ops[o].label < 0) {
      compute.push_back(span);
      time.compute += span.end - span.start;
    } else {
      comm.emplace_back(span, cost.ops[o].label);
    }
  }
  // Computation runs on one stream, so its spans do not overlap and are in order.
  std::sort(comm.begin(), comm.end(),
            [](const auto& a, const auto& b) { return a.first.start < b.first.start; });
  double covered = begin;  // communication counts once where several run
  size_t first = 0;
  for (const auto& [span, label] : comm) {
    const double from = std::max(span.start, covered);
    if (span.end <= from) continue;
    double open = span.end - from;
    while (first < compute.size() && compute[first].end <= from) ++first;
    for (size_t c = first; c < compute.size() && compute[c].start < span.end; ++c)
      open -= std::max(0.0, std::min(span.end, compute[c].end) - std::max(from, compute[c].start));
    time.exposed[static_cast<size_t>(label)] += std::max(0.0, open);
    covered = span.end;
  }
  time.gaps = time.duration - time.compute;
  for (const double exposed : time.exposed) time.gaps -= exposed;
  time.gaps = std::max(0.0, time.gaps);
  return time;
}

std::vector<Interval> still(const FragmentCost& cost, const Walk& walk, double begin, double end) {
  std::vector<Interval> busy;
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    if (!cost.ops[o].alias && walk.spans[o].end > walk.spans[o].start)
      busy.push_back({walk.spans[o].start, walk.spans[o].end});
  }
  std::vector<Interval> gaps;
  for (const Interval& span : joined(std::move(busy))) {
    if (span.begin >= end) break;
    if (span.begin > begin) gaps.push_back({begin, span.begin});
    begin = std::max(begin, span.end);
  }
  if (begin < end) gaps.push_back({begin, end});
  return gaps;
}

}  // namespace mw::simulate
