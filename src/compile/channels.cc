#include "compile/channels.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace mw::compile {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

// Runs the schedule in units of time and counts what every channel holds.
class SlotCounter {
 public:
  SlotCounter(const pipeline::Schedule& schedule, const std::vector<StageCode>& stages,
              const ChannelPlan& plan)
      : schedule_(schedule),
        stages_(stages),
        plan_(plan),
        next_(schedule.ranks.size(), 0),
        held_(plan.channels.size(), 0),
        most_(plan.channels.size(), 1) {
    for (size_t s = 0; s < stages.size(); ++s) find_last_readers(s);
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions) {
        if (action.kind == ActionKind::kI) split_.insert({action.stage, action.first});
      }
    }
  }

  // [channel] the most values that it holds at a time, where a backward takes `backward` times as
  // long as a forward.
  std::vector<int64_t> run(int32_t backward) {
    size_t left = 0;
    for (const auto& actions : schedule_.ranks) left += actions.size();
    std::vector<int32_t> busy(next_.size(), 0);  // units of time that a rank's action still takes
    while (left > 0) {
      bool any = false;
      // Everything that runs in a unit of time holds its inputs and outputs during all of it.
      for (size_t r = 0; r < next_.size(); ++r) {
        if (busy[r] > 0 || next_[r] == schedule_.ranks[r].size()) continue;
        const Action& action = schedule_.ranks[r][next_[r]];
        if (!can_run(action)) continue;
        busy[r] = action.kind == ActionKind::kB ? backward : 1;
        publish(action);
      }
      for (size_t c = 0; c < held_.size(); ++c) most_[c] = std::max(most_[c], held_[c]);
      for (size_t r = 0; r < next_.size(); ++r) {
        if (busy[r] == 0) continue;
        any = true;
        if (--busy[r] > 0) continue;
        finish(schedule_.ranks[r][next_[r]++]);
        --left;
      }
      MW_CHECK(any, "the order of schedule {} can never end", schedule_.name);
      // What was sent in this unit can be read from the next one on.
      published_.insert(pending_.begin(), pending_.end());
      pending_.clear();
    }
    return most_;
  }

 private:
  const StageCode& code(const Action& action) const {
    return stages_[static_cast<size_t>(action.stage.value)];
  }

  // The kind of action that reads a received value last, where the backward is B and where it is
  // I and W.
  void find_last_readers(size_t s) {
    last_reader_.emplace_back();
    for (const ActionKind kind : {ActionKind::kF, ActionKind::kI, ActionKind::kB, ActionKind::kW}) {
      const auto it = stages_[s].fragments.find(kind);
      if (it == stages_[s].fragments.end()) continue;
      for (const PortSource& source : it->second.inputs) {
        if (source.kind != PortSource::Kind::kReceive) continue;
        LastReader& last = last_reader_.back()[source.crossing];
        if (kind != ActionKind::kB) last.split = kind;
        if (kind == ActionKind::kF || kind == ActionKind::kB) last.whole = kind;
      }
    }
  }
  ChannelKey received_key(const Action& action, size_t crossing) const {
    const Crossing& from = code(action).receives[crossing];
    return {from.whole, from.peer, action.stage};
  }

  bool can_run(const Action& action) const {
    for (const PortSource& source : code(action).fragments.at(action.kind).inputs) {
      if (source.kind != PortSource::Kind::kReceive) continue;
      if (published_.count({received_key(action, source.crossing), action.first}) == 0)
        return false;
    }
    return true;
  }
  void publish(const Action& action) {
    for (const PortSource& source : code(action).fragments.at(action.kind).outputs) {
      if (source.kind != PortSource::Kind::kSend) continue;
      const Crossing& to = code(action).sends[source.crossing];
      const ChannelKey key{to.whole, action.stage, to.peer};
      if (const int32_t c = plan_.find(key); c >= 0) ++held_[static_cast<size_t>(c)];
    }
  }
  void finish(const Action& action) {
    for (const PortSource& source : code(action).fragments.at(action.kind).outputs) {
      if (source.kind != PortSource::Kind::kSend) continue;
      const Crossing& to = code(action).sends[source.crossing];
      pending_.insert({{to.whole, action.stage, to.peer}, action.first});
    }
    const bool split = split_.contains({action.stage, action.first});
    for (const auto& [crossing, last] : last_reader_[static_cast<size_t>(action.stage.value)]) {
      if ((split ? last.split : last.whole) != action.kind) continue;
      if (const int32_t c = plan_.find(received_key(action, crossing)); c >= 0)
        --held_[static_cast<size_t>(c)];
    }
  }

  const pipeline::Schedule& schedule_;
  const std::vector<StageCode>& stages_;
  const ChannelPlan& plan_;
  std::vector<size_t> next_;
  std::vector<int64_t> held_, most_;
  struct LastReader {
    ActionKind whole = ActionKind::kF, split = ActionKind::kF;
  };
  std::vector<std::map<size_t, LastReader>> last_reader_;  // [stage]
  std::set<std::pair<StageId, int32_t>> split_;            // microbatches with I and W
  std::set<std::pair<ChannelKey, int32_t>> published_, pending_;
};

// Microbatch -> place in the order in which the stage sends a crossing.
std::map<int32_t, int64_t> sequence_of(const pipeline::Schedule& schedule, const StageCode& stage,
                                       size_t s, size_t crossing) {
  const auto sends = [&](ActionKind kind) {
    const auto it = stage.fragments.find(kind);
    if (it == stage.fragments.end()) return false;
    const std::vector<PortSource>& outputs = it->second.outputs;
    return std::any_of(outputs.begin(), outputs.end(), [&](const PortSource& source) {
      return source.kind == PortSource::Kind::kSend && source.crossing == crossing;
    });
  };
  std::map<int32_t, int64_t> sequence;
  for (const Action& action :
       schedule.ranks[static_cast<size_t>(schedule.placement.rank_of_stage[s])]) {
    if (action.stage.value == static_cast<int32_t>(s) && sends(action.kind))
      sequence.emplace(action.first, static_cast<int64_t>(sequence.size()));
  }
  return sequence;
}

}  // namespace

int32_t ChannelPlan::find(const ChannelKey& key) const {
  const auto it = ids.find(key);
  return it == ids.end() ? -1 : it->second;
}

int64_t ChannelPlan::sequence(int32_t channel, int32_t microbatch) const {
  return sequences[static_cast<size_t>(channel)].at(microbatch);
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
        channel.name = fmt::format("{} {}->{}", fragment.output_name(i), s, receiver);
        channel.from = rank_of[s];
        channel.to = rank_of[receiver];
        channel.type = fragment.fragment->graph.type(fragment.fragment->outputs[i].value);
        plan.channels.push_back(std::move(channel));
        plan.sequences.push_back(sequence_of(schedule, stages[s], s, source.crossing));
      }
    }
  }
  if (stages.empty()) return plan;
  // A backward takes as long as a forward, twice as long, or three times with full recompute.
  for (const int32_t backward : {1, 2, 3}) {
    const std::vector<int64_t> slots = SlotCounter(schedule, stages, plan).run(backward);
    for (size_t c = 0; c < slots.size(); ++c) {
      plan.channels[c].slots = std::max(plan.channels[c].slots, static_cast<int32_t>(slots[c]));
    }
  }
  return plan;
}

}  // namespace mw::compile
