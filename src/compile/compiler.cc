#include "compile/compiler.h"

#include <algorithm>

#include "base/error.h"
#include "compile/replicas.h"
#include "compile/zero.h"
#include "partition/partitioner.h"
#include "transform/autodiff.h"
#include "transform/fold_accumulate.h"

namespace mw::compile {
namespace {

using partition::Partitioned;
using pipeline::ActionKind;

std::string stage_name(const LocalStage& stage) {
  return fmt::format("stage {}", stage.cut.stage.value);
}

// {F, B}, {F, I, W}, both, or {F}.
std::vector<std::vector<ActionKind>> partings(const std::set<ActionKind>& kinds) {
  std::vector<std::vector<ActionKind>> found;
  if (kinds.contains(ActionKind::kB)) found.push_back({ActionKind::kF, ActionKind::kB});
  if (kinds.contains(ActionKind::kI))
    found.push_back({ActionKind::kF, ActionKind::kI, ActionKind::kW});
  if (found.empty()) found.push_back({ActionKind::kF});
  return found;
}

bool same_outputs(const StageFragment& a, const StageFragment& b) {
  return std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
                    [](const PortSource& x, const PortSource& y) {
                      return x.kind == y.kind && x.crossing == y.crossing && x.value == y.value;
                    });
}

StagePorts moved_ports(const StagePorts& ports, const ValueIds& moved) {
  const auto move = [&](ValueIds values) {
    for (ValueId& v : values) v = moved[v.index()];
    return values;
  };
  return {move(ports.receives), move(ports.sends), move(ports.results), ports.carried_in,
          ports.carried_out};
}

}  // namespace

Compiler::Compiler(const ResolvedPlan& plan, ir::Module module, PassSet passes, bool offsets)
    : passes_(std::move(passes)), offsets_(offsets) {
  result_.plan = plan;
  result_.module = std::move(module);
}

std::vector<LocalStage> Compiler::stages_of(const ir::Graph& whole) {
  const ResolvedPlan& plan = result_.plan;
  const auto strategy = [&plan](LayerId layer) -> const sharding::Strategy& {
    return plan.strategy(layer);
  };
  const cluster::Mesh& mesh = plan.stages.front().mesh;
  std::vector<StageGraph> cuts =
      cut(whole, plan.stage_of_layer, static_cast<int32_t>(plan.stages.size()));
  mark_carried(cuts);
  GivenShardings given = partition::given_shardings(whole, result_.module, mesh, strategy);
  settle_boundaries(whole, cuts, given);
  std::vector<LocalStage> stages;
  std::vector<GivenShardings> given_of;  // [stage]
  std::multimap<uint64_t, size_t> partitioned_stages;
  for (StageGraph& stage : cuts) {
    GivenShardings of_stage;
    for (const ValueId v : stage.whole) of_stage.push_back(given[v.index()]);
    given_of.push_back(of_stage);
    LocalStage made;
    const uint64_t hash = structure_hash(stage);
    const auto [begin, end] = partitioned_stages.equal_range(hash);
    for (auto it = begin; shares() && it != end && !made.twin; ++it) {
      made.first = it->second;
      if (same_plan(stages[made.first].cut, stage) && given_of[made.first] == of_stage)
        made.twin = find_twin(stages[made.first].cut, stage, result_.module);
    }
    if (made.twin) {
      made.ports = stages[made.first].ports;
      made.cut = std::move(stage);
    } else {
      partitioned_stages.emplace(hash, stages.size());
      made = partitioned(std::move(stage), std::move(of_stage));
      made.first = stages.size();
    }
    stages.push_back(std::move(made));
  }
  return stages;
}

LocalStage Compiler::partitioned(StageGraph stage, GivenShardings given) {
  const cluster::Mesh& mesh = result_.plan.stages[stage.stage.index()].mesh;
  Partitioned parts =
      partition::partition({stage.graph, result_.module, mesh, std::move(given), memo_of(mesh)});
  LocalStage made;
  for (const Crossing& crossing : stage.receives) {
    made.ports.receives.push_back(parts.main_version[crossing.value.index()]);
    made.ports.carried_in.push_back(crossing.carried);
  }
  for (const Crossing& crossing : stage.sends) {
    made.ports.sends.push_back(parts.main_version[crossing.value.index()]);
    made.ports.carried_out.push_back(crossing.carried);
  }
  made.ports.results = parts.graph.outputs;
  made.local = {std::move(parts.graph), std::move(parts.shardings), std::move(parts.global_types)};
  // What leaves the stage is an output for the passes: kept, and no part of a weight gradient.
  ValueIds& outputs = made.local.graph.outputs;
  for (const ValueId v : made.ports.sends) {
    if (std::find(outputs.begin(), outputs.end(), v) == outputs.end()) outputs.push_back(v);
  }
  transform::mark_work(made.local.graph);
  if (passes_.runs(kFoldAccumulate)) {
    const ValueIds folded = transform::fold_accumulate(made.local.graph);
    made.local.renumber(folded);
    made.ports = moved_ports(made.ports, folded);
  }
  made.cut = std::move(stage);
  return made;
}

void Compiler::replicate(std::vector<LocalStage>& stages, int32_t replicas) const {
  const size_t count = stages.size();
  for (int32_t j = 1; j < replicas; ++j) {
    for (size_t s = 0; s < count; ++s) {
      LocalStage copy;
      copy.cut = stages[s].cut;
      for (std::vector<Crossing>* crossings : {&copy.cut.receives, &copy.cut.sends}) {
        for (Crossing& crossing : *crossings)
          crossing.peer = StageId(crossing.peer.value + j * static_cast<int64_t>(count));
      }
      copy.ports = stages[s].ports;
      copy.first = stages[s].first;
      copy.twin = stages[s].twin;
      if (!copy.twin) copy.twin = find_twin(stages[s].cut, stages[s].cut, result_.module);
      MW_CHECK(copy.twin.has_value(), "stage {} is not like itself", s);
      stages.push_back(std::move(copy));
    }
  }
}

void Compiler::make_states(const std::vector<LocalStage>& stages,
                           const std::vector<int32_t>& rank_of_stage, int64_t ranks) {
  uses_.resize(static_cast<size_t>(ranks));
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto rank = static_cast<size_t>(rank_of_stage[s]);
    const LocalGraph& local = stages[stages[s].first].local;
    for (const ir::Input& input : local.graph.inputs) {
      if (!input.state.valid()) continue;
      const LocalGraph::Made made = local.like(input.value);
      const StateId state = stages[s].twin ? stages[s].twin->states.at(input.state) : input.state;
      uses_[rank].emplace(state, StateUse{state, made.global, made.local, made.sharding});
    }
  }
  for (size_t rank = 0; rank < uses_.size(); ++rank) {
    std::vector<StateUse> list, metrics;
    for (const auto& [state, use] : uses_[rank]) {
      (result_.module.state(state).kind == ir::StateKind::kMetric ? metrics : list).push_back(use);
    }
    result_.groups.push_back(make_flat_groups(list, result_.plan.plan, result_.module));
    for (size_t g = 0; g < result_.groups.back().size(); ++g)
      holders_[result_.groups.back()[g].weight].emplace_back(static_cast<int32_t>(rank), g);
    metrics_.push_back(std::move(metrics));
  }
}

void Compiler::make_tables() {
  if (result_.plan.plan.post_validation) add_kept_states(result_.groups, result_.module);
  for (size_t rank = 0; rank < metrics_.size(); ++rank) {
    result_.states.push_back(
        make_state_table(result_.groups[rank], metrics_[rank], result_.plan.plan, result_.module));
  }
}

std::vector<StageCode> Compiler::codes_of(std::vector<LocalStage>& stages,
                                          const std::vector<int32_t>& rank_of,
                                          const std::vector<std::set<ActionKind>>& kinds) const {
  std::vector<StageCode> codes;
  std::vector<const Twin*> twins;
  for (size_t s = 0; s < stages.size(); ++s) {
    LocalStage& stage = stages[s];
    const size_t first = stage.first;
    const auto groups = [&](size_t of) -> const std::vector<FlatGroup>& {
      return result_.groups[static_cast<size_t>(rank_of[of])];
    };
    if (stage.twin && kinds[s] == kinds[first] &&
        match_groups(groups(first), groups(s), result_.module, *stage.twin)) {
      codes.push_back(twin_code(codes[first], stage));
      twins.push_back(&*stage.twin);
      continue;
    }
    if (stage.twin) stage.local = twin_graph(stages[first].local, *stage.twin);
    codes.push_back(code_of(stage, static_cast<size_t>(rank_of[s]), kinds[s]));
    twins.push_back(nullptr);
  }
  for (size_t s = 0; s < codes.size(); ++s)
    codes[s].name = unfolded_name(static_cast<int32_t>(s), stage_count(), slices());
  std::vector<std::map<ActionKind, StageFragment>*> fragments;
  for (StageCode& code : codes) fragments.push_back(&code.fragments);
  share_names(fragments, twins);
  return codes;
}

StageCode Compiler::twin_code(const StageCode& first, const LocalStage& stage) const {
  StageCode code;
  code.receives = stage.cut.receives;
  code.sends = stage.cut.sends;
  for (const auto& [kind, fragment] : first.fragments)
    code.fragments.emplace(kind,
                           twin_fragment(fragment, *stage.twin, result_.module, stage_name(stage)));
  return code;
}

StageCode Compiler::code_of(const LocalStage& stage, size_t rank, const std::set<ActionKind>& kinds,
                            std::vector<std::string> results) const {
  const ZeroResult zero = apply_zero(stage.local, result_.plan.plan, result_.groups[rank]);
  StageCode code;
  code.receives = stage.cut.receives;
  code.sends = stage.cut.sends;
  code.results = std::move(results);
  const StagePorts ports = moved_ports(stage.ports, zero.moved);
  const std::string name = stage_name(stage);
  const SplitOptions options{result_.plan.mesh,
                             passes_.runs(kRemake),
                             result_.plan.plan.regather,
                             passes_.runs(kOverlap),
                             passes_.runs(kGatherAhead) ? result_.plan.plan.prefetch_elements() : 0,
                             offsets_};
  for (const std::vector<ActionKind>& parts : partings(kinds)) {
    std::vector<StageFragment> fragments =
        split_stage(zero.local, ports, result_.module, parts, name, options);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto [there, is_new] = code.fragments.try_emplace(parts[i], std::move(fragments[i]));
      // The forward pass is the same however the backward pass is parted.
      MW_CHECK(is_new || same_outputs(there->second, fragments[i]),
               "{} saves other values for B than for I and W", name);
    }
  }
  return code;
}

UpdateContext Compiler::update_context(size_t rank, const OptimizerSpec& optimizer) const {
  UpdateContext context{result_.plan, result_.module, result_.groups[rank], {}, {}, 0, {},
                        optimizer,    passes_};
  for (size_t r = 0; r < metrics_.size(); ++r) {
    for (const StateUse& use : metrics_[r]) {
      if (result_.module.state(use.state).name != "loss") continue;
      context.loss_ranks.push_back(static_cast<int32_t>(r));
      if (r == rank) context.loss = use;
    }
  }
  context.rank = static_cast<int32_t>(rank);
  for (const FlatGroup& group : result_.groups[rank]) {
    HeldGroup held = holders_of(group);
    if (held.ranks.size() > 1) context.held_elsewhere.push_back(std::move(held));
  }
  return context;
}

// What goes from one slice of a stage to another: it stays on the rank.
void Compiler::mark_carried(std::vector<StageGraph>& cuts) const {
  const int32_t stages = stage_count();
  for (StageGraph& stage : cuts) {
    for (std::vector<Crossing>* crossings : {&stage.receives, &stage.sends}) {
      for (Crossing& crossing : *crossings)
        crossing.carried = crossing.peer.value % stages == stage.stage.value % stages;
    }
  }
}

// The same mesh and strategies, layer by layer.
bool Compiler::same_plan(const StageGraph& a, const StageGraph& b) const {
  const Stage &x = result_.plan.stages[a.stage.index()], &y = result_.plan.stages[b.stage.index()];
  return x.mesh == y.mesh && x.strategies == y.strategies;
}

HeldGroup Compiler::holders_of(const FlatGroup& of) const {
  HeldGroup held;
  held.weight = of.weight;
  std::map<LayerId, std::vector<int32_t>> uses;  // in model order, the ranks of each
  for (const auto& [rank, index] : holders_.at(of.weight)) {
    const FlatGroup& group = result_.groups[static_cast<size_t>(rank)][index];
    held.ranks.push_back(rank);
    if (!group.shared) continue;
    for (const GroupUse& use : group.uses) {
      MW_CHECK(!use.accumulators.empty(), "pipeline rank {} holds {} and does not use it", rank,
               group.name);
      uses[result_.module.state(use.accumulators[0]).use].push_back(rank);
    }
  }
  held.replicated = !of.shared && held.ranks.size() > 1;
  for (const auto& [layer, ranks] : uses) {
    held.rank_of_use.push_back(ranks.front());
    held.replicated = held.replicated || ranks.size() > 1;
  }
  return held;
}

// Values that cross between stages need one sharding on both sides. Where no annotation gives it,
// it is the one that the partitioner chooses in the whole graph.
void Compiler::settle_boundaries(const ir::Graph& whole, const std::vector<StageGraph>& cuts,
                                 GivenShardings& given) {
  std::set<ValueId> open;
  for (const StageGraph& stage : cuts) {
    for (const Crossing& crossing : stage.receives) {
      if (!given[crossing.whole.index()]) open.insert(crossing.whole);
    }
  }
  if (open.empty()) return;
  const Partitioned all =
      partition::partition({whole, result_.module, stage_mesh(), given, memo_of(stage_mesh())});
  for (const ValueId v : open) {
    given[v.index()] = all.shardings[all.main_version[v.index()].index()].without_partial();
  }
}

// Stages of one mesh learn from each other.
partition::Memo* Compiler::memo_of(const cluster::Mesh& mesh) {
  if (!memo_ || memo_->mesh() != mesh) memo_.emplace(mesh);
  return &*memo_;
}

}  // namespace mw::compile
