#include "predict/coarse.h"

#include <algorithm>

#include "base/error.h"
#include "base/in_parallel.h"

namespace mw::predict {
namespace {

using compile::Plan;

// Schedules longer than this many times the pipeline are continued from shorter ones.
constexpr int64_t kFilling = 3;
// Stages with fewer blocks, where collectives run inside forward and backward, have facts of their
// own.
constexpr int64_t kFewBlocks = 3;

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
  for (auto axis = plan.order.rbegin(); axis != plan.order.rend() && *axis != "pp"; ++axis)
    stride *= *axis == "dp" ? plan.dp : plan.tp;
  return stride;
}

}  // namespace

Coarse::Coarse(Request request) : base_(std::move(request)) {}
Coarse::~Coarse() = default;

// ZeRO 0 and 1 leave forward and backward as they are without data parallelism.
Coarse::ProgramKey Coarse::work_key(const Plan& plan) const {
  ProgramKey key;
  key.tp = plan.tp;
  key.microbatch = base_.global_batch / (plan.dp * plan.microbatches);
  key.recompute = plan.recompute;
  key.sp = plan.sp;
  key.pipelined = plan.pp > 1;
  const bool reduces = plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  if (plan.dp == 1 || (!reduces && plan.zero <= 1)) return key;
  key.data_parallel = true;
  key.zero = plan.zero;
  key.grad_reduce = plan.effective_grad_reduce();
  // What hides behind the blocks beside it does not where there are none: not by the line.
  const int64_t blocks = base_.model.layers / plan.stages();
  if (plan.pp > 1 && plan.layers.empty() && blocks < kFewBlocks &&
      base_.model.layers % plan.stages() == 0)
    key.blocks = blocks;
  return key;
}

// States and the update depend neither on the microbatch nor on what is recomputed.
Coarse::ProgramKey Coarse::state_key(const Plan& plan, bool folded) {
  ProgramKey key;
  key.folded = folded;
  key.tp = plan.tp;
  key.sp = plan.sp;
  key.pipelined = plan.pp > 1;
  key.data_parallel = plan.dp > 1;
  key.zero = plan.dp > 1 ? plan.zero : 0;
  key.grad_reduce = plan.effective_grad_reduce();
  return key;
}

Request Coarse::request_of(const ProgramKey& key) const {
  Request request = base_;
  Plan& plan = request.plan;
  plan = Plan();
  plan.tp = key.tp;
  plan.sp = key.sp;
  plan.zero = key.zero;
  plan.recompute = key.recompute;
  plan.grad_reduce = key.grad_reduce;
  plan.dp = key.data_parallel ? 2 : 1;
  plan.pp = key.pipelined ? 2 : 1;
  request.global_batch = key.microbatch * plan.dp;
  return request;
}

const Probe& Coarse::probe(const ProgramKey& key, int64_t dp, int64_t pp) {
  std::unique_ptr<Probe>& made = probes_[{key, dp, pp}];
  if (made != nullptr) return *made;
  std::unique_ptr<ProbePrograms>& programs = programs_[key];
  if (programs == nullptr)
    programs = std::make_unique<ProbePrograms>(request_of(key), key.folded, key.blocks);
  made = std::make_unique<Probe>(programs->on(dp, pp));
  return *made;
}

void Coarse::compile_missing(const std::vector<ProgramKey>& keys, int threads) {
  std::vector<std::pair<ProgramKey, std::unique_ptr<ProbePrograms>*>> missing;
  for (const ProgramKey& key : keys) {
    const auto [it, is_new] = programs_.try_emplace(key);
    if (is_new) missing.emplace_back(key, &it->second);
  }
  in_parallel(missing.size(), threads, [&](size_t i) {
    const ProgramKey& key = missing[i].first;
    *missing[i].second = std::make_unique<ProbePrograms>(request_of(key), key.folded, key.blocks);
  });
}

void Coarse::prepare_states(const std::vector<Plan>& plans, int threads) {
  std::vector<ProgramKey> keys;
  for (const Plan& plan : plans) keys.push_back(state_key(plan, false));
  compile_missing(keys, threads);
}

void Coarse::prepare(const std::vector<Plan>& plans, int threads) {
  std::vector<ProgramKey> keys;
  for (const Plan& plan : plans) {
    keys.push_back(work_key(without_zero(plan)));
    keys.push_back(state_key(plan, false));
  }
  compile_missing(keys, threads);
}

void Coarse::prepare_exact(const std::vector<Plan>& plans, int threads) {
  std::vector<ProgramKey> keys;
  for (const Plan& plan : plans) keys.push_back(work_key(plan));
  compile_missing(keys, threads);
}

Plan Coarse::without_zero(Plan plan) {
  plan.zero = 0;
  plan.grad_reduce = compile::GradReduce::kStep;
  return plan;
}

const Coarse::Known& Coarse::known(const std::string& kind) {
  const auto [it, is_new] = known_.try_emplace(kind);
  if (!is_new) return it->second;
  const std::vector<std::string> kinds = pipeline::schedule_kinds();
  it->second.compiled = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  // Kinds whose order does not come again after as many microbatches as the pipeline has ranks.
  it->second.continued = kind != "hanayo" && kind != "zb-auto";
  return it->second;
}

// Null: the kind does not take these chunks or microbatches, or has what only the simulation knows.
Order* Coarse::order(const Plan& plan, int64_t microbatches) {
  const auto [it, is_new] = order_.try_emplace({plan.schedule, plan.pp, plan.chunks, microbatches});
  if (!is_new) return it->second.get();
  try {
    const pipeline::Schedule schedule = pipeline::make_schedule(
        {plan.schedule, static_cast<int32_t>(plan.pp), static_cast<int32_t>(plan.chunks),
         static_cast<int32_t>(microbatches)});
    const pipeline::ScheduleNeeds needs = pipeline::needs(schedule);
    if (!needs.replicas && !needs.slices && !needs.joined && !needs.no_flush)
      it->second = std::make_unique<Order>(schedule);
  } catch (const Error&) {
  }
  return it->second.get();
}

Coarse::Orders Coarse::orders(const Plan& plan) {
  Orders found;
  const Known& kind = known(plan.schedule);
  if (!kind.compiled) return found;
  const int64_t shorter = kFilling * plan.pp + plan.microbatches % plan.pp;
  const int64_t longer = shorter + plan.pp;
  const bool whole = !kind.continued || plan.microbatches <= longer;
  found.long_microbatches = static_cast<int32_t>(whole ? plan.microbatches : longer);
  found.longer = order(plan, found.long_microbatches);
  if (whole || found.longer == nullptr) return found;
  found.short_microbatches = static_cast<int32_t>(shorter);
  found.shorter = order(plan, shorter);
  if (found.shorter == nullptr) found.longer = nullptr;
  return found;
}

bool Coarse::has_order(const Plan& plan) { return orders(plan).longer != nullptr; }

// Without collectives over dp the work is the same on every mesh.
const Probe& Coarse::work_facts(const Plan& plan) {
  const ProgramKey key = work_key(plan);
  if (key.data_parallel) return probe(key, plan.dp, plan.pp);
  return probe(key, 1, plan.pp > 1 ? 2 : 1);
}

const Coarse::Setting& Coarse::setting(const Plan& plan, bool bare) {
  if (setting_ && setting_->bare == bare && setting_->plan == plan) return *setting_;
  setting_.emplace();
  setting_->plan = plan;
  setting_->bare = bare;
  const Probe& work = work_facts(bare ? without_zero(plan) : plan);
  setting_->work = work.facts;
  setting_->boundary = work.boundary;
  setting_->orders = orders(plan);
  blocks_ = blocks_of(plan, base_.model.layers);
  MW_CHECK(setting_->orders.longer != nullptr, "plan {} has no order", short_form(plan));
  const Order& order = *setting_->orders.longer;
  const bool folded =
      plan.pp > 1 && order.rank_of(0) == order.rank_of(static_cast<int32_t>(plan.stages()) - 1);
  setting_->state = probe(state_key(plan, folded), plan.dp, plan.pp).facts;
  fill_costs(*setting_);
  fill_states(*setting_);
  return *setting_;
}

void Coarse::fill_costs(const Setting& setting) {
  const auto stages = static_cast<int64_t>(blocks_.size());
  costs_.resize(blocks_.size() * Order::kKinds);
  for (int64_t s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    const Facts facts = setting.work.of(blocks_[at], s == 0, s == stages - 1);
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
  const Facts facts = setting.work.of(blocks_[0], false, false);
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
    hop_costs_.push_back({setting.boundary.bytes / links[level].bus_bandwidth.value *
                              beside_collectives(setting, level),
                          links[level].latency.value, port});
  }
  order.run(costs_, hop_costs_, ends);
}

void Coarse::fill_states(const Setting& setting) {
  struct Share {
    int64_t blocks = 0;
    bool first = false, last = false;
  };
  const Plan& plan = setting.plan;
  std::vector<Share> shares(static_cast<size_t>(plan.pp));
  for (size_t s = 0; s < blocks_.size(); ++s) {
    Share& share =
        shares[static_cast<size_t>(setting.orders.longer->rank_of(static_cast<int32_t>(s)))];
    share.blocks += blocks_[s];
    share.first = share.first || s == 0;
    share.last = share.last || s + 1 == blocks_.size();
  }
  states_.clear();
  for (const Share& share : shares) {
    states_.push_back(setting.state.of(share.blocks, share.first, share.last));
  }
}

// Ranks meet once in the update: the last to come decides when.
double Coarse::update_seconds(const std::vector<double>& ends) const {
  double meet = 0, behind = 0;
  for (size_t r = 0; r < ends.size(); ++r) {
    const Facts& facts = states_[r];
    meet = std::max(meet, ends[r] + facts[kUpdateBefore]);
    behind = std::max(behind, facts[kUpdate] - facts[kUpdateBefore]);
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

Estimate Coarse::least_scheduled(const Plan& plan) {
  const Setting& now = setting(plan, true);
  Estimate estimate = memory(now);
  estimate.step = step(now);
  return estimate;
}

Bytes Coarse::states(const Plan& plan) {
  const bool one = plan.pp == 1;
  const Facts held = probe(state_key(plan, false), plan.dp, plan.pp)
                         .facts.of(base_.model.layers / plan.pp, one, one);
  return Bytes(static_cast<int64_t>(held[kWeights] + held[kGradients] + held[kOptimizer]));
}

Estimate Coarse::least(const Plan& asked) {
  const Plan plan = without_zero(asked);
  const StageFacts& work = work_facts(plan).facts;
  const StageFacts& state = probe(state_key(asked, false), asked.dp, asked.pp).facts;
  const int64_t blocks = base_.model.layers / plan.pp;
  const bool one = plan.pp == 1;
  const Facts busy = work.of(blocks, one, one), held = state.of(blocks, one, one);
  const Facts end = work.of(blocks, false, true), block = work.of(1, false, false);
  const auto seconds = [](const Facts& facts) {
    return facts[kForward] + std::min(facts[kBackward], facts[kInputGrad] + facts[kWeightGrad]);
  };
  // Every rank has as many blocks, one of them the last stage; when that one's backward begins, a
  // microbatch is under way in all stages.
  const double step =
      static_cast<double>(plan.microbatches) * std::max(seconds(busy), one ? 0.0 : seconds(end)) +
      (asked.zero >= 2 ? 0.0 : held[kUpdate]);
  const double bytes = held[kWeights] + held[kGradients] + held[kOptimizer] + busy[kSaved] +
                       std::max(block[kWorkspace], held[kUpdateWorkspace]);
  return {Seconds(step), Bytes(static_cast<int64_t>(bytes)), 0};
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
  const auto ranks = static_cast<size_t>(plan.pp);
  struct RankNeeds {
    double others = 0, last = 0, for_weights = 0, input_grads = 0, workspace = 0, slots = 0;
  };
  std::vector<RankNeeds> needs(ranks);
  const auto stages = static_cast<int32_t>(blocks_.size());
  for (int32_t s = 0; s < stages; ++s) {
    const auto at = static_cast<size_t>(s);
    RankNeeds& rank = needs[static_cast<size_t>(order.rank_of(s))];
    const bool last = s == stages - 1;
    const Facts facts = now.work.of(blocks_[at], s == 0, last);
    double& saved = last ? rank.last : rank.others;
    saved = std::max(saved, facts[kSaved]);
    rank.for_weights = std::max(rank.for_weights, facts[kSavedForWeights]);
    rank.input_grads = std::max(rank.input_grads, facts[kSavedByInputGrad]);
    rank.workspace = std::max(rank.workspace, facts[kWorkspace]);
    const auto slots = [&](const Order& of) {
      const Order::Slots& here = of.slots()[at];
      return here.gradients + (now.boundary.held ? here.held : here.forward);
    };
    rank.slots += grown(slots(order), now.orders.whole() ? 0 : slots(*now.orders.shorter)) *
                  now.boundary.bytes;
  }
  Estimate estimate;
  for (size_t r = 0; r < ranks; ++r) {
    const auto activations = [&](const Order& of) {
      double most = 0;
      for (const Order::Held& held : of.held()[r]) {
        most = std::max(most, held.others * needs[r].others + held.last * needs[r].last +
                                  held.for_weights * needs[r].for_weights +
                                  held.input_grads * needs[r].input_grads);
      }
      return most;
    };
    const double held =
        grown(activations(order), now.orders.whole() ? 0 : activations(*now.orders.shorter));
    const Facts& state = states_[r];
    const double bytes = state[kWeights] + state[kGradients] + state[kOptimizer] + needs[r].slots +
                         held + std::max(needs[r].workspace, state[kUpdateWorkspace]);
    if (bytes <= static_cast<double>(estimate.peak.value)) continue;
    estimate.peak = Bytes(static_cast<int64_t>(bytes));
    estimate.fullest = static_cast<int32_t>(r);
  }
  return estimate;
}

Estimate Coarse::estimate(const Plan& plan) {
  Estimate estimate = memory(plan);
  estimate.step = step(plan);
  return estimate;
}

}  // namespace mw::predict
