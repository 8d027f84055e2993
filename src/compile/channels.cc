#include "compile/channels.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "pipeline/schedule_timeline.h"

namespace mw::compile {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

constexpr size_t kWorkKinds = 4;  // F, I, W, B: the first of ActionKind

// What an action of one kind does to the crossings of its stage, by their numbers.
struct CrossingUse {
  std::vector<int32_t> reads, sends;
  // Those that it reads last where the microbatch's backward is B, and where it is I and W.
  std::vector<int32_t> last_whole, last_split;
};

// Runs the schedule in units of time and counts what every channel holds.
class SlotCounter {
 public:
  SlotCounter(const pipeline::Schedule& schedule, const std::vector<StageCode>& stages,
              const ChannelPlan& plan)
      : schedule_(schedule),
        plan_(plan),
        microbatches_(static_cast<size_t>(schedule.microbatches)),
        split_(stages.size() * microbatches_, false),
        most_(plan.channels.size(), 1) {
    for (size_t s = 0; s < stages.size(); ++s) find_uses(s, stages[s], plan);
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::kI) split_[unit(action)] = true;
      }
    }
  }

  // [channel] the most slots that it takes at a time in any run so far, where a backward takes
  // `backward` times as long as a forward.
  const std::vector<int32_t>& run(int32_t backward) {
    held_.assign(most_.size(), Held());
    for (size_t c = 0; c < held_.size(); ++c)
      held_[c].is_over.assign(plan_.microbatches[c].size(), false);
    published_.assign(numbers_.size() * microbatches_, false);
    std::vector<size_t> next(schedule_.ranks.size(), 0);
    size_t left = 0;
    for (const auto& actions : schedule_.ranks) left += actions.size();
    std::vector<int32_t> busy(next.size(), 0);  // units of time that a rank's action still takes
    while (left > 0) {
      bool any = false;
      // Everything that runs in a unit of time holds its inputs and outputs during all of it.
      for (size_t r = 0; r < next.size(); ++r) {
        if (busy[r] > 0 || next[r] == schedule_.ranks[r].size()) continue;
        const Action& action = schedule_.ranks[r][next[r]];
        if (!can_run(action)) continue;
        const bool grows = action.kind == ActionKind::kB || action.kind == ActionKind::kI;
        busy[r] = grows ? backward : 1;
        hold(action);
      }
      for (size_t c = 0; c < held_.size(); ++c) most_[c] = std::max(most_[c], held_[c].slots());
      for (size_t r = 0; r < next.size(); ++r) {
        if (busy[r] == 0) continue;
        any = true;
        if (--busy[r] > 0) continue;
        finish(schedule_.ranks[r][next[r]++]);
        --left;
      }
      MW_CHECK(any, "the order of schedule {} can never end", schedule_.name);
      // What was sent in this unit can be read from the next one on.
      for (const size_t message : pending_) published_[message] = true;
      pending_.clear();
    }
    return most_;
  }

 private:
  int32_t number(const ChannelKey& key, const ChannelPlan& plan) {
    const auto [it, is_new] = numbers_.try_emplace(key, static_cast<int32_t>(numbers_.size()));
    if (is_new) channel_.push_back(plan.find(key));
    return it->second;
  }

  void find_uses(size_t s, const StageCode& stage, const ChannelPlan& plan) {
    const StageId id(static_cast<int64_t>(s));
    auto& uses = uses_.emplace_back();
    // The kind of action that reads a received value last, where the backward is B and where it is
    // I and W.
    std::map<int32_t, ActionKind> whole, split;
    for (const ActionKind kind : {ActionKind::kF, ActionKind::kI, ActionKind::kB, ActionKind::kW}) {
      const auto it = stage.fragments.find(kind);
      if (it == stage.fragments.end()) continue;
      CrossingUse& use = uses[static_cast<size_t>(kind)];
      for (const PortSource& source : it->second.inputs) {
        if (source.kind != PortSource::Kind::kReceive) continue;
        const Crossing& from = stage.receives[source.crossing];
        const int32_t n = number({from.whole, from.peer, id}, plan);
        use.reads.push_back(n);
        if (kind != ActionKind::kB) split[n] = kind;
        if (kind == ActionKind::kF || kind == ActionKind::kB) whole[n] = kind;
      }
      for (const PortSource& source : it->second.outputs) {
        if (source.kind != PortSource::Kind::kSend) continue;
        const Crossing& to = stage.sends[source.crossing];
        use.sends.push_back(number({to.whole, id, to.peer}, plan));
      }
    }
    for (const auto& [n, kind] : whole) uses[static_cast<size_t>(kind)].last_whole.push_back(n);
    for (const auto& [n, kind] : split) uses[static_cast<size_t>(kind)].last_split.push_back(n);
  }

  const CrossingUse& use(const Action& action) const {
    return uses_[action.stage.index()][static_cast<size_t>(action.kind)];
  }
  size_t unit(const Action& action) const {
    return action.stage.index() * microbatches_ + static_cast<size_t>(action.first);
  }
  size_t message(int32_t number, const Action& action) const {
    return static_cast<size_t>(number) * microbatches_ + static_cast<size_t>(action.first);
  }

  bool can_run(const Action& action) const {
    const std::vector<int32_t>& reads = use(action).reads;
    return std::all_of(reads.begin(), reads.end(),
                       [&](int32_t n) { return published_[message(n, action)]; });
  }
  // Messages of a channel that were begun, and the oldest that is not over.
  struct Held {
    int32_t begun = 0, oldest = 0;
    std::vector<bool> is_over;  // [place]
    int32_t slots() const { return begun - oldest; }
  };
  void hold(const Action& action) {
    for (const int32_t n : use(action).sends) {
      const int32_t c = channel_[static_cast<size_t>(n)];
      if (c >= 0) ++held_[static_cast<size_t>(c)].begun;
    }
  }
  void let_go(int32_t number, const Action& action) {
    const int32_t c = channel_[static_cast<size_t>(number)];
    if (c < 0) return;
    Held& held = held_[static_cast<size_t>(c)];
    held.is_over[static_cast<size_t>(plan_.sequence(c, action.first))] = true;
    while (held.oldest < held.begun && held.is_over[static_cast<size_t>(held.oldest)])
      ++held.oldest;
  }
  void finish(const Action& action) {
    for (const int32_t n : use(action).sends) pending_.push_back(message(n, action));
    const CrossingUse& here = use(action);
    for (const int32_t n : split_[unit(action)] ? here.last_split : here.last_whole)
      let_go(n, action);
  }

  const pipeline::Schedule& schedule_;
  const ChannelPlan& plan_;
  size_t microbatches_;
  std::vector<bool> split_;                                // [stage, microbatch] has I and W
  std::vector<std::array<CrossingUse, kWorkKinds>> uses_;  // [stage][kind]
  std::map<ChannelKey, int32_t> numbers_;
  std::vector<int32_t> channel_;  // [number] -1: both stages are on one rank
  std::vector<Held> held_;
  std::vector<int32_t> most_;
  std::vector<bool> published_;  // [number, microbatch]
  std::vector<size_t> pending_;
};

// [microbatch] place in the order in which the stage sends a crossing; -1: it does not.
std::vector<int32_t> sequence_of(const pipeline::Schedule& schedule, const StageCode& stage,
                                 size_t s, size_t crossing) {
  std::array<bool, kWorkKinds> sends{};
  for (const auto& [kind, fragment] : stage.fragments) {
    sends[static_cast<size_t>(kind)] = std::any_of(
        fragment.outputs.begin(), fragment.outputs.end(), [&](const PortSource& source) {
          return source.kind == PortSource::Kind::kSend && source.crossing == crossing;
        });
  }
  std::vector<int32_t> sequence(static_cast<size_t>(schedule.microbatches), -1);
  int32_t sent = 0;
  for (const Action& action :
       schedule.ranks[static_cast<size_t>(schedule.placement.rank_of_stage[s])]) {
    if (action.stage.index() == s && sends[static_cast<size_t>(action.kind)])
      sequence[static_cast<size_t>(action.first)] = sent++;
  }
  return sequence;
}

// [place] microbatch.
std::vector<int32_t> in_order(const std::vector<int32_t>& sequence) {
  const auto sent =
      std::count_if(sequence.begin(), sequence.end(), [](int32_t n) { return n >= 0; });
  std::vector<int32_t> microbatches(static_cast<size_t>(sent));
  for (size_t m = 0; m < sequence.size(); ++m) {
    if (sequence[m] >= 0) microbatches[static_cast<size_t>(sequence[m])] = static_cast<int32_t>(m);
  }
  return microbatches;
}

}  // namespace

int32_t ChannelPlan::find(const ChannelKey& key) const {
  const auto it = ids.find(key);
  return it == ids.end() ? -1 : it->second;
}

int32_t ChannelPlan::sequence(int32_t channel, int32_t microbatch) const {
  const int32_t place = sequences[static_cast<size_t>(channel)][static_cast<size_t>(microbatch)];
  MW_CHECK(place >= 0, "channel {} does not carry microbatch {}",
           channels[static_cast<size_t>(channel)].name, microbatch);
  return place;
}

ChannelPlan plan_channels(const pipeline::Schedule& schedule,
                          const std::vector<StageCode>& stages) {
  ChannelPlan plan;
  const std::vector<int32_t>& rank_of = schedule.placement.rank_of_stage;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [kind, fragment] : stages[s].fragments) {
      for (size_t i = 0; i < fragment.outputs.size(); ++i) {
        const PortSource& source = fragment.outputs[i];
        if (source.kind != PortSource::Kind::kSend) continue;
        const Crossing& to = stages[s].sends[source.crossing];
        const auto receiver = static_cast<size_t>(to.peer.value);
        if (rank_of[s] == rank_of[receiver]) continue;
        const ChannelKey key{to.whole, StageId(static_cast<int64_t>(s)), to.peer};
        // I and B send the same value.
        if (!plan.ids.emplace(key, static_cast<int32_t>(plan.channels.size())).second) continue;
        pipeline::Channel channel;
        channel.name = fmt::format("{} {}->{}", fragment.output_name(i), stages[s].name,
                                   stages[receiver].name);
        channel.from = rank_of[s];
        channel.to = rank_of[receiver];
        channel.type = fragment.fragment->graph.type(fragment.fragment->outputs[i].value);
        plan.channels.push_back(std::move(channel));
        plan.sequences.push_back(sequence_of(schedule, stages[s], s, source.crossing));
        plan.microbatches.push_back(in_order(plan.sequences.back()));
      }
    }
  }
  if (stages.empty()) return plan;
  SlotCounter counter(schedule, stages, plan);
  for (const int32_t backward : pipeline::kBackwardTimes) {
    const std::vector<int32_t>& slots = counter.run(backward);
    for (size_t c = 0; c < slots.size(); ++c) plan.channels[c].slots = slots[c];
  }
  return plan;
}

}  // namespace mw::compile
