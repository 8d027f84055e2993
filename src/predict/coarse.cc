#include "predict/coarse.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/in_parallel.h"
#include "cluster/group_shape.h"
#include "cost/collective.h"

namespace mw::predict {
namespace {

using compile::Plan;

// Schedules longer than this many times the pipeline are continued from shorter ones.
constexpr int64_t kFilling = 3;
// Stages with fewer blocks, where collectives run inside forward and backward, have facts of their
// own.
constexpr int64_t kFewBlocks = 3;
// Parts that a schedule takes a microbatch in, at the most.
constexpr double kMostParts = 2;

std::vector<int64_t> blocks_of(const Plan& plan, int64_t blocks) {
  if (!plan.layers.empty()) return plan.layers;
  std::vector<int64_t> counts;
  for (int64_t s = 0; s < plan.stages(); ++s)
    counts.push_back(blocks / plan.stages() + (s < blocks % plan.stages() ? 1 : 0));
  return counts;
}

// Ranks from one pipeline coordinate to the next.
int64_t pipeline_stride(const Plan& plan) {
  int64_t stride = 1;
  const std::vector<std::string> order = plan.mesh_order();
  for (auto axis = order.rbegin(); axis != order.rend() && *axis != "pp"; ++axis)
    stride *= plan.axis_size(*axis);
  return stride;
}

// Ranks that differ in their place along dp alone.
std::vector<RankId> data_group(const Plan& plan) {
  int64_t stride = 1;
  const std::vector<std::string> order = plan.mesh_order();
  for (auto axis = order.rbegin(); axis != order.rend() && *axis != "dp"; ++axis)
    stride *= plan.axis_size(*axis);
  std::vector<RankId> members;
  for (int64_t d = 0; d < plan.dp; ++d) members.emplace_back(d * stride);
  return members;
}

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

}  // namespace

Coarse::Coarse(Request request) : base_(std::move(request)) {}
Coarse::~Coarse() = default;

// ZeRO 0 and 1 leave forward and backward as they are without data parallelism: then the work is
// the same on every mesh.
Coarse::ProbeKey Coarse::work_key(const Plan& plan) const {
  ProbeKey probe;
  ProgramKey& key = probe.program;
  probe.microbatch = base_.global_batch / (plan.dp * plan.units());
  probe.pp = plan.pp > 1 ? 2 : 1;
  key.tp = plan.tp;
  key.recompute = plan.recompute;
  key.sp = plan.sp;
  key.regather = plan.regather;
  key.slices = plan.sequence_slices();
  key.pipelined = plan.pp > 1;
  const bool reduces = plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  if (plan.dp == 1 || (!reduces && plan.zero <= 1)) return probe;
  probe.dp = plan.dp;
  probe.pp = plan.pp;
  key.data_parallel = true;
  key.zero = plan.zero;
  key.grad_reduce = plan.effective_grad_reduce();
  // What hides behind the blocks beside it does not where there are none: not by the line.
  const int64_t blocks = base_.model.layers / plan.stages();
  if (plan.pp > 1 && plan.layers.empty() && blocks < kFewBlocks &&
      base_.model.layers % plan.stages() == 0)
    key.blocks = blocks;
  return probe;
}

Coarse::StateKey Coarse::state_key(const Plan& plan, bool folded) {
  StateKey state;
  state.dp = plan.dp;
  state.pp = plan.pp;
  state.zero = plan.dp > 1 ? plan.zero : 0;
  StatesKey& key = state.program;
  key.folded = folded;
  key.tp = plan.tp;
  key.sp = plan.sp;
  key.pipelined = plan.pp > 1;
  key.data_parallel = plan.dp > 1;
  key.grad_reduce = plan.grad_reduce;
  return state;
}

Request Coarse::request_of(const ProgramKey& key) const {
  Request request = base_;
  Plan& plan = request.plan;
  plan = Plan();
  plan.tp = key.tp;
  plan.sp = key.sp;
  plan.regather = key.regather;
  plan.zero = key.zero;
  plan.recompute = key.recompute;
  plan.grad_reduce = key.grad_reduce;
  plan.dp = key.data_parallel ? 2 : 1;
  plan.pp = key.pipelined ? 2 : 1;
  if (key.slices > 1) {
    plan.schedule = "seq-1f1b";
    plan.slices = key.slices;
  }
  return request;
}

Request Coarse::request_of(const StatesKey& key) const {
  Request request = base_;
  Plan& plan = request.plan;
  plan = Plan();
  plan.tp = key.tp;
  plan.sp = key.sp;
  plan.grad_reduce = key.grad_reduce;
  plan.dp = key.data_parallel ? 2 : 1;
  plan.pp = key.pipelined ? 2 : 1;
  return request;
}

const Probe& Coarse::work_facts(const Plan& plan) {
  const ProbeKey key = work_key(plan);
  const auto it = probes_.find(key);
  if (it != probes_.end()) return *it->second;
  probe_missing(std::vector<ProbeKey>{key}, 1);
  return *probes_.at(key);
}

const StageFacts& Coarse::state_facts(const Plan& plan, bool folded) {
  const StateKey key = state_key(plan, folded);
  const auto it = states_of_.find(key);
  if (it != states_of_.end()) return *it->second;
  probe_missing(std::vector<StateKey>{key}, 1);
  return *states_of_.at(key);
}

void Coarse::probe_missing(const std::vector<ProbeKey>& keys, int threads) {
  std::map<ProgramKey, std::set<int64_t>> microbatches;
  std::vector<std::pair<ProbeKey, std::unique_ptr<Probe>*>> probes;
  for (const ProbeKey& key : keys) {
    const auto [probe, is_new] = probes_.try_emplace(key);
    if (!is_new) continue;
    probes.emplace_back(key, &probe->second);
    programs_.try_emplace(key.program);
    microbatches[key.program].insert(key.microbatch);
  }
  const std::vector<std::pair<ProgramKey, std::set<int64_t>>> programs(microbatches.begin(),
                                                                       microbatches.end());
  in_parallel(programs.size(), threads, [&](size_t i) {
    const ProgramKey& key = programs[i].first;
    std::unique_ptr<ProbePrograms>& compiled = programs_.at(key);
    if (compiled == nullptr)
      compiled = std::make_unique<ProbePrograms>(request_of(key), key.blocks);
    for (const int64_t microbatch : programs[i].second) compiled->prepare(microbatch);
  });
  in_parallel(probes.size(), threads, [&](size_t i) {
    const ProbeKey& key = probes[i].first;
    *probes[i].second =
        std::make_unique<Probe>(programs_.at(key.program)->on(key.dp, key.pp, key.microbatch));
  });
}

void Coarse::probe_missing(const std::vector<StateKey>& keys, int threads) {
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
}

void Coarse::prepare_states(const std::vector<Plan>& plans, int threads) {
  std::vector<StateKey> keys;
  for (const Plan& plan : plans) keys.push_back(state_key(plan, false));
  probe_missing(keys, threads);
}

void Coarse::prepare(const std::vector<Plan>& plans, int threads) {
  std::vector<ProbeKey> keys;
  for (const Plan& plan : plans) keys.push_back(work_key(bare_of(plan)));
  probe_missing(keys, threads);
  prepare_states(plans, threads);
}

bool Coarse::is_folded(const Plan& plan) {
  return plan.pp > 1 && has_both_ends(*orders(plan).longer);
}

void Coarse::prepare_scheduled(const std::vector<Plan>& plans, int threads) {
  std::vector<StateKey> keys;
  for (const Plan& plan : plans) keys.push_back(state_key(plan, is_folded(plan)));
  probe_missing(keys, threads);
}

void Coarse::prepare_exact(const std::vector<Plan>& plans, int threads) {
  std::vector<ProbeKey> keys;
  for (const Plan& plan : plans) keys.push_back(work_key(plan));
  probe_missing(keys, threads);
}

Plan Coarse::bare_of(Plan plan) {
  plan.zero = 0;
  plan.grad_reduce = compile::GradReduce::kStep;
  if (plan.sequence_slices() > 1) plan.schedule = "1f1b";
  return plan;
}

const Coarse::Known& Coarse::known(const std::string& kind) {
  const auto [it, is_new] = known_.try_emplace(kind);
  if (!is_new) return it->second;
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  it->second.compiled = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  // Kinds whose order does not come again after as many microbatches as the pipeline has ranks.
  it->second.continued = kind != "hanayo" && kind != "zb-auto";
  it->second.periods = kind.starts_with("chimera") ? 2 : 1;
  return it->second;
}

// Null: the kind does not take these chunks or microbatches, or has what only the simulation knows.
Order* Coarse::order(const Plan& plan, int64_t microbatches) {
  const auto [it, is_new] = order_.try_emplace({plan.schedule, plan.pp, plan.chunks, microbatches});
  if (!is_new) return it->second.get();
  try {
    const pipeline::Schedule schedule = pipeline::make_schedule(
        {plan.schedule, static_cast<int32_t>(plan.pp), static_cast<int32_t>(plan.chunks),
         static_cast<int32_t>(microbatches), 0, static_cast<int32_t>(plan.slices)});
    const pipeline::ScheduleNeeds needs = pipeline::needs(schedule);
    if (!needs.no_flush && all_replicas_work(schedule))
      it->second = std::make_unique<Order>(schedule);
  } catch (const Error&) {
  }
  return it->second.get();
}

Coarse::Orders Coarse::orders(const Plan& plan) {
  Orders found;
  const Known& kind = known(plan.schedule);
  if (!kind.compiled) return found;
  const int64_t period = kind.periods * plan.pp;
  const int64_t shorter = kFilling * period + plan.microbatches % period;
  const int64_t longer = shorter + period;
  const bool whole = !kind.continued || plan.microbatches <= longer;
  found.long_microbatches = static_cast<int32_t>(whole ? plan.microbatches : longer);
  found.longer = order(plan, found.long_microbatches);
  if (whole || found.longer == nullptr) return found;
  found.short_microbatches = static_cast<int32_t>(shorter);
  found.shorter = order(plan, shorter);
  if (found.shorter == nullptr) found.longer = nullptr;
  return found;
}

bool Coarse::has_order(const Plan& plan) {
  return base_.global_batch % (plan.dp * plan.units()) == 0 &&
         base_.seq_len % plan.sequence_slices() == 0 &&
         (plan.pp > 1 || plan.sequence_slices() == 1) && orders(plan).longer != nullptr;
}

const Coarse::Setting& Coarse::setting(const Plan& plan, bool bare) {
  if (setting_ && setting_->bare == bare && setting_->plan == plan) return *setting_;
  setting_.emplace();
  setting_->plan = plan;
  setting_->bare = bare;
  const Probe& work = work_facts(bare ? bare_of(plan) : plan);
  setting_->work = &work;
  setting_->orders = orders(plan);
  blocks_ = blocks_of(plan, base_.model.layers);
  MW_CHECK(setting_->orders.longer != nullptr, "plan {} has no order", short_form(plan));
  setting_->state = state_facts(plan, is_folded(plan));
  fill_costs(*setting_);
  fill_states(*setting_);
  return *setting_;
}

Facts Coarse::piece_facts(const Setting& setting, int32_t copy) const {
  const auto stages = static_cast<int32_t>(blocks_.size()), s = copy % stages;
  const int32_t slices = setting.orders.longer->slices(), slice = copy / stages % slices;
  const bool divided = slices > 1 && setting.work->later.empty();  // by what the whole takes
  Facts facts = setting.work->of_slice(divided ? 0 : slice)
                    .of(blocks_[static_cast<size_t>(s)], s == 0, s + 1 == stages);
  if (divided) {
    for (double& fact : facts) fact /= slices;
  }
  return facts;
}

void Coarse::fill_costs(const Setting& setting) {
  const Order& order = *setting.orders.longer;
  const size_t pieces = blocks_.size() * static_cast<size_t>(order.slices());
  costs_.resize(pieces * Order::kKinds);
  for (size_t at = 0; at < pieces; ++at) {
    const Facts facts = piece_facts(setting, static_cast<int32_t>(at));
    double* cost = &costs_[at * Order::kKinds];
    cost[static_cast<size_t>(pipeline::ActionKind::kF)] = facts[kForward];
    cost[static_cast<size_t>(pipeline::ActionKind::kI)] = facts[kInputGrad];
    cost[static_cast<size_t>(pipeline::ActionKind::kW)] = facts[kWeightGrad];
    cost[static_cast<size_t>(pipeline::ActionKind::kB)] = facts[kBackward];
  }
}

// Messages go half as fast while collectives have a port: the sender's, for a receiver waits.
double Coarse::beside_collectives(const Setting& setting, size_t level) const {
  if (kLinks + level >= kFacts) return 1;
  const Facts facts = setting.work->facts.of(blocks_[0], false, false);
  const double calls =
      2 * facts[kForward] + facts[kBackward] + facts[kInputGrad] + facts[kWeightGrad];
  return 2 / (2 - std::clamp(facts[kLinks + level] / calls, 0.0, 1.0));
}

void Coarse::run(Order& order, const Setting& setting, std::vector<double>& ends) {
  const std::vector<cluster::Link>& links = base_.cluster.links;
  const int64_t stride = pipeline_stride(setting.plan);
  hop_costs_.clear();
  port_of_.assign(static_cast<size_t>(order.ranks()) * links.size(), -1);
  for (const auto& [from, to] : order.hops()) {
    const size_t level = base_.cluster.level_between(from * stride, to * stride);
    int32_t& port = port_of_[static_cast<size_t>(from) * links.size() + level];
    if (port < 0) port = static_cast<int32_t>(hop_costs_.size());
    const cluster::Cluster& cluster = base_.cluster;
    hop_costs_.push_back(
        {setting.work->boundary.bytes / cost::message_bandwidth(cluster, level).value *
             beside_collectives(setting, level),
         cost::message_latency(cluster, level).value, port});
  }
  order.run(costs_, hop_costs_, ends);
}

// Gradients of a rank's stages summed over their replicas.
double Coarse::replica_sum(const Setting& setting) const {
  const Order& order = *setting.orders.longer;
  const int32_t replicas = order.replicas();
  if (replicas == 1) return 0;
  const int64_t stride = pipeline_stride(setting.plan);
  double bytes = 0, most = 0;
  for (const Facts& facts : states_) bytes = std::max(bytes, facts[kGradients]);
  bytes *= base_.cluster.device.attained.gradient_bytes / 4;
  for (int32_t s = 0; s < order.stages(); ++s) {
    std::vector<RankId> members;
    for (int32_t j = 0; j < replicas; ++j)
      members.emplace_back(order.rank_of(j * order.slices() * order.stages() + s) * stride);
    std::sort(members.begin(), members.end());
    const Seconds time = cost::collective_time(base_.cluster, ir::OpKind::kAllReduce,
                                               Bytes(static_cast<int64_t>(bytes)),
                                               cluster::group_shape(base_.cluster, members))
                             .time;
    most = std::max(most, time.value);
  }
  return most;
}

void Coarse::fill_states(const Setting& setting) {
  struct Share {
    int64_t blocks = 0;
    bool first = false, last = false;
  };
  const Plan& plan = setting.plan;
  std::vector<Share> shares(static_cast<size_t>(plan.pp));
  const Order& order = *setting.orders.longer;
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    if (copy / static_cast<int32_t>(blocks_.size()) % order.slices() != 0) continue;
    const auto s = static_cast<size_t>(order.stage_of(copy));
    Share& share = shares[static_cast<size_t>(order.rank_of(copy))];
    share.blocks += blocks_[s];
    share.first = share.first || s == 0;
    share.last = share.last || s + 1 == blocks_.size();
  }
  states_.clear();
  for (const Share& share : shares) {
    states_.push_back(setting.state.of(share.blocks, share.first, share.last));
  }
  replica_sum_ = replica_sum(setting);
}

// Ranks meet once in the update: the last to come decides when.
double Coarse::update_seconds(const std::vector<double>& ends) const {
  double meet = 0, behind = 0;
  for (size_t r = 0; r < ends.size(); ++r) {
    const Facts& facts = states_[r];
    meet = std::max(meet, ends[r] + facts[kUpdateBefore]);
    behind = std::max(behind, facts[kUpdate] - facts[kUpdateBefore] + replica_sum_);
  }
  return meet + behind;
}

Seconds Coarse::step(const Plan& plan) { return step(setting(plan)); }

Seconds Coarse::step(const Setting& now) {
  const Plan& plan = now.plan;
  run(*now.orders.longer, now, ends_);
  if (!now.orders.whole()) {
    run(*now.orders.shorter, now, short_ends_);
    const double more = static_cast<double>(plan.microbatches - now.orders.long_microbatches) /
                        (now.orders.long_microbatches - now.orders.short_microbatches);
    for (size_t r = 0; r < ends_.size(); ++r) ends_[r] += more * (ends_[r] - short_ends_[r]);
  }
  return Seconds(update_seconds(ends_));
}

// ZeRO 2 scatters every microbatch's gradients of a stage, ZeRO 3 gathers its weights for forward
// and for backward as well: as if all of a rank went at once, in half precision.
Seconds Coarse::dividing(const Plan& plan) {
  if (plan.dp == 1 || plan.effective_grad_reduce() != compile::GradReduce::kMicrobatch) return {};
  const bool one = plan.pp == 1;
  const Facts held = state_facts(plan).of(base_.model.layers / plan.pp, one, one);
  const double weights = held[kWeights] * (plan.zero >= 3 ? static_cast<double>(plan.dp) : 1);
  const cluster::GroupShape group = cluster::group_shape(base_.cluster, data_group(plan));
  const auto seconds = [&](ir::OpKind kind) {
    return cost::collective_time(base_.cluster, kind, Bytes(static_cast<int64_t>(weights)), group)
        .time.value;
  };
  const double each = seconds(ir::OpKind::kReduceScatter) +
                      (plan.zero >= 3 ? 2 * seconds(ir::OpKind::kAllGather) : 0.0);
  return Seconds(static_cast<double>(plan.microbatches) * each);
}

Estimate Coarse::least_scheduled(const Plan& plan) {
  const Setting& now = setting(plan, true);
  Estimate estimate = memory(now);
  estimate.step = std::max(step(now), dividing(plan));
  return estimate;
}

// Ranks in one memory.
int64_t Coarse::sharing(const Plan& plan) const {
  return base_.cluster.shares_memory() ? plan.ranks() : 1;
}

Bytes Coarse::states(const Plan& plan) {
  const bool one = plan.pp == 1;
  const Facts held = state_facts(plan).of(base_.model.layers / plan.pp, one, one);
  return Bytes(static_cast<int64_t>(held[kWeights] + held[kGradients] + held[kOptimizer]) *
               sharing(plan));
}

Estimate Coarse::least(const Plan& asked) {
  const Plan plan = bare_of(asked);
  const StageFacts& work = work_facts(plan).facts;
  const StageFacts& state = state_facts(asked);
  const int64_t blocks = base_.model.layers / plan.pp;
  const bool one = plan.pp == 1;
  const Facts busy = work.of(blocks, one, one), held = state.of(blocks, one, one);
  const Facts end = work.of(blocks, false, true), block = work.of(1, false, false);
  const auto seconds = [](const Facts& facts) {
    return facts[kForward] + std::min(facts[kBackward], facts[kInputGrad] + facts[kWeightGrad]);
  };
  // Every rank has as many blocks; the last stage is on one rank, or with replicas on two that take
  // turns with stages between the ends.
  const double mean = one ? 0.0 : (seconds(busy) + seconds(end)) / 2;
  const double step = static_cast<double>(plan.microbatches) * std::max(seconds(busy), mean) +
                      (asked.zero >= 2 ? 0.0 : held[kUpdate]);
  const double bytes =
      held[kWeights] + held[kGradients] + held[kOptimizer] + busy[kSaved] / kMostParts +
      std::max(std::min(block[kWorkspace], block[kSplitWorkspace]), held[kUpdateWorkspace]);
  return {std::max(Seconds(step), dividing(asked)),
          Bytes(static_cast<int64_t>(bytes) * sharing(asked)), 0};
}

Estimate Coarse::memory(const Plan& plan) { return memory(setting(plan)); }

Estimate Coarse::memory(const Setting& now) {
  const Plan& plan = now.plan;
  const Order& order = *now.orders.longer;
  // What grows with the microbatches in the shorter schedules goes on growing.
  const auto grown = [&](double longer, double shorter) {
    if (now.orders.whole() || longer <= shorter) return longer;
    return longer + (longer - shorter) *
                        static_cast<double>(plan.microbatches - now.orders.long_microbatches) /
                        (now.orders.long_microbatches - now.orders.short_microbatches);
  };
  fill_needs(now, grown);
  order.run_memory(kept_, {now.work->boundary.bytes, now.work->boundary.held}, activations_);
  if (!now.orders.whole())
    now.orders.shorter->run_memory(kept_, {now.work->boundary.bytes, now.work->boundary.held},
                                   shorter_);
  Estimate estimate;
  double all = 0;  // pipeline ranks
  for (size_t r = 0; r < static_cast<size_t>(plan.pp); ++r) {
    const double held = grown(activations_[r], now.orders.whole() ? activations_[r] : shorter_[r]);
    const Facts& state = states_[r];
    const double bytes = state[kWeights] + state[kGradients] + state[kOptimizer] + slot_bytes_[r] +
                         held + std::max(workspace_[r], state[kUpdateWorkspace]);
    all += bytes;
    if (bytes <= static_cast<double>(estimate.peak.value)) continue;
    estimate.peak = Bytes(static_cast<int64_t>(bytes));
    estimate.fullest = static_cast<int32_t>(r);
  }
  if (const int64_t ranks = sharing(plan); ranks > 1)
    estimate.peak = Bytes(static_cast<int64_t>(all * static_cast<double>(ranks / plan.pp)));
  return estimate;
}

// What the ranks' stages keep, their slots and their largest workspace.
void Coarse::fill_needs(const Setting& now, const std::function<double(double, double)>& grown) {
  const Order& order = *now.orders.longer;
  workspace_.assign(static_cast<size_t>(order.ranks()), 0);
  slot_bytes_.assign(workspace_.size(), 0);
  kept_.resize(blocks_.size() * static_cast<size_t>(order.slices()));
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    const auto at = static_cast<size_t>(copy), rank = static_cast<size_t>(order.rank_of(copy));
    const Facts facts = piece_facts(now, copy);
    if (at < kept_.size())
      kept_[at] = {facts[kSaved], facts[kSavedForWeights], facts[kSavedByInputGrad]};
    workspace_[rank] = std::max({workspace_[rank], order.has_whole() ? facts[kWorkspace] : 0.0,
                                 order.has_split() ? facts[kSplitWorkspace] : 0.0});
    const auto slots = [&](const Order& of) {
      const Order::Slots& here = of.slots()[at];
      return here.gradients + (now.work->boundary.held ? here.held : here.forward);
    };
    slot_bytes_[rank] += grown(slots(order), now.orders.whole() ? 0 : slots(*now.orders.shorter)) *
                         now.work->boundary.bytes;
  }
}

Estimate Coarse::estimate(const Plan& plan) {
  Estimate estimate = memory(plan);
  estimate.step = step(plan);
  return estimate;
}

}  // namespace mw::predict
