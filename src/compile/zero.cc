#include "compile/zero.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using ir::Work;

// A member of a group by its weight's or accumulator's state.
struct Place {
  size_t group = 0, use = 0, member = 0;
};

class Rewriter {
 public:
  Rewriter(const LocalGraph& from, const Plan& plan, const std::vector<FlatGroup>& groups)
      : from_(from), plan_(plan), groups_(groups), moved_(from.graph.values.size()) {
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t m = 0; m < groups[g].members.size(); ++m)
        weights_[groups[g].members[m].parameter] = {g, 0, m};
      for (size_t u = 0; u < groups[g].uses.size(); ++u) {
        for (size_t m = 0; m < groups[g].uses[u].accumulators.size(); ++m) {
          gradients_[groups[g].uses[u].accumulators[m]] = {g, u, m};
        }
      }
    }
  }

  ZeroResult run() {
    to_.graph.name = from_.graph.name;
    const auto sharded = [&](const ir::Input& input) {
      const auto it = weights_.find(input.state);
      return it != weights_.end() && weight_shards(plan_, groups_[it->second.group]) > 1;
    };
    // ZeRO adds a few for every weight.
    to_.reserve(from_.graph.values.size() + 8 * from_.graph.inputs.size(),
                from_.graph.ops.size() + 8 * from_.graph.inputs.size());
    for (const ir::Input& input : from_.graph.inputs) {
      const bool weight = input.state.valid() && sharded(input);
      const bool gradient = input.state.valid() && is_reduced(input.state);
      if (weight) gathered_[input.value] = weights_.at(input.state);
      if (gradient) accumulators_[input.value] = gradients_.at(input.state);
      if (!weight && !gradient) {
        moved_[input.value.index()] = to_.add_input(
            from_.like(input.value), from_.graph.value(input.value).name, input.state);
      }
    }
    count_accumulations();
    for (const ir::Op& op : from_.graph.ops) copy(op);
    for (const ValueId output : from_.graph.outputs) to_.graph.outputs.push_back(moved(output));
    for (const ir::StateUpdate& update : from_.graph.updates) {
      if (is_reduced(update.state)) continue;  // reduced() updates the flat state
      to_.graph.updates.push_back({update.state, moved(update.value)});
    }
    return {std::move(to_), std::move(moved_)};
  }

 private:
  // Whether the state accumulates gradients that every microbatch sums over ranks.
  bool is_reduced(StateId state) const {
    const auto it = gradients_.find(state);
    if (it == gradients_.end() || plan_.effective_grad_reduce() != GradReduce::kMicrobatch)
      return false;
    const FlatGroup& group = groups_[it->second.group];
    return group.data_size > 1 || !group.model_partial.empty();
  }

  ValueId moved(ValueId v) const {
    MW_CHECK(moved_[v.index()].valid(), "{} was not copied", from_.graph.label(v));
    return moved_[v.index()];
  }

  // How many accumulations every (group, use) still waits for, so that it is reduced right behind
  // the last.
  void count_accumulations() {
    for (const ir::Op& op : from_.graph.ops) {
      for (const ValueId v : op.operands) {
        const auto it = accumulators_.find(v);
        if (it != accumulators_.end()) ++waiting_[{it->second.group, it->second.use}];
      }
    }
  }

  void copy(const ir::Op& op) {
    ir::Op clone = op;
    std::vector<Place> accumulated;
    for (ValueId& v : clone.operands) {
      if (const auto weight = gathered_.find(v); weight != gathered_.end()) {
        v = gathered_weight(weight->second, op);
      } else if (const auto acc = accumulators_.find(v); acc != accumulators_.end()) {
        accumulated.push_back(acc->second);
        v = temporary(acc->second, op, v);
      } else {
        v = moved(v);
      }
    }
    const ValueIds results = to_.add_copy(std::move(clone), from_);
    for (size_t i = 0; i < results.size(); ++i) {
      to_.graph.value(results[i]).logical = from_.graph.value(op.results[i]).logical;
      moved_[op.results[i].index()] = results[i];
    }
    for (const Place& place : accumulated) {
      const std::pair<size_t, size_t> key{place.group, place.use};
      parts_[key].emplace_back(groups_[place.group].members[place.member].offset, results.front());
      if (--waiting_[key] == 0) reduced(place, op.layer);
    }
  }

  // One gather a group for the forward pass and one for the backward pass; one view a parameter and
  // pass.
  ValueId gathered_weight(const Place& place, const ir::Op& reader) {
    const FlatGroup& group = groups_[place.group];
    const bool backward = reader.work != Work::kForward;
    const Work work = backward ? Work::kInputGrad : Work::kForward;
    ValueId& flat = flat_weights_[{place.group, backward}];
    if (!flat.valid()) {
      ValueId& shard = shard_inputs_[place.group];
      if (!shard.valid()) {
        shard =
            to_.add_input(flat_type(group, group.data_size), "weight/" + group.name, group.weight);
      }
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{group.data_axes};
      attrs.global_size = group.elements;
      flat = to_.add_op1(make_op(OpKind::kAllGather, attrs, {shard}, work, reader.layer),
                         flat_type(group, 1));
    }
    ValueId& view = weight_views_[{place.group, place.member, backward}];
    if (!view.valid()) view = add_view(flat, group.members[place.member], {}, work, reader.layer);
    return view;
  }

  ValueId add_view(ValueId flat, const GroupMember& member, const sharding::Axes& partial,
                   Work work, LayerId layer) {
    LocalGraph::Made made{member.local, member.global, member.sharding};
    made.sharding.partial = partial;
    return to_.add_op1(make_op(OpKind::kView, ir::ViewAttrs{member.offset}, {flat}, work, layer),
                       made);
  }

  // The member's place in the zeroed temporary buffer of its group.
  ValueId temporary(const Place& place, const ir::Op& writer, ValueId accumulator) {
    const FlatGroup& group = groups_[place.group];
    const sharding::Axes& partial = from_.shardings[accumulator.index()].partial;
    ValueId& flat = temporaries_[{place.group, place.use}];
    if (!flat.valid()) {
      flat = to_.add_op1(
          make_op(OpKind::kConstant, ir::ConstantAttrs{0}, {}, Work::kWeightGrad, writer.layer),
          flat_type(group, 1, partial));
    }
    return add_view(flat, group.members[place.member], partial, Work::kWeightGrad, writer.layer);
  }

  // All of a group's gradients of this microbatch are there: reduce them and add them to the
  // accumulator.
  void reduced(const Place& place, LayerId layer) {
    const FlatGroup& group = groups_[place.group];
    const std::pair<size_t, size_t> key{place.group, place.use};
    const ValueId flat = temporaries_.at(key);
    ir::AssembleAttrs assemble;
    ValueIds operands{flat};
    std::sort(parts_[key].begin(), parts_[key].end());
    for (const auto& [offset, part] : parts_[key]) {
      assemble.offsets.push_back(offset);
      operands.push_back(part);
    }
    sharding::Axes partial = to_.shardings[flat.index()].partial;
    const Work work = Work::kWeightGrad;
    ValueId sum = to_.add_op1(make_op(OpKind::kAssemble, assemble, operands, work, layer),
                              flat_type(group, 1, partial));
    if (!group.model_partial.empty()) {
      ir::CollectiveAttrs attrs;
      attrs.group = ir::AxisGroup{group.model_partial};
      partial = data_pending(group);
      sum = to_.add_op1(make_op(OpKind::kAllReduce, attrs, {sum}, work, layer),
                        flat_type(group, 1, partial));
    }
    const int64_t shards = gradient_shards(plan_, group);
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{group.data_axes};
    attrs.global_size = group.elements;
    if (group.dp_partial) {
      sum = to_.add_op1(make_op(shards > 1 ? OpKind::kReduceScatter : OpKind::kAllReduce, attrs,
                                {sum}, work, layer),
                        flat_type(group, shards));
    } else if (shards > 1) {
      sum = to_.add_op1(make_op(OpKind::kShardSlice, attrs, {sum}, work, layer),
                        flat_type(group, shards));
    }
    const StateId state = group.uses[place.use].state;
    const ValueId accumulator = to_.add_input(
        flat_type(group, shards), fmt::format("grad/{}#{}", group.name, place.use), state);
    const ValueId added =
        to_.add_op1(make_op(OpKind::kAccumulate, ir::NoAttrs{}, {accumulator, sum}, work, layer),
                    flat_type(group, shards));
    to_.graph.updates.push_back({state, added});
  }

  const LocalGraph& from_;
  const Plan& plan_;
  const std::vector<FlatGroup>& groups_;
  LocalGraph to_;
  ValueIds moved_;
  std::map<StateId, Place> weights_, gradients_;
  std::map<ValueId, Place> gathered_, accumulators_;
  std::map<std::pair<size_t, bool>, ValueId> flat_weights_;
  std::map<size_t, ValueId> shard_inputs_;
  std::map<std::tuple<size_t, size_t, bool>, ValueId> weight_views_;
  std::map<std::pair<size_t, size_t>, ValueId> temporaries_;
  std::map<std::pair<size_t, size_t>, int> waiting_;
  std::map<std::pair<size_t, size_t>, std::vector<std::pair<int64_t, ValueId>>> parts_;
};

}  // namespace

ZeroResult apply_zero(const LocalGraph& stage, const Plan& plan,
                      const std::vector<FlatGroup>& groups) {
  return Rewriter(stage, plan, groups).run();
}

}  // namespace mw::compile
