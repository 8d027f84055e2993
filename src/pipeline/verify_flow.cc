// Data flow of a rank: arguments fit their ports, every value is written once before it is read,
// and a port gets what it names: of the same microbatch and slice, from the port of the same name.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "pipeline/buffer_lives.h"
#include "pipeline/verify.h"
#include "sharding/sharding.h"

namespace mw::pipeline {
namespace {

// The work that a value belongs to.
struct Unit {
  int32_t first = 0, count = 1, slice = -1, replica = 0;
  friend bool operator==(const Unit&, const Unit&) = default;
};
Unit unit_of(const Action& action) {
  return {action.first, action.count, action.slice, action.replica};
}

std::string to_string(const Unit& unit) {
  std::string text = unit.count == 1 ? fmt::format("microbatch {}", unit.first)
                                     : fmt::format("microbatches {} to {}", unit.first,
                                                   unit.first + unit.count - 1);
  if (unit.slice >= 0) text += fmt::format(", slice {}", unit.slice);
  if (unit.replica != 0) text += fmt::format(", replica {}", unit.replica);
  return text;
}

// Who wrote a buffer.
struct Written {
  const std::string* name = nullptr;  // of the port, or of the data
  Unit unit;
  StageId stage;
  bool once = false;    // data of the whole step
  FragmentId fragment;  // invalid: data
};

// Ports are named after values of the whole model; a value without a name is "%12" in its own graph
// only.
bool may_be_same(const std::string& a, const std::string& b) {
  return a == b || a.empty() || b.empty() || a[0] == '%' || b[0] == '%';
}

// Where a port of a stage gets what other stages or slices make: the same in all calls.
struct Source {
  int32_t channel = -1;  // -1: of this rank
  StageId stage;
  int32_t slice = -1;
  friend bool operator==(const Source&, const Source&) = default;
};

// A message as its producer wrote it, and the buffer it is read through.
struct Message {
  std::optional<Written> written;
  sharding::Sharding sharding;
  ir::TensorType global_type;
};
using MessageKey = std::pair<int32_t, int64_t>;  // channel, sequence

struct PendingRead {
  int32_t rank;
  size_t command;
  const Port* port;
  MessageKey message;
  BufferId buffer;
};

class FlowChecker : CommandChecker {
 public:
  FlowChecker(const Checked& checked, Diagnostics& out) : CommandChecker(checked, out) {}

  void run() {
    for (size_t f = 0; f < program_.fragments.size(); ++f) {
      wanted_.emplace_back();
      for (const Port& port : checked_.info[f].ports) {
        wanted_[f].push_back(sharding::normalized(
            program_.fragments[f].shardings[port.value.index()], program_.mesh));
      }
    }
    for (size_t r = 0; r < program_.ranks.size(); ++r) run_rank(static_cast<int32_t>(r));
    for (const PendingRead& read : reads_) check_received(read);
  }

 private:
  struct SlotState {
    enum class Kind : uint8_t { kFree, kAcquired, kReceived } kind = Kind::kFree;
    int64_t sequence = 0;
    BufferId written;  // acquired: the buffer that was written
  };

  void run_rank(int32_t r) {
    rank_ = r;
    const RankProgram& rank = checked_.rank(r);
    normalized_.clear();
    for (const Buffer& buffer : rank.buffers) {
      normalized_.push_back(sharding::normalized(buffer.sharding(), program_.mesh));
      check_buffer(buffer, normalized_.size() - 1);
    }
    current_ = normalized_;
    written_.assign(rank.buffers.size(), std::nullopt);
    bound_.assign(rank.buffers.size(), -1);
    slots_.clear();
    for (command_ = 0; command_ < rank.commands.size(); ++command_)
      run_command(rank.commands[command_]);
    for (size_t b = 0; b < static_cast<size_t>(rank.states); ++b) {
      if (current_[b] == normalized_[b]) continue;
      out_.add(
          "pipeline rank {}: state '{}' is {} at the end, but {} at the start of the next call", r,
          rank.buffers[b].name(), to_string(current_[b]), to_string(normalized_[b]));
    }
  }

  void check_buffer(const Buffer& b, size_t id) {
    const auto add_buffer = [&](const std::string& what) {
      out_.add("pipeline rank {}, buffer {} '{}' {}", rank_, id, b.name(), what);
    };
    const ir::TensorType local =
        b.sharding().dims.size() == b.global_type().dims.size()
            ? sharding::local_type(b.global_type(), b.sharding(), program_.mesh)
            : ir::TensorType();
    const auto sizes = [](const ir::TensorType& type) {
      std::vector<int64_t> list;
      for (const ir::Dim& dim : type.dims) list.push_back(dim.size);
      return list;
    };
    if (local.dtype != b.type().dtype || sizes(local) != sizes(b.type())) {
      add_buffer(fmt::format("of {} is no shard of {} as {}", ir::to_string(b.type()),
                             ir::to_string(b.global_type()), to_string(b.sharding())));
    }
    if (b.storage.kind != Storage::Kind::kView || b.storage.part->axes.empty()) return;
    // The own part of a buffer: its shards lie side by side and fill the parent.
    const Buffer& parent = buffer(b.storage.parent);
    const int64_t shards = sharding::shards(b.storage.part->axes, program_.mesh);
    if (b.storage.part->stride != b.bytes().value || b.storage.offset != 0 ||
        shards * b.storage.part->stride != parent.bytes().value) {
      add_buffer(fmt::format(
          "has {} parts of {} bytes, {} apart, that do not fill the {} bytes of '{}'", shards,
          b.bytes().value, b.storage.part->stride, parent.bytes().value, parent.name()));
    }
    sharding::Sharding split = parent.sharding().without_partial();
    if (!split.dims.empty()) {
      split.dims[0].insert(split.dims[0].end(), b.storage.part->axes.begin(),
                           b.storage.part->axes.end());
    }
    if (!(sharding::normalized(split, program_.mesh).dims == normalized_.back().dims)) {
      add_buffer(fmt::format("is a part of '{}', must be held as {}, but is as {}", parent.name(),
                             to_string(split), to_string(b.sharding())));
    }
  }

  void run_command(const Command& command) {
    switch (command.kind) {
      case Command::Kind::kLoad: return load(command);
      case Command::Kind::kCall: return call(command);
      case Command::Kind::kAcquire: return take(command, SlotState::Kind::kAcquired);
      case Command::Kind::kReceive: return take(command, SlotState::Kind::kReceived);
      case Command::Kind::kPublish: return give(command, SlotState::Kind::kAcquired);
      case Command::Kind::kRelease: return give(command, SlotState::Kind::kReceived);
    }
  }

  void load(const Command& command) {
    const BufferId id = command.buffers[0];
    const Storage::Kind kind = buffer(id).storage.kind;
    if (kind != Storage::Kind::kArena)
      add("fills '{}', which is not in the step arena", buffer(id).name());
    if (command.microbatch >= program_.microbatches) {
      add("loads microbatch {}, there are {}", command.microbatch, program_.microbatches);
    }
    if (command.microbatch >= 0 && command.microbatch != command.action.first) {
      add("loads microbatch {}", command.microbatch);
    }
    if (command.microbatch < 0 && buffer(id).type().rank() > 0) {
      add("loads {} once a step: only scalars are the same for all microbatches",
          ir::to_string(buffer(id).type()));
    }
    Written written;
    written.name = &command.name.str();
    written.once = command.microbatch < 0;
    written.unit.first = command.microbatch;
    write(id, written);
  }

  void write(BufferId id, const Written& written) {
    const BufferId at = root(id);
    switch (buffer(at).storage.kind) {
      case Storage::Kind::kState: return;  // the memory check follows states byte by byte
      case Storage::Kind::kArena:
        if (written_[id.index()]) add("writes '{}' a second time", buffer(id).name());
        break;
      case Storage::Kind::kSlot: {
        SlotState* slot = slot_of(at, "writes");
        if (slot == nullptr) return;
        if (slot->kind != SlotState::Kind::kAcquired)
          return add("writes '{}', a slot that it only received", buffer(id).name());
        if (slot->written.valid()) add("writes '{}' a second time", buffer(id).name());
        slot->written = id;
        break;
      }
      case Storage::Kind::kView: return;
    }
    written_[id.index()] = written;
  }

  using SlotKey = std::pair<int32_t, int32_t>;  // channel, slot

  // The slot of a buffer, if this rank has it now and for the message that the buffer was bound to
  // first.
  SlotState* slot_of(BufferId id, const char* what) {
    const Storage& storage = buffer(id).storage;
    SlotState& slot = slots_[{storage.channel, storage.slot}];
    if (slot.kind == SlotState::Kind::kFree) {
      add("{} '{}' in slot {} of channel '{}', which it does not have", what, buffer(id).name(),
          storage.slot, program_.channels[static_cast<size_t>(storage.channel)].name);
      return nullptr;
    }
    int64_t& bound = bound_[id.index()];
    if (bound < 0) bound = slot.sequence;
    if (bound != slot.sequence) {
      add("{} '{}', which is of message {}, but its slot has message {} now", what,
          buffer(id).name(), bound, slot.sequence);
      return nullptr;
    }
    return &slot;
  }

  SlotState& slot_of(const Command& command) {
    const Channel& channel = program_.channels[static_cast<size_t>(command.channel)];
    return slots_[{command.channel, command.sequence % channel.slots}];
  }
  void check_message_buffer(const Command& command) {
    if (command.buffers.empty()) return;
    const Storage& storage = buffer(command.buffers[0]).storage;
    const int64_t slots = program_.channels[static_cast<size_t>(command.channel)].slots;
    const bool fits = storage.kind == Storage::Kind::kSlot && storage.channel == command.channel &&
                      storage.slot == command.sequence % slots;
    if (!fits) add("names '{}', which does not lie in its slot", buffer(command.buffers[0]).name());
    int64_t& bound = bound_[command.buffers[0].index()];
    if (bound < 0) bound = command.sequence;
    if (bound != command.sequence)
      add("names '{}', which is of message {}", buffer(command.buffers[0]).name(), bound);
  }

  void take(const Command& command, SlotState::Kind kind) {
    check_message_buffer(command);
    SlotState& slot = slot_of(command);
    if (slot.kind != SlotState::Kind::kFree) {
      add("gets slot {}, which it still has for message {}",
          command.sequence % program_.channels[static_cast<size_t>(command.channel)].slots,
          slot.sequence);
    }
    slot = {kind, command.sequence, {}};
  }

  void give(const Command& command, SlotState::Kind kind) {
    check_message_buffer(command);
    SlotState& slot = slot_of(command);
    if (slot.kind != kind || slot.sequence != command.sequence) {
      return add("gives back a slot that it does not have");
    }
    if (kind == SlotState::Kind::kAcquired) {
      if (!slot.written.valid()) {
        add("sends a slot that nothing was written to");
      } else {
        const Buffer& b = buffer(slot.written);
        if (!command.buffers.empty() && command.buffers[0] != slot.written) {
          add("sends '{}', but '{}' was written", buffer(command.buffers[0]).name(), b.name());
        }
        messages_[{command.channel, command.sequence}] = {
            written_[slot.written.index()], normalized_[slot.written.index()], b.global_type()};
      }
    }
    slot.kind = SlotState::Kind::kFree;
  }

  void call(const Command& command) {
    const Fragment& fragment = checked_.fragment(command);
    const FragmentInfo& info = checked_.info_of(command);
    const ActionKind wanted = fragment.kind, kind = command.action.kind;
    if (wanted != kind) add("calls a fragment of kind {}", to_string(wanted));
    if (command.action.first < 0 || command.action.count < 1 ||
        command.action.first + command.action.count > program_.microbatches) {
      add("works on microbatches that do not exist, there are {}", program_.microbatches);
    }
    const std::vector<Port>& ports = ports_of(command);
    for (size_t p = 0; p < ports.size(); ++p) check_argument(command, fragment, info, ports[p], p);
    for (size_t p = 0; p < info.inputs; ++p) {
      if (info.update_of[p] >= 0) update(command, fragment, info, p);
    }
    for (size_t p = info.inputs; p < ports.size(); ++p) {
      write(command.buffers[p], {&ports[p].name, unit_of(command.action), command.action.stage,
                                 false, command.fragment});
    }
  }

  // The ports as they are called in this call. Stays where it is.
  const std::vector<Port>& ports_of(const Command& command) {
    const std::vector<Port>& ports = checked_.info_of(command).ports;
    if (command.names < 0) return ports;
    const auto [it, is_new] = named_.try_emplace({command.fragment, command.names}, ports);
    if (is_new) {
      for (size_t p = 0; p < ports.size(); ++p)
        it->second[p].name = program_.names[static_cast<size_t>(command.names)][p];
    }
    return it->second;
  }

  void check_argument(const Command& command, const Fragment& fragment, const FragmentInfo& info,
                      const Port& port, size_t p) {
    const BufferId id = command.buffers[p];
    const Buffer& b = buffer(id);
    const size_t v = port.value.index();
    const ir::TensorType& type = fragment.graph.type(port.value);
    if (!(b.type() == type)) {
      add("gives '{}' of {} to port '{}' of {}", b.name(), ir::to_string(b.type()), port.name,
          ir::to_string(type));
    }
    if (!(b.global_type() == fragment.global_types[v])) {
      add("gives '{}', a shard of {}, to port '{}', a shard of {}", b.name(),
          ir::to_string(b.global_type()), port.name, ir::to_string(fragment.global_types[v]));
    }
    const bool is_input = p < info.inputs;
    const sharding::Sharding& have = is_input ? current_[id.index()] : normalized_[id.index()];
    // Who only clears a sum does not care how it is pending.
    const bool only_written = is_input && !info.uses[p].reads() && info.uses[p].writes();
    const sharding::Sharding& want = wanted_[command.fragment.index()][p];
    if (!(have == want) && !(only_written && have.dims == want.dims)) {
      add("gives '{}' as {} to port '{}' as {}", b.name(), to_string(have), port.name,
          to_string(want));
    }
    if (is_input) return check_source(command, port, id);
    if (id.index() >= static_cast<size_t>(checked_.rank(rank_).states)) return;
    if (!may_be_same(b.value, port.name))
      add("writes port '{}' into state '{}'", port.name, b.name());
    current_[id.index()] = normalized_[id.index()];
  }

  void check_source(const Command& command, const Port& port, BufferId id) {
    const Buffer& b = buffer(id);
    const BufferId at = root(id);
    const bool is_state = buffer(at).storage.kind == Storage::Kind::kState;
    if ((port.kind == PortKind::kState) != is_state) {
      return add("gives '{}', which is {}a state, to port '{}'", b.name(), is_state ? "" : "not ",
                 port.name);
    }
    if (is_state) {
      if (b.value != port.name) add("gives state '{}' to port '{}'", b.name(), port.name);
      return;
    }
    if (buffer(at).storage.kind == Storage::Kind::kSlot) {
      SlotState* slot = slot_of(at, "reads");
      if (slot == nullptr) return;
      if (slot->kind == SlotState::Kind::kReceived) {
        reads_.push_back(
            {rank_, command_, &port, {buffer(at).storage.channel, slot->sequence}, id});
        return;
      }
    }
    if (!written_[id.index()])
      return add("reads '{}' for port '{}' before it is written", b.name(), port.name);
    check_written(command, port, b, *written_[id.index()]);
  }

  // `channel`: that it came through, -1: it was made on this rank.
  void check_written(const Command& command, const Port& port, const Buffer& b,
                     const Written& written, int32_t channel = -1) {
    const Unit unit = unit_of(command.action);
    if (port.kind == PortKind::kData) {
      if (*written.name != port.name) add("gives data '{}' to port '{}'", *written.name, port.name);
      if (!written.once && (written.unit.first != unit.first || unit.count != 1)) {
        add("gives data '{}' of microbatch {} to work on {}", *written.name, written.unit.first,
            to_string(unit));
      }
      return;
    }
    const bool crosses = port.kind == PortKind::kBoundary || port.kind == PortKind::kCarried;
    const bool same_name =
        crosses ? may_be_same(*written.name, port.name) : *written.name == port.name;
    if (!same_name)
      add("gives '{}', written as '{}', to port '{}'", b.name(), *written.name, port.name);
    if (port.kind == PortKind::kCarried) {
      Unit other = written.unit;
      other.slice = unit.slice;
      if (!(other == unit) || written.unit.slice == unit.slice)
        add("carries '{}' of {} to {}", b.name(), to_string(written.unit), to_string(unit));
    } else if (!(written.unit == unit)) {
      add("gives '{}' of {} to work on {}", b.name(), to_string(written.unit), to_string(unit));
    }
    const bool in_stage = port.kind == PortKind::kSaved || port.kind == PortKind::kCarried;
    if (in_stage && written.stage != command.action.stage) {
      add("gives '{}' of stage {} to work of stage {}", b.name(), written.stage.value,
          command.action.stage.value);
    }
    if (crosses) check_source_of(command, port, b, written, channel);
  }

  // What has no name is known by where it came from in the calls before.
  void check_source_of(const Command& command, const Port& port, const Buffer& b,
                       const Written& written, int32_t channel) {
    const Source source{channel, written.stage, written.unit.slice};
    const auto [known, is_first] = source_of_.try_emplace({command.fragment, &port}, source);
    const auto [port_of, is_new] =
        written_as_.try_emplace({command.fragment, &port, written.fragment}, written.name);
    if (known->second == source && *port_of->second == *written.name) return;
    add("gives '{}', written as '{}'{}, to port '{}', which before got '{}'{}", b.name(),
        *written.name, source_text(source), port.name, *port_of->second,
        source_text(known->second));
  }
  std::string source_text(const Source& source) const {
    std::string text = fmt::format(" by stage {}", source.stage.value);
    if (source.slice >= 0) text += fmt::format(", slice {}", source.slice);
    if (source.channel < 0) return text;
    return text + fmt::format(", channel '{}'",
                              program_.channels[static_cast<size_t>(source.channel)].name);
  }

  void check_received(const PendingRead& read) {
    const auto it = messages_.find(read.message);
    if (it == messages_.end() || !it->second.written) return;  // the channel check tells
    rank_ = read.rank;
    command_ = read.command;
    const Buffer& b = buffer(read.buffer);
    const Message& message = it->second;
    check_written(checked_.rank(rank_).commands[command_], *read.port, b, *message.written,
                  read.message.first);
    const sharding::Sharding here = sharding::normalized(b.sharding(), program_.mesh);
    if (!(message.sharding == here) || !(message.global_type == b.global_type())) {
      add("reads '{}' as {} of {}, but it was sent as {} of {}", b.name(), to_string(here),
          ir::to_string(b.global_type()), to_string(message.sharding),
          ir::to_string(message.global_type));
    }
  }

  // A state in place: from now on it is what the update's value is.
  void update(const Command& command, const Fragment& fragment, const FragmentInfo& info,
              size_t p) {
    const auto id = command.buffers[p];
    const ir::StateUpdate& update = fragment.graph.updates[static_cast<size_t>(info.update_of[p])];
    const auto& effect = checked_.accumulation[command.fragment.index()].effects[p];
    sharding::Sharding made =
        sharding::normalized(fragment.shardings[update.value.index()], program_.mesh);
    const bool cleared =
        effect.kind == StateEffect::Kind::kCleared && made.dims == normalized_[id.index()].dims;
    current_[id.index()] = cleared ? normalized_[id.index()] : std::move(made);
  }

  std::vector<std::vector<sharding::Sharding>> wanted_;   // [fragment][port]
  std::vector<sharding::Sharding> normalized_, current_;  // [buffer]
  std::vector<std::optional<Written>> written_;           // [buffer]
  std::vector<int64_t> bound_;  // [buffer] the message a slot's buffer is of, -1: not known yet
  std::map<SlotKey, SlotState> slots_;
  std::map<MessageKey, Message> messages_;
  std::vector<PendingRead> reads_;
  std::map<std::pair<FragmentId, const Port*>, Source> source_of_;
  // By fragment and port, and the fragment that wrote: what the writer calls it.
  std::map<std::tuple<FragmentId, const Port*, FragmentId>, const std::string*> written_as_;
  std::map<std::pair<FragmentId, int32_t>, std::vector<Port>> named_;
};

}  // namespace

void check_flow(const Checked& checked, Diagnostics& out) { FlowChecker(checked, out).run(); }

}  // namespace mw::pipeline
