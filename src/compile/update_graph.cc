#include "compile/update_graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "compile/shared_sum.h"
#include "compile/step_builder.h"
#include "ops/update_ops.h"
#include "pipeline/metric_names.h"

namespace mw::compile {
namespace {

using ir::OpKind;

class UpdateBuilder : StepBuilder {
 public:
  using StepBuilder::StepBuilder;

  StateFragment update() {
    sum_uses();
    whole_ = gradients_;
    // What tensor parallelism left pending is summed in collectives of its own. The last layer's
    // are complete first, of both kinds: those that are more go before, and the others wait for
    // them.
    if (plan_.effective_grad_reduce() != GradReduce::kMicrobatch) {
      const bool pending_first = most_is_pending();
      if (!pending_first) sum_over_data_axes(/*pending=*/false);
      sum_over_model_axes();
      sum_over_data_axes(/*pending=*/true);
      if (pending_first) sum_over_data_axes(/*pending=*/false);
    }
    sum_replicas();
    norms();
    step();
    if (plan_.post_validation) {
      leave_loss();
    } else {
      report_loss();
    }
    return finish("UPDATE", pipeline::ActionKind::kUpdate);
  }

  StateFragment report() {
    report_loss();
    return finish("REPORT", pipeline::ActionKind::kUpdate);
  }

 private:
  sharding::Axes accumulated_partial(const FlatGroup& group) const {
    if (plan_.effective_grad_reduce() == GradReduce::kMicrobatch) return {};
    sharding::Axes axes = group.model_partial;
    const sharding::Axes data = data_pending(group);
    axes.insert(axes.end(), data.begin(), data.end());
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  // The uses of a parameter, in model order.
  void sum_uses() {
    for (const FlatGroup& group : c_.groups) {
      const LocalGraph::Made made =
          flat_type(group, gradient_shards(plan_, group), accumulated_partial(group));
      ValueIds uses;
      for (const GroupUse& use : group.uses)
        uses.push_back(state_input(made, name_of(use.state), use.state));
      const HeldGroup* elsewhere = held(group);
      if (elsewhere != nullptr && !elsewhere->replicated) {
        gradients_.push_back(sum_over_holders(group, *elsewhere, made, std::move(uses)));
        continue;
      }
      ValueId sum = uses[0];
      for (size_t u = 1; u < uses.size(); ++u) {
        sum = op1(OpKind::kAccumulate, ir::NoAttrs{}, {sum, uses[u]}, made);
        cleared_.emplace_back(group.uses[u].state, uses[u]);
      }
      gradients_.push_back(sum);
      home_.push_back(0);
    }
  }

  // Round by round (shared_sum.h). What a rank adds lies in the memory of the use that it began
  // with, and so does the sum; a rank that adds nothing makes zeros. `uses` are this rank's.
  ValueId sum_over_holders(const FlatGroup& group, const HeldGroup& held,
                           const LocalGraph::Made& made, ValueIds uses) {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::Holders{name_of(group.weight)};
    ValueId sum;
    int home = kNowhere;
    size_t next = 0;  // of this rank's uses
    for (const SumRound& round : sum_rounds(held.rank_of_use)) {
      const auto part = std::find_if(round.parts.begin(), round.parts.end(),
                                     [&](const SumRound::Part& p) { return p.rank == c_.rank; });
      if (part == round.parts.end()) {
        sum = op1(OpKind::kConstant, ir::ConstantAttrs{0}, {}, made);
        home = kNowhere;
      } else {
        size_t adds = part->uses.size();
        if (!part->carries) {
          home = static_cast<int>(next);
          sum = uses[next++];
          --adds;
        }
        for (; adds > 0; --adds)
          sum = op1(OpKind::kAccumulate, ir::NoAttrs{}, {sum, uses[next++]}, made);
      }
      sum = op1(OpKind::kAllReduce, attrs, {sum}, made);
      if (home != kNowhere) uses[static_cast<size_t>(home)] = sum;
    }
    for (size_t u = 0; u < next; ++u) {
      if (static_cast<int>(u) != home) cleared_.emplace_back(group.uses[u].state, uses[u]);
    }
    home_.push_back(home);
    return sum;
  }

  // Groups that are pending over the same axes together.
  void sum_over_model_axes() {
    std::map<sharding::Axes, std::vector<size_t>> by_axes;
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      if (!c_.groups[g].model_partial.empty()) by_axes[c_.groups[g].model_partial].push_back(g);
    }
    for (const auto& [axes, groups] : by_axes) {
      ValueIds operands;
      std::vector<LocalGraph::Made> made;
      std::vector<int64_t> elements;
      for (const size_t g : groups) {
        operands.push_back(gradients_[g]);
        made.push_back(flat_type(c_.groups[g], 1, data_pending(c_.groups[g])));
        elements.push_back(c_.groups[g].elements);
      }
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{axes};
      const ValueIds sums =
          collective(OpKind::kAllReduce, attrs, Order::kLastLayerFirst, operands, made, elements);
      for (size_t i = 0; i < groups.size(); ++i)
        whole_[groups[i]] = gradients_[groups[i]] = sums[i];
    }
  }

  // Whether a stage's replicas sum the group together with their data-parallel ranks, in one
  // collective.
  bool sums_with_replicas(const FlatGroup& group) const {
    const HeldGroup* elsewhere = held(group);
    return elsewhere != nullptr && elsewhere->replicated && group.dp_partial &&
           moment_shards(plan_, group) == 1 &&
           plan_.effective_grad_reduce() != GradReduce::kMicrobatch;
  }

  // `pending`: the groups that were pending over model axes, or the others.
  void sum_over_data_axes(bool pending) {
    for (std::vector<size_t>& alike : by_data_axes()) {
      std::erase_if(alike, [&](size_t g) { return is_pending(c_.groups[g]) != pending; });
      if (!alike.empty()) sum_over_data_axes(alike);
    }
  }
  static bool is_pending(const FlatGroup& group) { return !group.model_partial.empty(); }
  // Of a mixture's gradients most are: each rank has whole experts and a part of the tokens.
  bool most_is_pending() const {
    int64_t pending = 0, others = 0;
    for (const FlatGroup& group : c_.groups)
      (is_pending(group) ? pending : others) += group.elements;
    return pending > others;
  }
  void sum_over_data_axes(const std::vector<size_t>& alike) {
    const int64_t shards = moment_shards(plan_, c_.groups[alike.front()]);
    ValueIds operands;
    std::vector<LocalGraph::Made> made;
    std::vector<size_t> groups;
    std::vector<int64_t> elements;
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{c_.groups[alike.front()].data_axes};
    for (const size_t g : alike) {
      const FlatGroup& group = c_.groups[g];
      if (sums_with_replicas(group)) continue;
      if (group.dp_partial) {
        operands.push_back(gradients_[g]);
        made.push_back(flat_type(group, shards));
        groups.push_back(g);
        elements.push_back(group.elements);
      } else if (shards > 1) {
        gradients_[g] = op1(OpKind::kShardSlice, attrs, {gradients_[g]}, flat_type(group, shards));
      }
    }
    if (operands.empty()) return;
    const ValueIds sums = collective(shards > 1 ? OpKind::kReduceScatter : OpKind::kAllReduce,
                                     attrs, Order::kLastLayerFirst, operands, made, elements);
    for (size_t i = 0; i < groups.size(); ++i) {
      gradients_[groups[i]] = sums[i];
      if (shards == 1) whole_[groups[i]] = sums[i];
    }
  }

  // The replicas of a stage: what each has of the gradient, summed over its data-parallel ranks
  // or, whole, with them. The last stage first, whose gradients are complete first; what several
  // stages use comes behind, and last what was pending over model axes.
  void sum_replicas() {
    constexpr int32_t kShared = -1;
    using Alike = std::tuple<bool, int32_t, std::vector<int32_t>, sharding::Axes>;
    std::map<Alike, std::vector<size_t>> alike;
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      const HeldGroup* elsewhere = held(group);
      if (elsewhere == nullptr || !elsewhere->replicated) continue;
      alike[{!is_pending(group), group.shared ? kShared : stage_of(group), elsewhere->ranks,
             sums_with_replicas(group) ? group.data_axes : sharding::Axes{}}]
          .push_back(g);
    }
    for (auto it = alike.rbegin(); it != alike.rend(); ++it)
      sum_replicas(it->second, std::get<sharding::Axes>(it->first));
  }
  int32_t stage_of(const FlatGroup& group) const {
    const LayerId layer = c_.module.state(group.uses.at(0).accumulators.at(0)).use;
    return c_.plan.stage_of_layer[layer.index()];
  }
  void sum_replicas(const std::vector<size_t>& groups, const sharding::Axes& axes) {
    ValueIds operands;
    std::vector<LocalGraph::Made> made;
    std::vector<int64_t> elements;
    for (const size_t g : groups) {
      operands.push_back(gradients_[g]);
      made.push_back(axes.empty() ? local_.like(gradients_[g]) : flat_type(c_.groups[g], 1));
      elements.push_back(made.back().local.elements());
    }
    ir::CollectiveAttrs attrs;
    attrs.group = ir::Holders{name_of(c_.groups[groups.front()].weight), axes};
    const ValueIds sums =
        collective(OpKind::kAllReduce, attrs, Order::kLastLayerFirst, operands, made, elements);
    for (size_t i = 0; i < groups.size(); ++i) {
      const size_t g = groups[i];
      if (whole_[g] == gradients_[g]) whole_[g] = sums[i];
      gradients_[g] = sums[i];
    }
  }

  // The sums that make the global norm: fp64 sums of blocks, added in parameter order; every
  // parameter's shard counts once. With post-validation the norm and its scale are those of this
  // pipeline rank alone.
  void norms() {
    ir::FlatAttrs attrs = flat_attrs();
    LocalGraph::Made by_parameter = vector_type(DType::kF64, attrs.parameters, attrs.parameters);
    LocalGraph::Made pending = by_parameter;
    pending.sharding.partial = model_axes_;
    std::sort(pending.sharding.partial.begin(), pending.sharding.partial.end());
    ValueId parameters = c_.groups.empty() ? no_norms(by_parameter, pending) : own_norms(pending);
    sharding::Axes axes = model_axes_;
    if (plan_.post_validation) {
      erase(axes, "pp");
      pending.sharding.partial = {"pp"};
      if (!axes.empty()) parameters = sum_norms(parameters, axes, pending);
    } else if (!axes.empty()) {
      parameters = sum_norms(parameters, axes, by_parameter);
    }
    const ValueIds norm_and_scale = ops(OpKind::kClip, attrs, {parameters},
                                        {scalar_type(DType::kF32), scalar_type(DType::kF32)});
    scale_ = norm_and_scale[1];
    if (plan_.post_validation) {
      output(parameters, kOwnNorms);
    } else {
      output(norm_and_scale[0], kGradNorm);
    }
  }
  ValueId sum_norms(ValueId parameters, const sharding::Axes& axes, const LocalGraph::Made& made) {
    ir::CollectiveAttrs reduce;
    reduce.group = ir::AxisGroup{axes};
    return op1(OpKind::kAllReduce, reduce, {parameters}, made);
  }
  // A rank whose stages have no parameters adds zeros.
  ValueId no_norms(const LocalGraph::Made& whole, const LocalGraph::Made& pending) {
    const ValueId zeros = op1(OpKind::kConstant, ir::ConstantAttrs{0}, {}, whole);
    return op1(OpKind::kCopy, ir::NoAttrs{}, {zeros}, pending);
  }
  ValueId own_norms(const LocalGraph::Made& pending) {
    ValueId parameters;
    for (const std::vector<size_t>& alike : by_data_axes()) {
      const ValueId own = own_norms(alike, pending);
      parameters =
          parameters.valid() ? op1(OpKind::kAdd, ir::NoAttrs{}, {parameters, own}, pending) : own;
    }
    return parameters;
  }
  ValueId own_norms(const std::vector<size_t>& alike, const LocalGraph::Made& pending) {
    int64_t blocks = 0;
    const FlatGroup& first = c_.groups[alike.front()];
    ir::FlatAttrs attrs = flat_attrs(first);
    ValueIds gradients;
    for (const size_t g : alike) {
      const FlatGroup& group = c_.groups[g];
      gradients.push_back(gradients_[g]);
      attrs.groups.push_back(segments(group));
      attrs.group_elements.push_back(group.elements);
      blocks += group.elements / ops::kNormBlock;
    }
    const int64_t shards = moment_shards(plan_, first);
    ValueId sums = op1(OpKind::kNormBlocks, attrs, gradients,
                       vector_type(DType::kF64, blocks / shards, blocks, attrs.shard_axes));
    if (shards > 1) {
      ir::CollectiveAttrs gather;
      gather.group = ir::AxisGroup{first.data_axes};
      gather.global_size = blocks;
      sums = op1(OpKind::kAllGather, gather, {sums}, vector_type(DType::kF64, blocks, blocks));
    }
    return op1(OpKind::kNormParameters, attrs, {sums}, pending);
  }

  void step() {
    std::vector<GroupStep> steps = group_steps();
    if (plan_.post_validation) keep(steps);
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      steps[g].updated = adamw(steps[g], gradients_[g], scale_);
      update_states(group, steps[g]);
      if (home_[g] != kNowhere)
        cleared_.emplace_back(group.uses[static_cast<size_t>(home_[g])].state, whole_[g]);
    }
    gather_weights(steps);
    for (const auto& [state, value] : cleared_) {
      const ValueId zeros = op1(OpKind::kZero, ir::NoAttrs{}, {value}, local_.like(value));
      local_.graph.updates.push_back({state, zeros});
    }
  }

  // What it takes to make the steps again.
  void keep(const std::vector<GroupStep>& steps) {
    for (size_t g = 0; g < steps.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      const auto copy = [&](ValueId v, StateId of, const char* what) {
        output(op1(OpKind::kCopy, ir::NoAttrs{}, {v}, steps[g].made), name_of(of) + what);
      };
      copy(steps[g].before[0], group.weight, kBefore);
      copy(steps[g].before[1], group.moment, kBefore);
      copy(steps[g].before[2], group.variance, kBefore);
      copy(gradients_[g], group.weight, kTaken);
    }
  }

  // The rank's loss accumulator, summed over the axes that are the stage's own (sequence shards)
  // and still pending over the data axes; nothing: it has none.
  std::optional<ValueId> stage_loss() {
    if (!c_.loss) return std::nullopt;
    LocalGraph::Made made = made_of(*c_.loss);
    const ValueId loss = state_input(made, name_of(c_.loss->state), c_.loss->state);
    sharding::Axes own = made.sharding.partial;
    for (const Name axis : data_axes_) erase(own, axis);
    ValueId sum = loss;
    if (!own.empty()) {
      made.sharding.partial = data_axes_;
      sum = sum_over(own, loss, made);
    }
    clear_loss_ = loss;
    return sum;
  }
  void clear_loss() {
    if (!clear_loss_.valid()) return;
    const ValueId zero = op1(OpKind::kZero, ir::NoAttrs{}, {clear_loss_}, local_.like(clear_loss_));
    local_.graph.updates.push_back({c_.loss->state, zero});
  }
  ValueId sum_over(const sharding::Axes& axes, ValueId v, const LocalGraph::Made& made) {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{axes};
    return op1(OpKind::kAllReduce, attrs, {v}, made);
  }

  // Only the last stage has a loss; the other ranks add zeros.
  void report_loss() {
    sharding::Axes axes;
    if (plan_.pp > 1) axes.push_back("pp");
    axes.insert(axes.end(), data_axes_.begin(), data_axes_.end());
    const LocalGraph::Made whole = scalar_type(DType::kF32);
    const std::optional<ValueId> own = stage_loss();
    ValueId sum = own ? *own : op1(OpKind::kConstant, ir::ConstantAttrs{0}, {}, whole);
    if (!axes.empty()) {
      LocalGraph::Made pending = whole;
      pending.sharding.partial = axes;
      std::sort(pending.sharding.partial.begin(), pending.sharding.partial.end());
      sum = op1(OpKind::kCopy, ir::NoAttrs{}, {sum}, pending);
      sum = sum_over(axes, sum, whole);
    }
    const ValueId scale = data_input(DType::kF32, pipeline::kLossScale);
    output(op1(OpKind::kMul, ir::NoAttrs{}, {sum, scale}, whole), kLossValue);
    clear_loss();
  }

  // With post-validation: the next call reports it.
  void leave_loss() {
    const std::optional<ValueId> own = stage_loss();
    if (!own) return;
    LocalGraph::Made pending = made_of(own_loss_state());
    const LocalGraph::Made of_ranks = pending;
    pending.sharding.partial.insert(pending.sharding.partial.end(), data_axes_.begin(),
                                    data_axes_.end());
    std::sort(pending.sharding.partial.begin(), pending.sharding.partial.end());
    ValueId sum = op1(OpKind::kCopy, ir::NoAttrs{}, {*own}, pending);
    if (!data_axes_.empty()) sum = sum_over(data_axes_, sum, of_ranks);
    output(sum, kOwnLoss);
    clear_loss();
  }

  ValueId scale_;  // the clipping factor; with post-validation that of this rank's norm alone
  static constexpr int kNowhere = -1;
  ValueIds gradients_;     // [group] as far as summed
  std::vector<int> home_;  // [group] the use in whose memory the sum lies, or kNowhere
  ValueIds whole_;         // [group] the last value in the accumulator's own memory
  std::vector<std::pair<StateId, ValueId>> cleared_;
  ValueId clear_loss_;  // the accumulator, where it was taken
};

}  // namespace

StateFragment build_update(const UpdateContext& context) { return UpdateBuilder(context).update(); }
StateFragment build_report(const UpdateContext& context) { return UpdateBuilder(context).report(); }

}  // namespace mw::compile
