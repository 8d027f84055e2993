// For this room's tests: small training programs lowered by hand. A stage is two products with a
// relu between them; the model is a chain of stages with the loss sum(y * y). Batch on dp, the
// hidden dimension on tp, stages on pp.
//
// B batch, D model, F hidden
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/update_ops.h"
#include "pipeline/memory_plan.h"
#include "pipeline/program.h"

namespace mw::pipeline {

struct PipelineSpec {
  int32_t ranks = 2, chunks = 1, microbatches = 4;
  int64_t dp = 1, tp = 1;
  std::string schedule = "1f1b";
  bool zero = false;     // optimizer states and updates split over dp
  int32_t slots = 0;     // of every channel; 0: as many as microbatches
  bool streams = false;  // collectives on a stream of their own
  int32_t tied = 0;      // so many last stages have the weights of stage 0
};

// Collectives on stream 1, all else on stream 0. An op waits for what it reads, and where it writes
// over memory for all collectives before it.
inline void assign_streams(Fragment& fragment) {
  const ir::Graph& graph = fragment.graph;
  const auto stream = [&](size_t o) { return ir::is_collective(graph.ops[o].kind) ? 1 : 0; };
  const auto wait = [&](size_t o, size_t before) {
    const EventId event(static_cast<int64_t>(before));
    fragment.launches[before].records = event;
    auto& waits = fragment.launches[o].waits;
    if (std::find(waits.begin(), waits.end(), event) == waits.end()) waits.push_back(event);
  };
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    fragment.launches[o].stream = StreamId(stream(o));
    for (const ValueId v : graph.ops[o].operands) {
      const OpId producer = graph.value(v).producer;
      if (producer.valid() && stream(producer.index()) != stream(o)) wait(o, producer.index());
    }
    const bool overwrites =
        graph.ops[o].kind == ir::OpKind::kZero || graph.ops[o].kind == ir::OpKind::kAdamW;
    for (size_t before = 0; overwrites && before < o; ++before) {
      if (stream(before) == 1) wait(o, before);
    }
  }
}

class PipelineMaker {
 public:
  static constexpr int64_t kB = 4, kD = 8, kF = 16, kBlock = ops::kNormBlock;

  explicit PipelineMaker(PipelineSpec spec) : spec_(std::move(spec)) {
    program_.name = "train";
    program_.mesh = cluster::Mesh({{"pp", spec_.ranks}, {"dp", spec_.dp}, {"tp", spec_.tp}});
    program_.microbatches = spec_.microbatches;
    stages_ = spec_.ranks * spec_.chunks;
  }

  Program make() {
    const Schedule schedule =
        make_schedule({spec_.schedule, spec_.ranks, spec_.chunks, spec_.microbatches});
    for (int32_t s = 0; s < stages_; ++s) {
      forward_.push_back(add(forward(s)));
      backward_.push_back(add(backward(s)));
      if (s + 1 < stages_ && spec_.ranks > 1) add_channels(s);
    }
    for (int32_t r = 0; r < spec_.ranks; ++r) update_.push_back(add(update(r)));
    for (int32_t r = 0; r < spec_.ranks; ++r) program_.ranks.push_back(lower(schedule, r));
    for (RankProgram& rank : program_.ranks) plan_rank(program_, rank);
    return program_;
  }

 private:
  struct Typed {
    ir::TensorType global;
    sharding::Sharding sharding;
  };
  static Typed typed(DType dtype, const std::vector<int64_t>& sizes, const std::string& sharding) {
    return {ir::make_type(dtype, sizes), sharding::parse_sharding(sharding)};
  }
  static Typed f32(const std::vector<int64_t>& sizes, const std::string& sharding) {
    return typed(DType::kF32, sizes, sharding);
  }

  // A fragment in the making.
  class Maker {
   public:
    Maker(std::string name, ActionKind kind, const PipelineMaker& of)
        : mesh_(of.program_.mesh), streams_(of.spec_.streams) {
      fragment.name = fragment.graph.name = std::move(name);
      fragment.kind = kind;
    }
    ValueId input(PortKind kind, const std::string& name, const Typed& type) {
      const StateId state =
          kind == PortKind::kState ? StateId(static_cast<int64_t>(states_.size())) : StateId();
      if (state.valid()) states_.push_back(name);
      const ValueId v = fragment.graph.add_input(local(type), name, state);
      fragment.inputs.push_back({kind, v, name});
      return keep(v, type);
    }
    ValueIds ops(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
                 const std::vector<Typed>& types, bool accumulates = false) {
      ir::Op op;
      op.kind = kind;
      op.attrs = std::move(attrs);
      op.operands = std::move(operands);
      op.accumulates = accumulates;
      std::vector<ir::TensorType> locals;
      for (const Typed& type : types) locals.push_back(local(type));
      const OpId id = fragment.graph.add_op(std::move(op), std::move(locals));
      const ValueIds results = fragment.graph.op(id).results;
      for (size_t i = 0; i < types.size(); ++i) keep(results[i], types[i]);
      return results;
    }
    ValueId op(ir::OpKind kind, ir::Attributes attrs, ValueIds operands, const Typed& type,
               bool accumulates = false) {
      return ops(kind, std::move(attrs), std::move(operands), {type}, accumulates)[0];
    }
    ValueId collective(ir::OpKind kind, const ir::Axes& axes, ValueId x, const Typed& type) {
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{axes};
      return op(kind, attrs, {x}, type);
    }
    void output(PortKind kind, const std::string& name, ValueId v) {
      fragment.graph.outputs.push_back(v);
      outputs_.push_back({kind, v, name});
    }
    void update(const std::string& state, ValueId v) {
      const auto it = std::find(states_.begin(), states_.end(), state);
      fragment.graph.updates.push_back({StateId(it - states_.begin()), v});
      updates_.push_back({PortKind::kState, v, state});
    }
    Fragment finish() {
      fragment.outputs = outputs_;
      fragment.outputs.insert(fragment.outputs.end(), updates_.begin(), updates_.end());
      fragment.launches.resize(fragment.graph.ops.size());
      if (streams_) assign_streams(fragment);
      plan_fragment(fragment);
      return fragment;
    }
    Fragment fragment;

   private:
    ir::TensorType local(const Typed& type) const {
      return sharding::local_type(type.global, type.sharding, mesh_);
    }
    ValueId keep(ValueId v, const Typed& type) {
      fragment.global_types.push_back(type.global);
      fragment.shardings.push_back(type.sharding);
      return v;
    }
    const cluster::Mesh& mesh_;
    bool streams_;
    std::vector<std::string> states_;
    std::vector<Port> outputs_, updates_;
  };

  FragmentId add(Fragment fragment) {
    program_.fragments.push_back(std::move(fragment));
    return FragmentId(static_cast<int64_t>(program_.fragments.size()) - 1);
  }

  bool is_last(int32_t s) const { return s + 1 == stages_; }
  // The stage whose weights stage `s` has.
  int32_t weights_of(int32_t s) const { return s + spec_.tied >= stages_ ? 0 : s; }
  int64_t batch() const { return kB * spec_.dp; }
  static std::string named(const char* what, int32_t s) { return what + std::to_string(s); }
  std::string entry(int32_t s) const { return s == 0 ? "x" : named("y", s - 1); }
  PortKind entry_kind(int32_t s) const { return s == 0 ? PortKind::kData : PortKind::kBoundary; }

  Typed x_BD() const { return f32({batch(), kD}, R"([{"dp"}, {}])"); }
  Typed h_BF() const { return f32({batch(), kF}, R"([{"dp"}, {"tp"}])"); }
  Typed w1_DF(const std::string& partial = "") const {
    return f32({kD, kF}, R"([{}, {"tp"}])" + partial);
  }
  Typed w2_FD(const std::string& partial = "") const {
    return f32({kF, kD}, R"([{"tp"}, {}])" + partial);
  }
  static constexpr const char* kPendingDp = R"( partial{"dp"})";
  int64_t part() const { return kD * kF / spec_.tp; }  // elements of w1 and of w2 on a device
  int64_t elements() const { return 2 * kBlock * ((part() + kBlock - 1) / kBlock); }
  int32_t parameters() const { return 2 * (stages_ - spec_.tied); }
  int64_t shards() const { return spec_.zero ? spec_.dp : 1; }
  Typed flat(const std::string& sharding = "[{}]") const { return f32({elements()}, sharding); }
  std::string own() const { return spec_.zero ? R"([{"dp"}])" : "[{}]"; }

  // A product over the hidden dimension, pending over tp, and its sum.
  ValueId summed(Maker& m, ValueId v) const {
    return spec_.tp == 1 ? v : m.collective(ir::OpKind::kAllReduce, {"tp"}, v, x_BD());
  }
  Typed product() const { return f32({batch(), kD}, R"([{"dp"}, {}] partial{"tp"})"); }

  Fragment forward(int32_t s) {
    Maker m(named("F stage ", s), ActionKind::kF, *this);
    const ValueId x = m.input(entry_kind(s), entry(s), x_BD());
    const ValueId w1 = m.input(PortKind::kState, named("w1.", weights_of(s)), w1_DF());
    const ValueId w2 = m.input(PortKind::kState, named("w2.", weights_of(s)), w2_FD());
    const ValueId h =
        m.op(ir::OpKind::kRelu, {},
             {m.op(ir::OpKind::kDot, ir::DotAttrs{"bd", "df", "bf"}, {x, w1}, h_BF())}, h_BF());
    const ValueId y =
        summed(m, m.op(ir::OpKind::kDot, ir::DotAttrs{"bf", "fd", "bd"}, {h, w2}, product()));
    m.output(PortKind::kSaved, named("h", s), h);
    if (!is_last(s)) {
      m.output(PortKind::kBoundary, named("y", s), y);
      return m.finish();
    }
    m.output(PortKind::kSaved, named("y", s), y);
    const ValueId loss = m.input(PortKind::kState, "loss", f32({}, R"([] partial{"dp"})"));
    const ValueId square = m.op(ir::OpKind::kMul, {}, {y, y}, x_BD());
    const ValueId sum = m.op(ir::OpKind::kReduce, ir::ReduceAttrs{ir::Reduction::kSum, {0, 1}},
                             {square}, f32({}, R"([] partial{"dp"})"));
    m.update("loss",
             m.op(ir::OpKind::kAccumulate, {}, {loss, sum}, f32({}, R"([] partial{"dp"})")));
    return m.finish();
  }

  Fragment backward(int32_t s) {
    Maker m(named("B stage ", s), ActionKind::kB, *this);
    const ValueId x = m.input(entry_kind(s), entry(s), x_BD());
    const ValueId h = m.input(PortKind::kSaved, named("h", s), h_BF());
    ValueId dy;
    if (is_last(s)) {
      const ValueId y = m.input(PortKind::kSaved, named("y", s), x_BD());
      dy = m.op(ir::OpKind::kScale, ir::ScaleAttrs{2}, {y}, x_BD());
    } else {
      dy = m.input(PortKind::kBoundary, named("dy", s), x_BD());
    }
    const ValueId w1 = m.input(PortKind::kState, named("w1.", weights_of(s)), w1_DF());
    const ValueId w2 = m.input(PortKind::kState, named("w2.", weights_of(s)), w2_FD());
    const ValueId g1 = m.input(PortKind::kState, named("g1.", s), w1_DF(kPendingDp));
    const ValueId g2 = m.input(PortKind::kState, named("g2.", s), w2_FD(kPendingDp));
    const ValueId dh =
        m.op(ir::OpKind::kReluGrad, {},
             {m.op(ir::OpKind::kDot, ir::DotAttrs{"bd", "fd", "bf"}, {dy, w2}, h_BF()), h}, h_BF());
    const ValueId dx = s == 0 ? ValueId()
                              : summed(m, m.op(ir::OpKind::kDot, ir::DotAttrs{"bf", "df", "bd"},
                                               {dh, w1}, product()));
    m.update(named("g2.", s), m.op(ir::OpKind::kDot, ir::DotAttrs{"bf", "bd", "fd"}, {h, dy, g2},
                                   w2_FD(kPendingDp), true));
    m.update(named("g1.", s), m.op(ir::OpKind::kDot, ir::DotAttrs{"bd", "bf", "df"}, {x, dh, g1},
                                   w1_DF(kPendingDp), true));
    if (s > 0) m.output(PortKind::kBoundary, named("dy", s - 1), dx);
    return m.finish();
  }

  std::vector<int32_t> stages_of(int32_t r) const {
    std::vector<int32_t> stages;
    for (int32_t s = r; s < stages_; s += spec_.ranks) stages.push_back(s);
    return stages;
  }
  // Of the weights that a rank holds, the stages whose they are.
  std::vector<int32_t> groups_of(int32_t r) const {
    std::vector<int32_t> groups;
    for (const int32_t s : stages_of(r)) {
      if (std::find(groups.begin(), groups.end(), weights_of(s)) == groups.end())
        groups.push_back(weights_of(s));
    }
    return groups;
  }
  bool is_tied(int32_t s) const { return spec_.tied > 0 && weights_of(s) == 0; }
  bool is_held_elsewhere(int32_t group) const {
    int32_t holders = 0;
    for (int32_t r = 0; r < spec_.ranks; ++r) {
      const std::vector<int32_t> groups = groups_of(r);
      holders += std::find(groups.begin(), groups.end(), group) != groups.end() ? 1 : 0;
    }
    return holders > 1;
  }

  // The first stage of the rank that has these weights.
  int32_t first_use(int32_t group, int32_t r) const {
    const std::vector<int32_t> stages = stages_of(r);
    return *std::find_if(stages.begin(), stages.end(),
                         [&](int32_t s) { return weights_of(s) == group; });
  }

  // A weight's part of the norm counts on the first rank that holds it.
  ir::FlatAttrs flat_attrs(const std::vector<int32_t>& groups, int32_t r) const {
    ir::FlatAttrs attrs;
    for (const int32_t s : groups) {
      ir::Segment first, second;
      first.counts = second.counts = !is_tied(s) || r == 0;
      first.end = part();
      first.parameter = 2 * s;
      second.begin = elements() / 2;
      second.end = second.begin + part();
      second.parameter = 2 * s + 1;
      attrs.groups.push_back({first, second});
      attrs.group_elements.push_back(elements());
    }
    if (spec_.zero) attrs.shard_axes = {"dp"};
    attrs.parameters = parameters();
    attrs.max_norm = 1;
    return attrs;
  }

  // The sum of a rank's norms over all ranks scales all gradients.
  ValueId clip(Maker& m, const ir::FlatAttrs& attrs, const ValueIds& sums) const {
    const auto groups = static_cast<int64_t>(sums.size());
    const int64_t blocks = groups * elements() / kBlock;
    ValueId squares =
        m.op(ir::OpKind::kNormBlocks, attrs, sums, typed(DType::kF64, {blocks}, own()));
    if (spec_.zero)
      squares = m.collective(ir::OpKind::kAllGather, {"dp"}, squares,
                             typed(DType::kF64, {blocks}, "[{}]"));
    ValueId norms = m.op(ir::OpKind::kNormParameters, attrs, {squares},
                         typed(DType::kF64, {parameters()}, R"([{}] partial{"pp", "tp"})"));
    if (spec_.ranks * spec_.tp > 1) {
      norms = m.collective(ir::OpKind::kAllReduce, {"pp", "tp"}, norms,
                           typed(DType::kF64, {parameters()}, "[{}]"));
    }
    const Typed scalar = f32({}, "[]");
    const ValueIds made = m.ops(ir::OpKind::kClip, attrs, {norms}, {scalar, scalar});
    m.output(PortKind::kSaved, "grad_norm", made[0]);
    return made[1];
  }

  // Of all uses of a weight, on this rank and the others that hold it. Lies where that of the first
  // use lay; those of the others begin anew.
  ValueId gradient(Maker& m, int32_t group, int32_t r) const {
    const Typed pending = flat(std::string("[{}]") + kPendingDp);
    ValueId sum;
    for (const int32_t s : stages_of(r)) {
      if (weights_of(s) != group) continue;
      const ValueId use = m.input(PortKind::kState, named("grad/", s), pending);
      if (!sum.valid()) {
        sum = use;
        continue;
      }
      sum = m.op(ir::OpKind::kAccumulate, {}, {sum, use}, pending);
      m.update(named("grad/", s), m.op(ir::OpKind::kZero, {}, {use}, pending));
    }
    if (!is_held_elsewhere(group)) return sum;
    ir::CollectiveAttrs attrs;
    attrs.group = ir::Holders{named("weight/", group)};
    return m.op(ir::OpKind::kAllReduce, attrs, {sum}, pending);
  }

  Fragment update(int32_t r) {
    Maker m(named("UPDATE rank ", r), ActionKind::kUpdate, *this);
    const std::vector<int32_t> groups = groups_of(r);
    const Typed pending = flat(std::string("[{}]") + kPendingDp), scalar = f32({}, "[]");
    ValueIds gradients, sums;
    for (const int32_t group : groups) {
      gradients.push_back(gradient(m, group, r));
      ValueId sum = gradients.back();
      if (spec_.zero)
        sum = m.collective(ir::OpKind::kReduceScatter, {"dp"}, sum, flat(own()));
      else if (spec_.dp > 1)
        sum = m.collective(ir::OpKind::kAllReduce, {"dp"}, sum, flat());
      sums.push_back(sum);
    }
    const ValueId scale = clip(m, flat_attrs(groups, r), sums);
    const ValueId lr = m.input(PortKind::kData, "lr", scalar);
    const ValueId step = m.input(PortKind::kData, "step", typed(DType::kI64, {}, "[]"));
    for (size_t i = 0; i < groups.size(); ++i) {
      const int32_t s = groups[i];
      const std::string weight = named("weight/", s) + (spec_.zero ? "#own" : "");
      const ValueId w = m.input(PortKind::kState, weight, flat(own()));
      const ValueId m1 = m.input(PortKind::kState, named("m/", s), flat(own()));
      const ValueId v1 = m.input(PortKind::kState, named("v/", s), flat(own()));
      const ValueIds made =
          m.ops(ir::OpKind::kAdamW, flat_attrs({s}, r), {w, sums[i], m1, v1, scale, lr, step},
                {flat(own()), flat(own()), flat(own())});
      m.update(weight, made[0]);
      m.update(named("m/", s), made[1]);
      m.update(named("v/", s), made[2]);
      if (spec_.zero) {
        m.output(PortKind::kSaved, named("weight/", s),
                 m.collective(ir::OpKind::kAllGather, {"dp"}, made[0], flat()));
      }
      m.update(named("grad/", first_use(s, r)),
               m.op(ir::OpKind::kZero, {}, {spec_.zero ? gradients[i] : sums[i]},
                    spec_.zero ? pending : flat()));
    }
    if (is_last(stages_of(r).back())) {
      const Typed partial = f32({}, R"([] partial{"dp"})");
      const ValueId loss = m.input(PortKind::kState, "loss", partial);
      ValueId total = m.op(ir::OpKind::kCopy, {}, {loss}, partial);
      if (spec_.dp > 1) total = m.collective(ir::OpKind::kAllReduce, {"dp"}, total, scalar);
      m.output(PortKind::kSaved, "loss_value",
               m.op(ir::OpKind::kScale, ir::ScaleAttrs{0.5}, {total}, scalar));
      m.update("loss", m.op(ir::OpKind::kZero, {}, {loss}, partial));
    }
    return m.finish();
  }

  int32_t rank_of(int32_t s) const { return s % spec_.ranks; }

  void add_channels(int32_t s) {
    Channel channel;
    channel.name = named("y", s);
    channel.from = rank_of(s);
    channel.to = rank_of(s + 1);
    channel.type = sharding::local_type(x_BD().global, x_BD().sharding, program_.mesh);
    channel.slots = spec_.slots > 0 ? spec_.slots : spec_.microbatches;
    program_.channels.push_back(channel);
    channel.name = named("dy", s);
    std::swap(channel.from, channel.to);
    program_.channels.push_back(channel);
  }

  // One rank's program.
  struct Rank {
    RankProgram program;
    std::map<std::string, BufferId> by_name;
  };

  BufferId buffer(Rank& rank, const std::string& name, const Typed& type, Category category,
                  Storage storage = {}) const {
    BufferId& id = rank.by_name[name];
    if (id.valid()) return id;
    id = BufferId(static_cast<int64_t>(rank.program.buffers.size()));
    Buffer b;
    b.value = name;
    b.layout = {sharding::local_type(type.global, type.sharding, program_.mesh), type.global,
                type.sharding};
    b.category = category;
    b.storage = std::move(storage);
    rank.program.buffers.push_back(std::move(b));
    return id;
  }
  BufferId state(Rank& rank, const std::string& name, const Typed& type, Category category) const {
    Storage storage;
    storage.kind = Storage::Kind::kState;
    storage.offset = rank.program.state_arena.value;
    const BufferId id = buffer(rank, name, type, category, storage);
    const int64_t bytes = rank.program.buffers[id.index()].bytes().value;
    rank.program.state_arena += Bytes((bytes + kAlignment - 1) / kAlignment * kAlignment);
    return id;
  }
  void view(Rank& rank, const std::string& name, const Typed& type, BufferId parent,
            int64_t offset) const {
    Storage storage;
    storage.kind = Storage::Kind::kView;
    storage.parent = parent;
    storage.offset = offset * dtype_size(DType::kF32);
    buffer(rank, name, type, rank.program.buffers[parent.index()].category, storage);
  }

  void add_weights(Rank& rank, int32_t s) const {
    const BufferId weight = state(rank, named("weight/", s), flat(), Category::kWeights);
    view(rank, named("w1.", s), w1_DF(), weight, 0);
    view(rank, named("w2.", s), w2_FD(), weight, elements() / 2);
    if (spec_.zero) {
      view(rank, named("weight/", s) + "#own", flat(own()), weight, 0);
      Buffer& part = rank.program.buffers.back();
      part.storage.part = {{"dp"}, part.bytes().value};
    }
    state(rank, named("m/", s), flat(own()), Category::kOptimizer);
    state(rank, named("v/", s), flat(own()), Category::kOptimizer);
  }
  void add_states(Rank& rank, int32_t s) const {
    const int32_t group = weights_of(s);
    if (!rank.by_name.contains(named("weight/", group))) add_weights(rank, group);
    const BufferId grad = state(rank, named("grad/", s), flat(std::string("[{}]") + kPendingDp),
                                Category::kGradients);
    view(rank, named("g1.", s), w1_DF(kPendingDp), grad, 0);
    view(rank, named("g2.", s), w2_FD(kPendingDp), grad, elements() / 2);
    if (is_last(s)) {
      state(rank, "loss", f32({}, R"([] partial{"dp"})"), Category::kMetrics);
      state(rank, "loss_value", f32({}, "[]"), Category::kMetrics);
    }
  }

  static Command command(Command::Kind kind, const Action& action, BufferIds buffers) {
    Command c;
    c.kind = kind;
    c.action = action;
    c.buffers = std::move(buffers);
    c.microbatch = action.first;
    return c;
  }
  int32_t channel(const std::string& name) const {
    for (size_t c = 0; c < program_.channels.size(); ++c) {
      if (program_.channels[c].name == name) return static_cast<int32_t>(c);
    }
    return -1;
  }
  void message(Rank& rank, Command::Kind kind, const Action& action,
               const std::string& name) const {
    const int32_t c = channel(name);
    if (c < 0) return;  // both stages are on this rank
    Command command_ = command(kind, action, {boundary(rank, name, action.first)});
    command_.channel = c;
    command_.sequence = action.first;
    rank.program.commands.push_back(std::move(command_));
  }
  BufferId boundary(Rank& rank, const std::string& name, int32_t microbatch) const {
    Storage storage;
    storage.channel = channel(name);
    if (storage.channel >= 0) {
      storage.kind = Storage::Kind::kSlot;
      storage.slot = microbatch % program_.channels[static_cast<size_t>(storage.channel)].slots;
    }
    return buffer(rank, name + "#" + std::to_string(microbatch), x_BD(), Category::kBoundary,
                  storage);
  }
  BufferId load(Rank& rank, const Action& action, const std::string& name, const Typed& type,
                int32_t microbatch) const {
    const std::string full = microbatch < 0 ? name : name + "#" + std::to_string(microbatch);
    const bool is_new = rank.by_name.count(full) == 0;
    const BufferId id = buffer(rank, full, type, Category::kData);
    if (is_new) {
      Command c = command(Command::Kind::kLoad, action, {id});
      c.name = name;
      c.microbatch = microbatch;
      rank.program.commands.push_back(std::move(c));
    }
    return id;
  }

  // The buffer that a port of a call gets.
  BufferId argument(Rank& rank, const Action& action, const Fragment& fragment,
                    const Port& port) const {
    const size_t v = port.value.index();
    const Typed type{fragment.global_types[v], fragment.shardings[v]};
    if (const auto it = rank.by_name.find(port.name); it != rank.by_name.end()) return it->second;
    switch (port.kind) {
      case PortKind::kData:
        return load(rank, action, port.name, type, port.name == "x" ? action.first : -1);
      case PortKind::kBoundary: return boundary(rank, port.name, action.first);
      default:
        return buffer(rank, port.name + "#" + std::to_string(action.first), type,
                      Category::kActivations);
    }
  }
  void call(Rank& rank, const Action& action, FragmentId id) const {
    const Fragment& fragment = program_.fragments[id.index()];
    Command c = command(Command::Kind::kCall, action, {});
    c.fragment = id;
    for (const Port& port : fragment.inputs)
      c.buffers.push_back(argument(rank, action, fragment, port));
    for (const Port& port : fragment.outputs) {
      if (port.kind != PortKind::kState)
        c.buffers.push_back(argument(rank, action, fragment, port));
    }
    rank.program.commands.push_back(std::move(c));
  }

  RankProgram lower(const Schedule& schedule, int32_t r) const {
    Rank rank;
    for (const int32_t s : stages_of(r)) add_states(rank, s);
    state(rank, "grad_norm", f32({}, "[]"), Category::kMetrics);
    rank.program.states = static_cast<int32_t>(rank.program.buffers.size());
    for (const Action& action : schedule.ranks[static_cast<size_t>(r)]) {
      const int32_t s = action.stage.value;
      const bool is_forward = action.kind == ActionKind::kF;
      const std::string in = is_forward ? entry(s) : named("dy", s);
      const std::string out = is_forward ? named("y", s) : named("dy", s - 1);
      const bool receives = is_forward ? s > 0 : !is_last(s),
                 sends = is_forward ? !is_last(s) : s > 0;
      if (receives) message(rank, Command::Kind::kReceive, action, in);
      if (sends) message(rank, Command::Kind::kAcquire, action, out);
      call(rank, action,
           is_forward ? forward_[static_cast<size_t>(s)] : backward_[static_cast<size_t>(s)]);
      if (sends) message(rank, Command::Kind::kPublish, action, out);
      if (receives && !is_forward) message(rank, Command::Kind::kRelease, action, in);
      if (!is_forward && s > 0) message(rank, Command::Kind::kRelease, action, entry(s));
    }
    const Action action{
        .kind = ActionKind::kUpdate, .stage = StageId(), .count = spec_.microbatches};
    call(rank, action, update_[static_cast<size_t>(r)]);
    return std::move(rank.program);
  }

  PipelineSpec spec_;
  Program program_;
  int32_t stages_ = 1;
  std::vector<FragmentId> forward_, backward_, update_;
};

inline Program make_pipeline(const PipelineSpec& spec) { return PipelineMaker(spec).make(); }

}  // namespace mw::pipeline
