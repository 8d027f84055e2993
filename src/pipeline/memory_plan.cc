#include "pipeline/memory_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "pipeline/buffer_lives.h"

namespace mw::pipeline {
namespace {

int64_t aligned(int64_t bytes) { return round_up(bytes, kAlignment); }

struct Extent {
  int64_t begin, end;  // bytes
};
struct Placed {
  Extent extent;
  uint32_t first, last;  // steps
};

// What has been placed, as a whole and by parts of the time, since most intervals live shortly.
class Placing {
 public:
  // Parts are no shorter than most lives: what lives in many costs more there than it saves.
  explicit Placing(const std::vector<Interval>& intervals) {
    if (intervals.empty()) return;
    int64_t last = intervals[0].last, lives = 0;
    first_ = intervals[0].first;
    for (const Interval& i : intervals) {
      first_ = std::min(first_, i.first);
      last = std::max(last, i.last);
      lives += i.last - i.first;
    }
    const auto parts = static_cast<int64_t>(kParts), count = static_cast<int64_t>(intervals.size());
    steps_ = std::max((last - first_) / parts, 2 * lives / count) + 1;
    all_.reserve(intervals.size());
  }
  // Where those are that live at one time with it, by begin.
  std::span<const Extent> beside(const Interval& interval) {
    const size_t part = part_of(interval.first);
    const std::vector<Placed>& near = part == part_of(interval.last) ? parts_[part] : all_;
    const auto first = static_cast<uint32_t>(interval.first);
    const auto last = static_cast<uint32_t>(interval.last);
    if (beside_.size() < near.size()) beside_.resize(2 * near.size());
    // Without a branch, which nobody could foretell.
    size_t count = 0;
    for (const Placed& other : near) {
      beside_[count] = other.extent;
      count += static_cast<size_t>(other.first <= last) & static_cast<size_t>(first <= other.last);
    }
    return std::span(beside_).first(count);
  }
  void add(const Placed& placed) {
    insert(placed, all_);
    for (size_t part = part_of(placed.first); part <= part_of(placed.last); ++part)
      insert(placed, parts_[part]);
  }

 private:
  static constexpr size_t kParts = 64;
  size_t part_of(int64_t step) const { return static_cast<size_t>((step - first_) / steps_); }
  static void insert(const Placed& placed, std::vector<Placed>& to) {
    const auto behind = std::upper_bound(
        to.begin(), to.end(), placed.extent.begin,
        [](int64_t begin, const Placed& other) { return begin < other.extent.begin; });
    to.insert(behind, placed);
  }

  int64_t first_ = 0, steps_ = 1;  // of a part
  std::vector<Placed> all_;
  std::array<std::vector<Placed>, kParts> parts_;
  std::vector<Extent> beside_;
};

// Packings are tried until one takes as much as the best so far.
constexpr int64_t kAnyTotal = std::numeric_limits<int64_t>::max();

// Places the intervals in the given order, each into the tightest gap between those already placed
// that live at the same time. Empty: it takes no less than `less_than`.
std::optional<Packing> place(const std::vector<Interval>& intervals,
                             const std::vector<size_t>& order, int64_t less_than) {
  Packing packing{.offsets = std::vector<int64_t>(intervals.size(), 0), .total = 0};
  Placing placed(intervals);
  for (const size_t i : order) {
    const Interval& here = intervals[i];
    int64_t at = -1, best_gap = 0, end = 0;
    for (const Extent& other : placed.beside(here)) {
      const int64_t gap = other.begin - end;
      if (gap >= here.bytes && (at < 0 || gap < best_gap)) at = end, best_gap = gap;
      end = std::max(end, other.end);
    }
    const int64_t offset = at < 0 ? end : at;
    packing.offsets[i] = offset;
    packing.total = std::max(packing.total, offset + here.bytes);
    if (packing.total >= less_than) return {};
    placed.add({{offset, offset + here.bytes},
                static_cast<uint32_t>(here.first),
                static_cast<uint32_t>(here.last)});
  }
  return packing;
}

// The most bytes alive at one time: no packing is smaller.
int64_t most_alive(const std::vector<Interval>& intervals) {
  if (intervals.empty()) return 0;
  int64_t first = intervals[0].first, last = intervals[0].last;
  for (const Interval& i : intervals) {
    first = std::min(first, i.first);
    last = std::max(last, i.last);
  }
  std::vector<int64_t> changes(static_cast<size_t>(last - first) + 2, 0);  // [time]
  for (const Interval& i : intervals) {
    changes[static_cast<size_t>(i.first - first)] += i.bytes;
    changes[static_cast<size_t>(i.last + 1 - first)] -= i.bytes;
  }
  int64_t alive = 0, most = 0;
  for (const int64_t change : changes) most = std::max(most, alive += change);
  return most;
}

// Intervals of like sizes, which are at most 1 / `slack` below the largest of them, in columns:
// each takes the lowest column that is free when it begins. With equal sizes the least total if all
// of them are fullest at one time, as a schedule's steady state makes them; where chunks that
// differ a little take turns, like sizes are less. Empty: it takes no less than `less_than`.
// `order`: by size, the largest first, those of one size as they begin.
std::optional<Packing> columns(const std::vector<Interval>& intervals, std::vector<size_t> order,
                               int64_t slack, int64_t less_than) {
  Packing packing{.offsets = std::vector<int64_t>(intervals.size(), 0), .total = 0};
  std::vector<std::pair<int64_t, int64_t>> busy;  // last, column: the first to end on top
  std::vector<int64_t> free;                      // columns, the lowest on top
  for (size_t begin = 0; begin < order.size();) {
    const int64_t bytes = intervals[order[begin]].bytes;
    const int64_t least = bytes - bytes / slack;
    size_t behind = begin;
    while (behind < order.size() && intervals[order[behind]].bytes >= least) ++behind;
    if (intervals[order[behind - 1]].bytes < bytes) {
      std::sort(order.begin() + static_cast<std::ptrdiff_t>(begin),
                order.begin() + static_cast<std::ptrdiff_t>(behind), [&](size_t a, size_t b) {
                  return std::tuple(intervals[a].first, a) < std::tuple(intervals[b].first, b);
                });
    }
    busy.clear();
    free.clear();
    int64_t made = 0;
    for (size_t i = begin; i < behind; ++i) {
      const Interval& interval = intervals[order[i]];
      while (!busy.empty() && busy.front().first < interval.first) {
        std::pop_heap(busy.begin(), busy.end(), std::greater<>());
        free.push_back(busy.back().second);
        std::push_heap(free.begin(), free.end(), std::greater<>());
        busy.pop_back();
      }
      int64_t column = made;
      if (free.empty()) {
        ++made;
      } else {
        std::pop_heap(free.begin(), free.end(), std::greater<>());
        column = free.back();
        free.pop_back();
      }
      packing.offsets[order[i]] = packing.total + column * bytes;
      busy.emplace_back(interval.last, column);
      std::push_heap(busy.begin(), busy.end(), std::greater<>());
    }
    packing.total += made * bytes;
    if (packing.total >= less_than) return {};
    begin = behind;
  }
  return packing;
}

// Placing is quadratic. From the first number on columns are tried before it, beyond the second
// only one order.
constexpr size_t kTryColumns = 20, kTryAllOrders = 2000;
// Columns are taken where they are less than this part above the least total.
constexpr int64_t kGoodEnough = 500;
constexpr int64_t kSlacks[] = {16, 4};
// In largest intervals.
constexpr int64_t kLargestPage = 2;

bool good_enough(int64_t total, int64_t bound) { return total - bound <= bound / kGoodEnough; }

// The best of columns; `best` if none is smaller.
Packing columns(const std::vector<Interval>& intervals, int64_t bound, Packing best) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(-intervals[a].bytes, intervals[a].first, a) <
           std::tuple(-intervals[b].bytes, intervals[b].first, b);
  });
  for (const int64_t slack : kSlacks) {
    if (good_enough(best.total, bound)) break;
    if (std::optional<Packing> packing = columns(intervals, order, slack, best.total))
      best = *std::move(packing);
  }
  return best;
}

// `best` if none is smaller.
Packing pack_aligned(const std::vector<Interval>& intervals, int64_t bound, Packing best) {
  if (intervals.size() >= kTryColumns) {
    best = columns(intervals, bound, std::move(best));
    if (good_enough(best.total, bound)) return best;
  }
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](size_t i) { return intervals[i].last - intervals[i].first; };
  const auto try_by = [&](auto before) {
    std::vector<size_t> sorted = order;
    std::stable_sort(sorted.begin(), sorted.end(), before);
    if (std::optional<Packing> packing = place(intervals, sorted, best.total))
      best = *std::move(packing);
  };
  try_by([&](size_t a, size_t b) {
    if (intervals[a].bytes != intervals[b].bytes) return intervals[a].bytes > intervals[b].bytes;
    return intervals[a].first < intervals[b].first;
  });
  if (intervals.size() > kTryAllOrders) return best;
  if (best.total > bound) try_by([&](size_t a, size_t b) { return length(a) > length(b); });
  if (best.total > bound)
    try_by([&](size_t a, size_t b) { return intervals[a].first < intervals[b].first; });
  return best;
}

// Intervals in groups of the same life, which lie side by side.
struct Groups {
  std::vector<Interval> lives;  // [group]
  std::vector<size_t> of;       // [interval] its group
  std::vector<int64_t> inside;  // [interval] offset in the group

  Packing spread(const Packing& packed) const {
    Packing packing{.offsets = {}, .total = packed.total};
    packing.offsets.reserve(of.size());
    for (size_t i = 0; i < of.size(); ++i)
      packing.offsets.push_back(packed.offsets[of[i]] + inside[i]);
    return packing;
  }
};

Groups by_life(const std::vector<Interval>& intervals) {
  std::array<std::byte, 1 << 14> room;  // NOLINT: of the table, which writes what it reads.
  std::pmr::monotonic_buffer_resource memory(room.data(), room.size());
  std::pmr::unordered_map<uint64_t, size_t> life_of(&memory);
  life_of.reserve(intervals.size());
  Groups groups;
  groups.of.reserve(intervals.size());
  groups.inside.reserve(intervals.size());
  for (const Interval& interval : intervals) {
    const uint64_t key =
        static_cast<uint64_t>(interval.first) << 32 | static_cast<uint64_t>(interval.last);
    const auto [it, is_new] = life_of.try_emplace(key, groups.lives.size());
    if (is_new) groups.lives.push_back({interval.first, interval.last, 0});
    Interval& life = groups.lives[it->second];
    groups.of.push_back(it->second);
    groups.inside.push_back(life.bytes);
    life.bytes += interval.bytes;
  }
  return groups;
}

// Groups of one life cut into pages of at most so many bytes, each interval in the first that has
// room, largest first. Full pages are alike, whatever life they are of.
Groups in_pages(const std::vector<Interval>& intervals, const Groups& groups, int64_t bytes) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  Groups pages{.lives = {},
               .of = std::vector<size_t>(intervals.size()),
               .inside = std::vector<int64_t>(intervals.size())};
  std::vector<std::vector<size_t>> pages_of(groups.lives.size());  // [group]
  for (const size_t i : order) {
    std::vector<size_t>& mine = pages_of[groups.of[i]];
    const auto page = std::find_if(mine.begin(), mine.end(), [&](size_t p) {
      return pages.lives[p].bytes + intervals[i].bytes <= bytes;
    });
    const size_t p = page == mine.end() ? pages.lives.size() : *page;
    if (page == mine.end()) {
      mine.push_back(p);
      pages.lives.push_back({intervals[i].first, intervals[i].last, 0});
    }
    pages.of[i] = p;
    pages.inside[i] = pages.lives[p].bytes;
    pages.lives[p].bytes += intervals[i].bytes;
  }
  return pages;
}

}  // namespace

Packing pack(const std::vector<Interval>& wanted) {
  std::vector<Interval> intervals = wanted;
  int64_t largest = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    Interval& interval = intervals[i];
    MW_CHECK(0 <= interval.first && interval.first <= interval.last &&
                 interval.last < int64_t{1} << 32 && interval.bytes >= 0,
             "interval {} is [{}, {}] with {} bytes", i, interval.first, interval.last,
             interval.bytes);
    interval.bytes = aligned(interval.bytes);
    largest = std::max(largest, interval.bytes);
  }
  // A step's buffers mostly live from F to B of a microbatch: their lives are few.
  const Groups groups = by_life(intervals);
  const int64_t bound = most_alive(groups.lives);
  Packing best =
      groups.spread(pack_aligned(groups.lives, bound, {.offsets = {}, .total = kAnyTotal}));
  for (int64_t page = largest; page <= kLargestPage * largest; page *= 2) {
    if (good_enough(best.total, bound)) break;
    const Groups pages = in_pages(intervals, groups, page);
    Packing packing = columns(pages.lives, bound, {.offsets = {}, .total = best.total});
    if (packing.total < best.total) best = pages.spread(packing);
  }
  if (intervals.size() > kTryAllOrders || best.total == bound) return best;
  return pack_aligned(intervals, bound, std::move(best));
}

namespace {

// Where the furthest ends of what is in the step arena while calls run.
class AliveEnds {
 public:
  explicit AliveEnds(const std::vector<Command>& commands) : calls_before_(commands.size() + 1, 0) {
    for (size_t c = 0; c < commands.size(); ++c)
      calls_before_[c + 1] = calls_before_[c] + (commands[c].kind == Command::Kind::kCall ? 1 : 0);
    for (size_t run = 1; run <= calls_before_.back(); run *= 2)
      ends_.emplace_back(calls_before_.back() + 1 - run, 0);
  }
  void add(const BufferUse& use, int64_t buffer_end) {
    const size_t first = calls_before_[static_cast<size_t>(use.first)],
                 behind = calls_before_[static_cast<size_t>(use.last) + 1];
    if (first == behind) return;
    const auto level = static_cast<size_t>(std::bit_width(behind - first) - 1);
    std::vector<int64_t>& ends = ends_[level];
    for (const size_t run : {first, behind - (size_t{1} << level)})
      ends[run] = std::max(ends[run], buffer_end);
  }
  // [call] in order; behind all `add`.
  const std::vector<int64_t>& of_calls() {
    for (size_t level = ends_.size(); level-- > 1;) {
      const size_t half = size_t{1} << (level - 1);
      for (size_t run = 0; run < ends_[level].size(); ++run) {
        for (const size_t part : {run, run + half})
          ends_[level - 1][part] = std::max(ends_[level - 1][part], ends_[level][run]);
      }
    }
    if (ends_.empty()) ends_.emplace_back();
    return ends_[0];
  }

 private:
  std::vector<size_t> calls_before_;        // [command]
  std::vector<std::vector<int64_t>> ends_;  // [level][call] of 2^level calls from this one on
};

}  // namespace

void plan_rank(const Program& program, RankProgram& rank) {
  const std::vector<BufferUse> uses = buffer_uses(rank);
  std::vector<Interval> intervals;
  std::vector<size_t> buffers;
  AliveEnds alive(rank.commands);
  int64_t scalars = 0, end = 0;
  const auto put = [&](size_t b, int64_t offset) {
    rank.buffers[b].storage.offset = offset;
    const int64_t behind = offset + rank.buffers[b].bytes().value;
    alive.add(uses[b], behind);
    end = std::max(end, behind);
  };
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    Storage& storage = rank.buffers[b].storage;
    if (storage.kind != Storage::Kind::kArena) continue;
    storage.offset = 0;
    if (uses[b].first < 0) continue;
    const int64_t bytes = rank.buffers[b].bytes().value;
    if (bytes <= kAlignment) {
      put(b, scalars);
      scalars += kAlignment;
    } else {
      intervals.push_back({uses[b].first, uses[b].last, bytes});
      buffers.push_back(b);
    }
  }
  const Packing packing = pack(intervals);
  for (size_t i = 0; i < buffers.size(); ++i) put(buffers[i], scalars + packing.offsets[i]);
  auto alive_end = alive.of_calls().begin();
  for (Command& command : rank.commands) {
    if (command.kind != Command::Kind::kCall) continue;
    const int64_t bytes = program.fragments[command.fragment.index()].workspace.value;
    const int64_t before = *alive_end++;
    command.workspace_offset = bytes > 0 ? aligned(before) : 0;
    if (bytes > 0) end = std::max(end, command.workspace_offset + bytes);
  }
  rank.arena = Bytes(end);
}

}  // namespace mw::pipeline
