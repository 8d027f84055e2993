#include "pipeline/schedules/block_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "pipeline/schedule_timeline.h"

namespace mw::pipeline {
namespace {

using Row = std::vector<Action>;

// What a rank does in which slot.
class Slots {
 public:
  int32_t end() const { return static_cast<int32_t>(cells_.size()); }  // behind the last slot
  bool contains(int32_t slot) const { return slot < end() && at(slot).stage.valid(); }
  // REQUIRES: the slot is not behind the end; an idle one has no stage.
  const Action& at(int32_t slot) const { return cells_[static_cast<size_t>(slot)]; }
  void put(int32_t slot, const Action& action) {
    if (slot >= end()) cells_.resize(static_cast<size_t>(slot) + 1);
    cells_[static_cast<size_t>(slot)] = action;
  }
  Action take(int32_t slot) { return std::exchange(cells_[static_cast<size_t>(slot)], Action()); }

 private:
  std::vector<Action> cells_;
};

bool second_chunk(const Action& action, int32_t ranks) { return action.stage.value >= ranks; }

// [rank] the slots in which the actions run at unit costs.
std::vector<Slots> slots_of(const Schedule& schedule) {
  const Timeline times = timeline(schedule, {});
  std::vector<Slots> slots(schedule.ranks.size());
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t a = 0; a < schedule.ranks[r].size(); ++a) {
      slots[r].put(static_cast<int32_t>(std::lround(times.times[r][a].start)),
                   schedule.ranks[r][a]);
    }
  }
  return slots;
}

Row row_of(const Slots& slots) {
  Row row;
  for (int32_t slot = 0; slot < slots.end(); ++slot) {
    if (slots.contains(slot)) row.push_back(slots.at(slot));
  }
  return row;
}

int32_t delta(const Action& action) {
  return action.kind == ActionKind::kF ? 1 : action.kind == ActionKind::kW ? -1 : 0;
}

int32_t peak_of(const Schedule& schedule) {
  const std::vector<int32_t> peaks = peak_in_flight(schedule);
  return *std::max_element(peaks.begin(), peaks.end());
}

// Lays out anew what a rank does before its first I of chunk 0: as many forwards of chunk 0 as the
// peak allows beside those of chunk 1, then the two chunks' forwards in turn, then I and W of chunk
// 1 with a forward after each.
Row pack_warmup(const Row& row, int32_t ranks, int32_t rank, int32_t microbatches, int32_t peak) {
  const auto head_end = std::find_if(row.begin(), row.end(), [&](const Action& a) {
    return a.kind == ActionKind::kI && !second_chunk(a, ranks);
  });
  std::array<std::deque<Action>, 4> queues;  // F of chunk 0, F of chunk 1, I of chunk 1, W of it
  for (auto it = row.begin(); it != head_end; ++it) {
    const size_t queue = it->kind == ActionKind::kF   ? (second_chunk(*it, ranks) ? 1 : 0)
                         : it->kind == ActionKind::kI ? 2
                                                      : 3;
    queues[queue].push_back(*it);
  }
  Row packed;
  const auto take = [&](size_t queue) {
    if (queues[queue].empty()) return false;
    packed.push_back(queues[queue].front());
    queues[queue].pop_front();
    return true;
  };
  int32_t most1 = std::min({rank + 1, peak / 2, microbatches});
  int32_t most0 = std::min(peak - most1, microbatches);
  for (int32_t i = 0; i < 2 * (ranks - 1 - rank); ++i) most0 -= most0 > 0 && take(0) ? 1 : 0;
  for (int32_t i = 0; i < rank + 1; ++i) {
    most0 -= most0 > 0 && take(0) ? 1 : 0;
    most1 -= most1 > 0 && take(1) ? 1 : 0;
  }
  while (std::any_of(queues.begin(), queues.end(), [](const auto& q) { return !q.empty(); })) {
    take(2);
    take(3);
    if (!take(1)) take(0);
  }
  packed.insert(packed.end(), head_end, row.end());
  return packed;
}

// Takes the last actions of a kind and chunk out of `slots`, at most `count`; they come back last
// first.
std::vector<Action> take_last(Slots& slots, ActionKind kind, bool second, int32_t ranks,
                              int32_t count) {
  std::vector<Action> taken;
  for (int32_t slot = slots.end(); slot-- > 0 && static_cast<int32_t>(taken.size()) < count;) {
    if (!slots.contains(slot) || slots.at(slot).kind != kind ||
        second_chunk(slots.at(slot), ranks) != second)
      continue;
    taken.push_back(slots.take(slot));
  }
  return taken;
}

// The last W of both chunks, until there are as many as the I that move and as the peak holds.
void take_last_w(Slots& slots, int32_t ranks, int32_t first_moves, int32_t second_moves,
                 int32_t peak, std::vector<Action>& taken) {
  int32_t first = 0, second = 0;
  for (int32_t slot = slots.end(); slot-- > 0;) {
    if (first >= first_moves && second >= second_moves && first + second >= peak) return;
    if (!slots.contains(slot) || slots.at(slot).kind != ActionKind::kW) continue;
    ++(second_chunk(slots.at(slot), ranks) ? second : first);
    taken.push_back(slots.take(slot));
  }
}

// Puts each W into the first idle slot behind all W that stayed and behind its own I; or all behind
// the end.
void put_w(Slots& slots, int32_t ranks, std::vector<Action> weights, bool behind) {
  const auto before = [&](const Action& a, const Action& b) {
    return std::pair(second_chunk(a, ranks), a.first) < std::pair(second_chunk(b, ranks), b.first);
  };
  std::sort(weights.begin(), weights.end(), before);
  if (behind) {
    for (const Action& w : weights) slots.put(slots.end(), w);
    return;
  }
  int32_t from = 0;
  std::map<std::pair<int32_t, int32_t>, int32_t> input_slot;  // (stage, microbatch)
  for (const Action& w : weights) input_slot[{w.stage.value, w.first}] = slots.end();
  for (int32_t slot = 0; slot < slots.end(); ++slot) {
    if (!slots.contains(slot)) continue;
    const Action& action = slots.at(slot);
    if (action.kind == ActionKind::kW) from = slot + 1;
    if (action.kind != ActionKind::kI) continue;
    const auto it = input_slot.find({action.stage.value, action.first});
    if (it != input_slot.end()) it->second = slot;
  }
  const auto is_ready = [&](const Action& w, int32_t slot) {
    return input_slot.at({w.stage.value, w.first}) < slot;
  };
  for (int32_t slot = from; !weights.empty(); ++slot) {
    if (slots.contains(slot)) continue;
    const auto ready = std::find_if(weights.begin(), weights.end(),
                                    [&](const Action& w) { return is_ready(w, slot); });
    if (ready == weights.end()) continue;
    slots.put(slot, *ready);
    weights.erase(ready);
  }
}

// The last input gradients follow each other in a chain up and down the ranks that starts right
// after rank 0's last forward of chunk 1, microbatches two slots apart; the W wait for the idle
// slots.
void tighten_cooldown(Schedule& schedule, int32_t peak, bool behind) {
  const int32_t p = schedule.placement.ranks, m = schedule.microbatches;
  std::vector<Slots> ranks = slots_of(schedule);
  int32_t last_forward = 0;
  for (int32_t slot = 0; slot < ranks[0].end(); ++slot) {
    const Action& action = ranks[0].at(slot);
    if (ranks[0].contains(slot) && action.kind == ActionKind::kF && second_chunk(action, p))
      last_forward = slot;
  }
  const int32_t moves0 = std::min((peak + 1) / 2, m), most1 = std::min(peak - moves0, m);
  for (int32_t r = 0; r < p; ++r) {
    Slots& slots = ranks[static_cast<size_t>(r)];
    const int32_t moves1 = std::min(most1, r + 1);
    const std::vector<Action> i0 = take_last(slots, ActionKind::kI, false, p, moves0);
    const std::vector<Action> i1 = take_last(slots, ActionKind::kI, true, p, moves1);
    std::vector<Action> weights;
    take_last_w(slots, p, moves0, moves1, peak, weights);
    const auto put = [&](const std::vector<Action>& actions, int32_t last) {
      for (size_t k = 0; k < actions.size(); ++k) {
        const int32_t slot = last - 2 * static_cast<int32_t>(k);
        MW_CHECK(!slots.contains(slot), "rank {}: slot {} is taken", r, slot);
        slots.put(slot, actions[k]);
      }
    };
    put(i0, last_forward + 2 * p - r);
    put(i1, last_forward + 1 + r);
    put_w(slots, p, std::move(weights), behind);
    schedule.ranks[static_cast<size_t>(r)] = row_of(slots);
  }
}

// Moves work into idle slots before it, slot after slot, where what it needs has ended and the peak
// is kept. What a rank does between its first I and its last F of chunk 0 keeps its order: moved
// from period to period, work would leave idle time in each where F, I and W differ, but of two
// ranks.
class IdleFiller {
 public:
  IdleFiller(const Schedule& schedule, int32_t peak)
      : p_(schedule.placement.ranks),
        m_(schedule.microbatches),
        peak_(peak),
        ranks_(slots_of(schedule)),
        ended_(static_cast<size_t>(2 * p_ * m_), {-1, -1}),
        alive_(ranks_.size(), 0),
        waiting_(ranks_.size()),
        steady_(ranks_.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (int32_t slot = 0; slot < ranks_[r].end(); ++slot) {
        if (ranks_[r].contains(slot)) waiting_[r][queue_of(ranks_[r].at(slot))].push_back(slot);
      }
      if (p_ > 2) steady_[r] = {waiting_[r][kFirstI].front(), waiting_[r][kFirstF].back()};
    }
  }

  std::vector<Row> run() {
    int32_t end = 0;
    for (const Slots& slots : ranks_) end = std::max(end, slots.end());
    for (int32_t slot = 0; slot < end; ++slot) {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        const auto [from, to] = steady_[r];
        if (!ranks_[r].contains(slot) && (slot < from || to < slot)) fill(r, slot);
        if (ranks_[r].contains(slot)) note(r, slot, ranks_[r].at(slot));
      }
    }
    std::vector<Row> rows;
    for (const Slots& slots : ranks_) rows.push_back(row_of(slots));
    return rows;
  }

 private:
  // [F, I] of a stage and microbatch: the slot in which it ran; -1: not yet.
  std::array<int32_t, 2>& ended(int32_t stage, int32_t microbatch) {
    return ended_[static_cast<size_t>(stage * m_ + microbatch)];
  }
  bool ready(const Action& a, int32_t slot) {
    const int32_t s = a.stage.value;
    int32_t when = -2;  // needs nothing
    if (a.kind == ActionKind::kF && s > 0) when = ended(s - 1, a.first)[0];
    if (a.kind == ActionKind::kI)
      when = s + 1 < 2 * p_ ? ended(s + 1, a.first)[1] : ended(s, a.first)[0];
    if (a.kind == ActionKind::kW) when = ended(s, a.first)[1];
    return when == -2 || (when >= 0 && when < slot);
  }
  void note(size_t rank, int32_t slot, const Action& a) {
    if (a.kind == ActionKind::kF) ended(a.stage.value, a.first)[0] = slot;
    if (a.kind == ActionKind::kI) ended(a.stage.value, a.first)[1] = slot;
    alive_[rank] += delta(a);
    waiting_[rank][queue_of(a)].pop_front();
  }
  static constexpr size_t kFirstF = 0, kFirstI = 2, kFirstW = 4;  // queues of chunk 0
  size_t queue_of(const Action& a) const {
    const size_t first = a.kind == ActionKind::kF   ? kFirstF
                         : a.kind == ActionKind::kI ? kFirstI
                                                    : kFirstW;
    return first + (second_chunk(a, p_) ? 1 : 0);
  }
  // The first later action, one of each kind and chunk, that may run here.
  void fill(size_t rank, int32_t slot) {
    Slots& slots = ranks_[rank];
    std::vector<int32_t> heads;
    for (const std::deque<int32_t>& queue : waiting_[rank]) {
      if (!queue.empty()) heads.push_back(queue.front());
    }
    std::sort(heads.begin(), heads.end());
    int32_t alive = alive_[rank], highest = alive, at = slot + 1;
    for (const int32_t head : heads) {
      const Action action = slots.at(head);
      if (action.kind == ActionKind::kF) {
        for (; at < head; ++at) {
          if (!slots.contains(at)) continue;
          alive += delta(slots.at(at));
          highest = std::max(highest, alive);
        }
        if (highest >= peak_) continue;
      }
      if (!ready(action, slot)) continue;
      slots.put(slot, slots.take(head));
      return;
    }
  }

  int32_t p_, m_, peak_;
  std::vector<Slots> ranks_;
  std::vector<std::array<int32_t, 2>> ended_;
  std::vector<int32_t> alive_;
  // [rank][kind and chunk] the slots of what has not run
  std::vector<std::array<std::deque<int32_t>, 6>> waiting_;
  std::vector<std::pair<int32_t, int32_t>> steady_;  // [rank] first and last slot; {0, 0}: none
};

// The slots of W of chunk 0 and of chunk 1: where the block repeats, each free slot takes the W of
// the I that has waited longest.
std::pair<int32_t, int32_t> weight_slots(const BlockSlots& block, const std::array<bool, 6>& used) {
  std::array<int32_t, 2> slots{-1, -1};
  std::deque<std::pair<size_t, int32_t>> waiting;  // chunk, when its I ran
  for (int32_t slot = 0; slot < 18; ++slot) {
    if (slot % 6 == block.i0 % 6) waiting.emplace_back(0, slot);
    if (slot % 6 == block.i1 % 6) waiting.emplace_back(1, slot);
    if (used[static_cast<size_t>(slot % 6)] || waiting.empty()) continue;
    const auto [chunk, since] = waiting.front();
    waiting.pop_front();
    slots[chunk] = (chunk == 0 ? block.i0 : block.i1) + slot - since;
  }
  return {slots[0], slots[1]};
}

}  // namespace

Schedule repeat_block(const ScheduleRequest& request, const std::vector<BlockSlots>& slots) {
  const int32_t p = request.ranks;
  Schedule schedule = empty_schedule(request, folded_placement(p, 2));
  for (int32_t r = 0; r < p; ++r) {
    const BlockSlots& block = slots[static_cast<size_t>(r)];
    std::array<bool, 6> used{};
    for (const int32_t slot : {block.f0, block.f1, block.i1, block.i0}) {
      MW_CHECK(!used[static_cast<size_t>(slot % 6)], "rank {} of {}: slot {} twice", r, p, slot);
      used[static_cast<size_t>(slot % 6)] = true;
    }
    const auto [w0, w1] = weight_slots(block, used);
    Slots cells;
    const int32_t first = r, second = 2 * p - 1 - r;
    for (int32_t k = 0; k < request.microbatches; ++k) {
      const int32_t at = 6 * k;
      cells.put(at + block.f0, action_of(ActionKind::kF, first, k));
      cells.put(at + block.f1, action_of(ActionKind::kF, second, k));
      cells.put(at + block.i1, action_of(ActionKind::kI, second, k));
      cells.put(at + block.i0, action_of(ActionKind::kI, first, k));
      cells.put(at + w1, action_of(ActionKind::kW, second, k));
      cells.put(at + w0, action_of(ActionKind::kW, first, k));
    }
    schedule.ranks[static_cast<size_t>(r)] = row_of(cells);
  }
  return schedule;
}

void reorder_ends(Schedule& schedule) {
  const int32_t p = schedule.placement.ranks, peak = peak_of(schedule);
  for (int32_t r = 0; r < p; ++r) {
    Row& row = schedule.ranks[static_cast<size_t>(r)];
    row = pack_warmup(row, p, r, schedule.microbatches, peak);
  }
  schedule.ranks = IdleFiller(schedule, peak).run();
  const auto cooled = [&](bool behind) {
    Schedule way = schedule;
    tighten_cooldown(way, peak, behind);
    way.ranks = IdleFiller(way, peak).run();
    return way;
  };
  Schedule usual = cooled(false);
  if (schedule.microbatches < p) {
    // Few microbatches are often done sooner with W behind the end, from where idle slots take
    // them.
    const auto makespan = [](const Schedule& way) { return timeline(way, {}).makespan; };
    Schedule other = cooled(true);
    if (peak_of(other) <= peak_of(usual) && makespan(other) < makespan(usual))
      std::swap(usual, other);
  }
  schedule = std::move(usual);
}

}  // namespace mw::pipeline
