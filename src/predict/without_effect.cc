#include "predict/without_effect.h"

#include <fmt/core.h>

#include "compile/schedule.h"

namespace mw::predict {
namespace {

using simulate::Beside;
using simulate::Options;
using simulate::Overlap;

// What a step has that settings are about.
struct Facts {
  explicit Facts(const compile::Plan& plan)
      : replicas(plan.dp * plan.cp > 1),
        gathers_updated(replicas && plan.zero > 0 && plan.zero < 3),
        gathers_ahead(replicas && plan.zero == 3),
        reduces(replicas || plan.sp || plan.pp > 1),  // pp: what two stages share, replicas
        tensor(plan.tp > 1),
        gathers_tensors(plan.sp),
        messages(plan.pp > 1),
        ring(plan.cp > 1),
        weights(replicas && plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch),
        experts(plan.ep > 1) {}
  bool replicas, gathers_updated, gathers_ahead, reduces, tensor, gathers_tensors, messages, ring,
      weights, experts;
};

// One kind of communication, and why there is none.
struct Kind {
  Beside beside;
  bool Facts::* there;
  const char* reason;
};
constexpr Kind kKinds[] = {
    {Beside::kMessages, &Facts::messages, "one pipeline rank sends no messages"},
    {Beside::kTensor, &Facts::tensor, "tp is 1"},
    {Beside::kGradReduce, &Facts::reduces, "every gradient is on one rank"},
    {Beside::kRing, &Facts::ring, "cp is 1"},
};

void add_plan(const compile::Plan& plan, const Facts& facts, std::vector<std::string>& found) {
  const compile::Plan usual;
  constexpr const char* kNothingDivides = "dp and cp are 1";
  if (plan.zero > 0 && !facts.replicas)
    found.push_back(fmt::format("zero={} ({})", plan.zero, kNothingDivides));
  if (plan.prefetch_mb != usual.prefetch_mb && !facts.gathers_ahead) {
    found.push_back(fmt::format("prefetch_mb={} ({})", plan.prefetch_mb,
                                plan.zero == 3 ? kNothingDivides : "it is of zero=3"));
  }
  if (plan.bucket_mb != usual.bucket_mb && !facts.reduces)
    found.push_back(fmt::format("bucket_mb={} (every gradient is on one rank)", plan.bucket_mb));
}

void add_overlap(const compile::Plan& plan, const Overlap& own, const Overlap& profile,
                 const Facts& facts, std::vector<std::string>& found) {
  if (own.messages != profile.messages && !facts.messages)
    found.emplace_back("overlap of messages (one pipeline rank sends none)");
  if (own.async_tp != profile.async_tp && !facts.gathers_tensors)
    found.emplace_back("overlap async-tp (it is of sp's gathers and scatters)");
  if (own.grad_reduce != profile.grad_reduce && !facts.reduces)
    found.emplace_back("overlap grad_reduce (every gradient is on one rank)");
  if (own.param_gather != profile.param_gather && !facts.gathers_updated)
    found.emplace_back("overlap param_gather (the update gathers none; it does with zero=1 or 2)");
  if (own.ring != profile.ring && !facts.ring) found.emplace_back("overlap of the ring (cp is 1)");
  if (own.weights != profile.weights && !facts.weights)
    found.emplace_back("overlap of weights (no microbatch gathers or reduces any)");
  if (own.pairs != profile.pairs) {
    if (!facts.experts) {
      found.emplace_back("overlap of pairs (ep is 1)");
    } else if (!pipeline::needs(compile::schedule_of(plan)).pairs) {
      found.emplace_back("overlap of pairs (the schedule lays no forward and backward together)");
    }
  }
  for (const Kind& kind : kKinds) {
    const auto b = static_cast<size_t>(kind.beside);
    if (own.slowdown[b] == profile.slowdown[b] || facts.*kind.there) continue;
    // A number for all kinds is about those that there are.
    if (own.slowdown[b] == own.slowdown[static_cast<size_t>(Beside::kOther)]) continue;
    found.push_back(fmt::format("slowdown {}={:g} ({})", simulate::beside_name(kind.beside),
                                own.slowdown[b], kind.reason));
  }
}

}  // namespace

std::vector<std::string> without_effect(const Request& request) {
  std::vector<std::string> found;
  const Facts facts(request.plan);
  add_plan(request.plan, facts, found);
  const Options profile = simulate::options_of(request.cluster.stack);
  add_overlap(request.plan, request.options.overlap, profile.overlap, facts, found);
  if (request.options.scatter_gather != profile.scatter_gather &&
      (!facts.tensor || !facts.messages || request.plan.sp)) {
    found.push_back(
        fmt::format("scatter_gather ({})", !facts.messages ? "one pipeline rank sends no messages"
                                           : !facts.tensor ? "tp is 1"
                                                           : "with sp messages are parts already"));
  }
  return found;
}

}  // namespace mw::predict
