// What does not fit, and the nearest change that does.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "predict/coarse.h"
#include "predict/lacking.h"
#include "predict/predict.h"

namespace mw::predict {
namespace {

using compile::Plan;
using compile::Recompute;

struct Change {
  Plan plan;
  std::string kind = {};  // what is said of another schedule; "": the plan's own
};

// "sp,zero=1"
std::string text_of(const Plan& now, const Change& change) {
  const Plan& plan = change.plan;
  std::vector<std::string> parts;
  if (!change.kind.empty()) parts.push_back(change.kind);
  // Of what a step took, which post-validation keeps.
  if (plan.post_validation != now.post_validation) parts.emplace_back("post_validation=false");
  if (plan.sp != now.sp) parts.emplace_back("sp");
  if (plan.regather != now.regather) parts.emplace_back("regather");
  if (plan.zero != now.zero) parts.push_back(fmt::format("zero={}", plan.zero));
  if (plan.ep != now.ep) parts.push_back(fmt::format("ep={}", plan.ep));
  if (plan.recompute != now.recompute)
    parts.push_back(fmt::format("recompute={}", name_of(plan.recompute)));
  if (plan.microbatches != now.microbatches)
    parts.push_back(fmt::format("microbatches={}", plan.microbatches));
  if (plan.prefetch_mb != now.prefetch_mb) parts.emplace_back("prefetch_mb=0");
  return join(parts, ",");
}

// Without the options that the kind does not have.
Change with_kind(const Plan& plan, const char* kind) {
  const int64_t chunks = pipeline::kind_of(kind).chunks.usual;
  const bool says = plan.chunks > 1 && plan.chunks != chunks;
  Change made{plan,
              fmt::format("schedule={}{}", kind, says ? fmt::format(",chunks={}", chunks) : "")};
  made.plan.schedule = kind;
  made.plan.written = {};
  made.plan.chunks = chunks;
  const std::vector<std::string> dropped =
      compile::drop_options(made.plan, pipeline::kind_of(kind));
  if (!dropped.empty()) made.kind += fmt::format(" (without {})", join(dropped, ", "));
  return made;
}

// Whether the schedule can take the place of the plan's own: stages that are named stay as they
// are.
bool takes_kind(const Plan& plan, const char* kind) {
  return plan.pp > 1 &&
         (plan.layers.empty() || with_kind(plan, kind).plan.stages() == plan.stages());
}

// Over how many ranks a mixture's experts can be divided inside a node, where there are nodes, the
// fewest first.
std::vector<int64_t> expert_ways(const Request& request, const Plan& plan) {
  std::vector<int64_t> ways;
  const cluster::Link* node = request.cluster.node();
  const int64_t most = node == nullptr ? plan.dp : std::min(plan.dp, node->devices);
  for (int64_t ep = 2; ep <= most; ++ep) {
    if (plan.dp % ep == 0 && request.model.mixture.experts % ep == 0) ways.push_back(ep);
  }
  return request.model.mixture.experts > 0 ? ways : std::vector<int64_t>{};
}

// Numbers of smaller microbatches, those of one sequence last.
std::vector<int64_t> more_microbatches(const Request& request, const Plan& plan) {
  std::vector<int64_t> counts;
  const int64_t most = request.global_batch / plan.dp;
  for (int64_t count = 2 * plan.microbatches; count <= most; count += plan.microbatches) {
    if (most % count == 0) counts.push_back(count);
  }
  return counts;
}

bool divides(const Plan& plan) { return plan.dp * plan.cp > 1; }  // what ZeRO does

// The values of one key, or of two that go together: the plan's own first, then those that take
// less memory, the nearest first.
using Values = std::vector<std::function<void(Plan&)>>;

std::vector<Values> keys_of(const Request& request) {
  const Plan& now = request.plan;
  std::vector<Values> keys;
  const auto add = [&](auto member, const auto& values) {
    Values made = {[=, own = now.*member](Plan& plan) { plan.*member = own; }};
    for (const auto& value : values) made.push_back([=](Plan& plan) { plan.*member = value; });
    keys.push_back(std::move(made));
  };
  const bool whole = now.recompute == Recompute::kFull;
  if (now.post_validation) add(&Plan::post_validation, std::vector{false});
  if (now.tp > 1) {
    const auto parts = [](bool sp, bool regather) {
      return [=](Plan& plan) {
        plan.sp = sp;
        plan.regather = regather;
      };
    };
    keys.push_back({parts(now.sp, now.regather), parts(true, now.regather)});
    if (!whole) keys.back().push_back(parts(true, true));
  }
  if (divides(now)) {
    std::vector<int64_t> zeros;
    for (int64_t zero = now.zero + 1; zero <= 3; ++zero) zeros.push_back(zero);
    add(&Plan::zero, zeros);
  }
  std::vector<int64_t> ways = expert_ways(request, now);
  std::erase_if(ways, [&](int64_t ep) { return ep <= now.ep; });
  add(&Plan::ep, ways);
  std::vector<Recompute> recomputes;
  if (now.recompute == Recompute::kNone) recomputes.push_back(selective_of(request.cluster.stack));
  if (!whole) recomputes.push_back(Recompute::kFull);
  add(&Plan::recompute, recomputes);
  add(&Plan::microbatches, more_microbatches(request, now));
  add(&Plan::prefetch_mb, std::vector<int64_t>{0});
  return keys;
}

// Estimates of memory are at most some percent off, of what another allocator than the plan
// reserves by a third; those of steps, where messages are most of them, by a fifth.
constexpr double kOff = 1.1, kOffWithAllocator = 1.5, kStepOff = 1.25;

// What a step takes with plans that fit. Each is simulated once, and only where an estimate does
// not tell.
class Steps {
 public:
  explicit Steps(const Request& request)
      : request_(request),
        asked_(request.plan),
        coarse_(request),
        limit_(static_cast<double>(request.cluster.device.usable_memory().value)),
        off_(request.cluster.stack.allocator == cluster::Allocator::kPlan ? kOff
                                                                          : kOffWithAllocator) {
    request_.options.trace = request_.options.figures = false;
  }
  // None: it does not fit, or cannot be, such as microbatches that the schedule does not take.
  std::optional<Seconds> of(const Plan& plan) {
    if (estimate_of(plan).peak > off_ * limit_) return {};
    const auto [it, is_new] = steps_.try_emplace(compile::to_json(plan).dump());
    if (!is_new) return it->second;
    request_.plan = plan;
    try {
      const std::optional<Prediction> prediction =
          predict_if_fits(request_, compile_step(request_));
      if (prediction) it->second = prediction->step;
    } catch (const Error&) {
    }
    return it->second;
  }

  bool fit(const Plan& plan) {
    return estimate_of(plan).peak * off_ < limit_ || of(plan).has_value();
  }
  // Whether it surely takes longer.
  bool is_slower(const Plan& plan, Seconds than) {
    return estimate_of(plan).step > kStepOff * than.value;
  }

 private:
  struct Estimated {
    double peak = 0, step = 0;
  };
  // Of a plan that cannot be endless memory; of one that has no estimate what tells nothing.
  Estimated estimate_of(const Plan& plan) {
    constexpr Estimated kNone = {std::numeric_limits<double>::infinity(), 0};
    request_.plan = plan;
    if (!compile::plan_findings(plan, request_.model.layers, model_shape(request_)).empty() ||
        !lacks_no_more(request_.cluster.stack, plan, asked_))
      return kNone;
    const bool ahead = plan.zero >= 3 && plan.prefetch_mb != Plan().prefetch_mb;
    if (ahead || !coarse_.has_order(plan)) return {limit_, 0};
    const Estimate estimate = coarse_.estimate(plan);
    return {static_cast<double>(estimate.peak.value), estimate.step.value};
  }

  Request request_;
  const Plan asked_;
  Coarse coarse_;
  const double limit_, off_;
  std::map<std::string, std::optional<Seconds>> steps_;
};

// The shortest step's, of those of one place the first.
class Shortest {
 public:
  explicit Shortest(Steps& steps) : steps_(steps) {}
  // Whether it fits.
  bool add(const Change& change) {
    if (best_ && steps_.is_slower(change.plan, step_)) return steps_.fit(change.plan);
    const std::optional<Seconds> step = steps_.of(change.plan);
    if (step && (!best_ || *step < step_)) {
      best_ = change;
      step_ = *step;
    }
    return step.has_value();
  }
  const std::optional<Change>& best() const { return best_; }

 private:
  Steps& steps_;
  std::optional<Change> best_;
  Seconds step_;
};

// One change: of every key the nearest value that fits, or another schedule.
std::optional<Change> single_change(const Request& request, Steps& steps) {
  const Plan& now = request.plan;
  Shortest shortest(steps);
  const char* leaner = pipeline::kind_of(now.schedule).variant.less_memory;
  std::vector<const char*> kinds = {pipeline::kUsualKind};
  if (leaner != nullptr) kinds.insert(kinds.begin(), leaner);
  for (const pipeline::ScheduleKind* kind : pipeline::listed_kinds()) {
    if (kind->variant.for_memory) kinds.push_back(kind->name);
  }
  for (const char* kind : kinds) {
    if (!takes_kind(now, kind)) continue;
    if (const Change made = with_kind(now, kind); !(made.plan == now)) shortest.add(made);
  }
  for (const Values& values : keys_of(request)) {
    for (const auto& set : values) {
      Change made{now};
      set(made.plan);
      if (!(made.plan == now) && shortest.add(made)) break;
    }
  }
  return shortest.best();
}

// Several at a time, each with one more, behind those that `made` has. `sharded`: weights are
// divided before anything is computed again; `regathered`: so is what sp gathers.
std::vector<Change> joint_changes(const Request& request, Change made, bool sharded,
                                  bool regathered) {
  std::vector<Change> changes;
  const int64_t most = request.global_batch / made.plan.dp;
  const auto add = [&](const auto& change) {
    const Plan before = made.plan;
    change(made.plan);
    if (!(made.plan == before)) changes.push_back(made);
  };
  const auto smallest = [&](Plan& plan) { plan.microbatches = std::max(most, plan.microbatches); };
  const bool whole = made.plan.recompute == Recompute::kFull, regather = made.plan.regather;
  add([](Plan& plan) { plan.post_validation = false; });
  if (made.plan.tp > 1) add([](Plan& plan) { plan.sp = true; });
  if (made.plan.tp > 1 && !whole && regathered) add([](Plan& plan) { plan.regather = true; });
  const bool parts = divides(made.plan);
  if (parts) add([](Plan& plan) { plan.zero = std::max<int64_t>(1, plan.zero); });
  if (const std::vector<int64_t> ways = expert_ways(request, made.plan); !ways.empty())
    add([&](Plan& plan) { plan.ep = std::max(ways.back(), plan.ep); });
  if (parts && sharded) add([](Plan& plan) { plan.zero = 3; });
  const Change shared = made;
  if (made.plan.recompute == Recompute::kNone)
    add([&](Plan& plan) { plan.recompute = selective_of(request.cluster.stack); });
  add(smallest);
  if (!whole) {
    made = shared;
    made.plan.regather = regather;
    add([](Plan& plan) { plan.recompute = Recompute::kFull; });
    add(smallest);
  }
  if (parts) {  // first with the plan's own microbatches: a schedule may not take others
    Change own = made;
    own.plan.microbatches = shared.plan.microbatches;
    own.plan.zero = 3;
    changes.push_back(std::move(own));
    add([](Plan& plan) { plan.zero = 3; });
    add([](Plan& plan) { plan.prefetch_mb = 0; });
  }
  return changes;
}

// Of changes that fit together, those without one of which they do not: what is not needed is taken
// back, first what then makes the shortest step.
Change needed_ones(const Request& request, Change change, Steps& steps) {
  const std::vector<Values> keys = keys_of(request);
  for (;;) {
    Shortest shortest(steps);
    for (const Values& values : keys) {
      for (const auto& set : values) {
        Change less = change;
        set(less.plan);
        if (less.plan == change.plan || shortest.add(less)) break;
      }
    }
    if (!shortest.best()) return change;
    change = *shortest.best();
  }
}

// The first of several changes that fit together, without what is not needed; of their orders the
// one with the shortest step.
std::optional<Change> joint_change(const Request& request, const Change& made, Steps& steps) {
  Shortest shortest(steps);
  for (const bool sharded : {false, true}) {
    for (const bool regathered : {false, true}) {
      for (const Change& change : joint_changes(request, made, sharded, regathered)) {
        if (!steps.fit(change.plan)) continue;
        shortest.add(needed_ones(request, change, steps));
        break;
      }
    }
  }
  return shortest.best();
}

// One change if that takes no time, or less than several do; several with the plan's schedule
// before those with another one.
std::optional<Change> nearest_change(const Request& request, Seconds step, Steps& steps) {
  Shortest shortest(steps);
  const Plan& now = request.plan;
  if (const std::optional<Change> one = single_change(request, steps)) {
    shortest.add(*one);
    if (*steps.of(one->plan) <= step) return one;
  }
  if (const std::optional<Change> several = joint_change(request, {now}, steps))
    shortest.add(*several);
  if (!shortest.best() && now.schedule != pipeline::kUsualKind &&
      takes_kind(now, pipeline::kUsualKind))
    return joint_change(request, with_kind(now, pipeline::kUsualKind), steps);
  return shortest.best();
}

}  // namespace

std::string memory_findings(const Request& request, const Prediction& prediction) {
  const std::vector<int32_t> full = prediction.too_full();
  if (full.empty()) return "";
  const auto worst =
      static_cast<size_t>(*std::max_element(full.begin(), full.end(), [&](int32_t a, int32_t b) {
        return prediction.memory[static_cast<size_t>(a)].peak <
               prediction.memory[static_cast<size_t>(b)].peak;
      }));
  const simulate::MemoryPeak& peak = prediction.result.ranks[worst].peak;
  std::vector<std::string> parts;
  for (const auto& [category, bytes] : peak.by_category)
    parts.push_back(fmt::format("{} {}", pipeline::to_string(category), format_bytes(bytes.value)));
  const std::string own = format_bytes(prediction.memory[worst].peak.value);
  const std::string limit = limit_text(request.cluster.device);
  std::string text =
      prediction.sharing > 1
          ? fmt::format("memory: {} ranks need {} of the {} that they share, pipeline rank {} {}",
                        prediction.sharing, format_bytes(prediction.needed().value), limit, worst,
                        own)
          : fmt::format("memory: pipeline rank {} needs {}, {} has {}", worst, own,
                        request.cluster.device.name, limit);
  text += fmt::format("; fullest {} into the step: {}", format_seconds(peak.time.value),
                      join(parts, ", "));
  if (full.size() > 1 && prediction.sharing == 1) {
    text += fmt::format("; {} more {} too full", full.size() - 1, full.size() == 2 ? "is" : "are");
  }
  Steps steps(request);
  if (const std::optional<Change> change = nearest_change(request, prediction.step, steps)) {
    return fmt::format("{}; the nearest change that fits, with a step of {}: {}", text,
                       format_seconds(steps.of(change->plan).value_or(Seconds(0)).value),
                       text_of(request.plan, *change));
  }
  const char* left = !request.cluster.shares_memory()
                         ? "more stages (pp) or tensor parallelism (tp)"
                     : request.plan.dp > 1 ? "fewer ranks (dp)"
                                           : "a smaller model, or more memory";
  return text +
         "; no recomputation, 1f1b, sharding of the optimizer, sequence parallelism or smaller "
         "microbatches make it fit: " +
         left;
}

}  // namespace mw::predict
