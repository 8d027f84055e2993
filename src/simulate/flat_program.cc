#include "simulate/flat_program.h"

#include <algorithm>

#include "base/error.h"

namespace mw::simulate {
namespace {

using pipeline::Command;
using pipeline::Program;
using pipeline::RankProgram;
using pipeline::Storage;

class Flattener {
 public:
  Flattener(const Program& program, bool bindings) : program_(program), bindings_(bindings) {}

  FlatProgram make() {
    number_messages();
    for (const pipeline::Channel& channel : program_.channels) {
      const int64_t bytes = channel.type.bytes().value;
      flat_.channels.push_back({channel.from, channel.to, bytes, bytes, 0, 0});
    }
    for (size_t r = 0; r < program_.ranks.size(); ++r) flat_.ranks.push_back(rank(r));
    return std::move(flat_);
  }

 private:
  // Messages of a channel are consecutive, by sequence.
  void number_messages() {
    std::vector<int32_t> count(program_.channels.size(), 0);
    for (const RankProgram& rank : program_.ranks) {
      for (const Command& command : rank.commands) {
        if (command.channel < 0) continue;
        int32_t& n = count[static_cast<size_t>(command.channel)];
        n = std::max(n, static_cast<int32_t>(command.sequence) + 1);
      }
    }
    for (size_t c = 0; c < count.size(); ++c) {
      first_.push_back(static_cast<int32_t>(flat_.messages.size()));
      const int32_t slots = program_.channels[c].slots;
      for (int32_t s = 0; s < count[c]; ++s) {
        flat_.messages.push_back(
            {static_cast<int32_t>(c), s < slots ? -1 : first_.back() + s - slots});
      }
    }
  }

  FlatRank rank(size_t r) {
    const RankProgram& from = program_.ranks[r];
    FlatRank to;
    to.commands.reserve(from.commands.size());
    for (const Command& command : from.commands) {
      FlatCommand made{command.kind, -1, -1};
      if (command.kind == Command::Kind::kCall) {
        made.index = command.fragment.value;
        if (bindings_) made.bindings = bind(from, command, to);
      } else if (command.channel >= 0) {
        made.index =
            first_[static_cast<size_t>(command.channel)] + static_cast<int32_t>(command.sequence);
      }
      to.commands.push_back(made);
    }
    add_memory(r, to);
    return to;
  }

  int32_t bind(const RankProgram& from, const Command& command, FlatRank& to) const {
    const auto first = static_cast<int32_t>(to.bindings.size());
    const pipeline::Fragment& fragment = program_.fragments[command.fragment.index()];
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      if (fragment.inputs[i].kind == pipeline::PortKind::kState)
        to.bindings.push_back(root_buffer(from, command.buffers[i]).value);
    }
    return first;
  }

  void add_memory(size_t r, FlatRank& to) const {
    const RankProgram& from = program_.ranks[r];
    const size_t buffers = from.buffers.size();
    std::vector<int32_t> first(buffers, -1), last(buffers, -1), root(buffers);
    for (size_t b = 0; b < buffers; ++b)
      root[b] = root_buffer(from, BufferId(static_cast<int64_t>(b))).value;
    for (size_t c = 0; c < from.commands.size(); ++c) {
      for (const BufferId id : from.commands[c].buffers) {
        const auto b = static_cast<size_t>(root[id.index()]);
        if (first[b] < 0) first[b] = static_cast<int32_t>(c);
        last[b] = static_cast<int32_t>(c);
      }
    }
    for (size_t b = 0; b < buffers; ++b) {
      const pipeline::Buffer& buffer = from.buffers[b];
      const int64_t bytes = buffer.bytes().value;
      if (buffer.storage.kind == Storage::Kind::kState) {
        to.fixed[static_cast<size_t>(buffer.category)] += bytes;
      } else if (buffer.storage.kind == Storage::Kind::kArena && first[b] >= 0) {
        to.born.push_back({first[b], buffer.category, bytes});
        to.died.push_back({last[b], buffer.category, bytes});
      }
    }
    int64_t slots = 0;
    for (const pipeline::Channel& channel : program_.channels) {
      if (channel.to == static_cast<int32_t>(r))
        slots += channel.type.bytes().value * channel.slots;
    }
    to.fixed[static_cast<size_t>(pipeline::Category::kBoundary)] += slots;
    to.reserved = from.state_arena.value + from.arena.value + slots;
    merge(to.born);
    merge(to.died);
  }

  // One change a command and category.
  static void merge(std::vector<MemoryChange>& changes) {
    std::sort(changes.begin(), changes.end(), [](const MemoryChange& a, const MemoryChange& b) {
      return a.command != b.command ? a.command < b.command : a.category < b.category;
    });
    size_t kept = 0;
    for (size_t i = 0; i < changes.size(); ++i) {
      if (kept > 0 && changes[kept - 1].command == changes[i].command &&
          changes[kept - 1].category == changes[i].category) {
        changes[kept - 1].bytes += changes[i].bytes;
      } else {
        changes[kept++] = changes[i];
      }
    }
    changes.resize(kept);
  }

  const Program& program_;
  bool bindings_;
  std::vector<int32_t> first_;  // [channel] number of its first message
  FlatProgram flat_;
};

}  // namespace

BufferId root_buffer(const RankProgram& rank, BufferId id) {
  while (rank.buffers[id.index()].storage.kind == Storage::Kind::kView)
    id = rank.buffers[id.index()].storage.parent;
  return id;
}

FlatProgram flatten(const Program& program, bool bindings) {
  return Flattener(program, bindings).make();
}

}  // namespace mw::simulate
