#include "compile/lower.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/in_parallel.h"
#include "compile/channels.h"
#include "compile/repeatable.h"
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

// All buffers for a value share its layout.
using Layout = pipeline::Shared<pipeline::Layout>;
Layout layout_of(const pipeline::Fragment& fragment, ValueId v) {
  return Layout(
      {fragment.graph.type(v), fragment.global_types[v.index()], fragment.shardings[v.index()]});
}
// Of each port of a fragment that is no state, inputs then outputs: for all stages that call it.
using Layouts = std::map<const pipeline::Fragment*, std::vector<Layout>>;

// A port of a stage's fragment as this rank's calls see it, the same for all microbatches.
struct PortPlan {
  PortSource::Kind kind = PortSource::Kind::kData;
  BufferId state;        // kState, kResult
  int32_t channel = -1;  // kReceive, kSend; -1: both stages are on this rank
  size_t table = 0;      // of the others: the buffer of every microbatch
  bool once = false;     // kData: the same for a whole step
  Name name;
  Layout layout;
};

struct CallPlan {
  Callee callee;
  std::vector<PortPlan> inputs, outputs;
  // Inputs that it may be the first to need; commands of outputs, and releases of inputs.
  size_t made = 0, messages = 0;
};

// Fragments that are called once a step, of one rank; invalid: none.
struct StepFragments {
  FragmentId share, validate, last;
};

// The channels of what SHARE sends: by name, sender and receiver.
using SharedChannels = std::map<std::tuple<std::string, int32_t, int32_t>, int32_t>;

class RankLowering {
 public:
  RankLowering(const LowerRequest& request, const ChannelPlan& channels,
               const SharedChannels& shared, const Layouts& layouts, int32_t rank,
               const Callees& fragments, size_t repeatable)
      : r_(request),
        channels_(channels),
        shared_(shared),
        layouts_(layouts),
        rank_(rank),
        fragments_(fragments),
        repeatable_(repeatable),
        received_(channels.channels.size(), 0) {
    const StateTable& states = request.states[static_cast<size_t>(rank)];
    program_.buffers = states.buffers;
    program_.states = static_cast<int32_t>(states.buffers.size());
    program_.state_arena = states.arena;
  }

  pipeline::RankProgram run(const StepFragments& fragments) {
    const auto rank = static_cast<size_t>(rank_);
    bool pending = !r_.validations.empty();  // the step before is not validated yet
    if (pending) add_step_call(r_.validations[rank].share, fragments.share);
    const auto validate = [&] {
      if (pending) add_step_call(r_.validations[rank].validate, fragments.validate);
      pending = false;
    };
    if (!r_.stages.empty()) {
      calls_.resize(r_.stages.size());
      reserve();
      const std::vector<Action>& actions = r_.schedule.ranks[rank];
      for (size_t i = 0; i < actions.size(); ++i) {
        if (i == repeatable_) validate();
        add_action(actions[i]);
      }
    }
    validate();
    if (!r_.last.empty()) add_step_call(r_.last[rank], fragments.last);
    insert_releases();
    if (!r_.validations.empty()) mark_repeatable(fragments.validate);
    return std::move(program_);
  }

 private:
  const StateTable& states() const { return r_.states[static_cast<size_t>(rank_)]; }

  const CallPlan& call_plan(const Action& action) {
    const auto [it, is_new] = calls_[action.stage.index()].try_emplace(action.kind);
    CallPlan& plan = it->second;
    if (!is_new) return plan;
    const StageFragment& fragment = r_.stages[action.stage.index()].fragments.at(action.kind);
    plan.callee = fragments_[action.stage.index()].at(action.kind);
    const std::vector<Layout>& layouts = layouts_.at(fragment.fragment.get());
    const size_t inputs = fragment.inputs.size();
    for (size_t i = 0; i < inputs; ++i)
      plan.inputs.push_back(input_plan(action.stage, fragment, i, layouts[i]));
    for (const PortPlan& port : plan.inputs) {
      const bool received = port.kind == PortSource::Kind::kReceive && port.channel >= 0;
      if (received || (port.kind == PortSource::Kind::kData && !port.once)) ++plan.made;
      if (received) ++plan.messages;  // that goes back
    }
    for (size_t i = 0; i < fragment.outputs.size(); ++i)
      plan.outputs.push_back(output_plan(action.stage, fragment, i, layouts[inputs + i]));
    for (const PortPlan& port : plan.outputs) {
      if (port.kind == PortSource::Kind::kSend && port.channel >= 0) plan.messages += 2;
    }
    return plan;
  }

  // Up to the releases behind the call of VALIDATE.
  void mark_repeatable(FragmentId validate) {
    const std::vector<Command>& commands = program_.commands;
    auto at = std::find_if(commands.begin(), commands.end(), [&](const Command& command) {
      return command.kind == Command::Kind::kCall && command.fragment == validate;
    });
    do {
      ++at;
    } while (at != commands.end() && at->kind == Command::Kind::kRelease);
    program_.repeatable = static_cast<int32_t>(at - commands.begin());
    program_.amended = states().at(kAmended);
  }

  // Room for what the schedule's actions make.
  void reserve() {
    size_t buffers = program_.buffers.size(), commands = 1;
    for (const Action& action : r_.schedule.ranks[static_cast<size_t>(rank_)]) {
      const CallPlan& plan = call_plan(action);
      buffers += plan.outputs.size() + plan.made;
      commands += 1 + plan.messages + plan.made;
    }
    program_.buffers.reserve(buffers);
    program_.commands.reserve(commands);
  }

  static PortPlan port_plan(PortSource::Kind kind, Name name, const Layout& layout) {
    PortPlan plan;
    plan.kind = kind;
    plan.name = name;
    plan.layout = layout;
    return plan;
  }

  PortPlan input_plan(StageId stage, const StageFragment& fragment, size_t i,
                      const Layout& layout) {
    const PortSource& source = fragment.inputs[i];
    PortPlan plan = port_plan(source.kind, fragment.names[i], layout);
    switch (source.kind) {
      case PortSource::Kind::kState:
        plan.state = states().at(r_.module.state(source.state).name);
        break;
      case PortSource::Kind::kData: place_data(plan, stage); break;
      case PortSource::Kind::kReceive: {
        const Crossing& from = r_.stages[stage.index()].receives[source.crossing];
        const ChannelKey key{from.whole, from.peer, stage};
        plan.channel = channels_.find(key);
        plan.table = table(crossings_, key);
        break;
      }
      case PortSource::Kind::kSaved:
        plan.table = table(saved_, std::pair(stage, source.value));
        break;
      default: MW_CHECK(false, "{} is no input", plan.name.str());
    }
    return plan;
  }

  PortPlan output_plan(StageId stage, const StageFragment& fragment, size_t i,
                       const Layout& layout) {
    const PortSource& source = fragment.outputs[i];
    PortPlan plan = port_plan(source.kind, fragment.output_name(i), layout);
    const StageCode& code = r_.stages[stage.index()];
    switch (source.kind) {
      case PortSource::Kind::kSaved:
        plan.table = table(saved_, std::pair(stage, source.value));
        break;
      case PortSource::Kind::kResult:
        plan.state = states().at(code.results[source.crossing]);
        break;
      case PortSource::Kind::kSend: {
        const Crossing& to = code.sends[source.crossing];
        const ChannelKey key{to.whole, stage, to.peer};
        plan.channel = channels_.find(key);
        plan.table = table(crossings_, key);
        break;
      }
      default: MW_CHECK(false, "{} is no output", plan.name.str());
    }
    return plan;
  }

  // Scalars are the same for a whole step; what has a batch dimension is loaded for every
  // microbatch and stage.
  void place_data(PortPlan& plan, StageId stage) {
    plan.once = plan.layout->type.rank() == 0;
    plan.table = table(loaded_, std::pair(plan.name, plan.once ? StageId() : stage));
  }

  // Number of the table of `key`: a buffer for every microbatch, invalid before it is made.
  template <typename Key>
  size_t table(std::map<Key, size_t>& ids, const Key& key) {
    const auto [it, is_new] = ids.try_emplace(key, tables_.size());
    if (is_new) tables_.emplace_back(static_cast<size_t>(r_.schedule.microbatches));
    return it->second;
  }

  void add_action(const Action& action) {
    const CallPlan& plan = call_plan(action);
    Command call;
    call.kind = Command::Kind::kCall;
    call.action = action;
    call.microbatch = action.first;
    call.fragment = plan.callee.fragment;
    call.names = plan.callee.names;
    call.buffers.reserve(plan.inputs.size() + plan.outputs.size());
    for (const PortPlan& port : plan.inputs) call.buffers.push_back(input(action, port));
    for (const PortPlan& port : plan.outputs) call.buffers.push_back(output(action, port));
    const size_t at = program_.commands.size(), outputs = plan.inputs.size();
    program_.commands.push_back(std::move(call));
    for (size_t i = 0; i < plan.outputs.size(); ++i) {
      const PortPlan& port = plan.outputs[i];
      if (port.kind != PortSource::Kind::kSend || port.channel < 0) continue;
      const BufferId made = program_.commands[at].buffers[outputs + i];
      add_message(Command::Kind::kPublish, action, port.channel, action.first, made);
    }
  }

  BufferId add_buffer(const PortPlan& port, Category category, int32_t microbatch) {
    Buffer& buffer = program_.buffers.emplace_back();
    buffer.layout = port.layout;
    buffer.value = port.name;
    buffer.microbatch = microbatch;
    buffer.category = category;
    return BufferId(static_cast<int64_t>(program_.buffers.size()) - 1);
  }

  BufferId input(const Action& action, const PortPlan& port) {
    if (port.kind == PortSource::Kind::kState) return port.state;
    if (port.kind == PortSource::Kind::kData) return load(action, port);
    BufferId& id = tables_[port.table][static_cast<size_t>(action.first)];
    if (id.valid()) return id;
    MW_CHECK(port.kind == PortSource::Kind::kReceive && port.channel >= 0,
             "{} of {} reads {} before it is made", to_string(action), r_.name, port.name.str());
    receive_up_to(action, port);
    return id;
  }

  // Messages come in the order in which they are sent, whatever the order in which they are read.
  void receive_up_to(const Action& action, const PortPlan& port) {
    const std::vector<int32_t>& sent = channels_.microbatches[static_cast<size_t>(port.channel)];
    for (int32_t& next = received_[static_cast<size_t>(port.channel)];
         next <= channels_.sequence(port.channel, action.first); ++next) {
      const int32_t microbatch = sent[static_cast<size_t>(next)];
      BufferId& id = tables_[port.table][static_cast<size_t>(microbatch)];
      id = slot_buffer(port, microbatch);
      add_message(Command::Kind::kReceive, action, port.channel, microbatch, id);
    }
  }

  BufferId load(const Action& action, const PortPlan& port) {
    const int32_t microbatch = port.once ? -1 : action.first;
    BufferId& id = tables_[port.table][port.once ? 0 : static_cast<size_t>(action.first)];
    if (id.valid()) return id;
    id = add_buffer(port, Category::kData, microbatch);
    Command command;
    command.kind = Command::Kind::kLoad;
    command.action = action;
    command.buffers = {id};
    command.name = port.name;
    command.microbatch = microbatch;
    program_.commands.push_back(std::move(command));
    return id;
  }

  BufferId slot_buffer(const PortPlan& port, int32_t microbatch) {
    const BufferId id = add_buffer(port, Category::kBoundary, microbatch);
    Storage& storage = program_.buffers[id.index()].storage;
    storage.kind = Storage::Kind::kSlot;
    storage.channel = port.channel;
    storage.slot = channels_.sequence(port.channel, microbatch) %
                   channels_.channels[static_cast<size_t>(port.channel)].slots;
    return id;
  }

  void add_message(Command::Kind kind, const Action& action, int32_t channel, int32_t microbatch,
                   BufferId buffer) {
    Command& command = program_.commands.emplace_back();
    command.kind = kind;
    command.action = action;
    command.microbatch = microbatch;
    command.channel = channel;
    command.sequence = channels_.sequence(channel, microbatch);
    command.buffers = {buffer};
  }

  BufferId output(const Action& action, const PortPlan& port) {
    if (port.kind == PortSource::Kind::kResult) return port.state;
    BufferId& id = tables_[port.table][static_cast<size_t>(action.first)];
    if (port.kind == PortSource::Kind::kSaved) {
      id = add_buffer(port, Category::kActivations, action.first);
    } else if (port.channel < 0) {
      id = add_buffer(port, Category::kBoundary, action.first);
    } else {
      id = slot_buffer(port, action.first);
      add_message(Command::Kind::kAcquire, action, port.channel, action.first, id);
    }
    return id;
  }

  // A fragment that is no stage's, with the messages that it takes and makes.
  void add_step_call(const StateFragment& of, FragmentId id) {
    Command call;
    call.kind = Command::Kind::kCall;
    call.action.kind = of.fragment.kind;
    call.action.first = 0;
    call.action.count = r_.schedule.microbatches;
    call.fragment = id;
    size_t sender = 0, receiver = 0;
    for (size_t i = 0; i < of.inputs.size(); ++i) {
      const pipeline::Port& port = of.fragment.inputs[i];
      if (port.kind == PortKind::kData) {
        PortPlan plan =
            port_plan(PortSource::Kind::kData, port.name, layout_of(of.fragment, port.value));
        place_data(plan, StageId());
        call.buffers.push_back(load(call.action, plan));
      } else if (port.kind == PortKind::kBoundary) {
        const int32_t channel = shared_.at({of.inputs[i], of.senders[sender++], rank_});
        const BufferId slot = message_buffer(of, port, channel);
        add_step_message(Command::Kind::kReceive, call.action, channel, slot);
        call.buffers.push_back(slot);
      } else {
        call.buffers.push_back(states().at(of.inputs[i]));
      }
    }
    std::vector<std::pair<int32_t, BufferId>> sent;
    for (size_t i = 0; i < of.outputs.size(); ++i) {
      const pipeline::Port& port = of.fragment.outputs[i];
      if (port.kind != PortKind::kBoundary) {
        call.buffers.push_back(states().at(of.outputs[i]));
        continue;
      }
      const int32_t channel = shared_.at({of.outputs[i], rank_, of.receivers[receiver++]});
      sent.emplace_back(channel, message_buffer(of, port, channel));
      add_step_message(Command::Kind::kAcquire, call.action, channel, sent.back().second);
      call.buffers.push_back(sent.back().second);
    }
    const Action action = call.action;
    program_.commands.push_back(std::move(call));
    for (const auto& [channel, buffer] : sent)
      add_step_message(Command::Kind::kPublish, action, channel, buffer);
  }

  BufferId message_buffer(const StateFragment& of, const pipeline::Port& port, int32_t channel) {
    const PortPlan plan =
        port_plan(PortSource::Kind::kData, port.name, layout_of(of.fragment, port.value));
    const BufferId id = add_buffer(plan, Category::kBoundary, -1);
    Storage& storage = program_.buffers[id.index()].storage;
    storage.kind = Storage::Kind::kSlot;
    storage.channel = channel;
    return id;
  }

  void add_step_message(Command::Kind kind, const Action& action, int32_t channel,
                        BufferId buffer) {
    Command& command = program_.commands.emplace_back();
    command.kind = kind;
    command.action = action;
    command.channel = channel;
    command.buffers = {buffer};
  }

  // A received slot goes back right behind the last command that reads it, before anything else is
  // sent.
  void insert_releases() {
    std::vector<Command>& commands = program_.commands;
    std::vector<size_t> last_use(program_.buffers.size(), 0);
    for (size_t c = 0; c < commands.size(); ++c) {
      for (const BufferId id : commands[c].buffers) last_use[id.index()] = c;
    }
    std::vector<std::pair<size_t, size_t>> released;  // the last use, the receive
    for (size_t c = 0; c < commands.size(); ++c) {
      if (commands[c].kind == Command::Kind::kReceive)
        released.emplace_back(last_use[commands[c].buffers[0].index()], c);
    }
    std::sort(released.begin(), released.end());
    // From the last on, each command makes way for the releases that come before it.
    const size_t count = commands.size();
    commands.resize(count + released.size());
    size_t c = count;
    for (size_t left = released.size(); left > 0; --left) {
      const auto& [at, receive] = released[left - 1];
      while (c > at + 1) {
        --c;
        commands[c + left] = std::move(commands[c]);
      }
      // What was received lies before its last use, so nothing has moved it yet.
      Command& release = commands[at + left];
      release = commands[receive];
      release.kind = Command::Kind::kRelease;
      release.action = commands[at].action;
    }
  }

  const LowerRequest& r_;
  const ChannelPlan& channels_;
  const SharedChannels& shared_;
  const Layouts& layouts_;
  int32_t rank_;
  const Callees& fragments_;
  size_t repeatable_;  // actions before VALIDATE
  pipeline::RankProgram program_;
  std::vector<std::map<ActionKind, CallPlan>> calls_;  // [stage]
  std::vector<std::vector<BufferId>> tables_;          // [table][microbatch]
  std::map<std::pair<StageId, ValueId>, size_t> saved_;
  std::map<std::pair<Name, StageId>, size_t> loaded_;
  std::map<ChannelKey, size_t> crossings_;  // received, or made on this rank
  std::vector<int32_t> received_;           // [channel] messages so far
};

Layouts layouts_of(const std::vector<StageCode>& stages) {
  Layouts layouts;
  for (const StageCode& stage : stages) {
    for (const auto& [kind, called] : stage.fragments) {
      const pipeline::Fragment& fragment = *called.fragment;
      const auto [it, is_new] = layouts.try_emplace(&fragment);
      if (!is_new) continue;
      const auto add = [&, &all = it->second](const PortSource& source, ValueId v) {
        const bool state =
            source.kind == PortSource::Kind::kState || source.kind == PortSource::Kind::kResult;
        all.push_back(state ? Layout() : layout_of(fragment, v));
      };
      for (size_t i = 0; i < called.inputs.size(); ++i)
        add(called.inputs[i], fragment.inputs[i].value);
      for (size_t i = 0; i < called.outputs.size(); ++i)
        add(called.outputs[i], fragment.outputs[i].value);
    }
  }
  return layouts;
}

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
      program.names.back().insert(program.names.back().end(), fragment.value_names.begin(),
                                  fragment.value_names.end());
    }
  }
  return callees;
}

// A channel of one slot for every value that a rank shares with another.
SharedChannels add_shared(const std::vector<Validation>& validations, pipeline::Program& program) {
  SharedChannels shared;
  for (size_t rank = 0; rank < validations.size(); ++rank) {
    const auto from = static_cast<int32_t>(rank);
    const StateFragment& share = validations[rank].share;
    for (size_t i = 0; i < share.outputs.size(); ++i) {
      const int32_t to = share.receivers[i];
      shared[{share.outputs[i], from, to}] = static_cast<int32_t>(program.channels.size());
      pipeline::Channel channel;
      channel.name = fmt::format("{} {}->{}", share.outputs[i], from, to);
      channel.from = from;
      channel.to = to;
      channel.type = share.fragment.graph.type(share.fragment.outputs[i].value);
      program.channels.push_back(std::move(channel));
    }
  }
  return shared;
}

}  // namespace

pipeline::Program lower(const LowerRequest& request) {
  pipeline::Program program;
  program.name = request.name;
  program.mesh = request.mesh;
  program.microbatches = request.schedule.microbatches;
  const ChannelPlan channels = plan_channels(request.schedule, request.stages);
  program.channels = channels.channels;
  const SharedChannels shared = add_shared(request.validations, program);
  const Layouts layouts = layouts_of(request.stages);
  const Callees fragments = add_fragments(request.stages, program);
  const auto add = [&](const StateFragment& of) {
    program.fragments.push_back(of.fragment);
    return FragmentId(static_cast<int64_t>(program.fragments.size()) - 1);
  };
  std::vector<StepFragments> of_step(request.states.size());
  for (size_t rank = 0; rank < request.last.size(); ++rank)
    of_step[rank].last = add(request.last[rank]);
  for (size_t rank = 0; rank < request.validations.size(); ++rank) {
    of_step[rank].share = add(request.validations[rank].share);
    of_step[rank].validate = add(request.validations[rank].validate);
  }
  const std::vector<size_t> repeatable = request.validations.empty() || request.stages.empty()
                                             ? std::vector<size_t>(request.states.size())
                                             : repeatable_actions(request.schedule, request.stages);
  // Ranks are apart from each other.
  program.ranks.resize(request.states.size());
  size_t actions = 0;
  for (const auto& rank : request.schedule.ranks) actions += rank.size();
  in_parallel(program.ranks.size(), threads_for(4 * actions), [&](size_t rank) {
    RankLowering lowering(request, channels, shared, layouts, static_cast<int32_t>(rank), fragments,
                          repeatable[rank]);
    program.ranks[rank] = lowering.run(of_step[rank]);
    if (request.offsets) pipeline::plan_rank(program, program.ranks[rank]);
  });
  return program;
}

}  // namespace mw::compile
