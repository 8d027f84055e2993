#include "pipeline/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace mw::pipeline {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool overlap(const Interval& a, const Interval& b) {
  return a.first <= b.last && b.first <= a.last;
}

// Places the intervals in the given order, each into the tightest gap between those already placed
// that live at the same time.
Packing place(const std::vector<Interval>& intervals, const std::vector<size_t>& order) {
  Packing packing{.offsets = std::vector<int64_t>(intervals.size(), 0), .total = 0};
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const int64_t bytes = intervals[i].bytes;
    int64_t at = -1, best_gap = 0, end = 0;
    for (const size_t j : placed) {
      if (!overlap(intervals[i], intervals[j])) continue;
      const int64_t gap = packing.offsets[j] - end;
      if (gap >= bytes && (at < 0 || gap < best_gap)) at = end, best_gap = gap;
      end = std::max(end, packing.offsets[j] + intervals[j].bytes);
    }
    packing.offsets[i] = at < 0 ? end : at;
    packing.total = std::max(packing.total, packing.offsets[i] + bytes);
    const auto behind =
        std::upper_bound(placed.begin(), placed.end(), packing.offsets[i],
                         [&](int64_t offset, size_t j) { return offset < packing.offsets[j]; });
    placed.insert(behind, i);
  }
  return packing;
}

// The most bytes alive at one time: no packing is smaller.
int64_t most_alive(const std::vector<Interval>& intervals) {
  std::map<int64_t, int64_t> change;
  for (const Interval& i : intervals) {
    change[i.first] += i.bytes;
    change[i.last + 1] -= i.bytes;
  }
  int64_t alive = 0, most = 0;
  for (const auto& [time, bytes] : change) most = std::max(most, alive += bytes);
  return most;
}

// Beyond this many intervals only the first order is tried: placing is quadratic.
constexpr size_t kTryAllOrders = 2000;

Packing pack_aligned(const std::vector<Interval>& intervals) {
  const int64_t bound = most_alive(intervals);
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](size_t i) { return intervals[i].last - intervals[i].first; };
  const auto by = [&](auto before) {
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(), before);
    return place(intervals, sorted);
  };
  Packing best = by([&](size_t a, size_t b) {
    if (intervals[a].bytes != intervals[b].bytes) return intervals[a].bytes > intervals[b].bytes;
    return intervals[a].first < intervals[b].first;
  });
  if (intervals.size() > kTryAllOrders) return best;
  const auto keep = [&](Packing other) {
    if (other.total < best.total) best = std::move(other);
  };
  if (best.total > bound) keep(by([&](size_t a, size_t b) { return length(a) > length(b); }));
  if (best.total > bound)
    keep(by([&](size_t a, size_t b) { return intervals[a].first < intervals[b].first; }));
  return best;
}

}  // namespace

Packing pack(const std::vector<Interval>& intervals) {
  // Intervals of the same life lie side by side, so a step's buffers, which mostly live from F to B
  // of a microbatch, are few.
  std::map<std::pair<int64_t, int64_t>, size_t> life_of;
  std::vector<Interval> lives;
  std::vector<size_t> life(intervals.size());
  std::vector<int64_t> inside(intervals.size());
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Interval& interval = intervals[i];
    MW_CHECK(interval.first <= interval.last && interval.bytes >= 0,
             "interval {} is [{}, {}] with {} bytes", i, interval.first, interval.last,
             interval.bytes);
    const auto [it, is_new] = life_of.try_emplace({interval.first, interval.last}, lives.size());
    if (is_new) lives.push_back({interval.first, interval.last, 0});
    life[i] = it->second;
    inside[i] = lives[life[i]].bytes;
    lives[life[i]].bytes += aligned(interval.bytes);
  }
  const Packing of_lives = pack_aligned(lives);
  Packing packing{.offsets = {}, .total = of_lives.total};
  for (size_t i = 0; i < intervals.size(); ++i)
    packing.offsets.push_back(of_lives.offsets[life[i]] + inside[i]);
  if (intervals.size() > kTryAllOrders || of_lives.total == most_alive(lives)) return packing;

  std::vector<Interval> single = intervals;
  for (Interval& interval : single) interval.bytes = aligned(interval.bytes);
  Packing apart = pack_aligned(single);
  return apart.total < packing.total ? apart : packing;
}

void plan_rank(Program& program, RankProgram& rank) {
  constexpr int64_t kNever = -1;
  std::vector<Interval> life(rank.buffers.size(), Interval{kNever, kNever, 0});
  int64_t workspace = 0;
  for (size_t c = 0; c < rank.commands.size(); ++c) {
    const Command& command = rank.commands[c];
    if (command.kind == Command::Kind::kCall) {
      workspace = std::max(workspace, program.fragments[command.fragment.index()].workspace.value);
    }
    for (BufferId id : command.buffers) {
      while (rank.buffers[id.index()].storage.kind == Storage::Kind::kView) {
        id = rank.buffers[id.index()].storage.parent;
      }
      Interval& interval = life[id.index()];
      if (interval.first == kNever) interval.first = static_cast<int64_t>(c);
      interval.last = static_cast<int64_t>(c);
    }
  }
  std::vector<Interval> intervals;
  std::vector<size_t> buffers;
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    Storage& storage = rank.buffers[b].storage;
    if (storage.kind != Storage::Kind::kArena) continue;
    storage.offset = 0;
    if (life[b].first == kNever) continue;
    life[b].bytes = rank.buffers[b].bytes().value;
    intervals.push_back(life[b]);
    buffers.push_back(b);
  }
  const Packing packing = pack(intervals);
  for (size_t i = 0; i < buffers.size(); ++i)
    rank.buffers[buffers[i]].storage.offset = packing.offsets[i];
  rank.workspace_offset = packing.total;
  rank.arena = Bytes(packing.total + aligned(workspace));
}

}  // namespace mw::pipeline
