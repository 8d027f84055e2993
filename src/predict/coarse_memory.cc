// What ranks hold, of coarse estimates (coarse.h).
#include <algorithm>
#include <cmath>

#include "predict/coarse.h"
#include "predict/stage_facts.h"
#include "predict/torch_memory.h"

namespace mw::predict {
namespace {

using compile::Plan;

double state_bytes(const Facts& facts) {
  return facts[kWeights] + facts[kGradients] + facts[kOptimizer];
}

// Whether a copy of a stage has its values from the stage before (by -1), or passes them on to the
// one behind (by 1), on another rank.
bool has_neighbour(const Order& order, int32_t copy, int32_t by) {
  const int32_t s = order.stage_of(copy) + by;
  return s >= 0 && s < order.stages() && order.rank_of(copy + by) != order.rank_of(copy);
}

}  // namespace

// As many as there are numbers for, where ranks that share one memory need more.
Bytes Coarse::whole_bytes(double bytes) {
  constexpr double kMost = 0x1p62;
  return Bytes(static_cast<int64_t>(std::min(bytes, kMost)));
}

// Ranks in one memory.
int64_t Coarse::sharing(const Plan& plan) const {
  return base_.cluster.shares_memory() ? plan.ranks() : 1;
}

Bytes Coarse::states(const Plan& plan) {
  const bool one = plan.pp == 1;
  const StageFacts& state = facts_->states(plan, false);
  const int64_t layers = base_.model.layers, blocks = layers / plan.pp;
  const auto held = [&](int64_t count, int64_t second) {
    return state_bytes(state.of(count, one, one, second));
  };
  const double first = held(blocks, second_blocks(base_.model, 0, blocks)),
               last = held(blocks, second_blocks(base_.model, layers - blocks, blocks));
  if (sharing(plan) > 1)
    return whole_bytes(std::floor(std::min(first, last)) * static_cast<double>(sharing(plan)));
  if (layers % plan.pp == 0) return whole_bytes(std::floor(last));
  // Some rank has one block more, of either kind.
  const int64_t in_all = second_blocks(base_.model, 0, layers),
                fewest = std::max<int64_t>(0, blocks + 1 - (layers - in_all)),
                most = std::min(blocks + 1, in_all);
  const double fullest = std::min(held(blocks + 1, fewest), held(blocks + 1, most));
  return whole_bytes(std::floor(std::max(last, fullest)));
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
  run_memory(order, now, activations_);
  if (!now.orders.whole()) run_memory(*now.orders.shorter, now, shorter_);
  Estimate estimate;
  double all = 0;  // pipeline ranks
  for (size_t r = 0; r < static_cast<size_t>(plan.pp); ++r) {
    const double held = grown(activations_[r], now.orders.whole() ? activations_[r] : shorter_[r]);
    const Facts& state = states_[r];
    const Outputs& outputs = outputs_[r];
    const double bytes = state_bytes(state) + slot_bytes_[r] +
                         std::max(held + workspace_[r] + outputs.sent + outputs.logits,
                                  state[kUpdateWorkspace] + outputs.sent + 2 * outputs.logits);
    all += bytes;
    estimate.peak = std::max(estimate.peak, Bytes(static_cast<int64_t>(bytes)));
  }
  if (const int64_t ranks = sharing(plan); ranks > 1)
    estimate.peak = whole_bytes(all * static_cast<double>(ranks / plan.pp));
  return estimate;
}

void Coarse::run_memory(const Order& order, const Setting& now, std::vector<double>& most) {
  const CoarseFacts::Run asked{&order, now.work};
  const bool even = now.plan.layers.empty();
  if (even) {
    if (const auto known = facts_->remembered(asked)) {
      most = *known;
      return;
    }
  }
  order.run_memory(kept_, {boundary_bytes(now), now.work->boundary.held}, most);
  if (even) facts_->remember(asked, most);
}

// A buffer for all that a copy of a stage receives, and, in PyTorch 2.6, until the next step what
// it sent and the logits of all microbatches, which are put together at the end.
void Coarse::fill_outputs(const Setting& now) {
  outputs_.assign(static_cast<size_t>(now.plan.pp), Outputs());
  if (now.plan.pp == 1 || !has_processes(base_.cluster.stack, now.plan)) return;
  const Order& order = *now.orders.longer;
  const auto microbatches = static_cast<double>(now.plan.microbatches) / order.replicas();
  const double boundary = boundary_bytes(now);
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    const int32_t rank = order.rank_of(copy), s = order.stage_of(copy);
    Outputs& outputs = outputs_[static_cast<size_t>(rank)];
    for (const int32_t by : {-1, 1}) {
      if (!has_neighbour(order, copy, by)) continue;
      slot_bytes_[static_cast<size_t>(rank)] += microbatches * boundary;
      if (base_.cluster.stack.torch_2_6) outputs.sent += microbatches * boundary;
    }
    if (s + 1 == order.stages() && base_.cluster.stack.torch_2_6)
      outputs.logits += microbatches * logits(now.plan) * dtype_size(base_.precision);
  }
}

// Elements of a microbatch's on a rank.
double Coarse::logits(const Plan& plan) const {
  const int64_t sequences = base_.global_batch / plan.dp / plan.microbatches;
  return static_cast<double>(sequences * base_.seq_len) *
         static_cast<double>(base_.model.vocab_size) / static_cast<double>(plan.tp);
}

// Of a copy of a stage, whose facts those of its program are: the logarithms of softmax in f32 stay
// from forward to backward in place of the logits, and autograd's graph until the weights'
// gradients; since PyTorch 2.6 results and logits stay until their gradients have been taken.
const Facts& Coarse::of_process(const Setting& now, int32_t copy, const Facts& of_program) {
  of_process_ = of_program;
  const Plan& plan = now.plan;
  const Order& order = *now.orders.longer;
  const bool last = order.stage_of(copy) + 1 == order.stages();
  const bool keeps = !base_.cluster.stack.torch_2_6 && plan.pp > 1;
  const double boundary = keeps ? boundary_bytes(now) : 0;
  double result =
      has_neighbour(order, copy, 1) ? boundary : 0;  // until its gradient has been taken
  if (last) {
    const double bytes = logits(plan) * dtype_size(DType::kF32),
                 narrow = logits(plan) * dtype_size(base_.precision);
    of_process_[kSaved] += bytes - narrow;
    if (keeps) result = narrow;
    // What lies beside them while the logits' gradient is made.
    const double beside = (plan.tp > 1 ? 3 : 2) * bytes;
    for (const Fact workspace : {kWorkspace, kSplitWorkspace})
      of_process_[workspace] = std::max(of_process_[workspace], beside);
  }
  of_process_[kSavedForWeights] =
      of_process_[kSaved] + (has_neighbour(order, copy, -1) ? boundary : 0);
  of_process_[kSaved] += result;
  return of_process_;
}

// What the ranks' stages keep, their slots and their largest workspace.
void Coarse::fill_needs(const Setting& now, const std::function<double(double, double)>& grown) {
  const Order& order = *now.orders.longer;
  workspace_.assign(static_cast<size_t>(order.ranks()), 0);
  slot_bytes_.assign(workspace_.size(), 0);
  kept_.resize(blocks_.size() * static_cast<size_t>(order.slices()));
  const bool processes = has_processes(base_.cluster.stack, now.plan);
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    const auto at = static_cast<size_t>(copy), rank = static_cast<size_t>(order.rank_of(copy));
    const Facts& of_program = piece_facts(now, copy);
    const Facts& facts = processes ? of_process(now, copy, of_program) : of_program;
    if (at < kept_.size())
      kept_[at] = {facts[kSaved], facts[kSavedForWeights], facts[kSavedByInputGrad]};
    workspace_[rank] = std::max({workspace_[rank], order.has_whole() ? facts[kWorkspace] : 0.0,
                                 order.has_split() ? facts[kSplitWorkspace] : 0.0});
    if (processes && now.plan.pp > 1) continue;
    const auto slots = [&](const Order& of) {
      const Order::Slots& here = of.slots()[at];
      return here.gradients + (now.work->boundary.held ? here.held : here.forward);
    };
    slot_bytes_[rank] += grown(slots(order), now.orders.whole() ? 0 : slots(*now.orders.shorter)) *
                         boundary_bytes(now);
  }
  fill_outputs(now);
}

}  // namespace mw::predict
