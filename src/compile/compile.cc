#include "compile/compile.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "compile/compiler.h"
#include "compile/init_graph.h"
#include "compile/lower.h"
#include "compile/replicas.h"
#include "compile/schedule.h"
#include "compile/update_graph.h"
#include "transform/pass.h"
#include "transform/recompute.h"
#include "transform/slices.h"

namespace mw::compile {
namespace {

using pipeline::ActionKind;

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
  options.recompute = transform::recompute_all(module, plan.plan.recompute);
  options.recompute.divided = divided_axes(plan);
  options.recompute.whole = whole_recompute;
  for (size_t i = 0; i < module.layers.size(); ++i) {
    if (!module.layers[i].block) options.recompute.layers[i] = Recompute::kNone;
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
                            const std::vector<StateFragment>& last,
                            const std::vector<Validation>& validations = {}) {
  const CompiledPlan& result = compiler.result();
  pipeline::Program program = lower({name, result.plan.mesh, result.module, schedule, codes,
                                     result.states, last, validations, compiler.offsets()});
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

std::vector<Validation> validations_of(const Compiler& compiler, int64_t ranks,
                                       const OptimizerSpec& optimizer) {
  std::vector<Validation> validations;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    const UpdateContext context = compiler.update_context(rank, optimizer);
    validations.push_back({build_share(context), build_validate(context)});
  }
  return validations;
}

// The programs of a plan with post-validation beside `train`, which ends with what they begin with.
void add_validation(Compiler& compiler, const pipeline::Schedule& schedule,
                    const std::vector<Validation>& validations, const OptimizerSpec& optimizer) {
  CompiledPlan& result = compiler.result();
  std::vector<StateFragment> amends;
  for (size_t rank = 0; rank < validations.size(); ++rank)
    amends.push_back(build_amend(compiler.update_context(rank, optimizer)));
  result.validate = lower_all("validate", compiler, schedule, {}, {}, validations);
  result.amend = lower_all("amend", compiler, schedule, {}, amends);
}

}  // namespace

Plan partitioning_plan(Plan plan) {
  const Plan none;
  plan.slices = plan.sequence_slices();
  plan.microbatches = plan.units();
  if (plan.slices == 1) {
    plan.schedule = none.schedule;
    plan.written = none.written;
  }
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
  ir::Module module;  // differentiated; without the graphs, which are in the stages
  std::vector<LocalStage> stages;
};

PartitionedModel::PartitionedModel(const CompileRequest& request) {
  const ResolvedPlan resolved = with_slices(resolve(request.plan, request.model, request.shape));
  const PassSet passes(request.without);
  ir::Module module = differentiated(request.model, resolved, passes, request.whole_recompute);
  Compiler compiler(resolved, std::move(module), passes);
  std::vector<LocalStage> stages = compiler.stages_of(training_graph(compiler.result().module));
  compiler.result().module.graphs.clear();
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
  std::vector<Validation> validations;
  if (plan.post_validation) validations = validations_of(compiler, plan.pp, request.optimizer);
  result.train =
      lower_all("train", compiler, schedule, compiler.codes_of(stages, rank_of, kinds_of(schedule)),
                updates, validations);
  if (plan.post_validation) add_validation(compiler, schedule, validations, request.optimizer);
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
  const auto others = std::remove_if(whole.outputs.begin(), whole.outputs.end(),
                                     [&](ValueId v) { return whole.value(v).name != output; });
  whole.outputs.erase(others, whole.outputs.end());
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
