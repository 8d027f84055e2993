#include "compile/state_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/round.h"
#include "pipeline/memory_plan.h"

namespace mw::compile {
namespace {

using pipeline::Buffer;
using pipeline::Category;
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
  }

  void add_metric(const std::string& name, const StateUse& use) {
    Buffer buffer;
    buffer.name = name;
    buffer.type = use.local;
    buffer.global_type = use.global;
    buffer.sharding = use.sharding;
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
    MW_CHECK(table_.by_name.emplace(buffer.name, id).second, "two state buffers {}", buffer.name);
    table_.buffers.push_back(std::move(buffer));
    return id;
  }

  BufferId add_flat(const FlatGroup& group, StateId state, int64_t shards, Category category,
                    const sharding::Axes& partial = {}) {
    Buffer buffer;
    buffer.name = module_.state(state).name;
    buffer.global_type = ir::make_type(DType::kF32, {group.elements});
    buffer.type = ir::make_type(DType::kF32, {group.elements / shards});
    sharding::Sharding sharding = sharding::replicated(1);
    if (shards > 1) sharding.dims[0] = group.data_axes;
    sharding.partial = partial;
    buffer.sharding = std::move(sharding);
    buffer.category = category;
    return place(std::move(buffer));
  }

  void add_view(const GroupMember& member, const std::string& name, BufferId parent,
                Category category, const sharding::Axes& partial) {
    Buffer buffer;
    buffer.name = name;
    buffer.type = member.local;
    buffer.global_type = member.global;
    buffer.sharding = member.sharding;
    buffer.sharding.edit().partial = partial;
    buffer.category = category;
    buffer.storage.kind = Storage::Kind::kView;
    buffer.storage.parent = parent;
    buffer.storage.offset = member.offset * dtype_size(DType::kF32);
    push(std::move(buffer));
  }

  void add_own_part(const FlatGroup& group, BufferId weight) {
    Buffer buffer = table_.buffers[weight.index()];
    buffer.name += "#own";
    buffer.type = ir::make_type(DType::kF32, {group.elements / group.data_size});
    buffer.sharding.edit().dims[0] = group.data_axes;
    buffer.storage = Storage();
    buffer.storage.kind = Storage::Kind::kView;
    buffer.storage.parent = weight;
    buffer.storage.shard_axes = group.data_axes;
    buffer.storage.shard_stride = buffer.bytes().value;
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
  return maker.take();
}

}  // namespace mw::compile
