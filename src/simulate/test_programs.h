// For this room's tests: programs whose ops take one second each, so that times are counts.
#pragma once

#include <string>
#include <vector>

#include "pipeline/memory_plan.h"
#include "pipeline/program.h"
#include "simulate/simulate.h"

namespace mw::simulate {

// Ops take one second each; messages `latency` and their bytes over `bandwidth`.
inline cluster::Cluster unit_cluster(double latency = 0, double bandwidth = 1e30) {
  cluster::Cluster c;
  c.file = "unit.toml";
  c.device.peaks = {{"f32", cluster::FlopsPerSecond(1e30)}};
  c.device.memory_bandwidth = cluster::BytesPerSecond(1e30);
  c.device.attained.launch = Seconds(1);
  c.links.resize(1);
  c.links[0].kind = cluster::LinkKind::kMemory;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(bandwidth);
  c.links[0].latency = Seconds(latency);
  return c;
}

// A fragment without ports whose ops follow each other.
inline pipeline::Fragment chain(const std::string& name, pipeline::ActionKind kind, int ops) {
  pipeline::Fragment fragment;
  fragment.name = name;
  fragment.kind = kind;
  const ir::TensorType type = ir::make_type(DType::kF32, {1});
  ValueId last;
  for (int i = 0; i < ops; ++i) {
    ir::Op op;
    op.kind = i == 0 ? ir::OpKind::kConstant : ir::OpKind::kRelu;
    if (i == 0) op.attrs = ir::ConstantAttrs{1};
    if (i > 0) op.operands = {last};
    const OpId id = fragment.graph.add_op(std::move(op), {type});
    last = fragment.graph.op(id).results[0];
    fragment.global_types.push_back(type);
    fragment.shardings.push_back(sharding::replicated(1));
  }
  fragment.launches.resize(fragment.graph.ops.size());
  pipeline::plan_fragment(fragment);
  return fragment;
}

// A fragment of ops without inputs or on the one before, which is what `ops` says, one letter an
// op: "c" a computation on the first op's result, "r" an all-reduce, "g" an all-gather, over
// `group`, of the result before it. All values are of `elements` f32, those gathered are of all
// devices' together.
inline pipeline::Fragment sequence(const std::string& name, pipeline::ActionKind kind,
                                   const std::string& ops, const ir::DeviceGroup& group,
                                   int64_t elements = 1, int64_t devices = 1) {
  pipeline::Fragment fragment;
  fragment.name = name;
  fragment.kind = kind;
  const ir::TensorType type = ir::make_type(DType::kF32, {elements});
  ValueId first, last;
  for (const char c : ops) {
    ir::Op op;
    ir::TensorType made = type;
    if (c == 'c') {
      op.kind = first.valid() ? ir::OpKind::kRelu : ir::OpKind::kConstant;
      if (first.valid()) op.operands = {first};
      if (!first.valid()) op.attrs = ir::ConstantAttrs{1};
    } else {
      op.kind = c == 'r' ? ir::OpKind::kAllReduce : ir::OpKind::kAllGather;
      ir::CollectiveAttrs attrs;
      attrs.group = group;
      op.attrs = attrs;
      op.operands = {last};
      if (c == 'g') made = ir::make_type(DType::kF32, {elements * devices});
    }
    const OpId id = fragment.graph.add_op(std::move(op), {made});
    last = fragment.graph.op(id).results[0];
    if (!first.valid()) first = last;
    fragment.global_types.push_back(made);
    fragment.shardings.push_back(sharding::replicated(1));
  }
  fragment.launches.resize(fragment.graph.ops.size());
  pipeline::plan_fragment(fragment);
  return fragment;
}

inline pipeline::Command call_of(int32_t fragment) {
  pipeline::Command command;
  command.kind = pipeline::Command::Kind::kCall;
  command.fragment = FragmentId(fragment);
  return command;
}
inline pipeline::Command message_of(pipeline::Command::Kind kind, int32_t channel,
                                    int64_t sequence) {
  pipeline::Command command;
  command.kind = kind;
  command.channel = channel;
  command.sequence = sequence;
  return command;
}

// The schedule's program where every F takes `f` seconds and every B `b`, every boundary is one
// message of `elements` f32 each way.
class UnitProgram {
 public:
  UnitProgram(const pipeline::ScheduleRequest& request, int f, int b, int64_t elements = 0,
              int32_t slots = 0)
      : schedule_(pipeline::make_schedule(request)) {
    const int32_t stages = schedule_.placement.stages();
    program.name = "train";
    program.mesh = cluster::Mesh({{"pp", request.ranks}});
    program.microbatches = request.microbatches;
    program.fragments = {chain("F", pipeline::ActionKind::kF, f),
                         chain("B", pipeline::ActionKind::kB, b)};
    program.ranks.resize(static_cast<size_t>(request.ranks));
    const auto rank_of = [&](int32_t s) {
      return schedule_.placement.rank_of_stage[static_cast<size_t>(s)];
    };
    for (int32_t s = 0; s + 1 < stages; ++s) {
      for (const bool forward : {true, false}) {
        const int32_t from = forward ? s : s + 1, to = forward ? s + 1 : s;
        program.channels.push_back({"x", rank_of(from), rank_of(to),
                                    ir::make_type(DType::kF32, {elements}),
                                    slots == 0 ? request.microbatches : slots});
      }
    }
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      for (const pipeline::Action& action : schedule_.ranks[r]) add(r, action, stages);
    }
  }
  pipeline::Program program;

 private:
  void add(size_t r, const pipeline::Action& action, int32_t stages) {
    using Kind = pipeline::Command::Kind;
    const bool forward = action.kind == pipeline::ActionKind::kF;
    const bool sends = action.kind != pipeline::ActionKind::kW;
    const int32_t s = action.stage.value;
    // Channel 2s goes from stage s to s + 1, channel 2s + 1 back.
    const int32_t in = forward ? (s > 0 ? 2 * (s - 1) : -1) : (s + 1 < stages ? 2 * s + 1 : -1);
    const int32_t out = forward ? (s + 1 < stages ? 2 * s : -1) : (s > 0 ? 2 * (s - 1) + 1 : -1);
    const auto command = [&](Kind kind, int32_t channel) {
      if (kind != Kind::kCall && (channel < 0 || is_local(channel) || !sends)) return;
      pipeline::Command c;
      c.kind = kind;
      c.action = action;
      c.microbatch = action.first;
      c.channel = kind == Kind::kCall ? -1 : channel;
      c.sequence = action.first;
      if (kind == Kind::kCall) c.fragment = FragmentId(forward ? 0 : 1);
      program.ranks[r].commands.push_back(std::move(c));
    };
    command(Kind::kReceive, in);
    command(Kind::kAcquire, out);
    command(Kind::kCall, -1);
    command(Kind::kPublish, out);
    command(Kind::kRelease, in);
  }
  bool is_local(int32_t channel) const {
    const pipeline::Channel& c = program.channels[static_cast<size_t>(channel)];
    return c.from == c.to;
  }

  pipeline::Schedule schedule_;
};

}  // namespace mw::simulate
