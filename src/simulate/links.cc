#include "simulate/links.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace mw::simulate {
namespace {

// The first interval that ends after `time`.
std::vector<Interval>::const_iterator first_after(const std::vector<Interval>& intervals,
                                                  double time) {
  return std::upper_bound(intervals.begin(), intervals.end(), time,
                          [](double t, const Interval& interval) { return t < interval.end; });
}

// Calls see(begin, end) for the parts of two lists that lie after `from`, in order and apart, until
// it returns false.
template <typename See>
void each_taken(const std::vector<Interval>& a, const std::vector<Interval>& b, double from,
                const See& see) {
  auto x = first_after(a, from), y = first_after(b, from);
  while (x != a.end() || y != b.end()) {
    const bool first = y == b.end() || (x != a.end() && x->begin <= y->begin);
    const Interval& next = first ? *x++ : *y++;
    const double begin = std::max(next.begin, from);
    if (next.end <= begin) continue;
    if (!see(begin, next.end)) return;
    from = next.end;
  }
}

}  // namespace

double takes_beside(const std::vector<Interval>& others, double start, double takes) {
  double still = 0;
  for (auto it = first_after(others, start);
       it != others.end() && it->begin < start + takes + still; ++it)
    still += it->end - std::max(it->begin, start);
  return takes + still;
}

std::vector<Interval> joined(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::vector<Interval> made;
  for (const Interval& interval : intervals) {
    if (made.empty() || interval.begin > made.back().end) {
      made.push_back(interval);
    } else {
      made.back().end = std::max(made.back().end, interval.end);
    }
  }
  return made;
}

uint32_t EventQueue::push(double time, bool ends, int32_t index) {
  const uint32_t number = made_++;
  const uint64_t rest = uint64_t{number} << 32 | static_cast<uint32_t>(2 * index + (ends ? 1 : 0));
  // + 0.0: no time is -0
  const Key event = static_cast<Key>(std::bit_cast<uint64_t>(time + 0.0)) << 64 | rest;
  size_t at = heap_.size();
  heap_.push_back(event);
  for (; at > 0 && event < heap_[(at - 1) / kChildren]; at = (at - 1) / kChildren)
    heap_[at] = heap_[(at - 1) / kChildren];
  heap_[at] = event;
  return number;
}

Event EventQueue::pop() {
  const Key first = heap_.front(), last = heap_.back();
  heap_.pop_back();
  Key* const heap = heap_.data();
  const size_t count = heap_.size();
  size_t at = 0;
  for (size_t child = 1; child < count; child = kChildren * at + 1) {
    size_t least = child;
    Key of_least = heap[child];
    const size_t behind = std::min(child + kChildren, count);
    for (size_t c = child + 1; c < behind; ++c) {
      const Key of_other = heap[c];
      least = of_other < of_least ? c : least;
      of_least = std::min(of_least, of_other);
    }
    if (last <= of_least) break;
    heap[at] = of_least;
    at = least;
  }
  if (count > 0) heap[at] = last;
  const auto what = static_cast<uint32_t>(first);
  return {std::bit_cast<double>(static_cast<uint64_t>(first >> 64)),
          static_cast<uint32_t>(first >> 32), (what & 1) != 0, static_cast<int32_t>(what / 2)};
}

Links::Links(size_t ranks, std::vector<size_t> ports, std::vector<double> bandwidth,
             std::vector<double> latency, EventQueue& queue)
    : levels_(bandwidth.size()),
      port_of_(std::move(ports)),
      bandwidth_(std::move(bandwidth)),
      latency_(std::move(latency)),
      queue_(queue),
      ports_(ranks * levels_) {}

int32_t Links::add_way(int32_t from, int32_t to, size_t level) {
  const auto [line, is_new] =
      line_of_.try_emplace({from, to}, static_cast<uint32_t>(lines_.size()));
  if (is_new) lines_.emplace_back();
  ways_.push_back({line->second, static_cast<uint32_t>(port(from, level)),
                   static_cast<uint32_t>(port(to, level)), static_cast<uint32_t>(level)});
  return static_cast<int32_t>(ways_.size()) - 1;
}

void Links::occupy(int32_t rank, size_t level, double begin, double end) {
  std::vector<Interval>& taken = ports_[port(rank, level)].taken;
  if (!taken.empty() && begin <= taken.back().end) {
    taken.back().end = std::max(taken.back().end, end);
  } else if (end > begin) {
    taken.push_back({begin, end});
  }
}

double Links::end_of(const Transfer& transfer) const {
  double at = transfer.since, open = transfer.left / transfer.rate;
  const std::vector<Interval>&out = ports_[transfer.way.out].taken,
        &in = ports_[transfer.way.in].taken;
  if (out.empty() && in.empty()) return at + open;
  bool ends = false;
  each_taken(out, in, at, [&](double begin, double end) {
    if (begin - at >= open) return false;
    open -= begin - at;
    ends = (end - begin) * kBesideCollective >= open;
    at = ends ? begin + open / kBesideCollective : end;
    open = ends ? 0 : open - (end - begin) * kBesideCollective;
    return !ends;
  });
  return at + open;
}

double Links::moved(const Transfer& transfer, double now) const {
  double time = now - transfer.since;
  const std::vector<Interval>&out = ports_[transfer.way.out].taken,
        &in = ports_[transfer.way.in].taken;
  if (out.empty() && in.empty()) return std::max(0.0, time) * transfer.rate;
  each_taken(out, in, transfer.since, [&](double begin, double end) {
    if (begin >= now) return false;
    time -= (std::min(end, now) - begin) * (1 - kBesideCollective);
    return true;
  });
  return std::max(0.0, time) * transfer.rate;
}

// Brings a transfer to `now` if its share of the ports has changed, and announces an end that is
// earlier than was known; a later one is seen when its event comes.
void Links::settle(int32_t t, double now) {
  Transfer& transfer = transfers_[static_cast<size_t>(t)];
  const double shares = static_cast<double>(
      std::max(ports_[transfer.way.out].out.size(), ports_[transfer.way.in].in.size()));
  const double rate = bandwidth_[transfer.way.level] / shares;
  if (rate == transfer.rate) return;
  transfer.left = std::max(0.0, transfer.left - moved(transfer, now));
  transfer.rate = rate;
  transfer.since = now;
  const double end = end_of(transfer);
  if (end >= transfer.announced) return;
  transfer.announced = end;
  transfer.event = queue_.push(end, true, t);
}

void Links::settle_ports(const Way& way, double now) {
  for (const int32_t t : ports_[way.out].out) settle(t, now);
  for (const int32_t t : ports_[way.in].in) settle(t, now);
}

void Links::start(double now, int32_t message, int32_t way, double bytes) {
  Line& waiting = lines_[ways_[static_cast<size_t>(way)].line];
  waiting.push_back({message, way, bytes});
  if (waiting.size() == 1) send(now, waiting.front());
}

void Links::send(double now, const Waiting& waiting) {
  int32_t t = 0;
  if (free_.empty()) {
    t = static_cast<int32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    t = free_.back();
    free_.pop_back();
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Way& way = ways_[static_cast<size_t>(waiting.way)];
  transfers_[static_cast<size_t>(t)] = {waiting.message, 0, way, waiting.bytes, 0, now, kNever};
  ports_[way.out].out.push_back(t);
  ports_[way.in].in.push_back(t);
  settle_ports(way, now);
}

int32_t Links::finish(const Event& event, double& arrival) {
  const int32_t t = event.index;
  Transfer& transfer = transfers_[static_cast<size_t>(t)];
  if (transfer.event != event.number) return kNone;
  // Other transfers or collectives may have taken a port since the end was announced.
  const double end = end_of(transfer);
  if (end > event.time) {
    transfer.announced = end;
    transfer.event = queue_.push(end, true, t);
    return kNone;
  }
  arrival = event.time + latency_[transfer.way.level];
  const int32_t message = transfer.message;
  const Way way = transfer.way;
  const auto leave = [t](absl::InlinedVector<int32_t, 4>& transfers) {
    transfers.erase(std::remove(transfers.begin(), transfers.end(), t), transfers.end());
  };
  leave(ports_[way.out].out);
  leave(ports_[way.in].in);
  free_.push_back(t);
  Line& waiting = lines_[way.line];
  waiting.erase(waiting.begin());
  settle_ports(way, event.time);
  if (!waiting.empty()) send(event.time, waiting.front());
  return message;
}

}  // namespace mw::simulate
