#include "simulate/flat_program.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/in_parallel.h"
#include "pipeline/memory_plan.h"

namespace mw::simulate {
namespace {

using pipeline::Command;
using pipeline::Program;
using pipeline::RankProgram;

class Flattener {
 public:
  Flattener(const Program& program, const FlatParts& parts) : program_(program), parts_(parts) {}

  FlatProgram make() {
    size_t commands = 0;
    for (const RankProgram& rank : program_.ranks) commands += rank.commands.size();
    const int threads = threads_for(commands);
    const size_t ranks = program_.ranks.size();
    flat_.ranks.resize(ranks);
    for (const pipeline::Channel& channel : program_.channels) {
      const int64_t bytes = channel.type.bytes().value;
      first_slots_.push_back(static_cast<int32_t>(flat_.channel_of.size()));
      flat_.channel_of.insert(flat_.channel_of.end(), static_cast<size_t>(channel.slots),
                              static_cast<int32_t>(flat_.channels.size()));
      flat_.channels.push_back({channel.from, channel.to, bytes, bytes, 0, 0});
    }
    in_parallel(ranks, threads, [&](size_t r) { flat_.ranks[r] = rank(r); });
    return std::move(flat_);
  }

 private:
  FlatRank rank(size_t r) {
    const RankProgram& from = program_.ranks[r];
    FlatRank to;
    std::vector<int32_t> known(program_.fragments.size(), -1);  // its last call here
    int32_t paired_with = -1;                                   // of the call before
    std::optional<pipeline::BufferUses> uses;
    if (parts_.uses) uses.emplace(from);
    to.commands.reserve(from.commands.size());
    for (const Command& command : from.commands) {
      int32_t index = -1;
      if (uses) uses->see(static_cast<int32_t>(to.commands.size()), command);
      if (command.kind == Command::Kind::kCall) {
        index = call(from, command, to, known[command.fragment.index()]);
        // A pair has each other's places among the rank's actions.
        if (paired_with > 0 && paired_with == command.action.paired_with + 1)
          to.calls[static_cast<size_t>(index) - 1].paired =
              static_cast<int32_t>(to.commands.size());
        paired_with = command.action.paired_with;
      } else if (command.channel >= 0) {
        const auto channel = static_cast<size_t>(command.channel);
        index = first_slots_[channel] + command.sequence % program_.channels[channel].slots;
        if (command.kind != Command::Kind::kRelease) ++to.may_wait;
      }
      to.commands.push_back({command.kind, index});
    }
    if (uses) to.uses = uses->take();
    if (parts_.memory) to.memory = pipeline::buffer_lives(program_, r, to.uses);
    to.reserved = from.state_arena.value + from.arena.value;
    for (const pipeline::Channel& channel : program_.channels) {
      if (channel.to == static_cast<int32_t>(r))
        to.reserved += channel.type.bytes().value * channel.slots;
    }
    return to;
  }

  // The call's place in FlatRank::calls: that of the last call of its fragment where they are
  // alike.
  int32_t call(const RankProgram& from, const Command& command, FlatRank& to,
               int32_t& known) const {
    const size_t bound = to.bindings.size();
    const int32_t bindings = parts_.bindings ? bind(from, command, to) : -1;
    const bool alone =
        command.action.paired_with >= 0 ||
        program_.fragments[command.fragment.index()].kind == pipeline::ActionKind::kUpdate;
    if (!alone && known >= 0) {
      const auto first = static_cast<size_t>(to.calls[static_cast<size_t>(known)].bindings);
      const auto at = [&](size_t b) {
        return to.bindings.begin() + static_cast<std::ptrdiff_t>(b);
      };
      if (bindings < 0 || std::equal(at(bound), to.bindings.end(), at(first))) {
        to.bindings.resize(bound);
        return known;
      }
    }
    const auto made = static_cast<int32_t>(to.calls.size());
    if (!alone) known = made;
    to.calls.push_back({command.fragment.value, command.fragment.value, bindings});
    return made;
  }

  int32_t bind(const RankProgram& from, const Command& command, FlatRank& to) const {
    const auto first = static_cast<int32_t>(to.bindings.size());
    const pipeline::Fragment& fragment = program_.fragments[command.fragment.index()];
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      if (fragment.inputs[i].kind == pipeline::PortKind::kState)
        to.bindings.push_back(pipeline::root_buffer(from, command.buffers[i]).value);
    }
    if (fragment.kind != pipeline::ActionKind::kUpdate) return first;
    for (size_t i = 0; i < fragment.graph.outputs.size(); ++i) {
      const BufferId buffer = command.buffers[fragment.inputs.size() + i];
      to.bindings.push_back(pipeline::root_buffer(from, buffer).value);
    }
    return first;
  }

  const Program& program_;
  const FlatParts parts_;
  std::vector<int32_t> first_slots_;  // [channel]
  FlatProgram flat_;
};

}  // namespace

FlatProgram flatten(const Program& program, const FlatParts& parts) {
  return Flattener(program, parts).make();
}

Fullest fullest_of(const FlatRank& rank, const std::vector<int64_t>& alive,
                   const std::vector<int64_t>& workspace) {
  Fullest fullest;
  for (size_t c = 0; c < rank.commands.size(); ++c) {
    const auto command = static_cast<int32_t>(c);
    int64_t inside = 0;
    if (rank.commands[c].kind == Command::Kind::kCall) {
      const FlatCall& call = rank.calls[static_cast<size_t>(rank.commands[c].index)];
      inside = rank.workspace_of(command, workspace[static_cast<size_t>(call.timed)]);
    }
    if (alive[c] + inside > fullest.bytes) fullest = {command, alive[c] + inside, inside};
  }
  return fullest;
}

}  // namespace mw::simulate
