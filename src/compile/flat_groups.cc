#include "compile/flat_groups.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/round.h"
#include "base/text.h"
#include "ops/update_ops.h"

namespace mw::compile {
namespace {

// What the members of a group have in common.
struct Key {
  LayerId layer;
  sharding::Axes data_axes, model_partial;
  bool dp_partial = false;
  StateId shared;  // valid: a group of this parameter alone
  friend auto operator<=>(const Key&, const Key&) = default;
};

bool is_accumulator(const ir::State& state) {
  return state.kind == ir::StateKind::kGradient && state.parameter.valid();
}

// By parameter those of `states`, in the order of their uses in the model.
using Accumulators = std::map<StateId, std::vector<const StateUse*>>;
Accumulators accumulators_of(const std::vector<StateUse>& states, const ir::Module& module) {
  Accumulators accumulators;
  for (const StateUse& use : states) {
    const ir::State& state = module.state(use.state);
    if (is_accumulator(state)) accumulators[state.parameter].push_back(&use);
  }
  for (auto& [parameter, list] : accumulators) {
    std::sort(list.begin(), list.end(), [&](const StateUse* a, const StateUse* b) {
      return module.state(a->state).use < module.state(b->state).use;
    });
  }
  return accumulators;
}

// [state] of the whole model: how often a parameter is used.
std::vector<int> uses_of_parameters(const ir::Module& module) {
  std::vector<int> uses(module.states.size(), 0);
  for (const ir::State& state : module.states) {
    if (is_accumulator(state)) ++uses[state.parameter.index()];
  }
  return uses;
}

// What ZeRO shards a weight over: the plan's data axes; of experts, which ep divides, the others.
sharding::Axes data_axes_of(const StateUse& weight, const Plan& plan) {
  sharding::Axes axes = plan.data_axes();
  for (const sharding::Axes& divided : weight.sharding.dims) {
    for (const Name axis : divided) erase(axes, axis);
  }
  if (axes.empty()) axes.push_back("dp");
  return axes;
}

int64_t shards_over(const sharding::Axes& axes, const Plan& plan) {
  int64_t shards = 1;
  for (const Name axis : axes) shards *= plan.axis_size(axis);
  return shards;
}

// The flat state of a group; ranks that share a parameter share the state's name and layout.
StateId add_flat(ir::Module& module, const std::string& kind, const FlatGroup& group,
                 const std::string& suffix, ir::StateKind state_kind) {
  ir::State state;
  state.name = fmt::format("{}/{}{}", kind, group.name, suffix);
  state.type = ir::make_type(DType::kF32, {group.elements});
  state.kind = state_kind;
  if (const auto there = module.find_state(state.name)) {
    MW_CHECK(module.state(*there).type == state.type, "two flat states {}", state.name);
    return *there;
  }
  return module.add_state(std::move(state));
}

// The group's flat states, and its size padded so that each shard has whole norm blocks.
void add_states(FlatGroup& group, ir::Module& module) {
  group.elements = round_up(group.elements, ops::kNormBlock * group.data_size);
  group.weight = add_flat(module, "weight", group, "", ir::StateKind::kMaster);
  for (size_t u = 0; u < group.uses.size(); ++u) {
    const std::string use = group.uses.size() > 1 ? fmt::format("#{}", u) : "";
    group.uses[u].state = add_flat(module, "grad", group, use, ir::StateKind::kGradient);
  }
  group.moment = add_flat(module, "m", group, "", ir::StateKind::kMoment);
  group.variance = add_flat(module, "v", group, "", ir::StateKind::kMoment);
}

}  // namespace

sharding::Axes data_pending(const FlatGroup& group) {
  sharding::Axes axes = group.dp_partial ? group.data_axes : sharding::Axes{};
  std::sort(axes.begin(), axes.end());
  return axes;
}

int64_t weight_shards(const Plan& plan, const FlatGroup& group) {
  return plan.zero >= 3 ? group.data_size : 1;
}
int64_t moment_shards(const Plan& plan, const FlatGroup& group) {
  return plan.zero >= 1 ? group.data_size : 1;
}
int64_t gradient_shards(const Plan& plan, const FlatGroup& group) {
  return plan.zero >= 1 && plan.effective_grad_reduce() == GradReduce::kMicrobatch ? group.data_size
                                                                                   : 1;
}

LocalGraph::Made flat_type(const FlatGroup& group, int64_t shards, const sharding::Axes& partial) {
  LocalGraph::Made made = flat_type(group.elements, shards, partial);
  if (shards > 1) made.sharding.dims[0] = group.data_axes;
  return made;
}

std::vector<FlatGroup> make_flat_groups(const std::vector<StateUse>& states, const Plan& plan,
                                        ir::Module& module) {
  Accumulators accumulators = accumulators_of(states, module);
  const std::vector<int> uses_in_model = uses_of_parameters(module);
  std::map<Key, FlatGroup> groups;
  for (const StateUse& use : states) {
    const ir::State& state = module.state(use.state);
    if (state.kind != ir::StateKind::kWeight) continue;
    const std::vector<const StateUse*>& list = accumulators[use.state];
    Key key;
    key.layer = state.layer;
    const sharding::Axes data_axes = data_axes_of(use, plan);
    key.data_axes = data_axes;
    if (!list.empty()) {
      key.model_partial = list[0]->sharding.partial;
      size_t pending = 0;
      for (const Name axis : data_axes) pending += erase(key.model_partial, axis);
      MW_CHECK(pending == 0 || pending == data_axes.size(), "{} pends over a part of {}",
               state.name, join(data_axes, ","));
      key.dp_partial = pending > 0;
    }
    if (uses_in_model[use.state.index()] > 1) key.shared = use.state;
    FlatGroup& group = groups[key];
    group.data_axes = data_axes;
    group.data_size = shards_over(data_axes, plan);
    group.model_partial = key.model_partial;
    group.dp_partial = key.dp_partial;
    group.shared = key.shared.valid();
    if (group.members.empty()) {
      group.name = group.shared        ? state.name
                   : key.layer.valid() ? module.layers[key.layer.index()].name
                                       : "model";
      for (const Name axis : key.model_partial) group.name += "/" + axis.str();
      if (data_axes != plan.data_axes()) group.name += "/experts";
      group.uses.resize(std::max<size_t>(1, list.size()));
    }
    for (size_t u = 0; u < list.size(); ++u) {
      MW_CHECK(list[u]->sharding.partial == list[0]->sharding.partial,
               "uses of {} pend over different axes", state.name);
      group.uses[u].accumulators.push_back(list[u]->state);
    }
    group.members.push_back({use.state, use.global, use.local, use.sharding, group.elements});
    group.elements += round_up(use.local.elements(), ops::kNormBlock);
  }
  std::vector<FlatGroup> result;
  for (auto& [key, group] : groups) {
    add_states(group, module);
    result.push_back(std::move(group));
  }
  return result;
}

}  // namespace mw::compile
