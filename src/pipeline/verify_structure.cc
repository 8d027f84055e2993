#include <algorithm>

#include "pipeline/verify.h"

namespace mw::pipeline {
namespace {

class StructureChecker {
 public:
  StructureChecker(const Program& program, Diagnostics& out) : program_(program), out_(out) {}

  void run() {
    const int64_t wanted = program_.mesh.axis_size("pp");
    if (static_cast<int64_t>(program_.ranks.size()) != wanted) {
      out_.add("the program has {} pipeline ranks, the mesh {} has {}", program_.ranks.size(),
               cluster::to_string(program_.mesh), wanted);
    }
    if (program_.microbatches < 1)
      out_.add("the program has {} microbatches", program_.microbatches);
    for (const Fragment& fragment : program_.fragments) {
      if (fragment.workspace.value < 0) {
        out_.add("fragment '{}' has a workspace of {} bytes", fragment.name,
                 fragment.workspace.value);
      }
      for (const std::string& finding : fragment_structure_findings(fragment)) {
        out_.add("fragment '{}' {}", fragment.name, finding);
      }
    }
    for (size_t c = 0; c < program_.channels.size(); ++c) check_channel(c);
    for (size_t r = 0; r < program_.ranks.size(); ++r) check_rank(r);
  }

 private:
  void check_channel(size_t c) {
    const Channel& channel = program_.channels[c];
    const auto ranks = static_cast<int32_t>(program_.ranks.size());
    const auto is_rank = [&](int32_t r) { return r >= 0 && r < ranks; };
    if (!is_rank(channel.from) || !is_rank(channel.to) || channel.from == channel.to) {
      out_.add("channel {} '{}' leads from pipeline rank {} to {}, of {}", c, channel.name,
               channel.from, channel.to, ranks);
    }
    if (channel.slots < 1) out_.add("channel {} '{}' has {} slots", c, channel.name, channel.slots);
  }

  void check_rank(size_t r) {
    const RankProgram& rank = program_.ranks[r];
    if (rank.states < 0 || static_cast<size_t>(rank.states) > rank.buffers.size()) {
      out_.add("pipeline rank {} has {} states among {} buffers", r, rank.states,
               rank.buffers.size());
      return;
    }
    check_repeatable(r);
    for (size_t b = 0; b < rank.buffers.size(); ++b) check_buffer(r, b);
    for (size_t c = 0; c < rank.commands.size(); ++c) check_command(r, c);
  }

  void check_repeatable(size_t r) {
    const RankProgram& rank = program_.ranks[r];
    if (rank.repeatable < 0 || static_cast<size_t>(rank.repeatable) > rank.commands.size()) {
      out_.add("pipeline rank {} may repeat its first {} commands of {}", r, rank.repeatable,
               rank.commands.size());
    }
    const bool is_state =
        rank.amended.valid() && rank.amended.value < static_cast<int64_t>(rank.states);
    if (rank.repeatable > 0 && !is_state)
      out_.add("pipeline rank {} repeats commands by buffer {}, which is no state", r,
               rank.amended.value);
  }

  void check_buffer(size_t r, size_t b) {
    const RankProgram& rank = program_.ranks[r];
    const Buffer& buffer = rank.buffers[b];
    const Storage& storage = buffer.storage;
    const auto add = [&](const std::string& what) {
      out_.add("pipeline rank {}, buffer {} '{}' {}", r, b, buffer.name(), what);
    };
    if (storage.offset < 0) add(fmt::format("lies at byte {}", storage.offset));
    switch (storage.kind) {
      case Storage::Kind::kState:
        if (b >= static_cast<size_t>(rank.states)) add("is a state behind the states");
        break;
      case Storage::Kind::kArena: break;
      case Storage::Kind::kSlot: {
        const bool known =
            storage.channel >= 0 && static_cast<size_t>(storage.channel) < program_.channels.size();
        if (!known) {
          add(fmt::format("lies in channel {}, there are {}", storage.channel,
                          program_.channels.size()));
          break;
        }
        const Channel& channel = program_.channels[static_cast<size_t>(storage.channel)];
        if (storage.slot < 0 || storage.slot >= channel.slots) {
          add(fmt::format("lies in slot {} of channel '{}', which has {}", storage.slot,
                          channel.name, channel.slots));
        }
        if (channel.from != static_cast<int32_t>(r) && channel.to != static_cast<int32_t>(r)) {
          add(fmt::format("lies in channel '{}' between pipeline ranks {} and {}", channel.name,
                          channel.from, channel.to));
        }
        break;
      }
      case Storage::Kind::kView:
        // Parents come first, so chains end.
        if (!storage.parent.valid() || storage.parent.index() >= b) {
          add(fmt::format("is a view of buffer {}, which is not before it", storage.parent.value));
        }
    }
  }

  void check_command(size_t r, size_t c) {
    const RankProgram& rank = program_.ranks[r];
    const Command& command = rank.commands[c];
    const auto add = [&](const std::string& what) {
      out_.add("pipeline rank {}, command {} ({}, {}) {}", r, c, to_string(command.kind),
               to_string(command.action), what);
    };
    for (const BufferId id : command.buffers) {
      if (!id.valid() || id.index() >= rank.buffers.size())
        add(fmt::format("names buffer {} of {}", id.value, rank.buffers.size()));
    }
    switch (command.kind) {
      case Command::Kind::kLoad:
        if (command.buffers.size() != 1)
          add(fmt::format("has {} buffers, a load has one", command.buffers.size()));
        break;
      case Command::Kind::kCall: {
        if (!command.fragment.valid() || command.fragment.index() >= program_.fragments.size()) {
          add(fmt::format("calls fragment {} of {}", command.fragment.value,
                          program_.fragments.size()));
          break;
        }
        const Fragment& fragment = program_.fragments[command.fragment.index()];
        const size_t wanted = fragment.inputs.size() + fragment.graph.outputs.size();
        if (command.buffers.size() != wanted) {
          add(fmt::format("has {} buffers, fragment '{}' has {} ports", command.buffers.size(),
                          fragment.name, wanted));
        }
        const size_t names = wanted + fragment.graph.values.size();
        if (command.names >= static_cast<int32_t>(program_.names.size())) {
          add(fmt::format("has names {}, there are {}", command.names, program_.names.size()));
        } else if (command.names >= 0 &&
                   program_.names[static_cast<size_t>(command.names)].size() != names) {
          add(fmt::format("has {} names, fragment '{}' has {} ports and {} values",
                          program_.names[static_cast<size_t>(command.names)].size(), fragment.name,
                          wanted, fragment.graph.values.size()));
        }
        break;
      }
      default:
        if (command.channel < 0 ||
            static_cast<size_t>(command.channel) >= program_.channels.size()) {
          add(fmt::format("names channel {} of {}", command.channel, program_.channels.size()));
        }
        if (command.sequence < 0) add(fmt::format("has message number {}", command.sequence));
        if (command.buffers.size() > 1)
          add(fmt::format("has {} buffers, a message has one", command.buffers.size()));
    }
  }

  const Program& program_;
  Diagnostics& out_;
};

}  // namespace

void check_structure(const Program& program, Diagnostics& out) {
  StructureChecker(program, out).run();
}

}  // namespace mw::pipeline
