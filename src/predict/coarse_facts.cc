#include "predict/coarse_facts.h"

#include <algorithm>

#include "base/error.h"
#include "base/in_parallel.h"
#include "base/rng.h"
#include "base/round.h"

namespace mw::predict {
namespace {

using compile::Plan;

// Schedules longer than this many times the pipeline are continued from shorter ones.
constexpr int64_t kFilling = 3;
// Stages with fewer blocks, where collectives run inside forward and backward, have facts of their
// own.
constexpr int64_t kFewBlocks = 3;

// The compiler lowers no replica that has no microbatch.
bool all_replicas_work(const pipeline::Schedule& schedule) {
  std::vector<bool> works(static_cast<size_t>(schedule.placement.replicas()), false);
  for (const auto& actions : schedule.ranks) {
    for (const pipeline::Action& action : actions)
      works[static_cast<size_t>(action.replica)] = true;
  }
  return std::find(works.begin(), works.end(), false) == works.end();
}

// Whether a rank hosts the first and the last stage.
bool has_both_ends(const Order& order) {
  std::vector<bool> first(static_cast<size_t>(order.ranks()), false), last = first;
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    const auto rank = static_cast<size_t>(order.rank_of(copy));
    if (order.stage_of(copy) == 0) first[rank] = true;
    if (order.stage_of(copy) + 1 == order.stages()) last[rank] = true;
  }
  for (size_t r = 0; r < first.size(); ++r) {
    if (first[r] && last[r]) return true;
  }
  return false;
}

// Whether ranks [k * size, (k + 1) * size) are not alike to all links.
bool straddles(const cluster::Cluster& cluster, int64_t size) {
  for (size_t l = 0; l + 1 < cluster.links.size(); ++l) {
    const int64_t unit = cluster.links[l].devices;
    if (unit % size != 0 && size % unit != 0) return true;
  }
  return false;
}

}  // namespace

int64_t dense_blocks(const models::ModelConfig& model) {
  return model.mixture.experts > 0 ? std::min(model.mixture.dense_layers, model.layers) : 0;
}

int64_t second_blocks(const models::ModelConfig& model, int64_t place, int64_t blocks) {
  if (model.window > 0) return (place + blocks) / 2 - place / 2;
  return std::clamp<int64_t>(dense_blocks(model) - place, 0, blocks);
}

CoarseFacts::CoarseFacts(Request request) : base_(std::move(request)) {}
CoarseFacts::~CoarseFacts() = default;

// ZeRO 0 and 1 leave forward and backward as they are without data parallelism: then the work is
// the same on every mesh.
CoarseFacts::ProbeKey CoarseFacts::work_key(const Plan& plan) const {
  ProbeKey probe;
  ProgramKey& key = probe.program;
  probe.microbatch = base_.global_batch / (plan.dp * plan.units());
  probe.pp = plan.pp > 1 ? 2 : 1;
  probe.dp = plan.ep;
  const cluster::Stack& stack = base_.cluster.stack;
  if ((base_.options.fp8 != cost::Fp8::kOff && stack.narrow_saved) ||
      stack.accumulation == cluster::Accumulation::kAutograd) {
    const int64_t replicas =
        plan.pp == 1 ? 1
                     : pipeline::kind_of(plan.schedule).replicas * std::max<int64_t>(1, plan.pairs);
    probe.microbatches = ceil_div(plan.units(), replicas);
  }
  key.tp = plan.tp;
  key.ep = plan.ep;
  key.recompute = plan.recompute;
  key.sp = plan.sp;
  key.regather = plan.regather;
  key.slices = plan.sequence_slices();
  key.pipelined = plan.pp > 1;
  // As many ranks as the plan has show a group that straddles nodes, and the torus that they have.
  if (straddles(base_.cluster, plan.tp) || straddles(base_.cluster, plan.tp * plan.ep) ||
      (!base_.cluster.links.empty() && base_.cluster.links[0].kind == cluster::LinkKind::kTorus)) {
    if (plan.dp * plan.pp % probe.pp != 0) probe.pp = plan.pp;
    probe.dp = plan.dp * plan.pp / probe.pp;
  }
  const bool reduces = plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  if (plan.dp == 1 || (!reduces && plan.zero <= 1)) return probe;
  probe.dp = plan.dp;
  probe.pp = plan.pp;
  key.data_parallel = plan.dp > plan.ep;
  key.zero = plan.zero;
  key.grad_reduce = plan.effective_grad_reduce();
  // What hides behind the blocks beside it does not where there are none: not by the line.
  const int64_t blocks = base_.model.layers / plan.stages();
  if (plan.pp > 1 && plan.layers.empty() && blocks < kFewBlocks &&
      base_.model.layers % plan.stages() == 0)
    key.blocks = blocks;
  return probe;
}

CoarseFacts::ProgramKey CoarseFacts::partitioned_as(ProgramKey key) {
  const ProgramKey none;
  key.zero = none.zero;
  key.regather = none.regather;
  key.grad_reduce = none.grad_reduce;
  return key;
}

CoarseFacts::StateKey CoarseFacts::state_key(const Plan& plan, bool folded) {
  StateKey state;
  state.dp = plan.dp;
  state.pp = plan.pp;
  state.zero = plan.dp > 1 ? plan.zero : 0;
  StatesKey& key = state.program;
  key.folded = folded;
  key.tp = plan.tp;
  key.ep = plan.ep;
  key.sp = plan.sp;
  key.pipelined = plan.pp > 1;
  key.data_parallel = plan.dp > plan.ep;
  key.grad_reduce = plan.grad_reduce;
  return state;
}

Request CoarseFacts::request_of(const ProgramKey& key) const {
  Request request = base_;
  Plan& plan = request.plan;
  plan = Plan();
  if (key.dense) request.model.mixture = {};
  plan.tp = key.tp;
  plan.sp = key.sp;
  plan.regather = key.regather;
  plan.zero = key.zero;
  plan.recompute = key.recompute;
  plan.grad_reduce = key.grad_reduce;
  plan.ep = key.ep;
  plan.dp = key.data_parallel ? 2 * key.ep : key.ep;
  plan.pp = key.pipelined ? 2 : 1;
  if (key.slices > 1) {
    plan.schedule = pipeline::kinds_with(&pipeline::KindOptions::slices).front();
    plan.slices = key.slices;
  }
  return request;
}

Request CoarseFacts::request_of(const StatesKey& key) const {
  Request request = base_;
  Plan& plan = request.plan;
  plan = Plan();
  if (key.dense) request.model.mixture = {};
  plan.tp = key.tp;
  plan.sp = key.sp;
  plan.grad_reduce = key.grad_reduce;
  plan.ep = key.ep;
  plan.dp = key.data_parallel ? 2 * key.ep : key.ep;
  plan.pp = key.pipelined ? 2 : 1;
  return request;
}

const Probe& CoarseFacts::work(const Plan& plan) {
  const ProbeKey key = work_key(plan);
  const std::lock_guard lock(facts_mutex_);
  const auto it = probes_.find(key);
  if (it != probes_.end()) return *it->second;
  probe_missing(std::vector<ProbeKey>{key}, 1);
  return *probes_.at(key);
}

const StageFacts& CoarseFacts::states(const Plan& plan, bool folded) {
  const StateKey key = state_key(plan, folded);
  const std::lock_guard lock(facts_mutex_);
  const auto it = states_of_.find(key);
  if (it != states_of_.end()) return *it->second;
  probe_missing(std::vector<StateKey>{key}, 1);
  return *states_of_.at(key);
}

void CoarseFacts::prepare_work(const std::vector<Plan>& plans, int threads) {
  std::vector<ProbeKey> keys;
  for (const Plan& plan : plans) keys.push_back(work_key(plan));
  const std::lock_guard lock(facts_mutex_);
  probe_missing(keys, threads);
}

void CoarseFacts::prepare_states(const std::vector<Plan>& plans, bool scheduled, int threads) {
  std::vector<StateKey> keys;
  for (const Plan& plan : plans) keys.push_back(state_key(plan, scheduled && orders(plan).folded));
  const std::lock_guard lock(facts_mutex_);
  probe_missing(keys, threads);
}

CoarseFacts::ProbeKey CoarseFacts::dense_of(ProbeKey key) {
  ProgramKey& program = key.program;
  program.dense = true;
  if (program.ep == 1) return key;
  program.ep = 1;
  program.data_parallel =
      program.zero >= 2 || program.grad_reduce == compile::GradReduce::kMicrobatch;
  if (!program.data_parallel) key.dp = 1;
  return key;
}

CoarseFacts::StateKey CoarseFacts::dense_of(StateKey key) {
  key.program.dense = true;
  key.program.data_parallel = key.dp > 1;
  key.program.ep = 1;
  return key;
}

template <typename Key>
std::vector<Key> CoarseFacts::with_dense(std::vector<Key> keys) const {
  if (dense_blocks(base_.model) == 0) return keys;
  const size_t count = keys.size();
  for (size_t i = 0; i < count; ++i) keys.push_back(dense_of(keys[i]));
  return keys;
}

void CoarseFacts::probe_missing(const std::vector<ProbeKey>& asked, int threads) {
  const std::vector<ProbeKey> keys = with_dense(asked);
  std::map<ProgramKey, std::set<int64_t>> microbatches;
  std::vector<std::pair<ProbeKey, std::unique_ptr<Probe>*>> probes;
  for (const ProbeKey& key : keys) {
    const auto [probe, is_new] = probes_.try_emplace(key);
    if (!is_new) continue;
    probes.emplace_back(key, &probe->second);
    programs_.try_emplace(key.program);
    microbatches[key.program].insert(key.microbatch);
  }
  std::map<ProgramKey, std::vector<ProgramKey>> alike;
  for (const auto& [key, sizes] : microbatches) alike[partitioned_as(key)].push_back(key);
  const std::vector<std::pair<ProgramKey, std::vector<ProgramKey>>> groups(alike.begin(),
                                                                           alike.end());
  in_parallel(groups.size(), threads, [&](size_t g) {
    const std::vector<ProgramKey>& group = groups[g].second;
    PartitionedSamples models;
    for (const ProgramKey& key : group) {
      std::unique_ptr<ProbePrograms>& compiled = programs_.at(key);
      if (compiled == nullptr)
        compiled = std::make_unique<ProbePrograms>(request_of(key), key.blocks);
      for (const int64_t microbatch : microbatches.at(key))
        compiled->prepare(microbatch, turns_, group.size() > 1 ? &models : nullptr);
    }
  });
  for (const auto& [key, sizes] : microbatches) {
    for (const int64_t turn : programs_.at(key)->turns()) turns_.insert(turn);
  }
  in_parallel(probes.size(), threads, [&](size_t i) {
    const ProbeKey& key = probes[i].first;
    *probes[i].second = std::make_unique<Probe>(
        programs_.at(key.program)->on(key.dp, key.pp, key.microbatch, key.microbatches));
  });
  if (dense_blocks(base_.model) == 0) return;
  for (const auto& [key, probe] : probes) {
    if (key.program.dense) continue;
    const Probe& all = *probes_.at(dense_of(key));
    (*probe)->facts.add_second(all.facts, key.program.blocks);
    for (size_t s = 0; s < all.later.size(); ++s)
      (*probe)->later[s].add_second(all.later[s], key.program.blocks);
  }
}

void CoarseFacts::probe_missing(const std::vector<StateKey>& asked, int threads) {
  const std::vector<StateKey> keys = with_dense(asked);
  std::vector<std::pair<StateKey, std::unique_ptr<StageFacts>*>> states;
  std::vector<std::pair<StatesKey, std::unique_ptr<StatePrograms>*>> programs;
  for (const StateKey& key : keys) {
    const auto [state, is_new] = states_of_.try_emplace(key);
    if (!is_new) continue;
    states.emplace_back(key, &state->second);
    const auto [program, is_new_program] = state_programs_.try_emplace(key.program);
    if (is_new_program) programs.emplace_back(key.program, &program->second);
  }
  in_parallel(programs.size(), threads, [&](size_t i) {
    const StatesKey& key = programs[i].first;
    *programs[i].second = std::make_unique<StatePrograms>(request_of(key), key.folded);
  });
  in_parallel(states.size(), threads, [&](size_t i) {
    const StateKey& key = states[i].first;
    *states[i].second =
        std::make_unique<StageFacts>(state_programs_.at(key.program)->on(key.dp, key.pp, key.zero));
  });
  if (dense_blocks(base_.model) == 0) return;
  for (const auto& [key, facts] : states) {
    if (key.program.dense) continue;
    (*facts)->add_second(*states_of_.at(dense_of(key)));
  }
}

size_t CoarseFacts::HashOfKey::operator()(const OrderKey& key) const {
  size_t hash = std::hash<const void*>()(key.kind);
  for (const int64_t number : {key.pp, key.chunks, key.microbatches, key.slices, key.group})
    hash = mix_bits(hash ^ static_cast<size_t>(number));
  return hash;
}

size_t CoarseFacts::HashOfKey::operator()(const Run& run) const {
  size_t hash = std::hash<const void*>()(run.order);
  hash = mix_bits(hash ^ std::hash<const void*>()(run.work));
  for (const int64_t number : {run.stride, run.outer, run.divides})
    hash = mix_bits(hash ^ static_cast<size_t>(number));
  return hash;
}

// Without order: the kind does not take these chunks or microbatches, or has what only the
// simulation knows.
const CoarseFacts::Made& CoarseFacts::made_order(const Plan& plan,
                                                 const pipeline::ScheduleKind& kind,
                                                 int64_t microbatches) {
  const OrderKey key{&kind, plan.pp, plan.chunks, microbatches, plan.sequence_slices(), plan.group};
  Made* made = nullptr;
  {
    const std::shared_lock lock(orders_mutex_);
    const auto there = orders_.find(key);
    if (there != orders_.end()) made = &there->second;
  }
  if (made == nullptr) {
    const std::unique_lock lock(orders_mutex_);
    made = &orders_[key];
  }
  std::call_once(made->once, [&] {
    try {
      const pipeline::Schedule schedule = pipeline::make_schedule(
          {plan.schedule, static_cast<int32_t>(plan.pp), static_cast<int32_t>(plan.chunks),
           static_cast<int32_t>(microbatches), static_cast<int32_t>(plan.group),
           static_cast<int32_t>(plan.slices)});
      const pipeline::ScheduleNeeds needs = pipeline::needs(schedule);
      if (!needs.no_flush && all_replicas_work(schedule))
        made->order = std::make_unique<Order>(schedule);
    } catch (const Error&) {
    }
    made->folded = plan.pp > 1 && made->order != nullptr && has_both_ends(*made->order);
  });
  return *made;
}

CoarseFacts::Orders CoarseFacts::orders(const Plan& plan) {
  Orders found;
  const pipeline::ScheduleKind& kind = pipeline::kind_of(plan.schedule);
  if (!kind.runs()) return found;
  const int64_t period = std::max<int64_t>(1, kind.period) * plan.pp;
  const int64_t shorter = kFilling * period + plan.microbatches % period;
  const int64_t longer = shorter + period;
  // Rounds that are asked for may leave a shorter last one to other microbatches.
  const bool whole = kind.period == 0 || plan.group != 0 || plan.microbatches <= longer;
  found.long_microbatches = static_cast<int32_t>(whole ? plan.microbatches : longer);
  const Made& made = made_order(plan, kind, found.long_microbatches);
  found.longer = made.order.get();
  found.folded = made.folded;
  if (whole || found.longer == nullptr) return found;
  found.short_microbatches = static_cast<int32_t>(shorter);
  found.shorter = made_order(plan, kind, shorter).order.get();
  if (found.shorter == nullptr) found.longer = nullptr;
  return found;
}

const std::vector<double>* CoarseFacts::remembered(const Run& run) {
  const std::shared_lock lock(runs_mutex_);
  const auto it = runs_.find(run);
  return it == runs_.end() ? nullptr : &it->second;
}

void CoarseFacts::remember(const Run& run, std::vector<double> of_ranks) {
  const std::unique_lock lock(runs_mutex_);
  runs_.emplace(run, std::move(of_ranks));
}

}  // namespace mw::predict
