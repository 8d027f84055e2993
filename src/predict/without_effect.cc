#include "predict/without_effect.h"

#include <cmath>

#include <fmt/core.h>

#include "compile/schedule.h"

namespace mw::predict {
namespace {

using simulate::Beside;
using simulate::Options;
using simulate::Overlap;

// Two ways to add up one time.
constexpr double kSameStep = 1e-9;
constexpr const char* kNoLonger = "the step is as long without it";

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

// One kind of communication, and why nothing computes beside it.
struct Kind {
  Beside beside;
  bool Facts::* there;
  const char* reason;
};
constexpr Kind kKinds[] = {
    {Beside::kMessages, &Facts::messages, "one pipeline rank sends no messages"},
    {Beside::kTensor, &Facts::tensor, "tp is 1"},
    {Beside::kGradReduce, &Facts::reduces, "every gradient is on one rank"},
    {Beside::kParamGather, &Facts::replicas, "dp and cp are 1"},
    {Beside::kRing, &Facts::ring, "cp is 1"},
    {Beside::kOther, &Facts::experts, "ep is 1"},
};

void add_plan(const compile::Plan& plan, const Facts& facts, std::vector<std::string>& found) {
  const compile::Plan usual;
  constexpr const char* kNothingDivides = "dp and cp are 1";
  if (plan.zero > 0 && !facts.replicas)
    found.push_back(fmt::format("zero={} ({})", plan.zero, kNothingDivides));
  if (plan.zero == 2 && facts.replicas && !facts.weights)
    found.emplace_back("zero=2 (grad_reduce=step keeps gradients whole: it is zero=1)");
  if (plan.prefetch_mb != usual.prefetch_mb && !facts.gathers_ahead) {
    found.push_back(fmt::format("prefetch_mb={} ({})", plan.prefetch_mb,
                                plan.zero == 3 ? kNothingDivides : "it is of zero=3"));
  }
}

// What differs between two overlaps, each with the reason why nothing in the plan is of it; null:
// there is something.
std::vector<const char*> reasons(const compile::Plan& plan, const Overlap& own,
                                 const Overlap& other, const Facts& facts) {
  std::vector<const char*> found;
  const auto differ = [&](bool differs, bool there, const char* reason) {
    if (differs) found.push_back(there ? nullptr : reason);
  };
  differ(own.messages != other.messages, facts.messages, "one pipeline rank sends none");
  const bool inside = facts.tensor || facts.ring || facts.weights || facts.experts;
  differ(own.collectives != other.collectives || own.serial != other.serial, inside,
         "no microbatch has collectives");
  differ(own.tensor != other.tensor, facts.tensor, "tp is 1");
  differ(own.async_tp != other.async_tp, facts.gathers_tensors,
         "it is of sp's gathers and scatters");
  differ(own.grad_reduce != other.grad_reduce || own.grad_reduce_idle != other.grad_reduce_idle,
         facts.reduces, "every gradient is on one rank");
  differ(own.param_gather != other.param_gather, facts.gathers_updated,
         "the update gathers none; it does with zero=1 or 2");
  differ(own.ring != other.ring, facts.ring, "cp is 1");
  differ(own.weights != other.weights, facts.weights, "no microbatch gathers or reduces any");
  if (own.pairs != other.pairs) {
    const bool laid = pipeline::needs(compile::schedule_of(plan)).pairs;
    differ(true, facts.experts && laid,
           facts.experts ? "the schedule lays no forward and backward together" : "ep is 1");
  }
  // A number for all kinds is about those that there are.
  for (const Kind& kind : kKinds) {
    const auto b = static_cast<size_t>(kind.beside);
    differ(own.slowdown[b] != other.slowdown[b], facts.*kind.there, kind.reason);
  }
  return found;
}

// What is asked for of overlaps but for one word, of --overlap or, behind these, of --slowdown.
Overlap without_word(const Request& request, size_t left_out) {
  Overlap overlap = simulate::options_of(request.cluster.stack).overlap;
  const Asked& asked = request.asked;
  for (size_t i = 0; i < asked.overlap.size(); ++i) {
    if (i != left_out) simulate::set_overlap(overlap, asked.overlap[i]);
  }
  for (size_t i = 0; i < asked.slowdown.size(); ++i) {
    if (asked.overlap.size() + i != left_out) simulate::set_slowdown(overlap, asked.slowdown[i]);
  }
  return overlap;
}

size_t words(const Request& request) {
  return request.asked.overlap.size() + request.asked.slowdown.size();
}

std::string word_text(const Asked& asked, size_t word) {
  return word < asked.overlap.size() ? "overlap " + asked.overlap[word]
                                     : "slowdown " + asked.slowdown[word - asked.overlap.size()];
}

// Why the word has no effect, if it has none; "": nothing in the plan says so.
std::string reason_of(const Request& request, size_t word, const Facts& facts) {
  const Overlap other = without_word(request, word);
  std::string reason;
  for (const char* one : reasons(request.plan, request.options.overlap, other, facts)) {
    if (one == nullptr) return "";
    if (reason.empty()) reason = one;
  }
  if (reason.empty()) return "that holds without it";
  const bool of_all = word >= request.asked.overlap.size() &&
                      word_text(request.asked, word).find('=') == std::string::npos;
  return of_all ? "one rank communicates with none" : reason;
}

}  // namespace

std::vector<std::string> without_effect(const Request& request) {
  std::vector<std::string> found;
  const Facts facts(request.plan);
  add_plan(request.plan, facts, found);
  const Options profile = simulate::options_of(request.cluster.stack);
  if (request.options.scatter_gather != profile.scatter_gather &&
      (!facts.tensor || !facts.messages || request.plan.sp)) {
    found.push_back(
        fmt::format("scatter_gather ({})", !facts.messages ? "one pipeline rank sends no messages"
                                           : !facts.tensor ? "tp is 1"
                                                           : "with sp messages are parts already"));
  }
  return found;
}

void add_without_effect(const Request& request, const Step& step, Prediction& prediction) {
  const Facts facts(request.plan);
  const auto is_same = [&](const Prediction& other) {
    return std::abs(other.step.value - prediction.step.value) <=
               kSameStep * prediction.step.value &&
           other.needed() == prediction.needed();
  };
  Request other = request;
  other.options.trace = other.options.figures = false;
  if (const int64_t usual = compile::Plan().bucket_mb; request.plan.bucket_mb != usual) {
    other.plan.bucket_mb = usual;
    if (is_same(predict(other)))
      prediction.without_effect.push_back(
          fmt::format("bucket_mb={} ({})", request.plan.bucket_mb,
                      facts.reduces ? kNoLonger : "every gradient is on one rank"));
    other.plan = request.plan;
  }
  for (size_t word = 0; word < words(request); ++word) {
    other.options.overlap = without_word(request, word);
    if (!is_same(predict(other, step, prediction))) continue;
    const std::string reason = reason_of(request, word, facts);
    prediction.without_effect.push_back(fmt::format("{} ({})", word_text(request.asked, word),
                                                    reason.empty() ? kNoLonger : reason));
  }
}

}  // namespace mw::predict
