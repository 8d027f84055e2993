#include "compile/update_graph.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "compile/shared_sum.h"
#include "ops/update_ops.h"
#include "pipeline/memory_plan.h"
#include "pipeline/overlap.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using ir::Work;
using pipeline::PortKind;

LocalGraph::Made scalar_type(DType dtype) {
  const ir::TensorType type = ir::make_type(dtype, {});
  return {type, type, sharding::replicated(0)};
}
LocalGraph::Made vector_type(DType dtype, int64_t local, int64_t global,
                             const sharding::Axes& axes = {}) {
  LocalGraph::Made made{ir::make_type(dtype, {local}), ir::make_type(dtype, {global}),
                        sharding::replicated(1)};
  made.sharding.dims[0] = axes;
  return made;
}

class UpdateBuilder {
 public:
  explicit UpdateBuilder(const UpdateContext& context)
      : c_(context), plan_(context.plan.plan), parameters_(context.module.parameters()) {
    const sharding::Axes data = plan_.data_axes();
    for (const cluster::Axis& axis : c_.plan.mesh.axes()) {
      if (axis.size == 1) continue;
      const bool is_data = std::find(data.begin(), data.end(), axis.name) != data.end();
      (is_data ? data_axes_ : model_axes_).push_back(axis.name);
      if (axis.name == "ep")
        model_axes_.push_back(axis.name);  // experts' norms are pending over it
    }
    std::sort(data_axes_.begin(), data_axes_.end());
  }

  StateFragment update() {
    sum_uses();
    sum_over_model_axes();
    sum_over_data_axes();
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

  StateFragment share() {
    const ValueId norms = norms_input();
    const ValueId loss = c_.loss ? loss_input() : ValueId();
    for (int32_t peer = 0; peer < static_cast<int32_t>(plan_.pp); ++peer) {
      if (peer == c_.rank) continue;
      send(norms, kOwnNorms, peer);
      if (c_.loss) send(loss, kOwnLoss, peer);
    }
    return finish("SHARE", pipeline::ActionKind::kValidate);
  }

  // By rank, so that all ranks add in one order.
  StateFragment validate() {
    const ValueId own = norms_input();
    std::vector<ValueId> operands;
    for (int32_t rank = 0; rank < static_cast<int32_t>(plan_.pp); ++rank)
      operands.push_back(rank == c_.rank ? own : received(local_.like(own), kOwnNorms, rank));
    for (const int32_t rank : c_.loss_ranks) {
      operands.push_back(rank == c_.rank ? loss_input()
                                         : received(made_of(own_loss_state()), kOwnLoss, rank));
    }
    const LocalGraph::Made scalar = scalar_type(DType::kF32);
    const std::vector<ValueId> made =
        ops(OpKind::kValidate, flat_attrs(), operands, {scalar, scalar, scalar, scalar});
    output(made[0], kGradNorm);
    output(made[1], kScale);
    output(made[2], kAmended);
    const ValueId scale = data_input(DType::kF32, "loss_scale");
    output(op1(OpKind::kMul, ir::NoAttrs{}, {made[3], scale}, scalar), kLossValue);
    output(ops(OpKind::kClip, flat_attrs(), {own}, {scalar, scalar})[1], kUsedScale);
    // Validated once: without a step behind it the next call finds nothing to amend.
    const ValueId zeros = op1(OpKind::kZero, ir::NoAttrs{}, {own}, local_.like(own));
    local_.graph.updates.push_back({*c_.module.find_state(kOwnNorms), zeros});
    return finish("VALIDATE", pipeline::ActionKind::kValidate);
  }

  StateFragment amend() {
    std::vector<GroupStep> steps = group_steps();
    const LocalGraph::Made scalar = scalar_type(DType::kF32);
    const ValueId used = named_input(scalar, kUsedScale), scale = named_input(scalar, kScale);
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      const auto kept = [&](StateId state, const char* what) {
        return named_input(steps[g].made, name_of(state) + what);
      };
      gradients_.push_back(kept(group.weight, kTaken));
      std::vector<ValueId> amended{used};
      for (const StateId state : {group.weight, group.moment, group.variance})
        amended.push_back(kept(state, kBefore));
      steps[g].updated = adamw(g, steps[g], steps[g].before, scale, amended);
      update_states(group, steps[g]);
    }
    gather_weights(steps);
    return finish("AMEND", pipeline::ActionKind::kRollback);
  }

 private:
  ValueId op1(OpKind kind, ir::Attributes attrs, std::vector<ValueId> operands,
              const LocalGraph::Made& made) {
    return local_.add_op1(make_op(kind, std::move(attrs), std::move(operands), Work::kUpdate),
                          made);
  }
  std::vector<ValueId> ops(OpKind kind, ir::Attributes attrs, std::vector<ValueId> operands,
                           const std::vector<LocalGraph::Made>& made) {
    return local_.add_op(make_op(kind, std::move(attrs), std::move(operands), Work::kUpdate), made);
  }

  // A collective on a list, bucket by bucket: the backward pass completes the gradients of the last
  // layer first, the forward pass takes the weights of the first layer first. `whole`: the larger
  // of operand and result, by which a bucket is full.
  enum class Order : uint8_t { kLastLayerFirst, kFirstLayerFirst };
  std::vector<ValueId> collective(OpKind kind, const ir::CollectiveAttrs& attrs, Order order,
                                  const std::vector<ValueId>& operands,
                                  const std::vector<LocalGraph::Made>& made,
                                  const std::vector<int64_t>& whole) {
    std::vector<ValueId> results(operands.size());
    for (const std::vector<size_t>& bucket : buckets(whole, order == Order::kLastLayerFirst)) {
      std::vector<ValueId> from;
      std::vector<LocalGraph::Made> to;
      for (const size_t i : bucket) {
        from.push_back(operands[i]);
        to.push_back(made[i]);
      }
      const std::vector<ValueId> of_bucket = ops(kind, attrs, from, to);
      for (size_t i = 0; i < bucket.size(); ++i) results[bucket[i]] = of_bucket[i];
    }
    return results;
  }

  // Neighbours together until they have bucket_mb; one each where bucketing is off.
  std::vector<std::vector<size_t>> buckets(const std::vector<int64_t>& elements, bool backwards) {
    const int64_t full = c_.passes.runs(kBucket) ? plan_.bucket_mb * kMebibyte : 0;
    std::vector<std::vector<size_t>> made;
    int64_t bytes = full;  // of the last bucket
    for (size_t n = 0; n < elements.size(); ++n) {
      const size_t i = backwards ? elements.size() - 1 - n : n;
      if (bytes >= full) {
        made.emplace_back();
        bytes = 0;
      }
      made.back().push_back(i);
      bytes += elements[i] * dtype_size(DType::kF32);
    }
    for (std::vector<size_t>& bucket : made) std::sort(bucket.begin(), bucket.end());
    return made;
  }

  ValueId state_input(const LocalGraph::Made& made, const std::string& buffer, StateId state) {
    const ValueId v = local_.add_input(made, buffer, state);
    result_.inputs.push_back(buffer);
    result_.fragment.inputs.push_back({PortKind::kState, v, buffer});
    return v;
  }
  ValueId named_input(const LocalGraph::Made& made, const std::string& state) {
    return state_input(made, state, *c_.module.find_state(state));
  }
  static LocalGraph::Made made_of(const StateUse& use) {
    return {use.local, use.global, use.sharding};
  }
  ValueId norms_input() { return named_input(made_of(own_norms_state(c_.module)), kOwnNorms); }
  ValueId loss_input() { return named_input(made_of(own_loss_state()), kOwnLoss); }
  ValueId received(const LocalGraph::Made& made, const std::string& name, int32_t from) {
    const ValueId v = local_.add_input(made, fmt::format("{}/{}", name, from));
    result_.inputs.push_back(name);
    result_.senders.push_back(from);
    result_.fragment.inputs.push_back({PortKind::kBoundary, v, name});
    return v;
  }
  void send(ValueId v, const std::string& name, int32_t to) {
    const ValueId copy = op1(OpKind::kCopy, ir::NoAttrs{}, {v}, local_.like(v));
    local_.graph.outputs.push_back(copy);
    result_.outputs.push_back(name);
    result_.receivers.push_back(to);
    result_.fragment.outputs.push_back({PortKind::kBoundary, copy, name});
  }
  ValueId data_input(DType dtype, const std::string& name) {
    ValueId& v = data_[name];
    if (v.valid()) return v;
    v = local_.add_input(scalar_type(dtype), name);
    result_.inputs.push_back(name);
    result_.fragment.inputs.push_back({PortKind::kData, v, name});
    return v;
  }
  void output(ValueId v, const std::string& buffer) {
    local_.graph.outputs.push_back(v);
    result_.outputs.push_back(buffer);
    result_.fragment.outputs.push_back({PortKind::kSaved, v, buffer});
  }
  const std::string& name_of(StateId state) const { return c_.module.state(state).name; }
  sharding::Axes accumulated_partial(const FlatGroup& group) const {
    if (plan_.effective_grad_reduce() == GradReduce::kMicrobatch) return {};
    sharding::Axes axes = group.model_partial;
    const sharding::Axes data = data_pending(group);
    axes.insert(axes.end(), data.begin(), data.end());
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  const HeldGroup* held(const FlatGroup& group) const {
    for (const HeldGroup& held : c_.held_elsewhere) {
      if (held.weight == group.weight) return &held;
    }
    return nullptr;
  }

  // The uses of a parameter, in model order; then the replicas, by ascending rank.
  void sum_uses() {
    for (const FlatGroup& group : c_.groups) {
      const LocalGraph::Made made =
          flat_type(group, gradient_shards(plan_, group), accumulated_partial(group));
      std::vector<ValueId> uses;
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
      if (elsewhere != nullptr) {
        ir::CollectiveAttrs attrs;
        attrs.group = ir::Holders{name_of(group.weight)};
        sum = op1(OpKind::kAllReduce, attrs, {sum}, made);
      }
      gradients_.push_back(sum);
      home_.push_back(0);
    }
  }

  // Round by round (shared_sum.h). What a rank adds lies in the memory of the use that it began
  // with, and so does the sum; a rank that adds nothing makes zeros. `uses` are this rank's.
  ValueId sum_over_holders(const FlatGroup& group, const HeldGroup& held,
                           const LocalGraph::Made& made, std::vector<ValueId> uses) {
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
    if (plan_.effective_grad_reduce() == GradReduce::kMicrobatch) return;
    std::map<sharding::Axes, std::vector<size_t>> by_axes;
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      if (!c_.groups[g].model_partial.empty()) by_axes[c_.groups[g].model_partial].push_back(g);
    }
    for (const auto& [axes, groups] : by_axes) {
      std::vector<ValueId> operands;
      std::vector<LocalGraph::Made> made;
      std::vector<int64_t> elements;
      for (const size_t g : groups) {
        operands.push_back(gradients_[g]);
        made.push_back(flat_type(c_.groups[g], 1, data_pending(c_.groups[g])));
        elements.push_back(c_.groups[g].elements);
      }
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{axes};
      const std::vector<ValueId> sums =
          collective(OpKind::kAllReduce, attrs, Order::kLastLayerFirst, operands, made, elements);
      for (size_t i = 0; i < groups.size(); ++i) gradients_[groups[i]] = sums[i];
    }
  }

  // Groups that the same axes shard, in order of the first of each kind.
  std::vector<std::vector<size_t>> by_data_axes() const {
    std::vector<std::vector<size_t>> alike;
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const auto it = std::find_if(alike.begin(), alike.end(), [&](const auto& others) {
        return c_.groups[others.front()].data_axes == c_.groups[g].data_axes;
      });
      if (it == alike.end()) {
        alike.push_back({g});
      } else {
        it->push_back(g);
      }
    }
    return alike;
  }

  void sum_over_data_axes() {
    whole_ = gradients_;
    if (plan_.effective_grad_reduce() == GradReduce::kMicrobatch) return;
    for (const std::vector<size_t>& alike : by_data_axes()) sum_over_data_axes(alike);
  }
  void sum_over_data_axes(const std::vector<size_t>& alike) {
    const int64_t shards = moment_shards(plan_, c_.groups[alike.front()]);
    std::vector<ValueId> operands;
    std::vector<LocalGraph::Made> made;
    std::vector<size_t> groups;
    std::vector<int64_t> elements;
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{c_.groups[alike.front()].data_axes};
    for (const size_t g : alike) {
      const FlatGroup& group = c_.groups[g];
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
    const std::vector<ValueId> sums =
        collective(shards > 1 ? OpKind::kReduceScatter : OpKind::kAllReduce, attrs,
                   Order::kLastLayerFirst, operands, made, elements);
    for (size_t i = 0; i < groups.size(); ++i) {
      gradients_[groups[i]] = sums[i];
      if (shards == 1) whole_[groups[i]] = sums[i];
    }
  }

  std::vector<ir::Segment> segments(const FlatGroup& group) const {
    std::vector<ir::Segment> list;
    const HeldGroup* elsewhere = held(group);
    for (const GroupMember& member : group.members) {
      ir::Segment segment;
      segment.begin = member.offset;
      segment.end = member.offset + member.local.elements();
      segment.parameter = static_cast<int32_t>(
          std::lower_bound(parameters_.begin(), parameters_.end(), member.parameter) -
          parameters_.begin());
      segment.decay = c_.module.state(member.parameter).decay;
      segment.counts = elsewhere == nullptr || elsewhere->ranks.front() == c_.rank;
      for (const Name axis : model_axes_) {
        if (axis == "pp") continue;
        const bool shards = std::any_of(
            member.sharding.dims.begin(), member.sharding.dims.end(), [&](const auto& axes) {
              return std::find(axes.begin(), axes.end(), axis) != axes.end();
            });
        if (!shards) segment.counted_at_origin_of.push_back(axis);
      }
      list.push_back(std::move(segment));
    }
    return list;
  }

  ir::FlatAttrs flat_attrs() const {
    ir::FlatAttrs attrs;
    attrs.parameters = static_cast<int32_t>(parameters_.size());
    attrs.beta1 = c_.optimizer.beta1;
    attrs.beta2 = c_.optimizer.beta2;
    attrs.epsilon = c_.optimizer.epsilon;
    attrs.weight_decay = c_.optimizer.weight_decay;
    attrs.max_norm = c_.optimizer.max_norm;
    return attrs;
  }

  ir::FlatAttrs flat_attrs(const FlatGroup& group) const {
    ir::FlatAttrs attrs = flat_attrs();
    if (moment_shards(plan_, group) > 1) attrs.shard_axes = group.data_axes;
    return attrs;
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
    const std::vector<ValueId> norm_and_scale = ops(
        OpKind::kClip, attrs, {parameters}, {scalar_type(DType::kF32), scalar_type(DType::kF32)});
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
    std::vector<ValueId> gradients;
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

  // What the optimizer takes of one group, and what it makes.
  struct GroupStep {
    ir::FlatAttrs attrs;
    LocalGraph::Made made;
    std::vector<ValueId> before;   // weight, first and second moment
    std::vector<ValueId> updated;  // the same
  };

  // Whether the weights are gathered behind the step, which each rank makes of its own part.
  bool gathered_after(const FlatGroup& group) const {
    return moment_shards(plan_, group) > 1 && weight_shards(plan_, group) == 1;
  }

  void step() {
    std::vector<GroupStep> steps = group_steps();
    if (plan_.post_validation) keep(steps);
    for (size_t g = 0; g < c_.groups.size(); ++g) {
      const FlatGroup& group = c_.groups[g];
      steps[g].updated = adamw(g, steps[g], steps[g].before, scale_, {});
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

  std::vector<GroupStep> group_steps() {
    std::vector<GroupStep> steps;
    for (const FlatGroup& group : c_.groups) {
      GroupStep step{flat_attrs(group), flat_type(group, moment_shards(plan_, group)), {}, {}};
      step.attrs.groups = {segments(group)};
      step.attrs.group_elements = {group.elements};
      step.before = {
          state_input(step.made, name_of(group.weight) + (gathered_after(group) ? "#own" : ""),
                      group.weight),
          state_input(step.made, name_of(group.moment), group.moment),
          state_input(step.made, name_of(group.variance), group.variance)};
      steps.push_back(std::move(step));
    }
    return steps;
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

  void update_states(const FlatGroup& group, const GroupStep& step) {
    local_.graph.updates.push_back({group.weight, step.updated[0]});
    local_.graph.updates.push_back({group.moment, step.updated[1]});
    local_.graph.updates.push_back({group.variance, step.updated[2]});
  }

  void gather_weights(const std::vector<GroupStep>& steps) {
    for (const std::vector<size_t>& alike : by_data_axes()) {
      const FlatGroup& first = c_.groups[alike.front()];
      if (!gathered_after(first)) continue;
      std::vector<ValueId> own;
      std::vector<LocalGraph::Made> whole;
      std::vector<int64_t> elements;
      for (const size_t g : alike) {
        own.push_back(steps[g].updated[0]);
        whole.push_back(flat_type(c_.groups[g], 1));
        elements.push_back(c_.groups[g].elements);
      }
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{first.data_axes};
      const std::vector<ValueId> gathered =
          collective(OpKind::kAllGather, attrs, Order::kFirstLayerFirst, own, whole, elements);
      for (size_t i = 0; i < alike.size(); ++i)
        output(gathered[i], name_of(c_.groups[alike[i]].weight));
    }
  }

  std::vector<ValueId> adamw(size_t group, const GroupStep& step, const std::vector<ValueId>& state,
                             ValueId scale, const std::vector<ValueId>& amended) {
    std::vector<ValueId> operands{state[0],
                                  gradients_[group],
                                  state[1],
                                  state[2],
                                  scale,
                                  data_input(DType::kF32, "lr"),
                                  data_input(DType::kI64, "step")};
    operands.insert(operands.end(), amended.begin(), amended.end());
    return ops(OpKind::kAdamW, step.attrs, operands, {step.made, step.made, step.made});
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
    const ValueId scale = data_input(DType::kF32, "loss_scale");
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

  StateFragment finish(const std::string& name, pipeline::ActionKind kind) {
    pipeline::Fragment& fragment = result_.fragment;
    for (const ir::StateUpdate& update : local_.graph.updates) {
      fragment.outputs.push_back({PortKind::kState, update.value, name_of(update.state)});
    }
    local_.graph.name = name;
    fragment.name = name;
    fragment.kind = kind;
    fragment.graph = std::move(local_.graph);
    fragment.shardings = std::move(local_.shardings);
    fragment.global_types = std::move(local_.global_types);
    fragment.launches.resize(fragment.graph.ops.size());
    if (c_.passes.runs(kOverlap)) pipeline::order_for_overlap(fragment, c_.plan.mesh, 0);
    pipeline::plan_fragment(fragment);
    return std::move(result_);
  }

  static constexpr int64_t kMebibyte = 1 << 20;
  const UpdateContext& c_;
  const Plan& plan_;
  // Of the mesh, larger than 1: the plan's data axes, and those over which norms are pending: the
  // others, and ep.
  sharding::Axes data_axes_, model_axes_;
  std::vector<StateId> parameters_;  // of the model, ascending
  LocalGraph local_;
  StateFragment result_;
  std::map<std::string, ValueId> data_;
  ValueId scale_;  // the clipping factor; with post-validation that of this rank's norm alone
  static constexpr int kNowhere = -1;
  std::vector<ValueId> gradients_;  // [group] as far as summed
  std::vector<int> home_;           // [group] the use in whose memory the sum lies, or kNowhere
  std::vector<ValueId> whole_;      // [group] the last value in the accumulator's own memory
  std::vector<std::pair<StateId, ValueId>> cleared_;
  ValueId clear_loss_;  // the accumulator, where it was taken
};

}  // namespace

StateFragment build_update(const UpdateContext& context) { return UpdateBuilder(context).update(); }
StateFragment build_report(const UpdateContext& context) { return UpdateBuilder(context).report(); }
StateFragment build_share(const UpdateContext& context) { return UpdateBuilder(context).share(); }
StateFragment build_validate(const UpdateContext& context) {
  return UpdateBuilder(context).validate();
}
StateFragment build_amend(const UpdateContext& context) { return UpdateBuilder(context).amend(); }

}  // namespace mw::compile
