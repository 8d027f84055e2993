// Sums of gradients over replicas of stages, of coarse estimates (coarse.h).
#include <algorithm>

#include "cluster/slice.h"
#include "cost/collective.h"
#include "predict/coarse.h"
#include "predict/plan_groups.h"
#include "predict/precision.h"

namespace mw::predict {
namespace {

// Of one kind of weights: the axes over which the sum goes at once with that over replicas, where
// the ranks of one place along them and others lie, and the parts that ZeRO 1 leaves of it.
struct Kind {
  Names others;
  std::vector<RankId> shifts;
  std::vector<cluster::GroupShape> of_data;
  double parts = 1;
};

Kind kind_of(const cluster::Cluster& cluster, const compile::Plan& plan, const Names& data,
             bool together, bool in_parts) {
  Kind kind;
  kind.others = together ? data : Names{};
  kind.shifts = beside(cluster, plan, kind.others);
  kind.of_data = shapes_along(cluster, plan, data);
  if (in_parts) {
    for (const Name axis : data) kind.parts *= static_cast<double>(plan.axis_size(axis));
  }
  return kind;
}

// Ranks with a replica of a stage, ascending.
std::vector<int32_t> holders(const Order& order, int32_t stage) {
  std::vector<int32_t> ranks;
  for (int32_t j = 0; j < order.replicas(); ++j)
    ranks.push_back(order.rank_of(j * order.slices() * order.stages() + stage));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

// Gradients of ranks' stages summed over their replicas: what ZeRO leaves of them to one rank, or
// with the data-parallel ranks in one collective, which is in place of the update's own.
std::vector<Coarse::ReplicaSum> Coarse::replica_sums(const Setting& setting) {
  const Order& order = *setting.orders.longer;
  if (order.replicas() == 1) return {};
  const compile::Plan& plan = setting.plan;
  const cluster::Cluster on = cluster::slice_of(base_.cluster, plan.ranks());
  const StackMemory memory = stack_memory(on, plan, base_.options.fp8);
  const bool narrow = memory.f16_gradients && base_.precision == DType::kF16;
  const auto size = static_cast<double>(dtype_size(narrow ? DType::kF16 : DType::kF32));
  const double share =
      base_.precision == DType::kF32
          ? 1
          : on.device.attained.gradient_bytes_of(base_.precision == DType::kBF16) / size;
  const bool step = divided_stage(plan) == 0, together = plan.zero == 0 && step;
  Names of_experts = plan.data_axes();
  erase(of_experts, "ep");
  const auto kind = [&](const Names& data) {
    return kind_of(on, plan, data, together, plan.zero == 1 && step);
  };
  const Kind usual = kind(plan.data_axes()), experts = kind(of_experts);
  const int64_t stride = stride_of(plan, "pp");
  const auto seconds = [&](double bytes, const std::vector<cluster::GroupShape>& shapes) {
    const auto sent = Bytes(static_cast<int64_t>(bytes * share));
    return cost::collective_time(on, ir::OpKind::kAllReduce, sent, shapes).time.value;
  };
  std::vector<ReplicaSum> sums;
  for (int32_t s = 0; s < order.stages(); ++s) {
    ReplicaSum sum;
    sum.ranks = holders(order, s);
    const auto same = [&](const ReplicaSum& other) { return other.ranks == sum.ranks; };
    if (std::any_of(sums.begin(), sums.end(), same)) continue;  // all of a rank's stages go at once
    double all = 0, divided = 0;                                // bytes
    for (const int32_t rank : sum.ranks) {
      const Facts& states = states_[static_cast<size_t>(rank)];
      all = std::max(all, states[kGradients]);
      divided = std::max(divided, states[kExpertGradients]);
    }
    // What both ends have of a tied embedding is added up before.
    if (s == 0 && base_.model.tie_word_embeddings &&
        holders(order, order.stages() - 1) == sum.ranks) {
      all -= size * static_cast<double>(base_.model.vocab_size * base_.model.hidden_size) /
             static_cast<double>(plan.tp);
    }
    const auto add = [&](const Kind& of, double bytes) {
      if (bytes <= 0) return;
      std::vector<RankId> members;
      for (const int32_t rank : sum.ranks) {
        for (const RankId member : group_along(plan, of.others, RankId(rank * stride)))
          members.push_back(member);
      }
      std::sort(members.begin(), members.end());
      const double part = bytes / of.parts;
      sum.seconds += seconds(part, cluster::group_shapes(on, members, of.shifts));
      if (together) sum.seconds -= seconds(part, of.of_data);
    };
    add(usual, all - divided);
    add(experts, divided);
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace mw::predict
