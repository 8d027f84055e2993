#include "compile/fragments.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "pipeline/memory_plan.h"
#include "pipeline/overlap.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using ir::Work;
using pipeline::ActionKind;
using pipeline::PortKind;

bool belongs(const ir::Op& op, ActionKind kind) {
  switch (kind) {
    case ActionKind::kF: return op.work == Work::kForward;
    case ActionKind::kI: return op.work == Work::kInputGrad;
    case ActionKind::kW: return op.work == Work::kWeightGrad;
    case ActionKind::kB: return op.work == Work::kInputGrad || op.work == Work::kWeightGrad;
    default: MW_CHECK(false, "no fragment of kind {}", pipeline::to_string(kind));
  }
}

// Costs nothing and shares its operand's memory.
bool is_alias(const ir::Op& op) { return op.kind == OpKind::kReshape || op.kind == OpKind::kView; }

// Made anew by a later part that reads it, rather than saved: an alias, or an elementwise op, a
// norm or a concatenation (of the keys of several slices) whose operands the backward pass saves
// anyway. Same kernel, same operands, same bits; costs one pass over memory.
bool is_remade(const ir::Op& op) {
  switch (op.kind) {
    case OpKind::kBiasGelu:
    case OpKind::kGelu:
    case OpKind::kSilu:
    case OpKind::kSwiglu:
    case OpKind::kConcat:
    case OpKind::kLayerNorm:
    case OpKind::kRmsNorm: return true;
    default: return is_alias(op);
  }
}

// An all-gather of what the graph computes, not of a state or a part of one.
bool gathers_activations(const ir::Graph& graph, const ir::Op& op) {
  if (op.kind != OpKind::kAllGather) return false;
  const ir::Op* made = &op;
  do {
    const OpId producer = graph.value(made->operands[0]).producer;
    if (!producer.valid()) return false;
    made = &graph.op(producer);
  } while (is_alias(*made) || made->kind == OpKind::kSlice || made->kind == OpKind::kCopy);
  return true;
}

// What such a gather makes of parts that were padded to equal ones.
bool trims_activations(const ir::Graph& graph, const ir::Op& op) {
  if (op.kind != OpKind::kTrim) return false;
  const OpId producer = graph.value(op.operands[0]).producer;
  return producer.valid() && gathers_activations(graph, graph.op(producer));
}

// Of context parallelism: keys and values, which no engine keeps of other ranks for the backward
// pass [Liu 2023, Ring Attention; Dubey 2024, section 3.3.2].
bool gathers_keys(const ir::Graph& graph, const ir::Op& op) {
  if (op.kind == OpKind::kTrim) {
    const OpId producer = graph.value(op.operands[0]).producer;
    return producer.valid() && gathers_keys(graph, graph.op(producer));
  }
  if (!gathers_activations(graph, op)) return false;
  const auto* group = std::get_if<ir::AxisGroup>(&op.as<ir::CollectiveAttrs>().group);
  return group != nullptr && std::all_of(group->axes.begin(), group->axes.end(),
                                         [](std::string_view axis) { return axis == "cp"; });
}

// An all-gather of a state: of weights that ZeRO 3 divides.
bool gathers_state(const ir::Graph& graph, const ir::Op& op) {
  return op.kind == OpKind::kAllGather && !graph.value(op.operands[0]).producer.valid();
}

class Splitter {
 public:
  Splitter(const LocalGraph& stage, const StagePorts& ports, const ir::Module& module,
           const std::vector<ActionKind>& kinds, const std::string& name,
           const SplitOptions& options)
      : stage_(stage),
        ports_(ports),
        module_(module),
        kinds_(kinds),
        name_(name),
        options_(options),
        part_(stage.graph.ops.size()),
        saved_(kinds.size()) {
    for (size_t o = 0; o < stage.graph.ops.size(); ++o) {
      const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                     [&](ActionKind k) { return belongs(stage.graph.ops[o], k); });
      MW_CHECK(kind != kinds.end(), "{}: {} belongs to no fragment", name,
               ir::op_name(stage.graph.ops[o].kind));
      part_[o] = static_cast<size_t>(kind - kinds.begin());
      const ir::Op& op = stage.graph.ops[o];
      if (gathers_state(stage.graph, op))
        gathers_.try_emplace({op.operands[0], part_[o]}, OpId(static_cast<int64_t>(o)));
    }
    for (size_t p = 0; p < kinds.size(); ++p) find_saved(p);
  }

  std::vector<StageFragment> run() {
    std::vector<StageFragment> fragments;
    for (size_t p = 0; p < kinds_.size(); ++p) fragments.push_back(build(p));
    return fragments;
  }

 private:
  // What a part reads from parts before it, looking through what is made anew.
  void find_saved(size_t p) {
    looked_at_.assign(stage_.graph.values.size(), false);
    for (size_t o = 0; o < stage_.graph.ops.size(); ++o) {
      if (part_[o] != p) continue;
      for (const ValueId v : stage_.graph.ops[o].operands) need_saved(p, v);
    }
  }
  void need_saved(size_t p, ValueId v) {
    if (looked_at_[v.index()]) return;
    looked_at_[v.index()] = true;
    const OpId producer = stage_.graph.value(v).producer;
    if (!producer.valid() || part_[producer.index()] == p || gather_instead(p, v).valid()) return;
    const ir::Op& op = stage_.graph.op(producer);
    if (remade(p, v)) {
      for (const ValueId operand : op.operands) need_saved(p, operand);
      return;
    }
    MW_CHECK(part_[producer.index()] < p, "{}: {} is read before the part that makes it", name_,
             stage_.graph.label(v));
    saved_[is_saved_weight(p, v) ? last_gather(p, op.operands[0]) : part_[producer.index()]].insert(
        v);
    last_reader_[v] = p;  // parts come in order
  }
  // The part's own gather of the weights that a part before it has gathered as `v`, if it has one:
  // then nothing is saved of what was gathered first.
  OpId gather_instead(size_t p, ValueId v) const {
    const OpId producer = stage_.graph.value(v).producer;
    if (!producer.valid() || !gathers_state(stage_.graph, stage_.graph.op(producer))) return {};
    const auto it = gathers_.find({stage_.graph.op(producer).operands[0], p});
    return it == gathers_.end() ? OpId() : it->second;
  }
  // The last part before that has gathered `v`. REQUIRES: one has.
  size_t last_gather(size_t p, ValueId v) const {
    while (!gather_instead(--p, v).valid()) MW_CHECK(p > 0, "nothing gathers {}", label(v));
    return p;
  }
  // A weight among those that were gathered, for a part without a gather of its own: it is saved by
  // itself, for the gathered ones are a whole layer's.
  bool is_saved_weight(size_t p, ValueId v) const {
    const ir::Op& op = stage_.graph.op(stage_.graph.value(v).producer);
    if (op.kind != OpKind::kView) return false;
    const OpId made = stage_.graph.value(op.operands[0]).producer;
    return made.valid() && gathers_state(stage_.graph, stage_.graph.op(made)) &&
           part_[made.index()] != p && !gather_instead(p, op.operands[0]).valid();
  }
  // Weights that the part saves by themselves, by its gather of them.
  std::multimap<OpId, ValueId> saved_weights(size_t p) const {
    std::multimap<OpId, ValueId> weights;
    for (const ValueId v : saved_[p]) {
      const ir::Op& op = stage_.graph.op(stage_.graph.value(v).producer);
      if (op.kind == OpKind::kView) weights.emplace(gather_instead(p, op.operands[0]), v);
    }
    return weights;
  }
  // Only the main result of a norm: its mean and rstd are small, and saved.
  bool remade(size_t p, ValueId v) const {
    const ir::Value& value = stage_.graph.value(v);
    if (!value.producer.valid() || value.result != 0) return false;
    const ir::Op& op = stage_.graph.op(value.producer);
    if (gathers_keys(stage_.graph, op)) return true;
    if (options_.regather &&
        (gathers_activations(stage_.graph, op) || trims_activations(stage_.graph, op)))
      return true;
    if (is_saved_weight(p, v)) return false;
    return options_.remake ? is_remade(op) : is_alias(op);
  }
  size_t part_of_value(ValueId v) const {
    const OpId producer = stage_.graph.value(v).producer;
    return producer.valid() ? part_[producer.index()] : 0;
  }
  StageFragment build(size_t p) {
    StageFragment made;
    made_ = &made;
    build_ = p;
    local_ = LocalGraph();
    moved_.assign(stage_.graph.values.size(), ValueId());
    local_.graph.name = fmt::format("{} {}", pipeline::to_string(kinds_[p]), name_);
    const auto ops = static_cast<size_t>(std::count(part_.begin(), part_.end(), p));
    local_.reserve(2 * ops, ops + ops / 4);  // and inputs; what is made again
    const std::multimap<OpId, ValueId> weights = saved_weights(p);
    std::map<ValueId, ValueId> own;  // copies of them
    for (size_t o = 0; o < stage_.graph.ops.size(); ++o) {
      const ir::Op& op = stage_.graph.ops[o];
      const bool early = !op.results.empty() && moved_[op.results[0].index()].valid();
      if (part_[o] == p && !early) copy(op);
      // Behind the gather, so that nothing keeps what it gathered beyond its layer.
      const auto [begin, end] = weights.equal_range(OpId(static_cast<int64_t>(o)));
      for (auto it = begin; it != end; ++it) own[it->second] = own_copy(p, it->second);
    }
    MW_CHECK(own.size() == weights.size(), "{}: a weight is saved that no gather brings",
             local_.graph.name);
    for (size_t c = 0; c < ports_.sends.size(); ++c) {
      if (part_of_value(ports_.sends[c]) == p) send(p, c);
    }
    for (size_t c = 0; c < ports_.results.size(); ++c) {
      if (part_of_value(ports_.results[c]) != p) continue;
      PortSource source;
      source.kind = PortSource::Kind::kResult;
      source.crossing = c;
      add_output(own_copy(p, ports_.results[c]), PortKind::kSaved, ports_.results[c], source);
    }
    for (const ValueId v : saved_[p]) {
      PortSource source;
      source.kind = PortSource::Kind::kSaved;
      source.value = v;
      const auto copied = own.find(v);
      add_output(copied != own.end() ? copied->second : moved_[v.index()], PortKind::kSaved, v,
                 source);
    }
    for (const ir::StateUpdate& update : stage_.graph.updates) {
      if (part_of_value(update.value) != p) continue;
      local_.graph.updates.push_back({update.state, moved_[update.value.index()]});
    }
    finish(p);
    return made;
  }

  void finish(size_t p) {
    pipeline::Fragment& fragment = fragment_;
    for (const pipeline::Port& port : fragment.inputs) made_->names.push_back(port.name);
    for (const pipeline::Port& port : fragment.outputs) made_->names.push_back(port.name);
    for (const ir::StateUpdate& update : local_.graph.updates) {
      fragment.outputs.push_back(
          {PortKind::kState, update.value, module_.state(update.state).name});
    }
    fragment.name = local_.graph.name;
    fragment.kind = kinds_[p];
    fragment.graph = std::move(local_.graph);
    fragment.shardings = std::move(local_.shardings);
    fragment.global_types = std::move(local_.global_types);
    fragment.launches.resize(fragment.graph.ops.size());
    if (options_.overlap)
      pipeline::order_for_overlap(fragment, options_.mesh, options_.gather_ahead);
    options_.offsets ? pipeline::plan_fragment(fragment) : pipeline::plan_sharing(fragment);
    made_->fragment = std::make_shared<const pipeline::Fragment>(std::exchange(fragment_, {}));
  }

  void add_output(ValueId value, PortKind kind, ValueId original, const PortSource& source) {
    local_.graph.outputs.push_back(value);
    fragment_.outputs.push_back({kind, value, label(original)});
    made_->outputs.push_back(source);
  }

  std::string label(ValueId v) const { return stage_.graph.label(v); }

  // A value that another stage gets in its own buffer: the value itself where nothing else keeps
  // it.
  void send(size_t p, size_t crossing) {
    const ValueId v = ports_.sends[crossing];
    PortSource source;
    source.kind = PortSource::Kind::kSend;
    source.crossing = crossing;
    add_output(own_copy(p, v), crossing_kind(ports_.carried_out, crossing), v, source);
  }
  static PortKind crossing_kind(const std::vector<bool>& carried, size_t crossing) {
    return !carried.empty() && carried[crossing] ? PortKind::kCarried : PortKind::kBoundary;
  }
  ValueId own_copy(size_t p, ValueId v) {
    const bool output_already =
        std::count(local_.graph.outputs.begin(), local_.graph.outputs.end(), get(v)) > 0 ||
        saved_[p].count(v) > 0;
    const OpId producer = stage_.graph.value(v).producer;
    const bool shares = !producer.valid() || is_alias(stage_.graph.op(producer)) ||
                        stage_.graph.op(producer).kind == OpKind::kAccumulate;
    if (!output_already && !shares) return get(v);
    const Work work = producer.valid() ? stage_.graph.op(producer).work : Work::kForward;
    const LayerId layer = producer.valid() ? stage_.graph.op(producer).layer : LayerId();
    return local_.add_op1(make_op(OpKind::kCopy, ir::NoAttrs{}, {get(v)}, work, layer),
                          stage_.like(v));
  }

  ValueId get(ValueId v) {
    ValueId& here = moved_[v.index()];
    if (here.valid()) return here;
    if (const OpId gather = gather_instead(build_, v); gather.valid()) {
      const ValueId own = stage_.graph.op(gather).results[0];
      if (!moved_[own.index()].valid()) copy(stage_.graph.op(gather));
      return here = moved_[own.index()];
    }
    if (!remade(build_, v)) return here = add_input(v);
    remake(v);
    return moved_[v.index()];
  }

  // A clone of the op for this part. Its other results stay its own: what this part reads of them
  // is saved.
  void remake(ValueId v) {
    const ir::Op& op = stage_.graph.op(stage_.graph.value(v).producer);
    ir::Op clone = op;
    for (ValueId& operand : clone.operands) operand = get(operand);
    clone.results.clear();
    if (!is_alias(op) && kinds_[build_] != ActionKind::kF) {
      clone.work = kinds_[build_] == ActionKind::kW ? Work::kWeightGrad : Work::kInputGrad;
    }
    std::vector<LocalGraph::Made> made;
    for (const ValueId result : op.results) made.push_back(stage_.like(result));
    moved_[v.index()] = local_.add_op(std::move(clone), made).front();
  }

  ValueId add_input(ValueId v) {
    const ir::Value& value = stage_.graph.value(v);
    PortSource source;
    pipeline::Port port;
    port.name = label(v);
    StateId state;
    const auto received = std::find(ports_.receives.begin(), ports_.receives.end(), v);
    if (received != ports_.receives.end()) {
      source.kind = PortSource::Kind::kReceive;
      source.crossing = static_cast<size_t>(received - ports_.receives.begin());
      port.kind = crossing_kind(ports_.carried_in, source.crossing);
    } else if (value.producer.valid()) {
      port.kind = PortKind::kSaved;
      port.consumed = last_reader_.at(v) == build_;
      source.kind = PortSource::Kind::kSaved;
      source.value = v;
    } else {
      const auto input = std::find_if(stage_.graph.inputs.begin(), stage_.graph.inputs.end(),
                                      [&](const ir::Input& i) { return i.value == v; });
      MW_CHECK(input != stage_.graph.inputs.end(), "{} is no input", label(v));
      state = input->state;
      if (state.valid()) {
        port.kind = PortKind::kState;
        port.name = module_.state(state).name;
        source.kind = PortSource::Kind::kState;
        source.state = state;
      }
    }
    const ValueId here = local_.add_input(stage_.like(v), value.name, state);
    local_.graph.value(here).logical = value.logical;
    port.value = here;
    fragment_.inputs.push_back(port);
    made_->inputs.push_back(source);
    return here;
  }

  void copy(const ir::Op& op) {
    ir::Op clone = op;
    for (ValueId& v : clone.operands) v = get(v);
    const ValueIds results = local_.add_copy(std::move(clone), stage_);
    for (size_t i = 0; i < results.size(); ++i) moved_[op.results[i].index()] = results[i];
  }

  const LocalGraph& stage_;
  const StagePorts& ports_;
  const ir::Module& module_;
  const std::vector<ActionKind>& kinds_;
  const std::string& name_;
  const SplitOptions& options_;
  std::vector<size_t> part_;                            // [op] index into kinds
  std::map<std::pair<ValueId, size_t>, OpId> gathers_;  // by the divided weights and the part
  std::vector<std::set<ValueId>> saved_;                // [part] values that later parts read
  std::vector<bool> looked_at_;                         // [value] by need_saved, for a part
  std::map<ValueId, size_t> last_reader_;               // part
  StageFragment* made_ = nullptr;
  pipeline::Fragment fragment_;  // in the making
  size_t build_ = 0;             // index of the part in the making
  LocalGraph local_;
  ValueIds moved_;
};

}  // namespace

std::vector<StageFragment> split_stage(const LocalGraph& stage, const StagePorts& ports,
                                       const ir::Module& module,
                                       const std::vector<ActionKind>& kinds,
                                       const std::string& name, const SplitOptions& options) {
  return Splitter(stage, ports, module, kinds, name, options).run();
}

}  // namespace mw::compile
