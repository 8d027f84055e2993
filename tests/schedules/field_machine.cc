#include "field_machine.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace mw::field {

using pipeline::Buffer;
using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;
using pipeline::RankProgram;
using pipeline::Storage;

void Memory::check(int64_t at, int64_t bytes) const {
  MW_CHECK(at >= 0 && at + bytes <= static_cast<int64_t>(cells_.size()),
           "bytes {} to {} of a memory of {}", at, at + bytes, cells_.size());
}

constexpr int64_t kSizes = 16;  // element sizes are below

std::optional<Array> Memory::read(int64_t at, const ir::TensorType& type, int64_t owner) const {
  const int64_t size = dtype_size(type.dtype);
  check(at, type.bytes().value);
  Array array = zeros(type);
  for (uint64_t& value : array.values) {
    const Cell& cell = cells_[static_cast<size_t>(at)];
    if (cell.owner != owner * kSizes + size) return std::nullopt;
    value = cell.value;
    at += size;
  }
  return array;
}

void Memory::write(int64_t at, const Array& array, int64_t owner) {
  const int64_t size = dtype_size(array.type.dtype);
  check(at, array.type.bytes().value);
  // An element that reaches into the first one is gone.
  for (int64_t back = 1; back < kSizes && back <= at; ++back) {
    Cell& cell = cells_[static_cast<size_t>(at - back)];
    if (cell.owner % kSizes > back) cell.owner = -1;
  }
  for (const uint64_t value : array.values) {
    cells_[static_cast<size_t>(at)] = {value, owner * kSizes + size};
    for (int64_t b = 1; b < size; ++b) cells_[static_cast<size_t>(at + b)].owner = -1;
    at += size;
  }
}

void Memory::copy(const Memory& from, int64_t at, int64_t bytes) {
  check(at, bytes);
  std::copy_n(from.cells_.begin() + at, bytes, cells_.begin() + at);
}

Machine::Machine(const Program& program, const MachineOptions& options)
    : options_(options), program_(&program) {
  for (int64_t rank = 0; rank < program.mesh.size(); ++rank) {
    Device& device = devices_.emplace_back();
    device.id = RankId(rank);
    device.pipeline = static_cast<int32_t>(program.mesh.index(device.id, {"pp"}));
    const RankProgram& own = rank_program(device.id);
    device.states = Memory(own.state_arena.value);
    for (int32_t b = 0; b < own.states; ++b) {
      if (own.buffers[static_cast<size_t>(b)].storage.kind == Storage::Kind::kState)
        set_state(device.id, BufferId(b), zeros(own.buffers[static_cast<size_t>(b)].type()));
    }
  }
}

const RankProgram& Machine::rank_program(RankId rank) const {
  return program_->ranks.at(static_cast<size_t>(devices_.at(rank.index()).pipeline));
}

Array Machine::state(RankId rank, BufferId buffer) {
  Device& device = devices_[rank.index()];
  const Place place = place_of(device, buffer);
  const Buffer& of = rank_program(rank).buffers[buffer.index()];
  const std::optional<Array> array = place.memory->read(place.offset, of.type(), place.owner);
  MW_CHECK(array, "state '{}' of device {} is not there", of.name(), rank.value);
  return *array;
}

void Machine::set_state(RankId rank, BufferId buffer, const Array& array) {
  const Place place = place_of(devices_[rank.index()], buffer);
  place.memory->write(place.offset, array, place.owner);
}

bool Machine::run(const Program& program, const Loader& loader,
                  const std::function<void(RankId)>& validated) {
  begin(program);
  loader_ = &loader;
  const auto ended = [&](const Device& device) {
    return device.stopped || device.command == rank_program(device.id).commands.size();
  };
  std::vector<Device*> free;
  const auto all = [&] {
    free.clear();
    for (Device& device : devices_)
      if (!ended(device)) free.push_back(&device);
  };
  for (all(); !free.empty();) {
    const size_t chosen = choose(free.size());
    Device& device = *free[chosen];
    const size_t before = device.command;
    if (!step(device)) {
      free.erase(free.begin() + static_cast<int64_t>(chosen));
      MW_CHECK(!free.empty(), "all wait: {}", where(device));
      continue;
    }
    const RankProgram& own = rank_program(device.id);
    if (device.command != before && own.repeatable > 0 &&
        device.command == static_cast<size_t>(own.repeatable)) {
      if (validated) validated(device.id);
      device.stopped = state(device.id, own.amended).values[0] != 0;
    }
    all();
  }
  const auto stopped = std::count_if(devices_.begin(), devices_.end(),
                                     [](const Device& device) { return device.stopped; });
  MW_CHECK(stopped == 0 || stopped == static_cast<int64_t>(devices_.size()),
           "{} devices of {} go back", stopped, devices_.size());
  if (stopped == 0) end();
  return stopped > 0;
}

void Machine::begin(const Program& program) {
  program_ = &program;
  codes_.clear();
  for (const Fragment& fragment : program.fragments) codes_.push_back(code_of(fragment));
  for (Device& device : devices_) {
    device.arena = Memory(rank_program(device.id).arena.value);
    device.command = 0;
    device.stopped = device.in_call = false;
    device.collectives.clear();
  }
  collectives_.clear();
  rings_.clear();
  for (const pipeline::Channel& channel : program.channels) {
    std::vector<Ring>& rings = rings_.emplace_back(static_cast<size_t>(program.mesh.size()));
    for (Ring& ring : rings) {
      for (int side = 0; side < 2; ++side) {
        ring.slots[side] = Memory(channel.slots * channel.type.bytes().value);
        ring.held[side].assign(static_cast<size_t>(channel.slots), -1);
      }
    }
  }
}

// Every message went all its way, and nothing is left.
void Machine::end() const {
  for (size_t c = 0; c < rings_.size(); ++c) {
    for (const Ring& ring : rings_[c]) {
      for (const auto& some : ring.messages) {
        MW_CHECK(some == ring.messages[0], "channel '{}' has messages that were not all taken",
                 program_->channels[c].name);
      }
    }
  }
}

std::string Machine::where(const Device& device) const {
  const Command& command = rank_program(device.id).commands.at(device.command);
  return fmt::format("device {}, command {} ({}, {})", device.id.value, device.command,
                     to_string(command.kind), to_string(command.action));
}

bool Machine::step(Device& device) {
  const Command& command = rank_program(device.id).commands[device.command];
  bool moved = true;
  switch (command.kind) {
    case Command::Kind::kLoad: load(device, command); break;
    case Command::Kind::kCall:
      if (moved = call(device, command); device.in_call) return moved;
      break;
    default: moved = channel_command(device, command);
  }
  if (moved) ++device.command;
  return moved;
}

bool Machine::channel_command(Device& device, const Command& command) {
  const pipeline::Channel& channel = program_->channels.at(static_cast<size_t>(command.channel));
  Ring& of = ring(device, command.channel);
  const int64_t k = command.sequence, bytes = channel.type.bytes().value;
  const auto slot = static_cast<size_t>(k % channel.slots);
  const int what = command.kind == Command::Kind::kAcquire   ? 0
                   : command.kind == Command::Kind::kPublish ? 1
                   : command.kind == Command::Kind::kReceive ? 2
                                                             : 3;
  const int side = what / 2;
  MW_CHECK(k >= 0 && device.pipeline == (side == 0 ? channel.from : channel.to),
           "{}: no end of channel '{}'", where(device), channel.name);
  int64_t& held = of.held[side].at(slot);
  if (what == 0 && k >= channel.slots && !of.messages[3].contains(k - channel.slots)) {
    // Who goes back drops what was sent to it.
    const std::vector<RankId> ends = program_->mesh.members(device.id, {"pp"});
    if (!devices_[ends[static_cast<size_t>(channel.to)].index()].stopped) return false;
  }
  if (what == 2 && !of.messages[1].contains(k)) return false;
  MW_CHECK(of.messages[what].insert(k).second, "{}: message {} twice", where(device), k);
  if (what == 0 || what == 2) {
    MW_CHECK(held < 0, "{}: the slot holds message {}", where(device), held);
    held = k;
  } else {
    MW_CHECK(held == k, "{}: the slot holds message {}, not {}", where(device), held, k);
    held = -1;
  }
  if (options_.copying && what == (options_.late ? 2 : 1))
    of.slots[1].copy(of.slots[0], static_cast<int64_t>(slot) * bytes, bytes);
  return true;
}

void Machine::load(Device& device, const Command& command) {
  const BufferId id = command.buffers.at(0);
  const Buffer& buffer = rank_program(device.id).buffers.at(id.index());
  Array array = zeros(buffer.type());
  for_each(buffer.type(), [&](const Index& local, size_t at) {
    Index global = local;
    for (size_t d = 0; d < global.size(); ++d) {
      if (d < buffer.sharding().dims.size())
        global[d] +=
            program_->mesh.index(device.id, buffer.sharding().dims[d]) * buffer.type().dims[d].size;
    }
    if (!global.empty() && command.microbatch >= 0)
      global[0] += command.microbatch * buffer.global_type().dim(0);
    array.values[at] = (*loader_)(command.name, command.microbatch, global);
  });
  const Place place = place_of(device, id);
  place.memory->write(place.offset, array, place.owner);
}

// Runs what can be run; false: nothing could.
bool Machine::call(Device& device, const Command& command) {
  const Code& code = codes_.at(command.fragment.index());
  if (!device.in_call) {
    device.in_call = true;
    ++device.calls;
    device.next.assign(code.streams.size(), 0);
    device.ended.assign(code.waits.size(), false);
    device.arrived.assign(code.waits.size(), false);
  }
  bool moved = false, any = true;
  while (any) {
    std::vector<size_t> ready;  // streams
    bool left = false;
    for (size_t s = 0; s < code.streams.size(); ++s) {
      if (device.next[s] == code.streams[s].size()) continue;
      left = true;
      const auto& waits = code.waits[code.streams[s][device.next[s]]];
      if (std::all_of(waits.begin(), waits.end(), [&](size_t o) { return device.ended[o]; }))
        ready.push_back(s);
    }
    if (!left) {
      device.in_call = false;
      return true;
    }
    MW_CHECK(!ready.empty(), "{}: no stream can go on", where(device));
    any = false;
    for (size_t start = choose(ready.size()), i = 0; i < ready.size() && !any; ++i) {
      const size_t stream = ready[(start + i) % ready.size()];
      const size_t op = code.streams[stream][device.next[stream]];
      const bool arrived = device.arrived[op];
      if (run_op(device, command, op)) {
        device.ended[op] = any = true;
        ++device.next[stream];
      }
      moved = moved || any || device.arrived[op] != arrived;
    }
  }
  return moved;
}

// Whether the result is another name for bytes of the operand.
bool Machine::is_alias(const Fragment& fragment, const ir::Op& op) const {
  if (op.kind != ir::OpKind::kView && op.kind != ir::OpKind::kReshape) return false;
  const auto& values = codes_[static_cast<size_t>(&fragment - program_->fragments.data())].values;
  const Code::Value &to = values[op.results[0].index()], &from = values[op.operands[0].index()];
  int64_t offset = 0;
  if (op.kind == ir::OpKind::kView)
    offset = op.as<ir::ViewAttrs>().offset * dtype_size(fragment.graph.type(op.results[0]).dtype);
  return to.root == from.root && to.offset == from.offset + offset;
}

// False: a collective that waits for others.
bool Machine::run_op(Device& device, const Command& command, size_t o) {
  const Fragment& fragment = program_->fragments[command.fragment.index()];
  const ir::Op& op = fragment.graph.ops[o];
  if (ir::is_collective(op.kind)) return collective(device, command, o);
  if (is_alias(fragment, op)) return true;
  std::vector<Array> operands;
  if (op.kind != ir::OpKind::kZero)
    for (const ValueId v : op.operands) operands.push_back(read(device, command, v));
  std::vector<ir::TensorType> types;
  for (const ValueId v : op.results) types.push_back(fragment.graph.type(v));
  const std::vector<Array> results = evaluate(op, operands, types, {program_->mesh, device.id});
  for (size_t r = 0; r < results.size(); ++r) write(device, command, op.results[r], results[r]);
  return true;
}

bool Machine::collective(Device& device, const Command& command, size_t o) {
  const Fragment& fragment = program_->fragments[command.fragment.index()];
  const ir::Op& op = fragment.graph.ops[o];
  const auto& attrs = op.as<ir::CollectiveAttrs>();
  const std::vector<RankId> group = members(device, attrs.group);
  size_t& count = device.collectives[group];
  if (!device.arrived[o]) {
    Collective& joined = collectives_[{group, count++}];
    std::string signature = fmt::format("{} {} {} {}", ir::op_name(op.kind),
                                        static_cast<int>(attrs.op), attrs.dim, attrs.concat_dim);
    for (const ValueId v : op.operands) {
      joined.operands[device.id].push_back(read(device, command, v));
      signature += " " + ir::to_string(fragment.graph.type(v));
    }
    if (joined.signature.empty()) joined.signature = signature;
    MW_CHECK(joined.signature == signature, "{}: {} meets {}", where(device), signature,
             joined.signature);
    device.arrived[o] = true;
  }
  const Collective& joined = collectives_[{group, count - 1}];
  if (joined.operands.size() < group.size()) return false;
  const auto me =
      static_cast<size_t>(std::find(group.begin(), group.end(), device.id) - group.begin());
  for (size_t i = 0; i < op.results.size(); ++i) {
    std::vector<const Array*> parts;
    for (const RankId member : group) parts.push_back(&joined.operands.at(member).at(i));
    write(device, command, op.results[i],
          combine(op, parts, group, me, fragment.graph.type(op.results[i]), program_->mesh));
  }
  return true;
}

std::vector<RankId> Machine::members(const Device& device, const ir::DeviceGroup& group) const {
  if (const auto* axes = std::get_if<ir::AxisGroup>(&group))
    return program_->mesh.members(device.id, axes->axes);
  const auto& [state, axes] = std::get<ir::Holders>(group);
  std::vector<RankId> holders;
  for (const RankId beside : program_->mesh.members(device.id, axes)) {
    for (const RankId other : program_->mesh.members(beside, {"pp"})) {
      const RankProgram& rank = rank_program(other);
      const bool holds =
          std::any_of(rank.buffers.begin(), rank.buffers.begin() + rank.states,
                      [&name = state](const Buffer& buffer) { return buffer.value == name; });
      if (holds) holders.push_back(other);
    }
  }
  MW_CHECK(std::find(holders.begin(), holders.end(), device.id) != holders.end(),
           "{}: holds no '{}'", where(device), state);
  return holders;
}

Array Machine::read(Device& device, const Command& command, ValueId value) {
  const Fragment& fragment = program_->fragments[command.fragment.index()];
  const Place place = place_of(device, command, value);
  std::optional<Array> array =
      place.memory->read(place.offset, fragment.graph.type(value), place.owner);
  MW_CHECK(array, "{}: {} was not written, or overwritten", where(device),
           fragment.graph.label(value));
  return *std::move(array);
}

void Machine::write(Device& device, const Command& command, ValueId value, const Array& array) {
  const Place place = place_of(device, command, value);
  place.memory->write(place.offset, array, place.owner);
}

// What is in the workspace belongs to a value of this call.
Machine::Place Machine::place_of(Device& device, const Command& command, ValueId value) {
  const Code& code = codes_[command.fragment.index()];
  const Code::Value& at = code.values[value.index()];
  if (at.port >= 0) {
    Place place = place_of(device, command.buffers.at(static_cast<size_t>(at.port)));
    place.offset += at.offset;
    return place;
  }
  constexpr int64_t kBehindBuffers = int64_t{1} << 32;
  return {&device.arena, command.workspace_offset + at.offset,
          kBehindBuffers * device.calls + static_cast<int64_t>(at.root)};
}

Machine::Place Machine::place_of(Device& device, BufferId id) {
  const Buffer& buffer = rank_program(device.id).buffers.at(id.index());
  const Storage& storage = buffer.storage;
  switch (storage.kind) {
    case Storage::Kind::kState: return {&device.states, storage.offset, id.value};
    case Storage::Kind::kArena: return {&device.arena, storage.offset, id.value};
    case Storage::Kind::kSlot: {
      const pipeline::Channel& channel =
          program_->channels.at(static_cast<size_t>(storage.channel));
      const int side = device.pipeline == channel.from ? 0 : 1;
      Ring& of = ring(device, storage.channel);
      const int64_t held = of.held[side].at(static_cast<size_t>(storage.slot));
      MW_CHECK(held >= 0, "{}: touches a slot of channel '{}' that is not its own", where(device),
               channel.name);
      return {&of.slots[options_.copying ? side : 0],
              storage.slot * channel.type.bytes().value + storage.offset, held};
    }
    case Storage::Kind::kView: {
      Place place = place_of(device, storage.parent);
      place.offset += storage.offset +
                      program_->mesh.index(device.id, storage.part->axes) * storage.part->stride;
      return place;
    }
  }
  MW_CHECK(false, "storage of '{}'", buffer.name());
}

// Devices that differ in the pipeline coordinate alone share it.
Machine::Ring& Machine::ring(const Device& device, int32_t channel) {
  const RankId first = program_->mesh.members(device.id, {"pp"}).front();
  return rings_.at(static_cast<size_t>(channel))[first.index()];
}

Machine::Code Machine::code_of(const Fragment& fragment) const {
  Code code;
  const ir::Graph& graph = fragment.graph;
  std::map<ValueId, int64_t> ports;
  int64_t port = 0;
  for (const pipeline::Port& input : fragment.inputs) ports.try_emplace(input.value, port++);
  for (const pipeline::Port& output : fragment.outputs)
    if (output.kind != pipeline::PortKind::kState) ports.try_emplace(output.value, port++);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const ValueId alias = fragment.alias_of.at(v);
    const ValueId root = alias.valid() ? alias : ValueId(static_cast<int64_t>(v));
    Code::Value value{-1, alias.valid() ? fragment.alias_offset.at(v) : 0, root.index()};
    if (const auto it = ports.find(root); it != ports.end())
      value.port = it->second;
    else
      value.offset += fragment.workspace_offset.at(root.index());
    code.values.push_back(value);
  }
  for (const ir::StateUpdate& update : graph.updates) {
    const auto input = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                    [&](const auto& of) { return of.state == update.state; });
    const Code::Value& at = code.values[update.value.index()];
    MW_CHECK(input != graph.inputs.end() && at.root == input->value.index() && at.offset == 0,
             "'{}' leaves {} in no state", fragment.name, graph.label(update.value));
  }
  std::map<StreamId, std::vector<size_t>> streams;
  std::map<EventId, size_t> recorded;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const pipeline::Launch& launch = fragment.launches.at(o);
    streams[launch.stream].push_back(o);
    if (launch.records.valid()) recorded[launch.records] = o;
  }
  for (const auto& [stream, ops] : streams) code.streams.push_back(ops);
  for (const pipeline::Launch& launch : fragment.launches) {
    std::vector<size_t>& waits = code.waits.emplace_back();
    for (const EventId event : launch.waits) waits.push_back(recorded.at(event));
  }
  return code;
}

}  // namespace mw::field
