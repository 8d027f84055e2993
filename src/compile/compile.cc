#include "compile/compile.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compile/cut.h"
#include "compile/fragments.h"
#include "compile/init_graph.h"
#include "compile/lower.h"
#include "compile/passes.h"
#include "compile/replicas.h"
#include "compile/schedule.h"
#include "compile/twin.h"
#include "compile/update_graph.h"
#include "compile/zero.h"
#include "partition/partitioner.h"
#include "transform/autodiff.h"
#include "transform/fold_accumulate.h"
#include "transform/pass.h"
#include "transform/recompute.h"
#include "transform/slices.h"

namespace mw::compile {
namespace {

using partition::Partitioned;
using pipeline::ActionKind;
using sharding::Sharding;

// A stage partitioned, before ZeRO.
struct LocalStage {
  StageGraph cut;
  LocalGraph local;  // none if it is a twin
  StagePorts ports;
  size_t first = 0;          // the stage that it is a twin of
  std::optional<Twin> twin;  // empty: of none
};

using GivenShardings = std::vector<std::optional<Sharding>>;

class Compiler {
 public:
  // `offsets`: as in CompileRequest.
  Compiler(const ResolvedPlan& plan, ir::Module module, PassSet passes, bool offsets = true)
      : passes_(std::move(passes)), offsets_(offsets) {
    result_.plan = plan;
    result_.module = std::move(module);
  }

  // Partitions a whole graph stage by stage. Folds accumulations into the products that make them.
  std::vector<LocalStage> stages_of(const ir::Graph& whole) {
    const ResolvedPlan& plan = result_.plan;
    const auto strategy = [&plan](LayerId layer) -> const sharding::Strategy& {
      return plan.strategy(layer);
    };
    const cluster::Mesh& mesh = plan.stages.front().mesh;
    std::vector<StageGraph> cuts =
        cut(whole, plan.stage_of_layer, static_cast<int32_t>(plan.stages.size()));
    mark_carried(cuts);
    GivenShardings given = partition::given_shardings(whole, result_.module, mesh, strategy);
    settle_boundaries(whole, cuts, given, strategy);
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
        stages.push_back(std::move(made));
        continue;
      }
      partitioned_stages.emplace(hash, stages.size());
      made.first = stages.size();
      Partitioned partitioned = partition::partition(
          {stage.graph, result_.module, plan.stages[stage.stage.index()].mesh, strategy,
           std::move(of_stage), memo_of(plan.stages[stage.stage.index()].mesh)});
      for (const Crossing& crossing : stage.receives) {
        made.ports.receives.push_back(partitioned.main_version[crossing.value.index()]);
      }
      for (const Crossing& crossing : stage.sends) {
        made.ports.sends.push_back(partitioned.main_version[crossing.value.index()]);
      }
      for (const Crossing& crossing : stage.receives)
        made.ports.carried_in.push_back(crossing.carried);
      for (const Crossing& crossing : stage.sends)
        made.ports.carried_out.push_back(crossing.carried);
      made.ports.results = partitioned.graph.outputs;
      made.local = {std::move(partitioned.graph), std::move(partitioned.shardings),
                    std::move(partitioned.global_types)};
      // What leaves the stage is an output for the passes: kept, and no part of a weight gradient.
      std::vector<ValueId>& outputs = made.local.graph.outputs;
      for (const ValueId v : made.ports.sends) {
        if (std::find(outputs.begin(), outputs.end(), v) == outputs.end()) outputs.push_back(v);
      }
      transform::mark_work(made.local.graph);
      if (passes_.runs(kFoldAccumulate)) {
        const std::vector<ValueId> folded = transform::fold_accumulate(made.local.graph);
        made.local.renumber(folded);
        made.ports = moved_ports(made.ports, folded);
      }
      made.cut = std::move(stage);
      stages.push_back(std::move(made));
    }
    return stages;
  }

  // Every stage `replicas` times: replica j of stage s is stage j * stages + s, a twin that differs
  // in nothing (replicas.h).
  void replicate(std::vector<LocalStage>& stages, int32_t replicas) const {
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

  // Weights, accumulators and metrics of every rank, from the training stages.
  void make_states(const std::vector<LocalStage>& stages, const std::vector<int32_t>& rank_of_stage,
                   int64_t ranks) {
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
        (result_.module.state(state).kind == ir::StateKind::kMetric ? metrics : list)
            .push_back(use);
      }
      result_.groups.push_back(make_flat_groups(list, result_.plan.plan, result_.module));
      metrics_.push_back(std::move(metrics));
    }
  }
  void add_metric(size_t rank, const StateUse& use) { metrics_[rank].push_back(use); }
  void make_tables() {
    for (size_t rank = 0; rank < metrics_.size(); ++rank) {
      result_.states.push_back(make_state_table(result_.groups[rank], metrics_[rank],
                                                result_.plan.plan, result_.module));
    }
  }

  // The stages ready for lowering; fragments of twins that work alike are one.
  std::vector<StageCode> codes_of(std::vector<LocalStage>& stages,
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

  static std::string stage_name(const LocalStage& stage) {
    return fmt::format("stage {}", stage.cut.stage.value);
  }

  StageCode twin_code(const StageCode& first, const LocalStage& stage) const {
    StageCode code;
    code.receives = stage.cut.receives;
    code.sends = stage.cut.sends;
    for (const auto& [kind, fragment] : first.fragments)
      code.fragments.emplace(
          kind, twin_fragment(fragment, *stage.twin, result_.module, stage_name(stage)));
    return code;
  }

  StageCode code_of(const LocalStage& stage, size_t rank, const std::set<ActionKind>& kinds,
                    std::vector<std::string> results = {}) const {
    const ZeroResult zero = apply_zero(stage.local, result_.plan.plan, result_.groups[rank]);
    StageCode code;
    code.receives = stage.cut.receives;
    code.sends = stage.cut.sends;
    code.results = std::move(results);
    const StagePorts ports = moved_ports(stage.ports, zero.moved);
    const std::string name = stage_name(stage);
    const SplitOptions options{
        result_.plan.mesh,
        passes_.runs(kRemake),
        result_.plan.plan.regather,
        passes_.runs(kOverlap),
        passes_.runs(kGatherAhead) ? result_.plan.plan.prefetch_elements() : 0,
        offsets_};
    for (const std::vector<ActionKind>& parts : partings(kinds)) {
      std::vector<StageFragment> fragments =
          split(zero.local, ports, result_.module, parts, name, options);
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto [there, is_new] = code.fragments.try_emplace(parts[i], std::move(fragments[i]));
        // The forward pass is the same however the backward pass is parted.
        MW_CHECK(is_new || same_outputs(there->second, fragments[i]),
                 "{} saves other values for B than for I and W", name);
      }
    }
    return code;
  }

  UpdateContext update_context(size_t rank, const OptimizerSpec& optimizer) const {
    UpdateContext context{result_.plan, result_.module, result_.groups[rank], {}, 0, {},
                          optimizer,    passes_};
    for (const StateUse& use : metrics_[rank]) {
      if (result_.module.state(use.state).name == "loss") context.loss = use;
    }
    context.rank = static_cast<int32_t>(rank);
    for (const FlatGroup& group : result_.groups[rank]) {
      HeldGroup held = holders_of(group);
      if (held.ranks.size() > 1) context.held_elsewhere.push_back(std::move(held));
    }
    return context;
  }

  CompiledPlan& result() { return result_; }
  bool offsets() const { return offsets_; }
  const cluster::Mesh& stage_mesh() const { return result_.plan.stages.front().mesh; }
  // Without replicas and slices.
  int32_t stage_count() const { return static_cast<int32_t>(result_.plan.plan.stages()); }
  int32_t slices() const { return static_cast<int32_t>(result_.plan.plan.sequence_slices()); }

 private:
  bool shares() const { return passes_.runs(kShareStages); }
  // What goes from one slice of a stage to another: it stays on the rank.
  void mark_carried(std::vector<StageGraph>& cuts) const {
    const int32_t stages = stage_count();
    for (StageGraph& stage : cuts) {
      for (std::vector<Crossing>* crossings : {&stage.receives, &stage.sends}) {
        for (Crossing& crossing : *crossings)
          crossing.carried = crossing.peer.value % stages == stage.stage.value % stages;
      }
    }
  }
  // The same mesh and strategies, layer by layer.
  bool same_plan(const StageGraph& a, const StageGraph& b) const {
    const Stage &x = result_.plan.stages[a.stage.index()],
                &y = result_.plan.stages[b.stage.index()];
    return x.mesh == y.mesh && x.strategies == y.strategies;
  }

  // {F, B}, {F, I, W}, both, or {F}.
  static std::vector<std::vector<ActionKind>> partings(const std::set<ActionKind>& kinds) {
    std::vector<std::vector<ActionKind>> found;
    if (kinds.contains(ActionKind::kB)) found.push_back({ActionKind::kF, ActionKind::kB});
    if (kinds.contains(ActionKind::kI))
      found.push_back({ActionKind::kF, ActionKind::kI, ActionKind::kW});
    if (found.empty()) found.push_back({ActionKind::kF});
    return found;
  }
  static bool same_outputs(const StageFragment& a, const StageFragment& b) {
    return std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
                      [](const PortSource& x, const PortSource& y) {
                        return x.kind == y.kind && x.crossing == y.crossing && x.value == y.value;
                      });
  }

  HeldGroup holders_of(const FlatGroup& of) const {
    HeldGroup held;
    held.weight = of.weight;
    std::map<LayerId, std::vector<int32_t>> uses;  // in model order, the ranks of each
    for (size_t rank = 0; rank < result_.groups.size(); ++rank) {
      for (const FlatGroup& group : result_.groups[rank]) {
        if (group.weight != of.weight) continue;
        held.ranks.push_back(static_cast<int32_t>(rank));
        if (!group.shared) continue;
        for (const GroupUse& use : group.uses) {
          MW_CHECK(!use.accumulators.empty(), "pipeline rank {} holds {} and does not use it", rank,
                   group.name);
          uses[result_.module.state(use.accumulators[0]).use].push_back(static_cast<int32_t>(rank));
        }
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
  void settle_boundaries(const ir::Graph& whole, const std::vector<StageGraph>& cuts,
                         GivenShardings& given,
                         const std::function<const sharding::Strategy&(LayerId)>& strategy) {
    std::set<ValueId> open;
    for (const StageGraph& stage : cuts) {
      for (const Crossing& crossing : stage.receives) {
        if (!given[crossing.whole.index()]) open.insert(crossing.whole);
      }
    }
    if (open.empty()) return;
    const Partitioned all = partition::partition(
        {whole, result_.module, stage_mesh(), strategy, given, memo_of(stage_mesh())});
    for (const ValueId v : open) {
      given[v.index()] = all.shardings[all.main_version[v.index()].index()].without_partial();
    }
  }

  static StagePorts moved_ports(const StagePorts& ports, const std::vector<ValueId>& moved) {
    const auto move = [&](std::vector<ValueId> values) {
      for (ValueId& v : values) v = moved[v.index()];
      return values;
    };
    return {move(ports.receives), move(ports.sends), move(ports.results), ports.carried_in,
            ports.carried_out};
  }

  // Stages of one mesh learn from each other.
  partition::Memo* memo_of(const cluster::Mesh& mesh) {
    if (!memo_ || memo_->mesh() != mesh) memo_.emplace(mesh);
    return &*memo_;
  }

  PassSet passes_;
  bool offsets_;
  CompiledPlan result_;
  std::optional<partition::Memo> memo_;
  std::vector<std::map<StateId, StateUse>> uses_;  // [pipeline rank]
  std::vector<std::vector<StateUse>> metrics_;
};

transform::RecomputeMode mode_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone: return transform::RecomputeMode::kNone;
    case Recompute::kSelective: return transform::RecomputeMode::kSelective;
    case Recompute::kFull: return transform::RecomputeMode::kFull;
    case Recompute::kSelectiveOp: return transform::RecomputeMode::kSelectiveOp;
  }
  MW_CHECK(false, "recompute {}", static_cast<int>(recompute));
}

// Logical axes that some layer of the plan holds on more than one device.
std::set<std::string> divided_axes(const ResolvedPlan& plan) {
  std::set<std::string> divided;
  for (const Stage& stage : plan.stages) {
    for (const sharding::Strategy& strategy : stage.strategies) {
      for (const auto& [name, axes] : strategy.axes) {
        if (sharding::shards(axes, stage.mesh) > 1) divided.insert(name);
      }
    }
  }
  return divided;
}

// Blocks are recomputed; what stands before and behind them (embedding, head) is kept.
void differentiate(ir::Module& module, const ResolvedPlan& plan, const PassSet& passes,
                   bool whole_recompute) {
  transform::PassOptions options;
  options.recompute = transform::recompute_all(module, mode_of(plan.plan.recompute));
  options.recompute.divided = divided_axes(plan);
  options.recompute.whole = whole_recompute;
  for (size_t i = 0; i < module.layers.size(); ++i) {
    if (!module.layers[i].block) options.recompute.layers[i] = transform::RecomputeMode::kNone;
  }
  transform::RunOptions run;
  run.verify = false;
  for (const std::string& name : transform::default_passes()) {
    if (!passes.runs(name)) run.disabled.insert(name);
  }
  transform::run_passes(module, transform::default_passes(), options, run);
}

// [stage] the kinds of its compute actions.
std::vector<std::set<ActionKind>> kinds_of(const pipeline::Schedule& schedule) {
  std::vector<std::set<ActionKind>> kinds(static_cast<size_t>(schedule.placement.stages()));
  for (const auto& actions : schedule.ranks) {
    for (const pipeline::Action& action : actions) kinds[action.stage.index()].insert(action.kind);
  }
  return kinds;
}

// Every slice of a stage is a stage of its own, whose layers come behind those of the slice before.
ResolvedPlan with_slices(ResolvedPlan plan) {
  const size_t stages = plan.stages.size(), layers = plan.stage_of_layer.size();
  for (int64_t i = 1; i < plan.plan.sequence_slices(); ++i) {
    for (size_t s = 0; s < stages; ++s) {
      Stage stage = plan.stages[s];
      stage.first_layer += static_cast<int32_t>(i * static_cast<int64_t>(layers));
      plan.stages.push_back(std::move(stage));
    }
    for (size_t l = 0; l < layers; ++l)
      plan.stage_of_layer.push_back(plan.stage_of_layer[l] +
                                    static_cast<int32_t>(i * static_cast<int64_t>(stages)));
  }
  return plan;
}

// The forward graph with the loss added to the state "loss" and nothing else kept.
ir::Graph loss_graph(const ir::Module& model, const ir::Module& trained) {
  ir::Graph graph = *model.find_graph("microbatch");
  for (const StateId weight : model.parameters()) {
    MW_CHECK(model.state(weight).name == trained.state(weight).name,
             "evaluation has weight {} where training has {}", model.state(weight).name,
             trained.state(weight).name);
  }
  const auto loss = std::find_if(graph.outputs.begin(), graph.outputs.end(),
                                 [&](ValueId v) { return graph.value(v).name == "loss_sum"; });
  MW_CHECK(loss != graph.outputs.end(), "the model has no output loss_sum");
  const StateId state = *trained.find_state("loss");
  const ValueId accumulator = graph.add_input(graph.type(*loss), "state/loss", state);
  ir::Op op = make_op(ir::OpKind::kAccumulate, ir::NoAttrs{}, {accumulator, *loss},
                      ir::Work::kForward, graph.op(graph.value(*loss).producer).layer);
  const OpId id = graph.add_op(std::move(op), {graph.type(*loss)});
  graph.updates = {{state, graph.op(id).results[0]}};
  graph.outputs.clear();
  ir::drop_dead(graph);
  return graph;
}

pipeline::Program lower_all(const std::string& name, Compiler& compiler,
                            const pipeline::Schedule& schedule, const std::vector<StageCode>& codes,
                            const std::vector<StateFragment>& last) {
  const CompiledPlan& result = compiler.result();
  pipeline::Program program = lower({name, result.plan.mesh, result.module, schedule, codes,
                                     result.states, last, compiler.offsets()});
  fold(program, compiler.stage_count(), compiler.slices());
  return program;
}

// The model's graphs with those of the backward pass, sequence slices unrolled.
ir::Module differentiated(const ir::Module& model, const ResolvedPlan& plan, const PassSet& passes,
                          bool whole_recompute = false) {
  const auto slices = static_cast<int32_t>(plan.plan.sequence_slices());
  ir::Module module = model;
  if (slices > 1) transform::unroll_slices(module, "microbatch", slices);
  differentiate(module, plan, passes, whole_recompute);
  if (slices > 1) {
    transform::merge_slices(module, "microbatch", slices);
    transform::spread_loss(*module.find_graph("microbatch"), *module.find_state("loss"));
  }
  return module;
}

// The graph of a microbatch with nothing that only its outputs need.
ir::Graph training_graph(const ir::Module& module) {
  ir::Graph whole = *module.find_graph("microbatch");
  whole.outputs.clear();
  ir::drop_dead(whole);
  return whole;
}

std::vector<StateFragment> updates_of(const Compiler& compiler, int64_t ranks,
                                      const OptimizerSpec& optimizer) {
  std::vector<StateFragment> updates;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank)
    updates.push_back(build_update(compiler.update_context(rank, optimizer)));
  return updates;
}

}  // namespace

Plan partitioning_plan(Plan plan) {
  const Plan none;
  plan.slices = plan.sequence_slices();
  plan.microbatches = plan.units();
  if (plan.slices == 1) plan.schedule = none.schedule;
  plan.regather = none.regather;
  plan.zero = none.zero;
  plan.grad_reduce = none.grad_reduce;
  plan.bucket_mb = none.bucket_mb;
  plan.prefetch_mb = none.prefetch_mb;
  plan.group = none.group;
  plan.pairs = none.pairs;
  plan.memory_limit = none.memory_limit;
  plan.costs = none.costs;
  plan.post_validation = none.post_validation;
  return plan;
}

struct PartitionedModel::Parts {
  Plan plan;
  ir::Module module;  // differentiated
  std::vector<LocalStage> stages;
};

PartitionedModel::PartitionedModel(const CompileRequest& request) {
  const ResolvedPlan resolved = with_slices(resolve(request.plan, request.model, request.shape));
  const PassSet passes(request.without);
  ir::Module module = differentiated(request.model, resolved, passes, request.whole_recompute);
  Compiler compiler(resolved, std::move(module), passes);
  std::vector<LocalStage> stages = compiler.stages_of(training_graph(compiler.result().module));
  parts_ = std::make_unique<const Parts>(Parts{
      partitioning_plan(resolved.plan), std::move(compiler.result().module), std::move(stages)});
}
PartitionedModel::~PartitionedModel() = default;

CompiledPlan compile(const CompileRequest& request) {
  const ResolvedPlan resolved = with_slices(resolve(request.plan, request.model, request.shape));
  const Plan& plan = resolved.plan;
  const PassSet passes(request.without);
  const auto slices = static_cast<int32_t>(plan.sequence_slices());
  const PartitionedModel::Parts* parts =
      request.partitioned != nullptr ? request.partitioned->parts_.get() : nullptr;
  MW_CHECK(parts == nullptr || parts->plan == partitioning_plan(plan),
           "the model is partitioned under {}, not {}", short_form(parts->plan), short_form(plan));

  Compiler compiler(resolved,
                    parts != nullptr
                        ? parts->module
                        : differentiated(request.model, resolved, passes, request.whole_recompute),
                    passes, request.offsets);
  const pipeline::Schedule given = given_schedule(request.schedule, plan);
  const int32_t replicas = given.placement.replicas();
  const pipeline::Schedule schedule = unfold(given);
  const std::vector<int32_t>& rank_of = schedule.placement.rank_of_stage;
  std::vector<LocalStage> stages =
      parts != nullptr ? parts->stages
                       : compiler.stages_of(training_graph(compiler.result().module));
  compiler.replicate(stages, replicas);
  compiler.make_states(stages, rank_of, plan.pp);
  compiler.make_tables();

  const std::vector<StateFragment> updates = updates_of(compiler, plan.pp, request.optimizer);
  std::vector<StateFragment> reports, inits;
  for (size_t rank = 0; rank < static_cast<size_t>(plan.pp); ++rank) {
    const UpdateContext context = compiler.update_context(rank, request.optimizer);
    if (request.eval_model != nullptr) reports.push_back(build_report(context));
    if (!request.init) continue;
    inits.push_back(
        build_init(context.groups, plan, compiler.result().module, compiler.stage_mesh()));
  }
  CompiledPlan& result = compiler.result();
  result.train = lower_all("train", compiler, schedule,
                           compiler.codes_of(stages, rank_of, kinds_of(schedule)), updates);
  if (request.init) result.init = lower_all("init", compiler, schedule, {}, inits);
  if (request.eval_model != nullptr) {
    ir::Module eval_model = *request.eval_model;
    if (slices > 1) transform::unroll_slices(eval_model, "microbatch", slices);
    ir::Graph forward = loss_graph(eval_model, result.module);
    if (slices > 1) {
      transform::spread_loss(forward, *result.module.find_state("loss"));
      ir::drop_dead(forward);
    }
    std::vector<LocalStage> eval_stages = compiler.stages_of(forward);
    compiler.replicate(eval_stages, replicas);
    const pipeline::Schedule forwards = forward_only(schedule);
    result.eval = lower_all("eval", compiler, forwards,
                            compiler.codes_of(eval_stages, rank_of, kinds_of(forwards)), reports);
  }
  return std::move(result);
}

std::vector<CompiledPlan> compile_updates(const CompileRequest& request,
                                          const std::vector<int64_t>& zero_stages) {
  ResolvedPlan resolved = with_slices(resolve(request.plan, request.model, request.shape));
  const PassSet passes(request.without);
  const ir::Module module = differentiated(request.model, resolved, passes);
  const pipeline::Schedule given = given_schedule(request.schedule, resolved.plan);
  const pipeline::Schedule schedule = unfold(given);
  Compiler partitioner(resolved, module, passes);
  std::vector<LocalStage> stages = partitioner.stages_of(training_graph(module));
  partitioner.replicate(stages, given.placement.replicas());

  std::vector<CompiledPlan> compiled;
  for (const int64_t zero : zero_stages) {
    resolved.plan.zero = zero;
    Compiler compiler(resolved, module, passes, request.offsets);
    compiler.make_states(stages, schedule.placement.rank_of_stage, resolved.plan.pp);
    compiler.make_tables();
    CompiledPlan& result = compiler.result();
    result.train = lower_all("update", compiler, schedule, {},
                             updates_of(compiler, resolved.plan.pp, request.optimizer));
    compiled.push_back(std::move(result));
  }
  return compiled;
}

CompiledPlan compile_forward(const ir::Module& model, const std::string& output) {
  Plan plan;
  ModelShape shape;
  const ResolvedPlan resolved = resolve(plan, model, shape);
  ir::Module module = model;
  ir::Graph whole = *module.find_graph("microbatch");
  std::erase_if(whole.outputs, [&](ValueId v) { return whole.value(v).name != output; });
  MW_CHECK(whole.outputs.size() == 1, "the model has no output {}", output);
  ir::drop_dead(whole);
  ir::State state;
  state.name = output;
  state.type = whole.type(whole.outputs[0]);
  state.kind = ir::StateKind::kMetric;
  const StateId id = module.add_state(std::move(state));

  Compiler compiler(resolved, std::move(module), PassSet());
  const pipeline::Schedule schedule = forward_only(schedule_of(plan));
  const std::vector<LocalStage> stages = compiler.stages_of(whole);
  compiler.make_states(stages, schedule.placement.rank_of_stage, 1);
  const LocalGraph::Made made = stages[0].local.like(stages[0].ports.results[0]);
  compiler.add_metric(0, {id, made.global, made.local, made.sharding});
  compiler.make_tables();
  const std::vector<StageCode> codes{compiler.code_of(stages[0], 0, {ActionKind::kF}, {output})};
  CompiledPlan& result = compiler.result();
  result.init =
      lower_all("init", compiler, schedule, {},
                {build_init(result.groups[0], plan, result.module, compiler.stage_mesh())});
  result.train = lower_all("forward", compiler, schedule, codes, {StateFragment{}});
  return std::move(result);
}

}  // namespace mw::compile
