#include "predict/coarse.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "cluster/group_shape.h"
#include "cluster/slice.h"
#include "cost/attention_time.h"
#include "cost/collective.h"
#include "cost/op_time.h"
#include "predict/plan_groups.h"
#include "predict/precision.h"

namespace mw::predict {
namespace {

using compile::Plan;

// Parts that a schedule takes a microbatch in, at the most.
double most_parts() {
  int32_t most = 1;
  for (const pipeline::ScheduleKind* kind : pipeline::listed_kinds())
    most = std::max(most, kind->parts);
  return most;
}

// Of a forward's first gather at least this part is beside nothing: a norm of activations, which
// reads none of a block's matrices, may go beside the rest.
constexpr double kApart = 0.9;

}  // namespace

Coarse::Coarse(Request request)
    : facts_(std::make_shared<CoarseFacts>(std::move(request))), base_(facts_->base()) {}
Coarse::Coarse(std::shared_ptr<CoarseFacts> facts)
    : facts_(std::move(facts)), base_(facts_->base()) {}
Coarse::~Coarse() = default;

void Coarse::prepare_states(const std::vector<Plan>& plans, int threads) {
  facts_->prepare_states(plans, false, threads);
}

void Coarse::prepare(const std::vector<Plan>& plans, int threads) {
  std::vector<Plan> bare;
  for (const Plan& plan : plans) bare.push_back(bare_of(plan));
  facts_->prepare_work(bare, threads);
  prepare_states(plans, threads);
}

void Coarse::prepare_scheduled(const std::vector<Plan>& plans, int threads) {
  facts_->prepare_states(plans, true, threads);
}

void Coarse::prepare_exact(const std::vector<Plan>& plans, int threads) {
  facts_->prepare_work(plans, threads);
}

int64_t Coarse::divided_stage(const Plan& plan) {
  const bool divides =
      plan.dp > 1 && plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  return divides ? std::max<int64_t>(plan.zero, 1) : 0;
}

Plan Coarse::bare_of(Plan plan) {
  plan.zero = 0;
  plan.grad_reduce = compile::GradReduce::kStep;
  if (plan.sequence_slices() > 1) plan.schedule = pipeline::kUsualKind;
  return plan;
}

bool Coarse::divides_whole(const Plan& plan) const {
  // What neither facts nor orders are told apart by.
  static const Plan usual;
  if (plan.cp > 1 || plan.pairs != usual.pairs || plan.memory_limit != usual.memory_limit ||
      !plan.costs.empty())
    return false;
  return plan.stages() * plan.microbatches <= compile::kMostUnits &&
         base_.global_batch % (plan.dp * plan.units()) == 0 &&
         base_.seq_len % plan.sequence_slices() == 0 &&
         (plan.pp > 1 || plan.sequence_slices() == 1);
}

bool Coarse::has_order(const Plan& plan) {
  return divides_whole(plan) && facts_->orders(plan).longer != nullptr;
}

bool Coarse::takes_order(const Plan& plan) {
  if (!divides_whole(plan) || !pipeline::request_findings(compile::schedule_request(plan)).empty())
    return false;
  // There are no more replicas than ranks, and none takes more than two microbatches at a time: of
  // twice as many as ranks each has some.
  return plan.microbatches >= 2 * plan.pp || has_order(plan);
}

const Coarse::Setting& Coarse::setting(const Plan& plan, bool bare) {
  if (setting_ && setting_->bare == bare && setting_->plan == plan) return *setting_;
  setting_.reset();  // where a plan cannot be compiled there is none
  pieces_.clear();
  Setting made{plan, bare, &facts_->work(bare ? bare_of(plan) : plan), {}, facts_->orders(plan)};
  blocks_ = plan.blocks_of_stages(base_.model.layers);
  starts_.assign(blocks_.size(), 0);
  std::partial_sum(blocks_.begin(), blocks_.end() - 1, starts_.begin() + 1);
  MW_CHECK(made.orders.longer != nullptr, "plan {} has no order", short_form(plan));
  made.state = facts_->states(plan, made.orders.folded);
  fill_states(made);
  return setting_.emplace(std::move(made));
}

// Whether slices of a sequence are told by what the whole takes.
bool Coarse::divides(const Setting& setting) {
  return setting.orders.longer->slices() > 1 && setting.work->later.empty();
}

double Coarse::boundary_bytes(const Setting& setting) {
  const double bytes = setting.work->boundary.bytes;
  return divides(setting) ? bytes / setting.orders.longer->slices() : bytes;
}

const Facts& Coarse::piece_facts(const Setting& setting, int32_t copy) {
  const auto stages = static_cast<int32_t>(blocks_.size()), s = copy % stages;
  const int32_t slices = setting.orders.longer->slices(), slice = copy / stages % slices;
  const int64_t blocks = blocks_[static_cast<size_t>(s)];
  const int64_t second = second_blocks(base_.model, starts_[static_cast<size_t>(s)], blocks);
  const Piece piece{slice, blocks, second, s == 0, s + 1 == stages};
  if (piece_ < pieces_.size() && pieces_[piece_].first == piece) return pieces_[piece_].second;
  const auto known = std::find_if(pieces_.begin(), pieces_.end(),
                                  [&](const auto& other) { return other.first == piece; });
  piece_ = static_cast<size_t>(known - pieces_.begin());
  if (known != pieces_.end()) return known->second;
  const bool divided = divides(setting);
  Facts facts =
      setting.work->of_slice(divided ? 0 : slice).of(blocks, piece.first, piece.last, second);
  if (divided) {
    for (double& fact : facts) fact /= slices;
    leave_out_later_keys(setting, slice, blocks, facts);
  }
  return pieces_.emplace_back(piece, facts).second;
}

// Unfused attention has scores for all keys of the whole, but a slice has none for those of later
// slices. Of a block and a microbatch; zeros: the profile's attention is fused.
Coarse::Scores Coarse::scores_of(const Plan& plan) const {
  const cluster::Device& device = base_.cluster.device;
  const models::ModelConfig& model = base_.model;
  if (device.attained.fused_attention || base_.seq_len > cost::kUnfusedKeys) return {};
  cost::OpWork work;
  work.kind = cost::OpWork::Kind::kAttention;
  work.op = ir::OpKind::kAttention;
  work.matrix_product = true;
  work.dtype = base_.precision;
  work.shape = {.batch = base_.global_batch / (plan.dp * plan.units()) * model.heads / plan.tp,
                .m = base_.seq_len,
                .n = base_.seq_len,
                .k = model.head_dim};
  Scores scores;
  scores.forward = cost::op_time(device, work, base_.options.tf32).device.value;
  work.op = ir::OpKind::kAttentionGrad;
  work.backward = true;
  const double again = plan.recompute == compile::Recompute::kNone ? 0 : scores.forward;
  scores.backward = cost::op_time(device, work, base_.options.tf32).device.value + again;
  if (!base_.cluster.stack.autograd || plan.recompute != compile::Recompute::kNone) return scores;
  // Softmax, its dropout and the mask.
  const bool in_f32 =
      device.attained.blocked_softmax && !cost::takes_softmax_kernel(work.shape, work.dtype);
  const DType softmax = in_f32 ? DType::kF32 : work.dtype;
  scores.saved = static_cast<double>(work.shape.batch) *
                 static_cast<double>(base_.seq_len * base_.seq_len) *
                 static_cast<double>(dtype_size(softmax) + dtype_size(work.dtype) + 1);
  return scores;
}

void Coarse::leave_out_later_keys(const Setting& setting, int32_t slice, int64_t blocks,
                                  Facts& facts) const {
  const Scores scores = scores_of(setting.plan);
  const auto slices = static_cast<double>(setting.orders.longer->slices());
  const double later = 1 - (slice + 1) / slices;  // share of the keys
  const double of_one = later * static_cast<double>(blocks) / slices;
  facts[kForward] = std::max(0.0, facts[kForward] - of_one * scores.forward);
  for (const Fact whole : {kInputGrad, kBackward})
    facts[whole] = std::max(0.0, facts[whole] - of_one * scores.backward);
  facts[kSaved] = std::max(0.0, facts[kSaved] - of_one * scores.saved);
  facts[kSavedForWeights] = std::min(facts[kSavedForWeights], facts[kSaved]);
}

void Coarse::fill_costs(const Setting& setting) {
  const Order& order = *setting.orders.longer;
  const size_t pieces = blocks_.size() * static_cast<size_t>(order.slices());
  costs_.resize(pieces * Order::kKinds);
  saved_.clear();
  Collectives all, one;    // of a call's blocks; of a block
  int64_t of_blocks = -1;  // that `all` is of
  if (setting.bare) one = collectives_of(setting.plan, 1);
  for (size_t at = 0; at < pieces; ++at) {
    const Facts& facts = piece_facts(setting, static_cast<int32_t>(at));
    const size_t stage = at % blocks_.size();
    const int64_t blocks = blocks_[stage];
    if (setting.bare && blocks != of_blocks) {
      all = collectives_of(setting.plan, blocks);
      of_blocks = blocks;
    }
    // A forward's first gather is beside no block, but on the first stage the embedding; where a
    // stack's gathers are beside nothing, none is.
    const bool beside = base_.options.overlap.weights;
    const double first = stage == 0 || blocks == 0 || !beside ? 0 : kApart * one.gather;
    double* cost = &costs_[at * Order::kKinds];
    const auto set = [&](pipeline::ActionKind kind, double work, double collectives) {
      cost[static_cast<size_t>(kind)] = beside ? std::max(work, collectives) : work + collectives;
    };
    set(pipeline::ActionKind::kF, facts[kForward] + first, all.gather);
    set(pipeline::ActionKind::kI, facts[kInputGrad], all.gather);
    set(pipeline::ActionKind::kW, facts[kWeightGrad], all.scatter);
    set(pipeline::ActionKind::kB, facts[kBackward], all.gather + all.scatter);
    saved_.push_back(facts[kPaired]);
  }
  // What either's forward and backward save beside each other is known: half of both.
  for (const Order::Pair& pair : order.pairs()) {
    const auto piece = static_cast<size_t>(pair.piece);
    const double saved = (saved_[piece] + saved_[static_cast<size_t>(pair.first_piece)]) / 2;
    costs_.push_back(
        std::max(0.0, costs_[piece * Order::kKinds + static_cast<size_t>(pair.kind)] - saved));
  }
}

// Messages go half as fast while collectives have a port: the sender's, where it goes on meanwhile,
// for a receiver waits.
double Coarse::beside_collectives(const Setting& setting, size_t level) const {
  if (kLinks + level >= kFacts || !base_.options.overlap.messages) return 1;
  const Facts facts = setting.work->facts.of(blocks_[0], false, false);
  const double calls =
      2 * facts[kForward] + facts[kBackward] + facts[kInputGrad] + facts[kWeightGrad];
  return 2 / (2 - std::clamp(facts[kLinks + level] / calls, 0.0, 1.0));
}

// PTD-P's scatter/gather: a value that is whole on all ranks of tp goes in parts.
Coarse::Sent Coarse::sent_of(const Setting& setting) {
  const Plan& plan = setting.plan;
  const double bytes = boundary_bytes(setting);
  if (!base_.options.scatter_gather || plan.tp == 1 || plan.sp) return {bytes, 0};
  const std::vector<cluster::GroupShape>& groups = places(plan).along_tp;
  const Seconds gather = cost::collective_time(base_.cluster, ir::OpKind::kAllGather,
                                               Bytes(static_cast<int64_t>(bytes)), groups)
                             .time +
                         base_.cluster.device.attained.collective_latency;
  return {bytes / static_cast<double>(plan.tp), gather.value};
}

void Coarse::run(const Order& order, const Setting& setting, std::vector<double>& ends) {
  const int64_t stride = stride_of(setting.plan, "pp");
  const int64_t outer = setting.plan.ranks() / (setting.plan.pp * stride);
  const CoarseFacts::Run asked{&order, setting.work, stride, outer,
                               setting.bare ? divided_stage(setting.plan) : 0};
  const bool even = setting.plan.layers.empty();
  if (even) {
    if (const auto known = facts_->remembered(asked)) {
      ends = *known;
      return;
    }
  }
  fill_costs(setting);
  const std::vector<cluster::Link>& links = base_.cluster.links;
  hop_costs_.clear();
  const Sent sent = sent_of(setting);
  const std::vector<RankId>& replicas = places(setting.plan).beside_pp;
  const size_t ranks = static_cast<size_t>(order.ranks());
  port_of_.assign(2 * ranks * links.size(), -1);
  for (const auto& [from, to] : order.hops()) {
    const size_t level =
        cluster::level_between(base_.cluster, RankId(from * stride), RankId(to * stride), replicas);
    const auto port = [&](size_t place) {
      int32_t& at = port_of_[place * links.size() + level];
      if (at < 0) at = static_cast<int32_t>(hop_costs_.size());
      return at;
    };
    const int32_t out = port(static_cast<size_t>(from)),
                  into = port(ranks + static_cast<size_t>(to));
    const cluster::Cluster& cluster = base_.cluster;
    hop_costs_.push_back({sent.bytes / cost::message_bandwidth(cluster, level).value *
                              beside_collectives(setting, level),
                          cost::message_latency(cluster, level).value, out, into, sent.gather,
                          !base_.options.overlap.messages});
  }
  const bool held = setting.work->boundary.held;
  order.run(costs_, hop_costs_, held ? Order::Slot::kHeld : Order::Slot::kForward, room_, ends);
  if (even) facts_->remember(asked, ends);
}

const Coarse::Places& Coarse::places(const Plan& plan) {
  const auto [it, is_new] =
      places_.try_emplace({plan.order, plan.dp, plan.tp, plan.pp, plan.cp, plan.ep});
  if (is_new) {
    const cluster::Cluster on = cluster::slice_of(base_.cluster, plan.ranks());
    it->second = {shapes_along(on, plan, {"tp"}), shapes_along(on, plan, {"dp"}),
                  beside(on, plan, {})};
  }
  return it->second;
}

void Coarse::fill_states(const Setting& setting) {
  struct Share {
    int64_t blocks = 0, second_blocks = 0;
    bool first = false, last = false;
    bool operator==(const Share&) const = default;
  };
  const Plan& plan = setting.plan;
  std::vector<Share> shares(static_cast<size_t>(plan.pp));
  const Order& order = *setting.orders.longer;
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    if (copy / static_cast<int32_t>(blocks_.size()) % order.slices() != 0) continue;
    const auto s = static_cast<size_t>(order.stage_of(copy));
    Share& share = shares[static_cast<size_t>(order.rank_of(copy))];
    share.blocks += blocks_[s];
    share.second_blocks += second_blocks(base_.model, starts_[s], blocks_[s]);
    share.first = share.first || s == 0;
    share.last = share.last || s + 1 == blocks_.size();
  }
  states_.clear();
  for (size_t r = 0; r < shares.size(); ++r) {
    const auto& [blocks, second, first, last] = shares[r];
    const bool alike = r > 0 && shares[r] == shares[r - 1];
    states_.push_back(alike ? Facts(states_.back())
                            : setting.state.of(blocks, first, last, second));
  }
  replica_sums_.reset();
}

// The two ends of a pipeline meet before, in the sum of the gradients of a tied embedding: who
// comes first has summed its blocks' gradients meanwhile. `begins`: [rank] of its update.
void Coarse::wait_for_tied(const Setting& setting, std::vector<double>& begins) const {
  const Order& order = *setting.orders.longer;
  const auto rank_of = [&](int32_t stage) { return static_cast<size_t>(order.rank_of(stage)); };
  const int32_t last = order.stages() - 1;
  if (!base_.model.tie_word_embeddings || rank_of(0) == rank_of(last)) return;
  const double meet = std::max(begins[rank_of(0)], begins[rank_of(last)]);
  for (const int32_t stage : {0, last}) {
    const double of_blocks = static_cast<double>(blocks_[static_cast<size_t>(stage)]) *
                             setting.state.block[kUpdateBefore];
    double& begin = begins[rank_of(stage)];
    begin = std::max(begin, meet - of_blocks);
  }
}

// Ranks meet once in the update, those with replicas of a stage before: the last to come decides
// when.
double Coarse::update_seconds(const Setting& setting, const std::vector<double>& ends) {
  if (!replica_sums_) replica_sums_ = replica_sums(setting);
  std::vector<double> over_replicas(ends.size(), 0);
  for (const ReplicaSum& sum : *replica_sums_) {
    for (const int32_t rank : sum.ranks) over_replicas[static_cast<size_t>(rank)] += sum.seconds;
  }
  const bool beside = sums_go_beside() && !setting.bare;
  const std::vector<Sums> sums =
      beside ? sums_beside(setting, over_replicas) : std::vector<Sums>(ends.size());
  std::vector<double> begins = ends;
  for (size_t r = 0; r < ends.size(); ++r) begins[r] += sums[r].behind;
  wait_for_tied(setting, begins);
  double meet = 0, behind = 0;
  for (size_t r = 0; r < ends.size(); ++r) {
    const Facts& facts = states_[r];
    meet = std::max(meet, begins[r] + facts[kUpdateBefore]);
    behind = std::max(behind, facts[kUpdate] - facts[kUpdateBefore] + sums[r].slower);
  }
  if (sums_go_beside()) return meet + behind;
  for (const ReplicaSum& sum : *replica_sums_) {
    double came = 0, before = 0;
    for (const int32_t rank : sum.ranks) {
      came = std::max(came, ends[static_cast<size_t>(rank)]);
      before = std::max(before, states_[static_cast<size_t>(rank)][kUpdateBefore]);
    }
    meet = std::max(meet, came + sum.seconds + before);
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
  return Seconds(update_seconds(now, ends_) + gathers_beside(now));
}

// ZeRO 2 scatters every microbatch's gradients of a stage, ZeRO 3 gathers its weights for forward
// and for backward as well, each slice anew: as if all of them went at once, in half precision.
Coarse::Collectives Coarse::seconds_of(const Plan& plan, double held) {
  // Experts are gathered over a part of dp, and the others over all of it at no less than this.
  const double weights =
      held * (plan.zero >= 3 ? static_cast<double>(plan.dp) : 1) / static_cast<double>(plan.ep);
  const std::vector<cluster::GroupShape>& groups = places(plan).along_dp;
  const auto seconds = [&](ir::OpKind kind) {
    return cost::collective_time(base_.cluster, kind, Bytes(static_cast<int64_t>(weights)), groups)
        .time.value;
  };
  return {plan.zero >= 3 ? seconds(ir::OpKind::kAllGather) : 0.0,
          seconds(ir::OpKind::kReduceScatter)};
}

Coarse::Collectives Coarse::collectives_of(const Plan& plan, int64_t blocks) {
  if (divided_stage(plan) == 0 || blocks == 0) return {};
  // Of the kind of blocks that has fewer weights.
  const StageFacts& states = facts_->states(plan, false);
  return seconds_of(plan, std::min(states.of(blocks, false, false, 0)[kWeights],
                                   states.of(blocks, false, false, blocks)[kWeights]));
}

Seconds Coarse::dividing(const Plan& plan) {
  if (divided_stage(plan) == 0) return {};
  const bool one = plan.pp == 1;
  const int64_t layers = base_.model.layers, blocks = layers / plan.pp;
  const Facts held = facts_->states(plan, false)
                         .of(blocks, one, one, second_blocks(base_.model, layers - blocks, blocks));
  const Collectives each = seconds_of(plan, held[kWeights]);
  return Seconds(static_cast<double>(plan.microbatches * plan.sequence_slices()) *
                 (each.scatter + 2 * each.gather));
}

Estimate Coarse::least_scheduled(const Plan& plan) {
  const Setting& now = setting(plan, true);
  Estimate estimate = memory(now);
  estimate.step = std::max(step(now), dividing(plan));
  return estimate;
}

// Of a plan that has some schedule.
int64_t Coarse::slices_at_most(const Plan& plan) const {
  if (plan.sequence_slices() > 1) return plan.sequence_slices();
  return plan.pp == 1 || base_.seq_len % pipeline::kUsualSlices != 0 ? 1 : pipeline::kUsualSlices;
}

Estimate Coarse::least(const Plan& asked) {
  const Plan plan = bare_of(asked);
  const StageFacts& work = facts_->work(plan).facts;
  const StageFacts& state = facts_->states(asked, false);
  const int64_t layers = base_.model.layers, blocks = layers / plan.pp;
  const bool one = plan.pp == 1;
  // A stage between the ends has blocks as the first one has, or the last, or some of both.
  const int64_t in_first = second_blocks(base_.model, 0, blocks),
                in_last = second_blocks(base_.model, layers - blocks, blocks),
                in_all = second_blocks(base_.model, 0, layers);
  const Facts like_first = work.of(blocks, one, one, in_first),
              like_last = work.of(blocks, one, one, in_last),
              held = state.of(blocks, one, one, in_last), block = work.of(1, false, false);
  const auto seconds = [](const Facts& facts) {
    return facts[kForward] +
           std::min(facts[kBackward] - facts[kPaired], facts[kInputGrad] + facts[kWeightGrad]);
  };
  // Under a schedule with slices of sequences a call works in a part, without later slices' keys.
  const auto slices = static_cast<double>(slices_at_most(asked));
  const Scores scores = slices > 1 ? scores_of(plan) : Scores();
  const double later = static_cast<double>(blocks) * (slices - 1) / (2 * slices) *
                       (scores.forward + scores.backward);
  // The slowest rank takes no less than the mean, which has its share of both kinds of blocks.
  const auto of_both_kinds = [&](int64_t count) {
    const double of_first_kind = seconds(work.of(count, one, one, 0)),
                 of_second_kind = seconds(work.of(count, one, one, count));
    return of_first_kind + (of_second_kind - of_first_kind) * static_cast<double>(in_all) /
                               static_cast<double>(layers);
  };
  const double more = static_cast<double>(layers % plan.pp) / static_cast<double>(plan.pp);
  double busy = of_both_kinds(blocks);
  if (more > 0) busy += more * (of_both_kinds(blocks + 1) - busy);
  // The last stage is on one rank, or with replicas on two that take turns with the first stage or
  // one between the ends.
  const double beside_end = std::min(seconds(like_first), seconds(like_last));
  const double mean = one ? 0.0 : (beside_end + seconds(work.of(blocks, false, true, in_last))) / 2;
  const double step =
      static_cast<double>(plan.microbatches) * std::max(0.0, std::max(busy, mean) - later) +
      (asked.zero >= 2 ? 0.0 : held[kUpdate]);
  const double bytes = std::max(std::min(like_first[kSaved], like_last[kSaved]) / most_parts() +
                                    std::min(block[kWorkspace], block[kSplitWorkspace]) / slices,
                                held[kUpdateWorkspace]);
  const Collectives each = collectives_of(asked, blocks);
  const double behind = base_.options.overlap.weights
                            ? 0
                            : static_cast<double>(asked.microbatches * asked.sequence_slices()) *
                                  (each.scatter + 2 * each.gather);
  return {std::max(Seconds(step + behind), dividing(asked)),
          whole_bytes(static_cast<double>(states(asked).value) +
                      std::floor(bytes) * static_cast<double>(sharing(asked)))};
}

Estimate Coarse::estimate(const Plan& plan) {
  Estimate estimate = memory(plan);
  estimate.step = step(plan);
  return estimate;
}

}  // namespace mw::predict
