#include "simulate/flat_program.h"

#include <algorithm>

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
  Flattener(const Program& program, bool bindings, bool memory)
      : program_(program), bindings_(bindings), memory_(memory) {}

  FlatProgram make() {
    size_t commands = 0;
    for (const RankProgram& rank : program_.ranks) commands += rank.commands.size();
    const int threads = threads_for(commands);
    number_messages(threads);
    for (const pipeline::Channel& channel : program_.channels) {
      const int64_t bytes = channel.type.bytes().value;
      flat_.channels.push_back({channel.from, channel.to, bytes, bytes, 0, 0});
    }
    flat_.ranks.resize(program_.ranks.size());
    in_parallel(flat_.ranks.size(), threads, [&](size_t r) { flat_.ranks[r] = rank(r); });
    return std::move(flat_);
  }

 private:
  // Messages of a channel are consecutive, by sequence. Each channel has one rank that publishes.
  void number_messages(int threads) {
    std::vector<int32_t> count(program_.channels.size(), 0);
    in_parallel(program_.ranks.size(), threads, [&](size_t r) {
      for (const Command& command : program_.ranks[r].commands) {
        if (command.kind != Command::Kind::kPublish) continue;
        int32_t& n = count[static_cast<size_t>(command.channel)];
        n = std::max(n, static_cast<int32_t>(command.sequence) + 1);
      }
    });
    for (size_t c = 0; c < count.size(); ++c) {
      first_.push_back(static_cast<int32_t>(flat_.messages.size()));
      const int32_t slots = program_.channels[c].slots;
      for (int32_t s = 0; s < count[c]; ++s) {
        flat_.messages.push_back(
            {static_cast<int32_t>(c), s < slots ? -1 : first_.back() + s - slots});
      }
    }
  }

  FlatRank rank(size_t r) const {
    const RankProgram& from = program_.ranks[r];
    FlatRank to;
    to.commands.reserve(from.commands.size());
    for (const Command& command : from.commands) {
      FlatCommand made{command.kind, -1, -1, -1};
      if (command.kind == Command::Kind::kCall) {
        made.index = made.timed = command.fragment.value;
        if (bindings_) made.bindings = bind(from, command, to);
      } else if (command.channel >= 0) {
        made.index =
            first_[static_cast<size_t>(command.channel)] + static_cast<int32_t>(command.sequence);
      }
      to.commands.push_back(made);
    }
    if (memory_) {
      to.uses = pipeline::buffer_uses(from);
      to.memory = pipeline::buffer_lives(program_, r, to.uses);
    }
    to.reserved = from.state_arena.value + from.arena.value;
    for (const pipeline::Channel& channel : program_.channels) {
      if (channel.to == static_cast<int32_t>(r))
        to.reserved += channel.type.bytes().value * channel.slots;
    }
    return to;
  }

  int32_t bind(const RankProgram& from, const Command& command, FlatRank& to) const {
    const auto first = static_cast<int32_t>(to.bindings.size());
    const pipeline::Fragment& fragment = program_.fragments[command.fragment.index()];
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      if (fragment.inputs[i].kind == pipeline::PortKind::kState)
        to.bindings.push_back(pipeline::root_buffer(from, command.buffers[i]).value);
    }
    return first;
  }

  const Program& program_;
  bool bindings_, memory_;
  std::vector<int32_t> first_;  // [channel] number of its first message
  FlatProgram flat_;
};

}  // namespace

FlatProgram flatten(const Program& program, bool bindings, bool memory) {
  return Flattener(program, bindings, memory).make();
}

}  // namespace mw::simulate
