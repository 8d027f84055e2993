// Random single edits of programs, for tests of the verifier: each makes another program, most of
// them wrong.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "pipeline/memory_plan.h"
#include "pipeline/program.h"

namespace mw::pipeline::test {

struct Random {
  uint64_t seed, drawn = 0;
  size_t below(size_t n) { return random_u32({.seed = seed}, drawn++) % n; }
};

// What was edited; `rank` is the pipeline rank that the edit is on, -1: a fragment or a channel.
struct Edit {
  std::string text;
  int32_t rank = -1;
};

using Editor = std::function<std::optional<Edit>(Program&, Random&)>;

inline size_t any_rank(const Program& program, Random& random) {
  return random.below(program.ranks.size());
}

inline std::optional<Edit> on_command(const Program& program, size_t r, size_t c,
                                      const char* what) {
  const Command& command = program.ranks[r].commands[c];
  return Edit{fmt::format("{}: rank {}, command {} ({}, {})", what, r, c, to_string(command.kind),
                          to_string(command.action)),
              static_cast<int32_t>(r)};
}

inline std::optional<Edit> drop_command(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  auto& commands = program.ranks[r].commands;
  const size_t c = random.below(commands.size());
  const auto edit = on_command(program, r, c, "drop");
  commands.erase(commands.begin() + static_cast<int64_t>(c));
  return edit;
}

inline std::optional<Edit> double_command(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  auto& commands = program.ranks[r].commands;
  const size_t c = random.below(commands.size());
  const auto edit = on_command(program, r, c, "double");
  commands.insert(commands.begin() + static_cast<int64_t>(c), Command(commands[c]));
  return edit;
}

inline std::optional<Edit> swap_commands(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  auto& commands = program.ranks[r].commands;
  const size_t a = random.below(commands.size());
  const size_t b = random.below(2) == 0 ? a + 1 : random.below(commands.size());
  if (b >= commands.size() || a == b) return std::nullopt;
  const auto edit = on_command(program, r, a, fmt::format("swap with {}", b).c_str());
  std::swap(commands[a], commands[b]);
  return edit;
}

inline std::optional<Edit> move_command(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  auto& commands = program.ranks[r].commands;
  const size_t from = random.below(commands.size()), to = random.below(commands.size());
  if (from == to) return std::nullopt;
  const auto edit = on_command(program, r, from, fmt::format("move to {}", to).c_str());
  const Command moved = commands[from];
  commands.erase(commands.begin() + static_cast<int64_t>(from));
  commands.insert(commands.begin() + static_cast<int64_t>(to), moved);
  return edit;
}

inline std::optional<Edit> other_buffer(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  RankProgram& rank = program.ranks[r];
  const size_t c = random.below(rank.commands.size());
  auto& buffers = rank.commands[c].buffers;
  if (buffers.empty()) return std::nullopt;
  BufferId& id = buffers[random.below(buffers.size())];
  std::vector<BufferId> alike;
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    const BufferId other(static_cast<int64_t>(b));
    if (other != id && rank.buffers[b].type() == rank.buffers[id.index()].type())
      alike.push_back(other);
  }
  if (alike.empty()) return std::nullopt;
  const BufferId before = id;
  id = alike[random.below(alike.size())];
  return on_command(program, r, c,
                    fmt::format("give '{}' for '{}'", rank.buffers[id.index()].name(),
                                rank.buffers[before.index()].name())
                        .c_str());
}

inline std::optional<Edit> other_sequence(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  const size_t c = random.below(program.ranks[r].commands.size());
  Command& command = program.ranks[r].commands[c];
  if (command.channel < 0) return std::nullopt;
  command.sequence += random.below(2) == 0 ? 1 : -1;
  return on_command(program, r, c, "other sequence");
}

inline std::optional<Edit> other_channel(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  const size_t c = random.below(program.ranks[r].commands.size());
  Command& command = program.ranks[r].commands[c];
  if (command.channel < 0) return std::nullopt;
  command.channel = static_cast<int32_t>(
      (static_cast<size_t>(command.channel) + 1 + random.below(program.channels.size() - 1)) %
      program.channels.size());
  return on_command(program, r, c, "other channel");
}

inline std::optional<Edit> other_microbatch(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  const size_t c = random.below(program.ranks[r].commands.size());
  Command& command = program.ranks[r].commands[c];
  if (command.kind == Command::Kind::kLoad && command.microbatch >= 0) {
    command.microbatch = (command.microbatch + 1) % program.microbatches;
  } else if (command.kind == Command::Kind::kCall && command.action.kind != ActionKind::kUpdate) {
    command.action.first = (command.action.first + 1) % program.microbatches;
  } else {
    return std::nullopt;
  }
  return on_command(program, r, c, "other microbatch");
}

inline std::optional<Edit> other_fragment(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  const size_t c = random.below(program.ranks[r].commands.size());
  Command& command = program.ranks[r].commands[c];
  if (command.kind != Command::Kind::kCall) return std::nullopt;
  const auto edit = on_command(program, r, c, "other fragment");
  command.fragment = FragmentId(static_cast<int64_t>(
      (command.fragment.index() + 1 + random.below(program.fragments.size() - 1)) %
      program.fragments.size()));
  return edit;
}

inline std::optional<Edit> other_names(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  const size_t c = random.below(program.ranks[r].commands.size());
  Command& command = program.ranks[r].commands[c];
  if (command.kind != Command::Kind::kCall || program.names.empty()) return std::nullopt;
  const auto before = command.names;
  command.names = static_cast<int32_t>(random.below(program.names.size() + 1)) - 1;
  if (command.names == before) return std::nullopt;
  return on_command(program, r, c, fmt::format("names {}, not {}", command.names, before).c_str());
}

inline std::optional<Edit> move_buffer(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  RankProgram& rank = program.ranks[r];
  const size_t b = random.below(rank.buffers.size());
  Storage& storage = rank.buffers[b].storage;
  Edit edit{fmt::format("move buffer {} '{}' of rank {}", b, rank.buffers[b].name(), r),
            static_cast<int32_t>(r)};
  switch (storage.kind) {
    case Storage::Kind::kSlot: {
      const int32_t slots = program.channels[static_cast<size_t>(storage.channel)].slots;
      if (slots == 1) return std::nullopt;
      storage.slot = (storage.slot + 1) % slots;
      break;
    }
    case Storage::Kind::kView:
      if (storage.part->stride != 0 && random.below(2) == 0)
        storage.part.edit().stride /= 2;
      else
        storage.offset += storage.offset > 0 && random.below(2) == 0 ? -kAlignment : kAlignment;
      break;
    default: {
      // Onto another buffer of the same arena.
      std::vector<int64_t> offsets;
      for (const Buffer& other : rank.buffers) {
        if (other.storage.kind == storage.kind && other.storage.offset != storage.offset)
          offsets.push_back(other.storage.offset);
      }
      if (offsets.empty()) return std::nullopt;
      storage.offset = offsets[random.below(offsets.size())];
    }
  }
  return edit;
}

inline std::optional<Edit> other_sharding(Program& program, Random& random) {
  const size_t r = any_rank(program, random);
  RankProgram& rank = program.ranks[r];
  const size_t b = random.below(rank.buffers.size());
  sharding::Sharding& sharding = rank.buffers[b].layout.edit().sharding;
  if (!sharding.partial.empty())
    sharding.partial.clear();
  else
    sharding.partial = {random.below(2) == 0 ? "dp" : "tp"};
  const int64_t shards = program.mesh.group_size({"dp", "tp"});
  if (shards == 1) return std::nullopt;
  return Edit{
      fmt::format("other pending axes of buffer {} '{}' of rank {}", b, rank.buffers[b].name(), r),
      static_cast<int32_t>(r)};
}

inline std::optional<Edit> fewer_slots(Program& program, Random& random) {
  if (program.channels.empty()) return std::nullopt;
  Channel& channel = program.channels[random.below(program.channels.size())];
  channel.slots = 1 + static_cast<int32_t>(random.below(static_cast<size_t>(channel.slots)));
  return Edit{fmt::format("{} slots of channel '{}'", channel.slots, channel.name)};
}

inline std::optional<Edit> move_value(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  const size_t v = random.below(fragment.graph.values.size());
  Edit edit{fmt::format("move value {} of '{}'",
                        fragment.graph.label(ValueId(static_cast<int64_t>(v))), fragment.name)};
  if (fragment.alias_of[v].valid()) {
    fragment.alias_offset[v] += fragment.alias_offset[v] >= 64 && random.below(2) == 0 ? -64 : 64;
    return edit;
  }
  if (fragment.workspace_offset[v] == Fragment::kNotPlanned) return std::nullopt;
  std::vector<int64_t> others;
  for (const int64_t offset : fragment.workspace_offset) {
    if (offset >= 0 && offset != fragment.workspace_offset[v]) others.push_back(offset);
  }
  if (others.empty()) return std::nullopt;
  fragment.workspace_offset[v] = others[random.below(others.size())];
  return edit;
}

inline std::optional<Edit> alias_value(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  const ValueId v(static_cast<int64_t>(random.below(fragment.graph.values.size())));
  const ValueId to(static_cast<int64_t>(random.below(fragment.graph.values.size())));
  if (v == to || fragment.alias_of[to.index()].valid() || fragment.alias_of[v.index()] == to)
    return std::nullopt;
  if (fragment.graph.type(v).bytes() > fragment.graph.type(to).bytes()) return std::nullopt;
  fragment.alias_of[v.index()] = to;
  fragment.alias_offset[v.index()] = 0;
  return Edit{fmt::format("lay {} over {} in '{}'", fragment.graph.label(v),
                          fragment.graph.label(to), fragment.name)};
}

// Forgets a reduction or a gather: whoever reads its result reads its operand instead. (Another op
// left out, or fed otherwise, makes another model, of which the verifier knows nothing.)
inline std::optional<Edit> skip_collective(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  ir::Graph& graph = fragment.graph;
  if (graph.ops.empty()) return std::nullopt;
  const size_t o = random.below(graph.ops.size());
  const ir::Op op = graph.ops[o];
  if (!ir::is_collective(op.kind)) return std::nullopt;
  for (ir::Op& reader : graph.ops)
    std::replace(reader.operands.begin(), reader.operands.end(), op.results[0], op.operands[0]);
  std::replace(graph.outputs.begin(), graph.outputs.end(), op.results[0], op.operands[0]);
  for (Port& port : fragment.outputs) {
    if (port.value == op.results[0] && port.kind != PortKind::kState) port.value = op.operands[0];
  }
  return Edit{fmt::format("skip op {} ({}) of '{}'", o, ir::op_name(op.kind), fragment.name)};
}

// An accumulating op adds to another sum, or what was summed is read before.
inline std::optional<Edit> other_accumulator(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  ir::Graph& graph = fragment.graph;
  if (graph.ops.empty()) return std::nullopt;
  const size_t o = random.below(graph.ops.size());
  ir::Op& op = graph.ops[o];
  if (!op.accumulates && op.kind != ir::OpKind::kAccumulate) return std::nullopt;
  ValueId& operand = op.accumulates ? op.operands.back() : op.operands[0];
  ValueIds alike;
  for (size_t v = 0; v < op.results[0].index(); ++v) {
    const ValueId other(static_cast<int64_t>(v));
    if (other != operand && graph.type(other).elements() == graph.type(operand).elements())
      alike.push_back(other);
  }
  if (alike.empty()) return std::nullopt;
  const ValueId before = operand;
  operand = alike[random.below(alike.size())];
  return Edit{fmt::format("op {} ({}) of '{}' adds to {}, not {}", o, ir::op_name(op.kind),
                          fragment.name, graph.label(operand), graph.label(before))};
}

// The same contribution once more.
inline std::optional<Edit> double_accumulation(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  ir::Graph& graph = fragment.graph;
  for (size_t u = 0; u < graph.updates.size(); ++u) {
    ir::StateUpdate& update = graph.updates[random.below(graph.updates.size())];
    const OpId producer = graph.value(update.value).producer;
    if (!producer.valid()) continue;
    ir::Op again = graph.op(producer);
    if (!again.accumulates && again.kind != ir::OpKind::kAccumulate) continue;
    (again.accumulates ? again.operands.back() : again.operands[0]) = update.value;
    again.results.clear();
    const ValueId before = update.value;
    const OpId id = graph.add_op(again, {graph.type(before)});
    const ValueId made = graph.op(id).results[0];
    for (Port& port : fragment.outputs) {
      if (port.value == before) port.value = made;
    }
    update.value = made;
    fragment.shardings.push_back(fragment.shardings[before.index()]);
    fragment.global_types.push_back(fragment.global_types[before.index()]);
    fragment.alias_of.push_back(fragment.alias_of[before.index()]);
    fragment.alias_offset.push_back(fragment.alias_offset[before.index()]);
    fragment.workspace_offset.push_back(fragment.workspace_offset[before.index()]);
    fragment.launches.emplace_back();
    return Edit{fmt::format("add {} of '{}' twice", graph.label(before), fragment.name)};
  }
  return std::nullopt;
}

inline std::optional<Edit> other_group(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  std::vector<size_t> collectives;
  for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
    if (ir::is_collective(fragment.graph.ops[o].kind)) collectives.push_back(o);
  }
  if (collectives.empty()) return std::nullopt;
  const size_t o = collectives[random.below(collectives.size())];
  static const std::vector<ir::Axes> kAxes = {
      {"dp"}, {"tp"}, {"dp", "tp"}, {"pp"}, {"pp", "tp"}, {"tp", "pp"}, {}};
  auto& attrs = std::get<ir::CollectiveAttrs>(fragment.graph.ops[o].attrs);
  attrs.group = ir::AxisGroup{kAxes[random.below(kAxes.size())]};
  return Edit{fmt::format("other group of op {} ({}) of '{}'", o,
                          ir::op_name(fragment.graph.ops[o].kind), fragment.name)};
}

inline std::optional<Edit> other_value_sharding(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  const size_t v = random.below(fragment.shardings.size());
  sharding::Sharding& sharding = fragment.shardings[v];
  if (!sharding.partial.empty())
    sharding.partial.clear();
  else
    sharding.partial = {random.below(2) == 0 ? "dp" : "tp"};
  if (program.mesh.group_size({"dp", "tp"}) == 1) return std::nullopt;
  return Edit{fmt::format("other pending axes of {} of '{}'",
                          fragment.graph.label(ValueId(static_cast<int64_t>(v))), fragment.name)};
}

inline std::optional<Edit> forget_event(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  if (fragment.launches.empty()) return std::nullopt;
  const size_t o = random.below(fragment.launches.size());
  Launch& launch = fragment.launches[o];
  if (launch.waits.empty()) return std::nullopt;
  launch.waits.erase(launch.waits.begin() +
                     static_cast<int64_t>(random.below(launch.waits.size())));
  return Edit{fmt::format("op {} ({}) of '{}' forgets an event", o,
                          ir::op_name(fragment.graph.ops[o].kind), fragment.name)};
}

inline std::optional<Edit> other_stream(Program& program, Random& random) {
  Fragment& fragment = program.fragments[random.below(program.fragments.size())];
  if (fragment.launches.empty()) return std::nullopt;
  const size_t o = random.below(fragment.launches.size());
  fragment.launches[o].stream = StreamId(fragment.launches[o].stream == StreamId(0) ? 2 : 0);
  return Edit{fmt::format("op {} ({}) of '{}' on another stream", o,
                          ir::op_name(fragment.graph.ops[o].kind), fragment.name)};
}

struct NamedEditor {
  const char* name;
  Editor edit;
};
inline const std::vector<NamedEditor>& editors() {
  static const std::vector<NamedEditor> list = {{"drop_command", drop_command},
                                                {"double_command", double_command},
                                                {"swap_commands", swap_commands},
                                                {"move_command", move_command},
                                                {"other_buffer", other_buffer},
                                                {"other_sequence", other_sequence},
                                                {"other_channel", other_channel},
                                                {"other_microbatch", other_microbatch},
                                                {"other_fragment", other_fragment},
                                                {"other_names", other_names},
                                                {"move_buffer", move_buffer},
                                                {"other_sharding", other_sharding},
                                                {"fewer_slots", fewer_slots},
                                                {"move_value", move_value},
                                                {"alias_value", alias_value},
                                                {"skip_collective", skip_collective},
                                                {"other_accumulator", other_accumulator},
                                                {"double_accumulation", double_accumulation},
                                                {"other_group", other_group},
                                                {"other_value_sharding", other_value_sharding},
                                                {"forget_event", forget_event},
                                                {"other_stream", other_stream}};
  return list;
}

inline bool names_rank(const std::vector<std::string>& findings, int32_t rank) {
  return std::any_of(findings.begin(), findings.end(), [&](const std::string& finding) {
    const std::string name = fmt::format("ank {}", rank);
    return finding.find(name) != std::string::npos ||
           finding.find(fmt::format("to {}:", rank)) != std::string::npos;
  });
}

}  // namespace mw::pipeline::test
