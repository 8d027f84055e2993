#include "compile/step_builder.h"

#include <algorithm>

#include "base/error.h"
#include "pipeline/axes.h"
#include "pipeline/memory_plan.h"
#include "pipeline/metric_names.h"
#include "pipeline/overlap.h"

namespace mw::compile {

using ir::OpKind;
using pipeline::PortKind;

LocalGraph::Made scalar_type(DType dtype) {
  const ir::TensorType type = ir::make_type(dtype, {});
  return {type, type, sharding::replicated(0)};
}
LocalGraph::Made vector_type(DType dtype, int64_t local, int64_t global,
                             const sharding::Axes& axes) {
  LocalGraph::Made made{ir::make_type(dtype, {local}), ir::make_type(dtype, {global}),
                        sharding::replicated(1)};
  made.sharding.dims[0] = axes;
  return made;
}

StepBuilder::StepBuilder(const UpdateContext& context)
    : c_(context), plan_(context.plan.plan), parameters_(context.module.parameters()) {
  const sharding::Axes data = plan_.data_axes();
  if (plan_.pp > 1) model_axes_.push_back("pp");
  for (const cluster::Axis& axis : c_.plan.stages.front().mesh.axes()) {
    if (axis.size == 1) continue;
    const bool is_data = std::find(data.begin(), data.end(), axis.name) != data.end();
    (is_data ? data_axes_ : model_axes_).push_back(axis.name);
    // The norms of what it divides are pending over it, experts' over one of data, too.
    if (is_data && pipeline::is_parameter_axis(axis.name)) model_axes_.push_back(axis.name);
  }
  std::sort(data_axes_.begin(), data_axes_.end());
}

ValueIds StepBuilder::collective(OpKind kind, const ir::CollectiveAttrs& attrs, Order order,
                                 const ValueIds& operands,
                                 const std::vector<LocalGraph::Made>& made,
                                 const std::vector<int64_t>& whole) {
  ValueIds results(operands.size());
  for (const std::vector<size_t>& bucket : buckets(whole, order == Order::kLastLayerFirst)) {
    ValueIds from;
    std::vector<LocalGraph::Made> to;
    for (const size_t i : bucket) {
      from.push_back(operands[i]);
      to.push_back(made[i]);
    }
    const ValueIds of_bucket = ops(kind, attrs, from, to);
    for (size_t i = 0; i < bucket.size(); ++i) results[bucket[i]] = of_bucket[i];
  }
  return results;
}

std::vector<std::vector<size_t>> StepBuilder::buckets(const std::vector<int64_t>& elements,
                                                      bool backwards) {
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

ValueId StepBuilder::data_input(DType dtype, const std::string& name) {
  ValueId& v = data_[name];
  if (v.valid()) return v;
  v = local_.add_input(scalar_type(dtype), name);
  result_.inputs.push_back(name);
  result_.fragment.inputs.push_back({PortKind::kData, v, name});
  return v;
}

void StepBuilder::output(ValueId v, const std::string& buffer) {
  local_.graph.outputs.push_back(v);
  result_.outputs.push_back(buffer);
  result_.fragment.outputs.push_back({PortKind::kSaved, v, buffer});
}

const HeldGroup* StepBuilder::held(const FlatGroup& group) const {
  for (const HeldGroup& held : c_.held_elsewhere) {
    if (held.weight == group.weight) return &held;
  }
  return nullptr;
}

std::vector<std::vector<size_t>> StepBuilder::by_data_axes() const {
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

std::vector<ir::Segment> StepBuilder::segments(const FlatGroup& group) const {
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

ir::FlatAttrs StepBuilder::flat_attrs() const {
  ir::FlatAttrs attrs;
  attrs.parameters = static_cast<int32_t>(parameters_.size());
  attrs.beta1 = c_.optimizer.beta1;
  attrs.beta2 = c_.optimizer.beta2;
  attrs.epsilon = c_.optimizer.epsilon;
  attrs.weight_decay = c_.optimizer.weight_decay;
  attrs.max_norm = c_.optimizer.max_norm;
  return attrs;
}

std::vector<StepBuilder::GroupStep> StepBuilder::group_steps() {
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

ValueIds StepBuilder::adamw(const GroupStep& step, ValueId gradient, ValueId scale,
                            const ValueIds& amended) {
  ValueIds operands{step.before[0],
                    gradient,
                    step.before[1],
                    step.before[2],
                    scale,
                    data_input(DType::kF32, pipeline::kLearningRate),
                    data_input(DType::kI64, pipeline::kStepNumber)};
  operands.insert(operands.end(), amended.begin(), amended.end());
  return ops(OpKind::kAdamW, step.attrs, operands, {step.made, step.made, step.made});
}

void StepBuilder::update_states(const FlatGroup& group, const GroupStep& step) {
  local_.graph.updates.push_back({group.weight, step.updated[0]});
  local_.graph.updates.push_back({group.moment, step.updated[1]});
  local_.graph.updates.push_back({group.variance, step.updated[2]});
}

void StepBuilder::gather_weights(const std::vector<GroupStep>& steps) {
  for (const std::vector<size_t>& alike : by_data_axes()) {
    const FlatGroup& first = c_.groups[alike.front()];
    if (!gathered_after(first)) continue;
    ValueIds own;
    std::vector<LocalGraph::Made> whole;
    std::vector<int64_t> elements;
    for (const size_t g : alike) {
      own.push_back(steps[g].updated[0]);
      whole.push_back(flat_type(c_.groups[g], 1));
      elements.push_back(c_.groups[g].elements);
    }
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{first.data_axes};
    const ValueIds gathered =
        collective(OpKind::kAllGather, attrs, Order::kFirstLayerFirst, own, whole, elements);
    for (size_t i = 0; i < alike.size(); ++i)
      output(gathered[i], name_of(c_.groups[alike[i]].weight));
  }
}

StateFragment StepBuilder::finish(const std::string& name, pipeline::ActionKind kind) {
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

}  // namespace mw::compile
