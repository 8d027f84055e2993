#include "predict/lacking.h"

#include <algorithm>

#include "pipeline/schedule.h"

namespace mw::predict {
namespace {

using cluster::Lacking;
using compile::Plan;
using compile::Recompute;

// Of the order alone. One pipeline rank takes microbatch after microbatch, whatever the kind.
pipeline::ScheduleNeeds needs_of(const Plan& plan) {
  if (plan.pp == 1) return {};
  if (plan.written) return pipeline::needs(*plan.written.schedule);
  const pipeline::ScheduleKind& kind = pipeline::kind_of(plan.schedule);
  pipeline::ScheduleNeeds needs;
  needs.split_backward = kind.split_backward;
  needs.replicas = kind.replicas > 1;
  needs.slices = kind.options.slices;
  return needs;
}

struct Trait {
  Lacking lacking;
  const char* words;
  bool (*has)(const Plan& plan, const pipeline::ScheduleNeeds& needs);
};
constexpr Trait kTraits[] = {
    {Lacking::kTensor, "tensor parallelism",
     [](const Plan& plan, const pipeline::ScheduleNeeds&) { return plan.tp > 1; }},
    {Lacking::kPipelines, "pipelines",
     [](const Plan& plan, const pipeline::ScheduleNeeds&) { return plan.pp > 1; }},
    {Lacking::kDividedPipelines, "ZeRO 2 and 3 with pipelines",
     [](const Plan& plan, const pipeline::ScheduleNeeds&) { return plan.pp > 1 && plan.zero > 1; }},
    {Lacking::kInterleaved, "several stages a rank",
     [](const Plan& plan, const pipeline::ScheduleNeeds&) { return plan.chunks > 1; }},
    {Lacking::kSelective, "selective recomputation",
     [](const Plan& plan, const pipeline::ScheduleNeeds&) {
       return plan.recompute == Recompute::kSelective || plan.recompute == Recompute::kSelectiveOp;
     }},
    {Lacking::kSplitBackward, "I and W apart",
     [](const Plan&, const pipeline::ScheduleNeeds& needs) { return needs.split_backward; }},
    {Lacking::kSplitRecompute, "I and W apart of what is recomputed",
     [](const Plan& plan, const pipeline::ScheduleNeeds& needs) {
       return needs.split_backward && plan.recompute != Recompute::kNone;
     }},
    {Lacking::kReplicas, "stages on several ranks",
     [](const Plan&, const pipeline::ScheduleNeeds& needs) { return needs.replicas; }},
    {Lacking::kSlices, "slices of sequences",
     [](const Plan&, const pipeline::ScheduleNeeds& needs) { return needs.slices; }},
};

}  // namespace

std::vector<std::string> lacking(const cluster::Stack& stack, const Plan& plan) {
  std::vector<std::string> found;
  if (stack.lacking.empty()) return found;
  const pipeline::ScheduleNeeds needs = needs_of(plan);
  for (const Trait& trait : kTraits) {
    if (stack.lacks(trait.lacking) && trait.has(plan, needs)) found.emplace_back(trait.words);
  }
  return found;
}

bool lacks_no_more(const cluster::Stack& stack, const Plan& plan, const Plan& other) {
  if (stack.lacking.empty()) return true;
  const pipeline::ScheduleNeeds needs = needs_of(plan), others = needs_of(other);
  return std::none_of(std::begin(kTraits), std::end(kTraits), [&](const Trait& trait) {
    return stack.lacks(trait.lacking) && trait.has(plan, needs) && !trait.has(other, others);
  });
}

std::vector<std::string> all_lacking(const cluster::Stack& stack) {
  std::vector<std::string> all;
  for (const Trait& trait : kTraits) {
    if (stack.lacks(trait.lacking)) all.emplace_back(trait.words);
  }
  return all;
}

Recompute selective_of(const cluster::Stack& stack) {
  return stack.selective_op ? Recompute::kSelectiveOp : Recompute::kSelective;
}

std::vector<Recompute> recomputes_of(const cluster::Stack& stack) {
  if (stack.lacks(Lacking::kSelective)) return {Recompute::kNone, Recompute::kFull};
  return {Recompute::kNone, selective_of(stack), Recompute::kFull};
}

}  // namespace mw::predict
