#include "compile/state_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "pipeline/memory_plan.h"

namespace mw::compile {
namespace {

using pipeline::Buffer;
using pipeline::Category;
using pipeline::Layout;
using pipeline::Storage;

class TableMaker {
 public:
  TableMaker(const Plan& plan, const ir::Module& module) : plan_(plan), module_(module) {}

  void add_group(const FlatGroup& group) {
    const BufferId weight =
        add_flat(group, group.weight, weight_shards(plan_, group), Category::kWeights);
    if (weight_shards(plan_, group) == 1) {
      for (const GroupMember& member : group.members) {
        add_view(member, module_.state(member.parameter).name, weight, Category::kWeights, {});
      }
    }
    if (weight_shards(plan_, group) == 1 && moment_shards(plan_, group) > 1)
      add_own_part(group, weight);
    for (const GroupUse& use : group.uses) {
      const sharding::Axes partial = pending(group);
      const BufferId gradient =
          add_flat(group, use.state, gradient_shards(plan_, group), Category::kGradients, partial);
      if (gradient_shards(plan_, group) > 1) continue;
      for (size_t m = 0; m < use.accumulators.size(); ++m) {
        add_view(group.members[m], module_.state(use.accumulators[m]).name, gradient,
                 Category::kGradients, partial);
      }
    }
    add_flat(group, group.moment, moment_shards(plan_, group), Category::kOptimizer);
    add_flat(group, group.variance, moment_shards(plan_, group), Category::kOptimizer);
    if (!plan_.post_validation) return;
    for (const StateId state : {group.weight, group.moment, group.variance})
      add_kept(group, state, kBefore);
    add_kept(group, group.weight, kTaken);
  }

  void add_metric(const std::string& name, const StateUse& use) {
    Buffer buffer;
    buffer.value = name;
    buffer.layout = {use.local, use.global, use.sharding};
    buffer.category = Category::kMetrics;
    place(buffer);
  }

  StateTable take() { return std::move(table_); }

 private:
  // Over which axes the accumulators are pending between microbatches.
  sharding::Axes pending(const FlatGroup& group) const {
    if (plan_.effective_grad_reduce() == GradReduce::kMicrobatch) return {};
    sharding::Axes axes = group.model_partial;
    const sharding::Axes data = data_pending(group);
    axes.insert(axes.begin(), data.begin(), data.end());
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  BufferId place(Buffer buffer) {
    buffer.storage.kind = Storage::Kind::kState;
    buffer.storage.offset = table_.arena.value;
    table_.arena += Bytes(round_up(buffer.bytes().value, pipeline::kAlignment));
    return push(std::move(buffer));
  }
  BufferId push(Buffer buffer) {
    const BufferId id(static_cast<int64_t>(table_.buffers.size()));
    MW_CHECK(table_.by_name.emplace(buffer.value, id).second, "two state buffers {}",
             buffer.value.str());
    table_.buffers.push_back(std::move(buffer));
    return id;
  }

  void add_kept(const FlatGroup& group, StateId state, const char* what) {
    add_flat(group, module_.state(state).name + what, moment_shards(plan_, group),
             Category::kOptimizer);
  }
  BufferId add_flat(const FlatGroup& group, StateId state, int64_t shards, Category category,
                    const sharding::Axes& partial = {}) {
    return add_flat(group, module_.state(state).name, shards, category, partial);
  }
  BufferId add_flat(const FlatGroup& group, const std::string& name, int64_t shards,
                    Category category, const sharding::Axes& partial = {}) {
    Buffer buffer;
    buffer.value = name;
    sharding::Sharding sharding = sharding::replicated(1);
    if (shards > 1) sharding.dims[0] = group.data_axes;
    sharding.partial = partial;
    buffer.layout = {ir::make_type(DType::kF32, {group.elements / shards}),
                     ir::make_type(DType::kF32, {group.elements}), std::move(sharding)};
    buffer.category = category;
    return place(std::move(buffer));
  }

  void add_view(const GroupMember& member, const std::string& name, BufferId parent,
                Category category, const sharding::Axes& partial) {
    Buffer buffer;
    buffer.value = name;
    buffer.layout = {member.local, member.global, member.sharding};
    buffer.layout.edit().sharding.partial = partial;
    buffer.category = category;
    buffer.storage.kind = Storage::Kind::kView;
    buffer.storage.parent = parent;
    buffer.storage.offset = member.offset * dtype_size(DType::kF32);
    push(std::move(buffer));
  }

  void add_own_part(const FlatGroup& group, BufferId weight) {
    Buffer buffer = table_.buffers[weight.index()];
    buffer.value = buffer.value.str() + "#own";
    Layout& layout = buffer.layout.edit();
    layout.type = ir::make_type(DType::kF32, {group.elements / group.data_size});
    layout.sharding.dims[0] = group.data_axes;
    buffer.storage = Storage();
    buffer.storage.kind = Storage::Kind::kView;
    buffer.storage.parent = weight;
    buffer.storage.part = {group.data_axes, buffer.bytes().value};
    push(std::move(buffer));
  }

  const Plan& plan_;
  const ir::Module& module_;
  StateTable table_;
};

}  // namespace

BufferId StateTable::at(const std::string& name) const {
  const auto it = by_name.find(name);
  MW_CHECK(it != by_name.end(), "no state buffer {}", name);
  return it->second;
}

StateUse own_norms_state(const ir::Module& module) {
  StateUse use;
  use.global = use.local =
      ir::make_type(DType::kF64, {static_cast<int64_t>(module.parameters().size())});
  use.sharding = sharding::replicated(1);
  use.sharding.partial = {"pp"};
  return use;
}

StateUse own_loss_state() {
  StateUse use;
  use.global = use.local = ir::make_type(DType::kF32, {});
  use.sharding = sharding::replicated(0);
  use.sharding.partial = {"pp"};
  return use;
}

void add_kept_states(const std::vector<std::vector<FlatGroup>>& groups, ir::Module& module) {
  const auto add = [&](const std::string& name, const ir::TensorType& type, ir::StateKind kind) {
    if (module.find_state(name)) return;
    ir::State state;
    state.name = name;
    state.type = type;
    state.kind = kind;
    module.add_state(std::move(state));
  };
  const ir::TensorType scalar = ir::make_type(DType::kF32, {});
  add(kOwnNorms, own_norms_state(module).global, ir::StateKind::kMetric);
  for (const char* name : {kOwnLoss, kUsedScale, kScale}) add(name, scalar, ir::StateKind::kMetric);
  for (const std::vector<FlatGroup>& of_rank : groups) {
    for (const FlatGroup& group : of_rank) {
      const ir::TensorType type = module.state(group.weight).type;
      for (const StateId state : {group.weight, group.moment, group.variance})
        add(module.state(state).name + kBefore, type, ir::StateKind::kMoment);
      add(module.state(group.weight).name + kTaken, type, ir::StateKind::kMoment);
    }
  }
}

StateTable make_state_table(const std::vector<FlatGroup>& groups,
                            const std::vector<StateUse>& metrics, const Plan& plan,
                            const ir::Module& module) {
  TableMaker maker(plan, module);
  for (const FlatGroup& group : groups) maker.add_group(group);
  for (const StateUse& metric : metrics) maker.add_metric(module.state(metric.state).name, metric);
  StateUse scalar;
  scalar.global = scalar.local = ir::make_type(DType::kF32, {});
  maker.add_metric(kLossValue, scalar);
  maker.add_metric(kGradNorm, scalar);
  if (plan.post_validation) {
    for (const char* name : {kUsedScale, kScale, kAmended}) maker.add_metric(name, scalar);
    maker.add_metric(kOwnNorms, own_norms_state(module));
    maker.add_metric(kOwnLoss, own_loss_state());
  }
  return maker.take();
}

}  // namespace mw::compile
