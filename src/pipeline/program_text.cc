// The text of a program. Each line says one thing, so that a diff of two programs is readable.
#include <fmt/format.h>

#include "base/hash.h"
#include "base/text.h"
#include "pipeline/program.h"

namespace mw::pipeline {

std::string Buffer::name() const {
  return microbatch < 0 ? value.str() : fmt::format("{}#{}", value.str(), microbatch);
}

std::string to_string(Category category) {
  switch (category) {
    case Category::kWeights: return "weights";
    case Category::kGradients: return "gradients";
    case Category::kOptimizer: return "optimizer";
    case Category::kMetrics: return "metrics";
    case Category::kActivations: return "activations";
    case Category::kBoundary: return "communication buffers";
    case Category::kData: return "data";
    case Category::kWorkspace: return "temporaries";
  }
  return "?";
}

std::string to_string(Command::Kind kind) {
  switch (kind) {
    case Command::Kind::kLoad: return "load";
    case Command::Kind::kCall: return "call";
    case Command::Kind::kAcquire: return "acquire";
    case Command::Kind::kPublish: return "publish";
    case Command::Kind::kReceive: return "receive";
    case Command::Kind::kRelease: return "release";
  }
  return "?";
}

std::string call_name(const Command& command, const Fragment& fragment) {
  const Action& action = command.action;
  if (!action.stage.valid()) return fragment.name;
  std::string name = fmt::format("{} stage {}", to_string(action.kind), action.stage.value);
  if (action.slice >= 0) name += fmt::format("/{}", action.slice);
  if (action.replica > 0) name += fmt::format("^{}", action.replica);
  return name;
}

namespace {

std::string_view port_name(PortKind kind) {
  switch (kind) {
    case PortKind::kBoundary: return "boundary";
    case PortKind::kSaved: return "saved";
    case PortKind::kCarried: return "carried";
    case PortKind::kState: return "state";
    case PortKind::kData: return "data";
  }
  return "?";
}

class Writer {
 public:
  explicit Writer(const Program& program) : program_(program) {}

  std::string write() {
    line("program {} on {}, {} microbatches", quoted(program_.name),
         cluster::to_string(program_.mesh), program_.microbatches);
    for (size_t f = 0; f < program_.fragments.size(); ++f) fragment(f);
    for (size_t n = 0; n < program_.names.size(); ++n) {
      std::string names;
      for (const std::string& name : program_.names[n])
        names += " " + (name.empty() ? "-" : quoted(name));
      line("names {}:{}", n, names);
    }
    for (size_t c = 0; c < program_.channels.size(); ++c) {
      const Channel& channel = program_.channels[c];
      line("channel {} {} from {} to {}: {} x {}", c, quoted(channel.name), channel.from,
           channel.to, channel.slots, ir::to_string(channel.type));
    }
    for (size_t r = 0; r < program_.ranks.size(); ++r) rank(r);
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  void fragment(size_t f) {
    const Fragment& fragment = program_.fragments[f];
    line("fragment {} {}: {}, {} samples, slice {}, workspace {}", f, quoted(fragment.name),
         to_string(fragment.kind), fragment.samples, fragment.slice, fragment.workspace.value);
    for (const Port& port : fragment.inputs) port_line("in", fragment, port);
    for (const Port& port : fragment.outputs) port_line("out", fragment, port);
    text_ += ir::to_text(fragment.graph);
    for (size_t v = 0; v < fragment.graph.values.size(); ++v) value_line(fragment, v);
    for (size_t o = 0; o < fragment.launches.size(); ++o) launch_line(o, fragment.launches[o]);
  }
  void port_line(std::string_view direction, const Fragment& fragment, const Port& port) {
    line("  {} {} {} = {}{}", direction, port_name(port.kind), quoted(port.name),
         fragment.graph.label(port.value), port.consumed ? ", consumed" : "");
  }
  void value_line(const Fragment& fragment, size_t v) {
    std::string place = "in a port";
    if (v < fragment.alias_of.size() && fragment.alias_of[v].valid()) {
      place = fmt::format("in {} at {}", fragment.graph.label(fragment.alias_of[v]),
                          fragment.alias_offset[v]);
    } else if (v < fragment.workspace_offset.size() &&
               fragment.workspace_offset[v] != Fragment::kNotPlanned) {
      place = fmt::format("in the workspace at {}", fragment.workspace_offset[v]);
    }
    line("  value {}: {} as {}, {}", fragment.graph.label(ValueId(static_cast<int64_t>(v))),
         v < fragment.global_types.size() ? ir::to_string(fragment.global_types[v]) : "?",
         v < fragment.shardings.size() ? to_string(fragment.shardings[v]) : "?", place);
  }
  void launch_line(size_t o, const Launch& launch) {
    if (launch.stream == StreamId(0) && launch.waits.empty() && !launch.records.valid()) return;
    std::string waits;
    for (const EventId event : launch.waits) waits += fmt::format(" {}", event.value);
    line("  op {} on stream {}{}{}", o, launch.stream.value,
         waits.empty() ? "" : ", waits for" + waits,
         launch.records.valid() ? fmt::format(", records {}", launch.records.value) : "");
  }

  void rank(size_t r) {
    const RankProgram& rank = program_.ranks[r];
    line("rank {}: {} states in {}, arena {}", r, rank.states, rank.state_arena.value,
         rank.arena.value);
    if (rank.repeatable > 0) {
      line("  commands before {} again where buffer {} is not 0", rank.repeatable,
           rank.amended.value);
    }
    for (size_t b = 0; b < rank.buffers.size(); ++b) {
      const Buffer& buffer = rank.buffers[b];
      line("  buffer {} {} {}: {}, of {} as {}, {}", b, to_string(buffer.category),
           quoted(buffer.name()), ir::to_string(buffer.type()), ir::to_string(buffer.global_type()),
           to_string(buffer.sharding()), storage_text(buffer.storage));
    }
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      line("  command {} {}: {}", c, to_string(rank.commands[c].action),
           command_text(rank.commands[c]));
    }
  }
  static std::string storage_text(const Storage& storage) {
    switch (storage.kind) {
      case Storage::Kind::kState: return fmt::format("state at {}", storage.offset);
      case Storage::Kind::kArena: return fmt::format("arena at {}", storage.offset);
      case Storage::Kind::kSlot:
        return fmt::format("slot {} of channel {} at {}", storage.slot, storage.channel,
                           storage.offset);
      case Storage::Kind::kView: {
        std::string text = fmt::format("in buffer {} at {}", storage.parent.value, storage.offset);
        if (!storage.part->axes.empty()) {
          text += fmt::format(" + {} x index over {{{}}}", storage.part->stride,
                              join(storage.part->axes, ", "));
        }
        return text;
      }
    }
    return "?";
  }
  static std::string command_text(const Command& command) {
    std::string text = to_string(command.kind);
    switch (command.kind) {
      case Command::Kind::kLoad: text += " " + quoted(command.name); break;
      case Command::Kind::kCall:
        text += fmt::format(" fragment {}", command.fragment.value);
        if (command.names >= 0) text += fmt::format(" with names {}", command.names);
        text += fmt::format(", workspace at {}", command.workspace_offset);
        break;
      default: text += fmt::format(" message {} of channel {}", command.sequence, command.channel);
    }
    text += fmt::format(", microbatch {}, pair {}, buffers", command.microbatch,
                        command.action.paired_with);
    for (const BufferId id : command.buffers) text += fmt::format(" {}", id.value);
    return text;
  }

  const Program& program_;
  std::string text_;
};

}  // namespace

std::string to_text(const Program& program) { return Writer(program).write(); }

std::string program_hash(const Program& program) { return xxh3_128(to_text(program)).hex(); }

}  // namespace mw::pipeline
