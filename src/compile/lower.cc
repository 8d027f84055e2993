#include "compile/lower.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "compile/channels.h"
#include "pipeline/memory_plan.h"

namespace mw::compile {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Buffer;
using pipeline::Category;
using pipeline::Command;
using pipeline::PortKind;
using pipeline::Storage;

// What a stage calls for a kind of action: Command::fragment and names.
struct Callee {
  FragmentId fragment;
  int32_t names = -1;
};
using Callees = std::vector<std::map<ActionKind, Callee>>;  // [stage]

class RankLowering {
 public:
  RankLowering(const LowerRequest& request, const ChannelPlan& channels, int32_t rank,
               const Callees& fragments)
      : r_(request), channels_(channels), rank_(rank), fragments_(fragments) {
    const StateTable& states = request.states[static_cast<size_t>(rank)];
    program_.buffers = states.buffers;
    program_.states = static_cast<int32_t>(states.buffers.size());
    program_.state_arena = states.arena;
  }

  pipeline::RankProgram run(FragmentId last) {
    if (!r_.stages.empty()) {
      for (const Action& action : r_.schedule.ranks[static_cast<size_t>(rank_)]) add_action(action);
    }
    add_last(r_.last[static_cast<size_t>(rank_)], last);
    insert_releases();
    return std::move(program_);
  }

 private:
  const StateTable& states() const { return r_.states[static_cast<size_t>(rank_)]; }

  void add_action(const Action& action) {
    const auto stage = static_cast<size_t>(action.stage.value);
    const StageCode& code = r_.stages[stage];
    const StageFragment& fragment = code.fragments.at(action.kind);
    Command call;
    call.kind = Command::Kind::kCall;
    call.action = action;
    call.microbatch = action.first;
    call.fragment = fragments_[stage].at(action.kind).fragment;
    call.names = fragments_[stage].at(action.kind).names;
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      call.buffers.push_back(input(action, code, fragment, i));
    }
    std::vector<Command> publishes;
    for (size_t i = 0; i < fragment.outputs.size(); ++i) {
      call.buffers.push_back(output(action, code, fragment, i, publishes));
    }
    program_.commands.push_back(std::move(call));
    for (Command& publish : publishes) program_.commands.push_back(std::move(publish));
  }

  BufferId add_buffer(const std::string& name, const pipeline::Fragment& fragment, ValueId v,
                      Category category, int32_t microbatch) {
    Buffer buffer;
    buffer.name = microbatch < 0 ? name : fmt::format("{}#{}", name, microbatch);
    buffer.type = fragment.graph.type(v);
    buffer.global_type = fragment.global_types[v.index()];
    buffer.sharding = fragment.shardings[v.index()];
    buffer.category = category;
    program_.buffers.push_back(std::move(buffer));
    return BufferId(static_cast<int64_t>(program_.buffers.size()) - 1);
  }

  BufferId input(const Action& action, const StageCode& code, const StageFragment& fragment,
                 size_t i) {
    const PortSource& source = fragment.inputs[i];
    const pipeline::Fragment& f = *fragment.fragment;
    pipeline::Port port = f.inputs[i];
    port.name = fragment.names[i];
    switch (source.kind) {
      case PortSource::Kind::kState: return states().at(r_.module.state(source.state).name);
      case PortSource::Kind::kData: return load(action, f, port);
      case PortSource::Kind::kReceive: return receive(action, code, f, port, source.crossing);
      case PortSource::Kind::kSaved: {
        const auto it = saved_.find({action.stage, source.value, action.first});
        MW_CHECK(it != saved_.end(), "{} of {} reads {} before it is saved", to_string(action),
                 r_.name, port.name);
        return it->second;
      }
      default: MW_CHECK(false, "{} is no input", port.name);
    }
  }

  // Scalars are the same for a whole step; what has a batch dimension is loaded for every
  // microbatch and stage.
  BufferId load(const Action& action, const pipeline::Fragment& fragment,
                const pipeline::Port& port) {
    const bool once = fragment.graph.type(port.value).rank() == 0;
    const int32_t microbatch = once ? -1 : action.first;
    const int32_t stage = once ? -1 : action.stage.value;
    BufferId& id = loaded_[{port.name, stage, microbatch}];
    if (id.valid()) return id;
    id = add_buffer(port.name, fragment, port.value, Category::kData, microbatch);
    Command command;
    command.kind = Command::Kind::kLoad;
    command.action = action;
    command.buffers = {id};
    command.name = port.name;
    command.microbatch = microbatch;
    program_.commands.push_back(std::move(command));
    return id;
  }

  BufferId receive(const Action& action, const StageCode& code, const pipeline::Fragment& fragment,
                   const pipeline::Port& port, size_t crossing) {
    const Crossing& from = code.receives[crossing];
    const ChannelKey key{from.whole, from.peer, action.stage};
    const int32_t channel = channels_.find(key);
    if (channel < 0) {  // both stages are on this rank
      const auto it = local_.find({key, action.first});
      MW_CHECK(it != local_.end(), "{} reads {} before it is made", to_string(action), port.name);
      return it->second;
    }
    BufferId& id = received_[{key, action.first}];
    if (id.valid()) return id;
    const int64_t sequence = channels_.sequence(channel, action.first);
    id = slot_buffer(port.name, fragment, port.value, channel, sequence, action.first);
    add_message(Command::Kind::kReceive, action, channel, sequence, id);
    return id;
  }

  BufferId slot_buffer(const std::string& name, const pipeline::Fragment& fragment, ValueId v,
                       int32_t channel, int64_t sequence, int32_t microbatch) {
    const BufferId id = add_buffer(name, fragment, v, Category::kBoundary, microbatch);
    Storage& storage = program_.buffers[id.index()].storage;
    storage.kind = Storage::Kind::kSlot;
    storage.channel = channel;
    storage.slot =
        static_cast<int32_t>(sequence % channels_.channels[static_cast<size_t>(channel)].slots);
    return id;
  }

  Command message(Command::Kind kind, const Action& action, int32_t channel, int64_t sequence,
                  BufferId buffer) const {
    Command command;
    command.kind = kind;
    command.action = action;
    command.microbatch = action.first;
    command.channel = channel;
    command.sequence = sequence;
    command.buffers = {buffer};
    return command;
  }
  void add_message(Command::Kind kind, const Action& action, int32_t channel, int64_t sequence,
                   BufferId buffer) {
    program_.commands.push_back(message(kind, action, channel, sequence, buffer));
  }

  BufferId output(const Action& action, const StageCode& code, const StageFragment& fragment,
                  size_t i, std::vector<Command>& publishes) {
    const PortSource& source = fragment.outputs[i];
    const pipeline::Fragment& f = *fragment.fragment;
    pipeline::Port port = f.outputs[i];
    port.name = fragment.output_name(i);
    switch (source.kind) {
      case PortSource::Kind::kSaved: {
        const BufferId id =
            add_buffer(port.name, f, port.value, Category::kActivations, action.first);
        saved_[{action.stage, source.value, action.first}] = id;
        return id;
      }
      case PortSource::Kind::kResult: return states().at(code.results[source.crossing]);
      case PortSource::Kind::kSend: {
        const Crossing& to = code.sends[source.crossing];
        const ChannelKey key{to.whole, action.stage, to.peer};
        const int32_t channel = channels_.find(key);
        if (channel < 0) {
          const BufferId id =
              add_buffer(port.name, f, port.value, Category::kBoundary, action.first);
          local_[{key, action.first}] = id;
          return id;
        }
        const int64_t sequence = channels_.sequence(channel, action.first);
        const BufferId id = slot_buffer(port.name, f, port.value, channel, sequence, action.first);
        add_message(Command::Kind::kAcquire, action, channel, sequence, id);
        publishes.push_back(message(Command::Kind::kPublish, action, channel, sequence, id));
        return id;
      }
      default: MW_CHECK(false, "{} is no output", port.name);
    }
  }

  void add_last(const StateFragment& last, FragmentId id) {
    Command call;
    call.kind = Command::Kind::kCall;
    call.action.kind = last.fragment.kind;
    call.action.first = 0;
    call.action.count = r_.schedule.microbatches;
    call.fragment = id;
    for (size_t i = 0; i < last.inputs.size(); ++i) {
      const pipeline::Port& port = last.fragment.inputs[i];
      call.buffers.push_back(port.kind == PortKind::kData ? load(call.action, last.fragment, port)
                                                          : states().at(last.inputs[i]));
    }
    for (const std::string& name : last.outputs) call.buffers.push_back(states().at(name));
    program_.commands.push_back(std::move(call));
  }

  // A received slot goes back right behind the last command that reads it, before anything else is
  // sent.
  void insert_releases() {
    std::map<BufferId, size_t> last_use;
    for (size_t c = 0; c < program_.commands.size(); ++c) {
      for (const BufferId id : program_.commands[c].buffers) last_use[id] = c;
    }
    std::map<size_t, std::vector<Command>> behind;
    for (const Command& command : program_.commands) {
      if (command.kind != Command::Kind::kReceive) continue;
      Command release = command;
      release.kind = Command::Kind::kRelease;
      const size_t at = last_use.at(command.buffers[0]);
      release.action = program_.commands[at].action;
      behind[at].push_back(std::move(release));
    }
    std::vector<Command> commands;
    for (size_t c = 0; c < program_.commands.size(); ++c) {
      commands.push_back(std::move(program_.commands[c]));
      for (Command& release : behind[c]) commands.push_back(std::move(release));
    }
    program_.commands = std::move(commands);
  }

  const LowerRequest& r_;
  const ChannelPlan& channels_;
  int32_t rank_;
  const Callees& fragments_;
  pipeline::RankProgram program_;
  std::map<std::tuple<StageId, ValueId, int32_t>, BufferId> saved_;
  std::map<std::tuple<std::string, int32_t, int32_t>, BufferId> loaded_;
  std::map<std::pair<ChannelKey, int32_t>, BufferId> received_, local_;
};

// The fragments of all stages, those that are alike once.
Callees add_fragments(const std::vector<StageCode>& stages, pipeline::Program& program) {
  std::map<const pipeline::Fragment*, int> callers;
  for (const StageCode& stage : stages) {
    for (const auto& [kind, fragment] : stage.fragments) ++callers[fragment.fragment.get()];
  }
  std::map<const pipeline::Fragment*, FragmentId> added;
  Callees callees;
  for (const StageCode& stage : stages) {
    callees.emplace_back();
    for (const auto& [kind, fragment] : stage.fragments) {
      const pipeline::Fragment* here = fragment.fragment.get();
      const auto [it, is_new] =
          added.try_emplace(here, static_cast<int64_t>(program.fragments.size()));
      if (is_new) program.fragments.push_back(*here);
      Callee& callee = callees.back()[kind];
      callee.fragment = it->second;
      if (callers.at(here) == 1) continue;
      callee.names = static_cast<int32_t>(program.names.size());
      program.names.push_back(fragment.names);
    }
  }
  return callees;
}

}  // namespace

pipeline::Program lower(const LowerRequest& request) {
  pipeline::Program program;
  program.name = request.name;
  program.mesh = request.mesh;
  program.microbatches = request.schedule.microbatches;
  const ChannelPlan channels = plan_channels(request.schedule, request.stages);
  program.channels = channels.channels;
  const Callees fragments = add_fragments(request.stages, program);
  const auto add = [&](const pipeline::Fragment& fragment) {
    program.fragments.push_back(fragment);
    return FragmentId(static_cast<int64_t>(program.fragments.size()) - 1);
  };
  for (size_t rank = 0; rank < request.states.size(); ++rank) {
    const FragmentId last = add(request.last[rank].fragment);
    RankLowering lowering(request, channels, static_cast<int32_t>(rank), fragments);
    program.ranks.push_back(lowering.run(last));
  }
  for (pipeline::RankProgram& rank : program.ranks) pipeline::plan_rank(program, rank);
  return program;
}

}  // namespace mw::compile
