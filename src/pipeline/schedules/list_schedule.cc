#include "pipeline/schedules/list_schedule.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace mw::pipeline {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

// The work of one kind of one stage and replica, in order.
struct Queue {
  std::vector<Action> actions;
  size_t next = 0;
  ListRules::Key key;  // of the next
};

class ListScheduler {
 public:
  ListScheduler(Schedule& schedule, const std::vector<std::vector<Action>>& forwards,
                const ListRules& rules)
      : schedule_(schedule),
        rules_(rules),
        stages_(schedule.placement.stages()),
        ended_(static_cast<size_t>(2 * stages_ * schedule.microbatches), kNever),
        free_(schedule.ranks.size(), 0),
        look_at_(schedule.ranks.size(), 0),
        work_left_(schedule.ranks.size(), 0),
        alive_(schedule.ranks.size(), 0),
        queues_(schedule.ranks.size()) {
    for (size_t j = 0; j < forwards.size(); ++j) {
      for (int32_t s = 0; s < stages_; ++s) add_queues(s, static_cast<int32_t>(j), forwards[j]);
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
    return ListOutcome{*std::max_element(free_.begin(), free_.end()), most_alive_};
  }

 private:
  void add_queues(int32_t stage, int32_t replica, const std::vector<Action>& forwards) {
    Queue f, b;
    size_t backwards = 0;
    for (const Action& action : forwards) backwards += static_cast<size_t>(action.count);
    f.actions.reserve(forwards.size());
    b.actions.reserve(backwards);
    for (Action action : forwards) {
      action.stage = StageId(stage);
      action.replica = replica;
      f.actions.push_back(action);
      for (int32_t k = 0; k < action.count; ++k)
        b.actions.push_back(action_of(ActionKind::kB, stage, action.first + k, replica));
    }
    left_ += f.actions.size() + b.actions.size();
    const auto rank = static_cast<size_t>(schedule_.placement.rank_of(stage, replica));
    std::vector<Action>& order = schedule_.ranks[rank];
    order.reserve(order.capacity() + f.actions.size() + b.actions.size());
    for (Queue* queue : {&f, &b}) {
      for (const Action& action : queue->actions) work_left_[rank] += time_of(action);
      find_key(*queue);
      queues_[rank].push_back(std::move(*queue));
    }
  }

  int32_t time_of(const Action& action) const {
    return (action.kind == ActionKind::kB ? rules_.b : rules_.f) * action.count;
  }

  void find_key(Queue& queue) const {
    if (queue.next < queue.actions.size())
      queue.key = rules_.rank_of_action(queue.actions[queue.next]);
  }

  int32_t& ended(bool backward, int32_t stage, int32_t microbatch) {
    return ended_[static_cast<size_t>((2 * stage + (backward ? 1 : 0)) * schedule_.microbatches +
                                      microbatch)];
  }

  // When it may begin, as far as is known; kNever: what it waits for has not begun.
  int32_t ready_at(const Action& action, size_t rank) {
    const int32_t s = action.stage.value;
    if (action.kind == ActionKind::kF) {
      if (alive_[rank] + action.count > rules_.most_alive[action.stage.index()]) return kNever;
      return s == 0 ? 0 : ended(false, s - 1, action.first);
    }
    const int32_t forward = ended(false, s, action.first);
    return s + 1 == stages_ ? forward : std::max(forward, ended(true, s + 1, action.first));
  }

  // If nothing is ready the rank looks again when something will be; a rank that begins tells those
  // whose work waits for its own.
  void begin_best(size_t rank, int32_t now) {
    Queue* best = nullptr;
    int32_t soonest = kNever;
    for (Queue& queue : queues_[rank]) {
      if (queue.next == queue.actions.size() || (best != nullptr && !(queue.key < best->key)))
        continue;
      const int32_t at = ready_at(queue.actions[queue.next], rank);
      if (at <= now) best = &queue;
      soonest = std::min(soonest, at);
    }
    if (best == nullptr) {
      look_at_[rank] = soonest;
      return;
    }
    const Action& action = best->actions[best->next++];
    find_key(*best);
    const bool backward = action.kind == ActionKind::kB;
    free_[rank] = now + time_of(action);
    work_left_[rank] -= time_of(action);
    look_at_[rank] = free_[rank];
    alive_[rank] += backward ? -action.count : action.count;
    most_alive_ = std::max(most_alive_, alive_[rank]);
    for (int32_t k = 0; k < action.count; ++k)
      ended(backward, action.stage.value, action.first + k) = free_[rank];
    const int32_t next = action.stage.value + (backward ? -1 : 1);
    if (0 <= next && next < stages_) {
      const auto other = static_cast<size_t>(schedule_.placement.rank_of(next, action.replica));
      look_at_[other] = std::min(look_at_[other], std::max(free_[other], free_[rank]));
    }
    schedule_.ranks[rank].push_back(action);
    --left_;
  }

  Schedule& schedule_;
  const ListRules& rules_;
  int32_t stages_;
  std::vector<int32_t> ended_;           // [stage][F, B][microbatch]
  std::vector<int32_t> free_, look_at_;  // [rank] when it is free, and will look for work
  std::vector<int32_t> work_left_, alive_;
  std::vector<std::vector<Queue>> queues_;  // [rank]
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
