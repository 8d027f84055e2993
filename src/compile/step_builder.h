// StepBuilder: what the fragments behind a schedule's actions have in common: ports, collectives in
// buckets, and the optimizer's step on flat groups. Private to room compile.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/update_graph.h"

namespace mw::compile {

LocalGraph::Made scalar_type(DType dtype);
LocalGraph::Made vector_type(DType dtype, int64_t local, int64_t global,
                             const sharding::Axes& axes = {});

class StepBuilder {
 public:
  explicit StepBuilder(const UpdateContext& context);

 protected:
  ValueId op1(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
              const LocalGraph::Made& made) {
    return local_.add_op1(make_op(kind, std::move(attrs), std::move(operands), ir::Work::kUpdate),
                          made);
  }
  ValueIds ops(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
               const std::vector<LocalGraph::Made>& made) {
    return local_.add_op(make_op(kind, std::move(attrs), std::move(operands), ir::Work::kUpdate),
                         made);
  }

  // A collective on a list, bucket by bucket: the backward pass completes the gradients of the last
  // layer first, the forward pass takes the weights of the first layer first. `whole`: the larger
  // of operand and result, by which a bucket is full.
  enum class Order : uint8_t { kLastLayerFirst, kFirstLayerFirst };
  ValueIds collective(ir::OpKind kind, const ir::CollectiveAttrs& attrs, Order order,
                      const ValueIds& operands, const std::vector<LocalGraph::Made>& made,
                      const std::vector<int64_t>& whole);

  ValueId state_input(const LocalGraph::Made& made, const std::string& buffer, StateId state) {
    const ValueId v = local_.add_input(made, buffer, state);
    result_.inputs.push_back(buffer);
    result_.fragment.inputs.push_back({pipeline::PortKind::kState, v, buffer});
    return v;
  }
  ValueId named_input(const LocalGraph::Made& made, const std::string& state) {
    return state_input(made, state, *c_.module.find_state(state));
  }
  ValueId data_input(DType dtype, const std::string& name);
  void output(ValueId v, const std::string& buffer);
  static LocalGraph::Made made_of(const StateUse& use) {
    return {use.local, use.global, use.sharding};
  }
  const std::string& name_of(StateId state) const { return c_.module.state(state).name; }
  // Of a weight that other pipeline ranks hold too; null: it is this rank's alone.
  const HeldGroup* held(const FlatGroup& group) const;
  // Groups that the same axes shard, in order of the first of each kind.
  std::vector<std::vector<size_t>> by_data_axes() const;

  std::vector<ir::Segment> segments(const FlatGroup& group) const;
  ir::FlatAttrs flat_attrs() const;
  ir::FlatAttrs flat_attrs(const FlatGroup& group) const {
    ir::FlatAttrs attrs = flat_attrs();
    if (moment_shards(plan_, group) > 1) attrs.shard_axes = group.data_axes;
    return attrs;
  }

  // What the optimizer takes of one group, and what it makes.
  struct GroupStep {
    ir::FlatAttrs attrs;
    LocalGraph::Made made;
    ValueIds before;   // weight, first and second moment
    ValueIds updated;  // the same
  };

  // Whether the weights are gathered behind the step, which each rank makes of its own part.
  bool gathered_after(const FlatGroup& group) const {
    return moment_shards(plan_, group) > 1 && weight_shards(plan_, group) == 1;
  }
  std::vector<GroupStep> group_steps();
  ValueIds adamw(const GroupStep& step, ValueId gradient, ValueId scale,
                 const ValueIds& amended = {});
  void update_states(const FlatGroup& group, const GroupStep& step);
  void gather_weights(const std::vector<GroupStep>& steps);

  StateFragment finish(const std::string& name, pipeline::ActionKind kind);

  const UpdateContext& c_;
  const Plan& plan_;
  // Of the mesh, larger than 1: the plan's data axes, and those over which norms are pending: the
  // others, and ep.
  sharding::Axes data_axes_, model_axes_;
  LocalGraph local_;
  StateFragment result_;

 private:
  // Neighbours together until they have bucket_mb; one each where bucketing is off.
  std::vector<std::vector<size_t>> buckets(const std::vector<int64_t>& elements, bool backwards);

  static constexpr int64_t kMebibyte = 1 << 20;
  std::vector<StateId> parameters_;  // of the model, ascending
  std::map<std::string, ValueId> data_;
};

}  // namespace mw::compile
