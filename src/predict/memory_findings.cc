// What does not fit, and the nearest change that does.
#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
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
  if (plan.recompute != now.recompute) {
    parts.emplace_back(plan.recompute == Recompute::kFull          ? "recompute=full"
                       : plan.recompute == Recompute::kSelectiveOp ? "recompute=selective-op"
                                                                   : "recompute=selective");
  }
  if (plan.microbatches != now.microbatches)
    parts.push_back(fmt::format("microbatches={}", plan.microbatches));
  if (plan.prefetch_mb != now.prefetch_mb) parts.emplace_back("prefetch_mb=0");
  return join(parts, ",");
}

// Without the options of the plan's own kind.
Change with_kind(const Plan& plan, const char* kind) {
  Change made{plan, fmt::format("schedule={}{}", kind, plan.chunks > 1 ? ",chunks=1" : "")};
  made.plan.schedule = kind;
  made.plan.written = {};
  made.plan.chunks = 1;
  std::vector<std::string> dropped;
  const auto drop = [&](const char* name, auto& option) {
    if (option == std::decay_t<decltype(option)>{}) return;
    option = {};
    dropped.emplace_back(name);
  };
  drop("group", made.plan.group);
  drop("pairs", made.plan.pairs);
  drop("slices", made.plan.slices);
  drop("memory_limit", made.plan.memory_limit);
  drop("costs", made.plan.costs);
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

// What of a plan can be changed for less memory on as many devices, the least costly first.
std::vector<Change> single_changes(const Request& request) {
  std::vector<Change> changes;
  const Plan& now = request.plan;
  const auto add = [&](const auto& change) {
    Change made{now};
    change(made.plan);
    if (!(made.plan == now)) changes.push_back(std::move(made));
  };
  const bool whole = now.recompute == Recompute::kFull;
  const auto add_kind = [&](const char* kind) {
    if (!takes_kind(now, kind)) return;
    Change made = with_kind(now, kind);
    if (!(made.plan == now)) changes.push_back(std::move(made));
  };
  const char* leaner = pipeline::kind_of(now.schedule).variant.less_memory;
  if (leaner != nullptr) add_kind(leaner);
  add([](Plan& plan) { plan.post_validation = false; });
  if (now.tp > 1) add([](Plan& plan) { plan.sp = true; });
  if (now.tp > 1 && !whole) add([](Plan& plan) { plan.sp = plan.regather = true; });
  if (now.dp * now.cp > 1) add([](Plan& plan) { plan.zero = std::max<int64_t>(1, plan.zero); });
  for (const int64_t ep : expert_ways(request, now))
    add([&](Plan& plan) { plan.ep = std::max(ep, plan.ep); });
  if (now.recompute == Recompute::kNone)
    add([](Plan& plan) { plan.recompute = Recompute::kSelective; });
  if (!whole) add([](Plan& plan) { plan.recompute = Recompute::kSelectiveOp; });
  add_kind(pipeline::kUsualKind);
  for (const int64_t count : more_microbatches(request, now))
    add([&](Plan& plan) { plan.microbatches = count; });
  if (!whole) add([](Plan& plan) { plan.recompute = Recompute::kFull; });
  if (now.zero == 3 && now.dp * now.cp > 1) add([](Plan& plan) { plan.prefetch_mb = 0; });
  return changes;
}

// Several at a time, each with one more, behind those that `made` has.
std::vector<Change> joint_changes(const Request& request, Change made) {
  std::vector<Change> changes;
  const int64_t most = request.global_batch / made.plan.dp;
  const auto add = [&](const auto& change) {
    const Plan before = made.plan;
    change(made.plan);
    if (!(made.plan == before)) changes.push_back(made);
  };
  const auto smallest = [&](Plan& plan) { plan.microbatches = std::max(most, plan.microbatches); };
  add([](Plan& plan) { plan.post_validation = false; });
  if (made.plan.tp > 1) add([](Plan& plan) { plan.sp = true; });
  const bool divides = made.plan.dp * made.plan.cp > 1;
  if (divides) add([](Plan& plan) { plan.zero = std::max<int64_t>(1, plan.zero); });
  if (const std::vector<int64_t> ways = expert_ways(request, made.plan); !ways.empty())
    add([&](Plan& plan) { plan.ep = std::max(ways.back(), plan.ep); });
  const Change shared = made;
  if (made.plan.recompute == Recompute::kNone)
    add([](Plan& plan) { plan.recompute = Recompute::kSelective; });
  add(smallest);
  if (made.plan.recompute != Recompute::kFull) {
    made = shared;
    add([](Plan& plan) { plan.recompute = Recompute::kFull; });
    add(smallest);
  }
  if (divides) {  // first with the plan's own microbatches: a schedule may not take others
    Change own = made;
    own.plan.microbatches = shared.plan.microbatches;
    own.plan.zero = 3;
    changes.push_back(std::move(own));
    add([](Plan& plan) { plan.zero = 3; });
    add([](Plan& plan) { plan.prefetch_mb = 0; });
  }
  return changes;
}

bool fits_with(const Request& request, const Change& change) {
  Request other = request;
  other.plan = change.plan;
  other.options.trace = other.options.figures = false;
  try {
    return predict(other).too_full().empty();
  } catch (const Error&) {
    return false;  // such as microbatches that the schedule does not take
  }
}

// Of changes that fit together, those without one of which they do not: what is not needed is taken
// back, the costliest first.
Change needed_ones(const Request& request, Change change) {
  const Plan& now = request.plan;
  const auto take_back = [&](const auto& to_less) {
    Change less = change;
    to_less(less.plan);
    if (less.plan == change.plan || less.plan == now || !fits_with(request, less)) return false;
    change = std::move(less);
    return true;
  };
  take_back([&](Plan& plan) { plan.prefetch_mb = now.prefetch_mb; });
  if (!take_back([&](Plan& plan) { plan.recompute = now.recompute; }) &&
      change.plan.recompute == Recompute::kFull && now.recompute == Recompute::kNone)
    take_back([](Plan& plan) { plan.recompute = Recompute::kSelective; });
  if (!take_back([&](Plan& plan) { plan.microbatches = now.microbatches; })) {
    for (const int64_t count : more_microbatches(request, now)) {
      if (count >= change.plan.microbatches) break;
      if (take_back([&](Plan& plan) { plan.microbatches = count; })) break;
    }
  }
  for (int64_t zero = now.zero; zero < change.plan.zero; zero = zero == 0 ? 1 : 3) {
    if (take_back([&](Plan& plan) { plan.zero = zero; })) break;
  }
  std::vector<int64_t> ways = expert_ways(request, now);
  ways.insert(ways.begin(), now.ep);
  for (const int64_t ep : ways) {
    if (ep >= now.ep && take_back([&](Plan& plan) { plan.ep = std::min(ep, plan.ep); })) break;
  }
  take_back([&](Plan& plan) { plan.sp = now.sp; });
  take_back([&](Plan& plan) { plan.post_validation = now.post_validation; });
  return change;
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
  std::vector<std::vector<Change>> all = {single_changes(request),
                                          joint_changes(request, {request.plan})};
  if (takes_kind(request.plan, pipeline::kUsualKind) &&
      request.plan.schedule != pipeline::kUsualKind)
    all.push_back(joint_changes(request, with_kind(request.plan, pipeline::kUsualKind)));
  for (const std::vector<Change>& changes : all) {
    for (const Change& change : changes) {
      if (fits_with(request, change))
        return text + "; the nearest change that fits: " +
               text_of(request.plan, needed_ones(request, change));
    }
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
