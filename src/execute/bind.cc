#include "execute/bind.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "execute/mesh_groups.h"
#include "pipeline/figures.h"
#include "pipeline/memory_plan.h"
#include "sharding/permutation.h"

namespace mw::execute {
namespace {

using pipeline::Command;
using pipeline::Fragment;
using pipeline::PortKind;
using pipeline::Storage;

// An address, or an offset in a slot whose address a run finds out.
struct Location {
  char* data = nullptr;
  int32_t slot = -1;
  int64_t offset = 0;     // in the slot
  int64_t arena_end = 0;  // first byte behind its buffer, in the step arena; 0: elsewhere

  Location operator+(int64_t bytes) const {
    Location moved = *this;
    if (slot >= 0)
      moved.offset += bytes;
    else
      moved.data += bytes;
    return moved;
  }
  bool same_place(const Location& other) const {
    return data == other.data && slot == other.slot && offset == other.offset;
  }
};

class Binder {
 public:
  Binder(BoundProgram& bound, const PreparedFragments& prepared, const BindContext& context)
      : bound_(bound), rank_(*bound.rank_program), prepared_(prepared), context_(context) {}

  void bind() {
    number_slots();
    for (const pipeline::Buffer& buffer : rank_.buffers) buffers_.push_back(locate(buffer));
    std::map<Ring*, int64_t> messages;
    for (size_t c = 0; c < rank_.commands.size(); ++c) {
      command_ = static_cast<int32_t>(c);
      const Command& command = rank_.commands[c];
      switch (command.kind) {
        case Command::Kind::kLoad: add_load(command); break;
        case Command::Kind::kCall: add_call(command); break;
        case Command::Kind::kAcquire: add_message(command, Instruction::Kind::kAcquire); break;
        case Command::Kind::kPublish:
        case Command::Kind::kReceive: {
          const bool publish = command.kind == Command::Kind::kPublish;
          Ring* ring = add_message(
              command, publish ? Instruction::Kind::kPublish : Instruction::Kind::kReceive);
          messages[ring] = std::max<int64_t>(messages[ring], command.sequence + 1);
          break;
        }
        case Command::Kind::kRelease: add_message(command, Instruction::Kind::kRelease); break;
      }
      if (command_ + 1 == rank_.repeatable) add_repeat_point();
    }
    for (const auto& [ring, count] : messages) bound_.rings.push_back({ring, count});
  }

 private:
  // What is sent to this rank before its sender's repeat point is sent, whether or not this rank
  // has come to receive it.
  void add_repeat_point() {
    RepeatPoint& repeat = bound_.repeat;
    repeat.instructions = static_cast<uint32_t>(bound_.instructions.size());
    repeat.amended = reinterpret_cast<const float*>(buffer(rank_.amended).data);
    const pipeline::Program& program = *bound_.program;
    for (size_t id = 0; id < program.channels.size(); ++id) {
      Ring* const ring = context_.ring_of_channel[id];
      if (ring == nullptr) continue;
      const pipeline::Channel& channel = program.channels[id];
      const auto count = [&](const pipeline::RankProgram& rank, Command::Kind kind) {
        return std::count_if(rank.commands.begin(), rank.commands.begin() + rank.repeatable,
                             [&](const Command& command) {
                               return command.kind == kind &&
                                      command.channel == static_cast<int32_t>(id);
                             });
      };
      const int64_t sent =
          count(program.ranks[static_cast<size_t>(channel.from)], Command::Kind::kPublish);
      if (sent == 0) continue;
      repeat.messages.push_back({ring, sent});
      if (&rank_ == &program.ranks[static_cast<size_t>(channel.to)])
        add_unread(ring, static_cast<int32_t>(id), sent);
    }
  }
  void add_unread(Ring* ring, int32_t channel, int64_t sent) {
    std::vector<bool> received(static_cast<size_t>(sent)), released(static_cast<size_t>(sent));
    for (int32_t c = 0; c < rank_.repeatable; ++c) {
      const Command& command = rank_.commands[static_cast<size_t>(c)];
      if (command.channel != channel) continue;
      const auto sequence = static_cast<size_t>(command.sequence);
      if (command.kind == Command::Kind::kReceive) received[sequence] = true;
      if (command.kind == Command::Kind::kRelease) released[sequence] = true;
    }
    for (size_t k = 0; k < received.size(); ++k) {
      if (!released[k])
        bound_.repeat.unread.push_back({ring, static_cast<int64_t>(k), received[k]});
    }
  }

  void number_slots() {
    int32_t slots = 0;
    for (const pipeline::Channel& channel : bound_.program->channels) {
      first_slot_.push_back(slots);
      slots += channel.slots;
    }
    bound_.slots.assign(static_cast<size_t>(slots), nullptr);
  }

  Location locate(const pipeline::Buffer& buffer) const {
    const Storage& storage = buffer.storage;
    Location at;
    switch (storage.kind) {
      case Storage::Kind::kState: at.data = context_.states + storage.offset; return at;
      case Storage::Kind::kArena:
        at.data = context_.arena + storage.offset;
        at.arena_end = storage.offset + buffer.bytes().value;
        return at;
      case Storage::Kind::kSlot:
        at.slot = first_slot_[static_cast<size_t>(storage.channel)] + storage.slot;
        at.offset = storage.offset;
        return at;
      case Storage::Kind::kView: {
        MW_CHECK(storage.parent.valid() && storage.parent.index() < rank_.buffers.size(),
                 "view '{}' of no buffer", buffer.name());
        const int64_t index = context_.device.mesh->index(context_.device.rank, storage.part->axes);
        return locate(rank_.buffers[storage.parent.index()]) +
               (storage.offset + index * storage.part->stride);
      }
    }
    MW_CHECK(false, "storage of '{}'", buffer.name());
  }

  const Location& buffer(BufferId id) const {
    MW_CHECK(id.valid() && id.index() < buffers_.size(), "command {}: no buffer {}", command_,
             id.value);
    return buffers_[id.index()];
  }

  void add_pointer(Instruction& instruction, const Location& at) {
    if (at.slot >= 0) {
      bound_.patches.push_back({static_cast<uint32_t>(bound_.pointers.size()),
                                static_cast<uint32_t>(at.slot), at.offset});
      ++instruction.patches;
    }
    bound_.pointers.push_back(at.data);
    instruction.arena_end = std::max(instruction.arena_end, at.arena_end);
  }

  Instruction start(Instruction::Kind kind) const {
    Instruction instruction;
    instruction.kind = kind;
    instruction.command = command_;
    instruction.first_pointer = static_cast<uint32_t>(bound_.pointers.size());
    instruction.first_patch = static_cast<uint32_t>(bound_.patches.size());
    return instruction;
  }

  void add_load(const Command& command) {
    MW_CHECK(command.buffers.size() == 1, "command {}: a load has {} buffers", command_,
             command.buffers.size());
    Instruction instruction = start(Instruction::Kind::kLoad);
    add_pointer(instruction, buffer(command.buffers[0]));
    instruction.results = 1;
    bound_.instructions.push_back(instruction);
  }

  Ring* add_message(const Command& command, Instruction::Kind kind) {
    MW_CHECK(command.channel >= 0 &&
                 static_cast<size_t>(command.channel) < context_.ring_of_channel.size(),
             "command {}: no channel {}", command_, command.channel);
    const auto channel = static_cast<size_t>(command.channel);
    Instruction instruction = start(kind);
    instruction.ring = context_.ring_of_channel[channel];
    MW_CHECK(instruction.ring != nullptr, "command {}: channel {} is not of this rank", command_,
             command.channel);
    const int64_t slot = command.sequence % bound_.program->channels[channel].slots;
    instruction.slot = static_cast<uint32_t>(first_slot_[channel] + slot);
    instruction.sequence = command.sequence;
    bound_.instructions.push_back(instruction);
    return instruction.ring;
  }

  // Places of all values of a fragment in this call.
  std::vector<Location> place_values(const Fragment& fragment, const Command& command) const {
    const ir::Graph& graph = fragment.graph;
    std::vector<Location> ports(graph.values.size());
    std::vector<bool> is_port(graph.values.size(), false);
    size_t next = 0;
    const auto take = [&]() -> const Location& {
      MW_CHECK(next < command.buffers.size(), "command {} ({}) has {} buffers, too few", command_,
               fragment.name, command.buffers.size());
      return buffer(command.buffers[next++]);
    };
    for (const pipeline::Port& port : fragment.inputs) {
      ports[port.value.index()] = take();
      is_port[port.value.index()] = true;
    }
    std::vector<std::pair<ValueId, Location>> outputs;
    for (const pipeline::Port& port : fragment.outputs) {
      if (port.kind == PortKind::kState) continue;
      outputs.emplace_back(port.value, take());
      if (!is_port[port.value.index()] && !fragment.alias_of[port.value.index()].valid()) {
        ports[port.value.index()] = outputs.back().second;
        is_port[port.value.index()] = true;
      }
    }
    MW_CHECK(next == command.buffers.size(), "command {} ({}) has {} buffers, must be {}", command_,
             fragment.name, command.buffers.size(), next);

    std::vector<Location> places(graph.values.size());
    for (size_t v = 0; v < graph.values.size(); ++v) {
      size_t root = v;
      int64_t offset = 0;
      if (fragment.alias_of[v].valid()) {
        root = fragment.alias_of[v].index();
        offset = fragment.alias_offset[v];
      }
      if (is_port[root]) {
        places[v] = ports[root] + offset + own_part(fragment, command, ValueId(v));
      } else if (fragment.workspace_offset[root] != Fragment::kNotPlanned) {
        const int64_t in_arena = command.workspace_offset + fragment.workspace_offset[root];
        places[v].data = context_.arena + in_arena + offset;
        places[v].arena_end = in_arena + graph.values[root].type.bytes().value;
      } else {
        MW_CHECK(false, "fragment '{}': value {} has no memory", fragment.name,
                 graph.label(ValueId(v)));
      }
    }
    for (const auto& [value, at] : outputs) {
      MW_CHECK(places[value.index()].same_place(at),
               "command {} ({}): output {} does not lie in its buffer", command_, fragment.name,
               graph.label(value));
    }
    return places;
  }

  // Bytes from the first part of what was scattered to this rank's, 0: it lies in none.
  int64_t own_part(const Fragment& fragment, const Command& command, ValueId v) const {
    if (!pipeline::lies_in_own_part(fragment, v)) return 0;
    const OpId scatter = fragment.graph.value(v).producer;
    const comm::Communicator* group =
        prepared_.op(command.fragment, scatter.value).collective->group();
    return group == nullptr ? 0 : group->rank() * fragment.graph.type(v).bytes().value;
  }

  void add_call(const Command& command) {
    MW_CHECK(
        command.fragment.valid() && command.fragment.index() < bound_.program->fragments.size(),
        "command {}: no fragment {}", command_, command.fragment.value);
    const Fragment& fragment = bound_.program->fragments[command.fragment.index()];
    const std::vector<Location> places = place_values(fragment, command);
    for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
      finish_started(fragment, o);
      const ir::Op& op = fragment.graph.ops[o];
      const PreparedFragments::Op& prepared =
          prepared_.op(command.fragment, static_cast<int32_t>(o));
      Instruction instruction =
          start(prepared.kernel ? Instruction::Kind::kKernel : Instruction::Kind::kCollective);
      instruction.op = static_cast<int32_t>(o);
      instruction.token = pipeline::OrderHash::token(command_, static_cast<int64_t>(o), op.kind);
      instruction.kernel = prepared.kernel;
      instruction.collective = prepared.collective;
      instruction.operands = static_cast<uint32_t>(op.operands.size());
      instruction.results = static_cast<uint32_t>(op.results.size());
      for (const ValueId v : op.operands) add_pointer(instruction, places[v.index()]);
      for (const ValueId v : op.results) add_pointer(instruction, places[v.index()]);
      if (is_alias(op, prepared, fragment, places)) instruction.kind = Instruction::Kind::kAlias;
      if (starts(instruction, fragment, o)) {
        instruction.kind = Instruction::Kind::kStart;
        started_ = instruction;
      }
      bound_.instructions.push_back(instruction);
    }
    finish_started(fragment, fragment.graph.ops.size());
  }

  // Whether the op is a collective that another op's work may hide: one that can be started, and is
  // waited for by its event.
  static bool starts(const Instruction& instruction, const Fragment& fragment, size_t op) {
    return instruction.kind == Instruction::Kind::kCollective &&
           instruction.collective->can_start() && fragment.launches[op].records.valid() &&
           !ends_before(fragment, op, op + 1);
  }

  // Whether a started op must be finished before another one starts, or before the call ends: the
  // other one waits for its event, follows it on its stream, or is a collective that may use its
  // group.
  static bool ends_before(const Fragment& fragment, size_t started, size_t other) {
    if (other == fragment.graph.ops.size()) return true;
    const pipeline::Launch &launch = fragment.launches[started], &next = fragment.launches[other];
    return ir::is_collective(fragment.graph.ops[other].kind) || next.stream == launch.stream ||
           std::find(next.waits.begin(), next.waits.end(), launch.records) != next.waits.end();
  }

  // Finishes the started op, if there is one, that must be before `next`.
  void finish_started(const Fragment& fragment, size_t next) {
    if (!started_ || !ends_before(fragment, static_cast<size_t>(started_->op), next)) return;
    Instruction finish = start(Instruction::Kind::kFinish);
    finish.op = started_->op;
    finish.collective = started_->collective;
    bound_.instructions.push_back(finish);
    started_.reset();
  }

  // Whether the results already lie where the operands do and are the same bytes.
  static bool is_alias(const ir::Op& op, const PreparedFragments::Op& prepared,
                       const Fragment& fragment, const std::vector<Location>& places) {
    const bool copies = op.kind == ir::OpKind::kReshape || op.kind == ir::OpKind::kCopy ||
                        op.kind == ir::OpKind::kView ||
                        (prepared.collective && !prepared.collective->group());
    if (!copies) return false;
    for (size_t i = 0; i < op.results.size(); ++i) {
      int64_t offset = 0;
      if (op.kind == ir::OpKind::kView) {
        offset =
            op.as<ir::ViewAttrs>().offset * dtype_size(fragment.graph.type(op.operands[i]).dtype);
      }
      if (!places[op.results[i].index()].same_place(places[op.operands[i].index()] + offset))
        return false;
    }
    return true;
  }

  BoundProgram& bound_;
  const pipeline::RankProgram& rank_;
  const PreparedFragments& prepared_;
  const BindContext& context_;
  std::vector<int32_t> first_slot_;  // [channel]
  std::vector<Location> buffers_;
  int32_t command_ = 0;
  std::optional<Instruction> started_;  // of the call that is bound now, not finished yet
};

// The backend's kernel; its errors get the op's place.
std::unique_ptr<Kernel> prepare_at(Backend& backend, const Fragment& fragment, const ir::Op& op,
                                   const DeviceContext& device) {
  try {
    return backend.prepare(fragment.graph, op, device);
  } catch (const Error& error) {
    std::vector<std::string> findings;
    for (const std::string& finding : error.findings()) {
      findings.push_back(fmt::format("fragment '{}', op {}: {}", fragment.name,
                                     &op - fragment.graph.ops.data(), finding));
    }
    throw Error(std::move(findings));
  }
}

}  // namespace

PreparedFragments::PreparedFragments(BoundProgram& bound, Backend& backend,
                                     const DeviceContext& device, const GroupOf& group_of)
    : ops_(bound.program->fragments.size()) {
  for (const FragmentId id : called_fragments(*bound.program, *bound.rank_program)) {
    const Fragment& fragment = bound.program->fragments[id.index()];
    for (const ir::Op& op : fragment.graph.ops) {
      Op prepared;
      Bytes scratch;
      if (ir::is_collective(op.kind)) {
        const ir::CollectiveAttrs& attrs = op.as<ir::CollectiveAttrs>();
        std::vector<comm::PermutePair> pairs;
        if (op.kind == ir::OpKind::kPermute)
          pairs = sharding::shard_moves(
              attrs.from, attrs.to, std::get<ir::AxisGroup>(attrs.group).axes, bound.program->mesh);
        bound.collectives.push_back(std::make_unique<CollectiveOp>(
            fragment.graph, op, group_of(attrs.group), std::move(pairs)));
        prepared.collective = bound.collectives.back().get();
        scratch = prepared.collective->scratch_bytes();
      } else {
        bound.kernels.push_back(prepare_at(backend, fragment, op, device));
        prepared.kernel = bound.kernels.back().get();
        MW_CHECK(prepared.kernel != nullptr, "the backend prepared no kernel for {}",
                 ir::op_name(op.kind));
        scratch = prepared.kernel->scratch_bytes();
      }
      scratch_ = std::max(scratch_, scratch);
      ops_[id.index()].push_back(prepared);
    }
  }
}

void bind(BoundProgram& bound, const PreparedFragments& prepared, const BindContext& context) {
  Binder(bound, prepared, context).bind();
}

}  // namespace mw::execute
