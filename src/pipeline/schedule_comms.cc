#include "pipeline/schedule_comms.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace mw::pipeline {
namespace {

constexpr size_t kPrefetched = 3;  // stages that torch keeps gathered on a rank

bool is_forward(ActionKind kind) { return kind == ActionKind::kF; }
bool sums_gradients(ActionKind kind) { return kind == ActionKind::kW || kind == ActionKind::kB; }

// What identifies one message's payload: direction, the stage that made it, replica, microbatch,
// slice.
using Message = std::tuple<bool, int32_t, int32_t, int32_t, int32_t>;
using StageCopy = std::pair<int32_t, int32_t>;  // stage, replica

bool is_message(StepKind kind) {
  return kind == StepKind::kSendF || kind == StepKind::kRecvF || kind == StepKind::kSendB ||
         kind == StepKind::kRecvB;
}

StageCopy copy_of(const Action& action) { return {action.stage.value, action.replica}; }

// The message that an action makes, if another rank needs it, or that it needs from another rank.
class Neighbours {
 public:
  explicit Neighbours(const Schedule& schedule) : placement_(schedule.placement) {}

  struct Peer {
    int32_t rank = -1, stage = -1;
    bool remote = false;
  };
  Peer consumer(const Action& a) const { return peer(a, is_forward(a.kind) ? 1 : -1); }
  Peer producer(const Action& a) const { return peer(a, is_forward(a.kind) ? -1 : 1); }

 private:
  Peer peer(const Action& a, int32_t step) const {
    const int32_t stage = a.stage.value + step;
    if (a.kind == ActionKind::kW || stage < 0 || stage >= placement_.stages()) return {};
    const int32_t rank = placement_.rank_of(stage, a.replica);
    return {rank, stage, rank != placement_.rank_of(a.stage.value, a.replica)};
  }
  const Placement& placement_;
};

Message message_of(bool forward, int32_t maker, const Action& a) {
  return {forward, maker, a.replica, a.first, a.slice};
}

Step compute_step(const Action& action, size_t index) {
  return {.kind = StepKind::kCompute, .action = action, .index = static_cast<int32_t>(index)};
}

Step stage_step(StepKind kind, const StageCopy& copy) {
  Action action{.stage = StageId(copy.first), .replica = copy.second};
  return {.kind = kind, .action = action};
}

// The next few stages that a rank uses.
class NextStages {
 public:
  explicit NextStages(const std::vector<Action>& actions) {
    for (size_t a = actions.size(); a-- > 0;) uses_[copy_of(actions[a])].push_back(a);
  }
  // From an action on, in the order of their first use. REQUIRES: actions are asked for in order.
  std::vector<StageCopy> from(size_t action) {
    std::vector<std::pair<size_t, StageCopy>> first;
    for (auto& [copy, uses] : uses_) {
      while (!uses.empty() && uses.back() < action) uses.pop_back();
      if (!uses.empty()) first.emplace_back(uses.back(), copy);
    }
    const size_t count = std::min(kPrefetched, first.size());
    std::partial_sort(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(count),
                      first.end());
    std::vector<StageCopy> next;
    for (size_t i = 0; i < count; ++i) next.push_back(first[i].second);
    return next;
  }

 private:
  std::map<StageCopy, std::vector<size_t>> uses_;  // actions that are to come, the last first
};

// Compute with the gathers before and the reductions behind it.
std::vector<Step> with_weights(const std::vector<Action>& actions) {
  std::vector<Step> steps;
  NextStages next_stages(actions);
  std::vector<StageCopy> gathered;
  std::map<StageCopy, size_t> last_sum;  // the action after which a stage's gradients are whole
  for (size_t a = 0; a < actions.size(); ++a) {
    if (sums_gradients(actions[a].kind)) last_sum[copy_of(actions[a])] = a;
  }
  const auto drop = [&](auto unwanted) {
    std::erase_if(gathered, [&](const StageCopy& copy) {
      const bool drops = unwanted(copy);
      if (drops) steps.push_back(stage_step(StepKind::kReshard, copy));
      return drops;
    });
  };
  for (size_t a = 0; a < actions.size(); ++a) {
    const size_t end = actions[a].paired_with == static_cast<int32_t>(a) + 1 ? a + 1 : a;
    const std::vector<StageCopy> next = next_stages.from(a);
    drop([&](const StageCopy& copy) {
      return std::find(next.begin(), next.end(), copy) == next.end();
    });
    for (const StageCopy& copy : next) {
      if (std::find(gathered.begin(), gathered.end(), copy) != gathered.end()) continue;
      gathered.push_back(copy);
      steps.push_back(stage_step(StepKind::kUnshard, copy));
    }
    for (size_t part = a; part <= end; ++part) steps.push_back(compute_step(actions[part], part));
    for (size_t part = a; part <= end; ++part) {
      const auto it = last_sum.find(copy_of(actions[part]));
      if (it != last_sum.end() && it->second == part)
        steps.push_back(stage_step(StepKind::kReduceGrad, it->first));
    }
    a = end;
  }
  drop([](const StageCopy&) { return true; });
  return steps;
}

// Puts messages between the steps of all ranks: rank after rank, one step at a time.
class MessageSweep {
 public:
  MessageSweep(const Schedule& schedule, Steps steps)
      : neighbours_(schedule), in_(std::move(steps)), out_(in_.size()), at_(in_.size(), 0) {}

  Steps run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < in_.size(); ++r) moved |= step(r);
    }
    for (size_t r = 0; r < in_.size(); ++r)
      MW_CHECK(at_[r] == in_[r].size(), "rank {} waits at step {}", r, at_[r]);
    return std::move(out_);
  }

 private:
  bool ready(const Action& action) const {
    const Neighbours::Peer from = neighbours_.producer(action);
    if (from.rank < 0) return true;
    for (int32_t k = 0; k < action.count; ++k) {
      Action one = action;
      one.first += k;
      if (!made_.contains(message_of(is_forward(action.kind), from.stage, one))) return false;
    }
    return true;
  }

  bool step(size_t rank) {
    if (at_[rank] == in_[rank].size()) return false;
    const size_t first = at_[rank];
    const Step& step = in_[rank][first];
    const bool pair = step.kind == StepKind::kCompute && step.action.paired_with == step.index + 1;
    const size_t end = pair ? first + 1 : first;
    for (size_t s = first; s <= end; ++s) {
      if (in_[rank][s].kind == StepKind::kCompute && !ready(in_[rank][s].action)) return false;
    }
    for (size_t s = first; s <= end; ++s) out_[rank].push_back(in_[rank][s]);
    for (size_t s = first; s <= end; ++s) {
      if (in_[rank][s].kind == StepKind::kCompute) send(rank, in_[rank][s].action);
    }
    at_[rank] = end + 1;
    return true;
  }

  void send(size_t rank, const Action& action) {
    if (action.kind == ActionKind::kW) return;
    const bool forward = is_forward(action.kind);
    for (int32_t k = 0; k < action.count; ++k) {
      Action one = action;
      one.first += k;
      one.count = 1;
      one.paired_with = -1;
      one.kind = forward ? ActionKind::kF : ActionKind::kB;
      made_.insert(message_of(forward, one.stage.value, one));
      const Neighbours::Peer to = neighbours_.consumer(one);
      if (!to.remote) continue;
      out_[rank].push_back({.kind = forward ? StepKind::kSendF : StepKind::kSendB, .action = one});
      one.stage = StageId(to.stage);
      out_[static_cast<size_t>(to.rank)].push_back(
          {.kind = forward ? StepKind::kRecvF : StepKind::kRecvB, .action = one});
    }
  }

  Neighbours neighbours_;
  Steps in_, out_;
  std::vector<size_t> at_;
  std::set<Message> made_;
};

bool has_messages(const Steps& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const std::vector<Step>& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const Step& s) { return is_message(s.kind); });
  });
}

class StepChecker {
 public:
  StepChecker(const Schedule& schedule, const Steps& steps)
      : schedule_(schedule),
        steps_(steps),
        neighbours_(schedule),
        has_messages_(has_messages(steps)) {}

  std::vector<std::string> run() {
    for (size_t r = 0; r < steps_.size(); ++r) collect(r);
    for (const auto& [message, place] : sent_) {
      if (!received_.contains(message)) complain(place, "is received nowhere");
    }
    for (const auto& [message, place] : received_) {
      if (!sent_.contains(message)) complain(place, "is sent nowhere");
    }
    if (reduces_) {
      for (const auto& [copy, place] : unreduced_)
        complain(place,
                 "is the last of a stage whose gradients no REDUCE_GRAD reduces, as it does "
                 "others'");
    }
    if (out_.empty()) check_order();
    if (out_.empty()) check_progress();
    return out_.first(kMostFindings);
  }

 private:
  struct Place {
    size_t rank = 0, index = 0;
  };

  template <typename... Args>
  void complain(Place place, const std::string& what) {
    out_.add("rank {} step {} ({}) {}", place.rank, place.index,
             to_string(steps_[place.rank][place.index]), what);
  }

  // The payload of a message step, named after the stage that makes it.
  Message message(const Step& step) const {
    const bool forward = step.kind == StepKind::kSendF || step.kind == StepKind::kRecvF;
    const bool receives = step.kind == StepKind::kRecvF || step.kind == StepKind::kRecvB;
    const int32_t maker = step.action.stage.value + (receives ? (forward ? -1 : 1) : 0);
    return message_of(forward, maker, step.action);
  }

  void collect(size_t rank) {
    std::set<Message> made, received;
    std::map<StageCopy, bool> reduced;
    std::map<StageCopy, bool> whole;  // of the stages whose weights the row gathers at all
    std::set<StageCopy> lacking;      // told at the first action of several that need one gather
    for (const Step& step : steps_[rank]) {
      if (step.kind == StepKind::kUnshard || step.kind == StepKind::kReshard)
        whole[copy_of(step.action)] = false;
    }
    for (size_t i = 0; i < steps_[rank].size(); ++i) {
      const Step& step = steps_[rank][i];
      const Place here{rank, i};
      switch (step.kind) {
        case StepKind::kCompute:
          if (const auto it = whole.find(copy_of(step.action));
              it != whole.end() && !it->second && lacking.insert(it->first).second)
            complain(here, "needs its stage's weights, which UNSHARD has not gathered before it");
          collect_compute(here, made, received, reduced);
          break;
        case StepKind::kSendF:
        case StepKind::kSendB:
          if (!made.contains(message(step))) complain(here, "comes before the work that makes it");
          if (!sent_.emplace(message(step), here).second) complain(here, "is sent twice");
          break;
        case StepKind::kRecvF:
        case StepKind::kRecvB:
          check_host(here);
          received.insert(message(step));
          if (!received_.emplace(message(step), here).second) complain(here, "is received twice");
          break;
        case StepKind::kUnshard:
        case StepKind::kReshard: {
          check_host(here);
          bool& gathered = whole[copy_of(step.action)];
          lacking.erase(copy_of(step.action));
          const bool gathers = step.kind == StepKind::kUnshard;
          if (gathered == gathers)
            complain(here, gathers ? "comes while the weights are gathered"
                                   : "comes while the weights are not gathered");
          gathered = gathers;
          break;
        }
        case StepKind::kReduceGrad:
          check_host(here);
          if (!reduced.emplace(copy_of(step.action), true).second)
            complain(here, "reduces gradients that were reduced before");
          break;
      }
    }
    reduces_ = reduces_ || !reduced.empty();
    std::map<StageCopy, Place> summed;
    for (size_t i = 0; i < steps_[rank].size(); ++i) {
      const Step& step = steps_[rank][i];
      if (step.kind == StepKind::kCompute && sums_gradients(step.action.kind))
        summed[copy_of(step.action)] = Place{rank, i};
    }
    for (const auto& [copy, last] : summed) {
      if (!reduced.contains(copy)) unreduced_.emplace_back(copy, last);
    }
  }

  void check_host(Place here) {
    const Action& a = steps_[here.rank][here.index].action;
    const Placement& placement = schedule_.placement;
    const bool known =
        a.stage.valid() && a.stage.value < placement.stages() && a.replica < placement.replicas();
    if (!known || placement.rank_of(a.stage.value, a.replica) != static_cast<int32_t>(here.rank))
      complain(here, "is of a stage that this rank does not host");
  }

  void collect_compute(Place here, std::set<Message>& made, const std::set<Message>& received,
                       const std::map<StageCopy, bool>& reduced) {
    const Action& action = steps_[here.rank][here.index].action;
    if (sums_gradients(action.kind) && reduced.contains(copy_of(action)))
      complain(here, "comes after its stage's gradients were reduced");
    if (action.kind == ActionKind::kW || !has_messages_) return;
    const Neighbours::Peer from = neighbours_.producer(action), to = neighbours_.consumer(action);
    for (int32_t k = 0; k < action.count; ++k) {
      Action one = action;
      one.first += k;
      const Message need = message_of(is_forward(action.kind), from.stage, one);
      if (from.remote && !received.contains(need))
        complain(here, "has not received what it needs before it");
      const Message makes = message_of(is_forward(action.kind), action.stage.value, one);
      made.insert(makes);
      if (to.remote) needed_.emplace(makes, here);
    }
  }

  // Messages from one rank to another are received in the order in which they are sent.
  void check_order() {
    for (const auto& [message, place] : needed_) {
      if (!sent_.contains(message)) complain(place, "makes what is sent nowhere");
    }
    for (const auto& [message, place] : sent_) {
      if (!needed_.contains(message))
        complain(place, "is between stages of one rank, which need no message");
    }
    std::map<std::pair<size_t, size_t>, std::vector<Message>> sent;
    std::map<std::pair<size_t, size_t>, size_t> next;
    for (size_t r = 0; r < steps_.size(); ++r) {
      for (const Step& step : steps_[r]) {
        if (step.kind != StepKind::kSendF && step.kind != StepKind::kSendB) continue;
        sent[{r, received_.at(message(step)).rank}].push_back(message(step));
      }
    }
    for (size_t r = 0; r < steps_.size(); ++r) {
      for (size_t i = 0; i < steps_[r].size(); ++i) {
        const Step& step = steps_[r][i];
        if (step.kind != StepKind::kRecvF && step.kind != StepKind::kRecvB) continue;
        const std::pair<size_t, size_t> link{sent_.at(message(step)).rank, r};
        const Message due = sent[link][next[link]++];
        if (due == message(step)) continue;
        const Place sender = sent_.at(due);
        complain({r, i}, fmt::format("is received where rank {} sends {}", sender.rank,
                                     to_string(steps_[sender.rank][sender.index])));
        return;
      }
    }
  }

  // Where the message that a step waits for is sent, if ranks have come to `at` and that is not
  // done: neither sends nor receives wait, but the work that needs what is received
  // [torch.distributed.pipelining schedules.py, _PipelineScheduleRuntime].
  std::optional<Place> awaited(const Step& step, const std::vector<size_t>& at) const {
    if (step.kind != StepKind::kCompute || step.action.kind == ActionKind::kW) return std::nullopt;
    const Neighbours::Peer from = neighbours_.producer(step.action);
    for (int32_t k = 0; from.remote && k < step.action.count; ++k) {
      Action one = step.action;
      one.first += k;
      const Place sent = sent_.at(message_of(is_forward(one.kind), from.stage, one));
      if (at[sent.rank] <= sent.index) return sent;
    }
    return std::nullopt;
  }

  void check_progress() {
    if (!has_messages_) return;
    std::vector<size_t> at(steps_.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < steps_.size(); ++r) {
        for (; at[r] < steps_[r].size() && !awaited(steps_[r][at[r]], at); ++at[r]) moved = true;
      }
    }
    for (size_t r = 0; r < steps_.size(); ++r) {
      if (at[r] == steps_[r].size()) continue;
      const Place from = *awaited(steps_[r][at[r]], at);
      complain({r, at[r]}, fmt::format("waits forever for {} of rank {}",
                                       to_string(steps_[from.rank][from.index]), from.rank));
    }
  }

  const Schedule& schedule_;
  const Steps& steps_;
  Neighbours neighbours_;
  bool has_messages_;
  std::map<Message, Place> sent_, received_;
  bool reduces_ = false;                                // a row has REDUCE_GRAD
  std::vector<std::pair<StageCopy, Place>> unreduced_;  // without one: its last action
  std::map<Message, Place> needed_;                     // what an action makes for another rank
  Diagnostics out_;
};

const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::kCompute: return "";
    case StepKind::kSendF: return "SEND_F";
    case StepKind::kRecvF: return "RECV_F";
    case StepKind::kSendB: return "SEND_B";
    case StepKind::kRecvB: return "RECV_B";
    case StepKind::kUnshard: return "UNSHARD";
    case StepKind::kReshard: return "RESHARD";
    case StepKind::kReduceGrad: return "REDUCE_GRAD";
  }
  return "?";
}

}  // namespace

Steps with_communication(const Schedule& schedule) {
  Steps steps;
  for (const std::vector<Action>& actions : schedule.ranks) steps.push_back(with_weights(actions));
  return MessageSweep(schedule, std::move(steps)).run();
}

std::vector<std::string> findings(const Schedule& schedule, const Steps& steps) {
  return StepChecker(schedule, steps).run();
}

std::string to_string(const Step& step) {
  if (step.kind == StepKind::kCompute) return to_string(step.action);
  std::string text = std::to_string(step.action.stage.value) + name_of(step.kind);
  if (is_message(step.kind)) {
    text += std::to_string(step.action.first);
    if (step.action.slice >= 0) text += fmt::format("/{}", step.action.slice);
  }
  if (step.action.replica != 0) text += fmt::format("^{}", step.action.replica);
  return text;
}

std::string to_csv(const Schedule& schedule, const Steps& steps) {
  MW_CHECK(schedule.ranks.size() == steps.size(), "{} ranks, steps of {}", schedule.ranks.size(),
           steps.size());
  std::string text;
  for (const std::vector<Step>& rank : steps) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < rank.size(); ++i) {
      const Step& step = rank[i];
      const bool pair =
          step.kind == StepKind::kCompute && step.action.paired_with == step.index + 1;
      if (pair) {
        cells.push_back(fmt::format("({};{})OVERLAP_F_B", to_string(step), to_string(rank[i + 1])));
        ++i;
      } else {
        cells.push_back(to_string(step));
      }
    }
    text += join(cells, ",") + "\n";
  }
  return text;
}

}  // namespace mw::pipeline
