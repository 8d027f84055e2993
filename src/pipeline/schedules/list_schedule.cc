#include "pipeline/schedules/list_schedule.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace mw::pipeline {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

// As one integer of the same order, compared without a branch.
__extension__ using PackedKey = unsigned __int128;
PackedKey packed(const ListRules::Key& key) {
  const auto [a, b, c, d] = key;
  PackedKey made = 0;
  for (const int32_t part : {a, b, c, d})
    made = made << 32 | (static_cast<uint32_t>(part) ^ uint32_t{1} << 31);
  return made;
}

// The work of one kind of one stage and replica, in order: what a rank looks at of the next action.
struct Queue {
  PackedKey key = 0;
  // When what it waits for ends, as far as is known; kNever if none is left.
  int32_t ready = kNever;
  int32_t room = kNever;  // it begins where no more than so many are alive
};
// Whose it is.
struct Owner {
  int32_t stage = 0, replica = 0;
  bool backward = false;
  uint32_t next = 0;  // of its actions
};

class ListScheduler {
 public:
  ListScheduler(Schedule& schedule, const std::vector<std::vector<Action>>& forwards,
                const ListRules& rules)
      : schedule_(schedule),
        rules_(rules),
        stages_(schedule.placement.stages()),
        forwards_(forwards),
        backwards_(forwards.size()),
        ended_(static_cast<size_t>(2 * stages_ * schedule.microbatches), kNever),
        free_(schedule.ranks.size(), 0),
        look_at_(schedule.ranks.size(), 0),
        work_left_(schedule.ranks.size(), 0),
        alive_(schedule.ranks.size(), 0),
        queues_(schedule.ranks.size()),
        owners_(schedule.ranks.size()),
        begun_(schedule.ranks.size()) {
    for (size_t j = 0; j < forwards.size(); ++j) {
      for (const Action& action : forwards[j]) {
        for (int32_t k = 0; k < action.count; ++k) backwards_[j].push_back(action.first + k);
      }
      for (int32_t s = 0; s < stages_; ++s) add_queues(s, static_cast<int32_t>(j));
    }
  }

  // Empty: it would take as long as `rules_.sooner_than`, or hold more than `rules_.alive_at_most`,
  // or all wait for room that nothing makes.
  std::optional<ListOutcome> run() {
    for (int32_t now = 0; left_ > 0;) {
      // What a rank begins now is not ready for the others before it has ended.
      for (size_t r = 0; r < queues_.size(); ++r) {
        if (look_at_[r] <= now) begin_best(r, now);
        if (free_[r] + work_left_[r] >= rules_.sooner_than) return {};
      }
      if (most_alive_ > rules_.alive_at_most) return {};
      now = *std::min_element(look_at_.begin(), look_at_.end());
      if (left_ > 0 && now == kNever) return {};
    }
    fill_schedule();
    return ListOutcome{*std::max_element(free_.begin(), free_.end()), most_alive_};
  }

 private:
  void add_queues(int32_t stage, int32_t replica) {
    const auto rank = static_cast<size_t>(schedule_.placement.rank_of(stage, replica));
    queue_of_.push_back(static_cast<uint32_t>(queues_[rank].size()));
    for (const bool backward : {false, true}) {
      owners_[rank].push_back({stage, replica, backward});
      queues_[rank].emplace_back();
      show_next(rank, queues_[rank].size() - 1);
      const size_t count = actions_of(owners_[rank].back());
      begun_[rank].reserve(begun_[rank].capacity() + count);
      left_ += count;
    }
    const size_t microbatches = backwards_[static_cast<size_t>(replica)].size();
    work_left_[rank] += (rules_.f + rules_.b) * static_cast<int32_t>(microbatches);
  }
  size_t actions_of(const Owner& owner) const {
    const auto j = static_cast<size_t>(owner.replica);
    return owner.backward ? backwards_[j].size() : forwards_[j].size();
  }

  Action next_of(const Owner& owner) const {
    const auto j = static_cast<size_t>(owner.replica);
    if (owner.backward)
      return action_of(ActionKind::kB, owner.stage, backwards_[j][owner.next], owner.replica);
    Action action = forwards_[j][owner.next];
    action.stage = StageId(owner.stage);
    action.replica = owner.replica;
    return action;
  }

  int32_t& ended(bool backward, int32_t stage, int32_t microbatch) {
    return ended_[static_cast<size_t>((2 * stage + (backward ? 1 : 0)) * schedule_.microbatches +
                                      microbatch)];
  }
  int32_t ready_at(const Owner& owner, int32_t microbatch) {
    const int32_t s = owner.stage;
    if (!owner.backward) return s == 0 ? 0 : ended(false, s - 1, microbatch);
    const int32_t forward = ended(false, s, microbatch);
    return s + 1 == stages_ ? forward : std::max(forward, ended(true, s + 1, microbatch));
  }

  // Of the queue's next action.
  void show_next(size_t rank, size_t q) {
    Queue& queue = queues_[rank][q];
    const Owner& owner = owners_[rank][q];
    if (owner.next == actions_of(owner)) {
      queue.ready = kNever;
      return;
    }
    const Action action = next_of(owner);
    queue.key = packed(rules_.rank_of_action(action));
    queue.ready = ready_at(owner, action.first);
    if (!owner.backward) queue.room = rules_.most_alive[action.stage.index()] - action.count;
  }

  // If nothing is ready the rank looks again when something will be.
  void begin_best(size_t rank, int32_t now) {
    const std::vector<Queue>& queues = queues_[rank];
    size_t best = queues.size();
    int32_t soonest = kNever;
    for (size_t q = 0; q < queues.size(); ++q) {
      if (best < queues.size() && !(queues[q].key < queues[best].key)) continue;
      const int32_t at = alive_[rank] <= queues[q].room ? queues[q].ready : kNever;
      if (at <= now) best = q;
      soonest = std::min(soonest, at);
    }
    if (best == queues.size()) {
      look_at_[rank] = soonest;
      return;
    }
    begin(rank, best, now);
  }

  // The queue's next action. Whose work waits for it is told.
  void begin(size_t rank, size_t q, int32_t now) {
    Owner& owner = owners_[rank][q];
    const Action action = next_of(owner);
    const int32_t takes = (owner.backward ? rules_.b : rules_.f) * action.count;
    free_[rank] = now + takes;
    work_left_[rank] -= takes;
    look_at_[rank] = free_[rank];
    alive_[rank] += owner.backward ? -action.count : action.count;
    most_alive_ = std::max(most_alive_, alive_[rank]);
    for (int32_t k = 0; k < action.count; ++k)
      ended(owner.backward, owner.stage, action.first + k) = free_[rank];
    ++owner.next;
    show_next(rank, q);
    begun_[rank].push_back(static_cast<uint32_t>(q));
    --left_;
    // A last forward's backward is on the same stage.
    const bool turns = !owner.backward && owner.stage + 1 == stages_;
    const int32_t next = owner.stage + (turns ? 0 : owner.backward ? -1 : 1);
    if (next < 0) return;
    const auto other = static_cast<size_t>(schedule_.placement.rank_of(next, owner.replica));
    show_next(other, queue_of_[static_cast<size_t>(owner.replica * stages_ + next)] +
                         (owner.backward || turns ? 1 : 0));
    if (!turns) look_at_[other] = std::min(look_at_[other], std::max(free_[other], free_[rank]));
  }

  void fill_schedule() {
    for (size_t r = 0; r < begun_.size(); ++r) {
      for (Owner& owner : owners_[r]) owner.next = 0;
      schedule_.ranks[r].reserve(begun_[r].size());
      for (const uint32_t q : begun_[r]) {
        schedule_.ranks[r].push_back(next_of(owners_[r][q]));
        ++owners_[r][q].next;
      }
    }
  }

  Schedule& schedule_;
  const ListRules& rules_;
  int32_t stages_;
  const std::vector<std::vector<Action>>& forwards_;  // [replica]
  std::vector<std::vector<int32_t>> backwards_;       // [replica] microbatches
  std::vector<int32_t> ended_;                        // [stage][F, B][microbatch]
  std::vector<int32_t> free_, look_at_;  // [rank] when it is free, and will look for work
  std::vector<int32_t> work_left_, alive_;
  std::vector<std::vector<Queue>> queues_;    // [rank]
  std::vector<std::vector<Owner>> owners_;    // [rank][queue]
  std::vector<std::vector<uint32_t>> begun_;  // [rank] queues in order
  std::vector<uint32_t> queue_of_;            // [replica][stage] F's queue, before B's
  size_t left_ = 0;
  int32_t most_alive_ = 0;
};

}  // namespace

std::optional<ListOutcome> list_schedule(Schedule& schedule,
                                         const std::vector<std::vector<Action>>& forwards,
                                         const ListRules& rules) {
  return ListScheduler(schedule, forwards, rules).run();
}

}  // namespace mw::pipeline
