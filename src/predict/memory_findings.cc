// What does not fit, and the nearest change that does.
#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "predict/predict.h"

namespace mw::predict {
namespace {

struct Change {
  std::string text;  // "sp,zero=1"
  compile::Plan plan;
};

// Of what a step took, which post-validation keeps.
constexpr const char* kWithoutCopies = "post_validation=false";
void without_copies(compile::Plan& plan) { plan.post_validation = false; }

// Without the options of the plan's own kind.
Change with_kind(const compile::Plan& plan, const char* kind) {
  Change made{fmt::format("schedule={}{}", kind, plan.chunks > 1 ? ",chunks=1" : ""), plan};
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
  if (!dropped.empty()) made.text += fmt::format(" (without {})", join(dropped, ", "));
  return made;
}

// Whether the schedule can take the place of the plan's own: stages that are named stay as they
// are.
bool takes_kind(const compile::Plan& plan, const char* kind) {
  return plan.pp > 1 &&
         (plan.layers.empty() || with_kind(plan, kind).plan.stages() == plan.stages());
}

// What of a plan can be changed for less memory on as many devices, the least costly first.
std::vector<Change> single_changes(const Request& request) {
  std::vector<Change> changes;
  const compile::Plan& now = request.plan;
  const auto add = [&](std::string text, const auto& change) {
    Change made{std::move(text), now};
    change(made.plan);
    if (!(made.plan == now)) changes.push_back(std::move(made));
  };
  const bool whole = now.recompute == compile::Recompute::kFull;
  const auto add_kind = [&](const char* kind) {
    if (!takes_kind(now, kind)) return;
    Change made = with_kind(now, kind);
    if (!(made.plan == now)) changes.push_back(std::move(made));
  };
  const char* leaner = pipeline::kind_of(now.schedule).variant.less_memory;
  if (leaner != nullptr) add_kind(leaner);
  add(kWithoutCopies, without_copies);
  if (now.tp > 1) add("sp", [](compile::Plan& plan) { plan.sp = true; });
  if (now.tp > 1 && !whole)
    add(now.sp ? "regather" : "sp,regather",
        [](compile::Plan& plan) { plan.sp = plan.regather = true; });
  if (now.dp * now.cp > 1)
    add("zero=1", [](compile::Plan& plan) { plan.zero = std::max<int64_t>(1, plan.zero); });
  if (now.recompute == compile::Recompute::kNone)
    add("recompute=selective",
        [](compile::Plan& plan) { plan.recompute = compile::Recompute::kSelective; });
  add_kind(pipeline::kUsualKind);
  const int64_t most = request.global_batch / now.dp;  // of one sequence each
  for (int64_t count = 2 * now.microbatches; count < most && most % count == 0; count *= 2)
    add(fmt::format("microbatches={}", count),
        [&](compile::Plan& plan) { plan.microbatches = count; });
  add(fmt::format("microbatches={}", most),
      [&](compile::Plan& plan) { plan.microbatches = std::max(most, plan.microbatches); });
  if (!whole)
    add("recompute=full", [](compile::Plan& plan) { plan.recompute = compile::Recompute::kFull; });
  return changes;
}

// Several at a time, each with one more, behind those that `made` has.
std::vector<Change> joint_changes(const Request& request, Change made) {
  std::vector<Change> changes;
  const int64_t most = request.global_batch / made.plan.dp;
  const auto add = [&](const std::string& text, const auto& change) {
    const compile::Plan before = made.plan;
    change(made.plan);
    if (made.plan == before) return;
    made.text += (made.text.empty() ? "" : ",") + text;
    changes.push_back(made);
  };
  add(kWithoutCopies, without_copies);
  if (made.plan.tp > 1) add("sp", [](compile::Plan& plan) { plan.sp = true; });
  if (made.plan.dp * made.plan.cp > 1)
    add("zero=1", [](compile::Plan& plan) { plan.zero = std::max<int64_t>(1, plan.zero); });
  const Change shared = made;
  if (made.plan.recompute == compile::Recompute::kNone)
    add("recompute=selective",
        [](compile::Plan& plan) { plan.recompute = compile::Recompute::kSelective; });
  const auto smallest = [&](compile::Plan& plan) {
    plan.microbatches = std::max(most, plan.microbatches);
  };
  add(fmt::format("microbatches={}", most), smallest);
  if (made.plan.recompute != compile::Recompute::kFull) {
    made = shared;
    add("recompute=full", [](compile::Plan& plan) { plan.recompute = compile::Recompute::kFull; });
    add(fmt::format("microbatches={}", most), smallest);
  }
  if (made.plan.dp * made.plan.cp > 1 && made.plan.zero < 3) {
    if (!made.text.empty()) made.text = replace_all(made.text + ",", "zero=1,", "");
    made.text += "zero=3";
    made.plan.zero = 3;
    changes.push_back(made);
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
                                          joint_changes(request, {"", request.plan})};
  if (takes_kind(request.plan, pipeline::kUsualKind) &&
      request.plan.schedule != pipeline::kUsualKind)
    all.push_back(joint_changes(request, with_kind(request.plan, pipeline::kUsualKind)));
  for (const std::vector<Change>& changes : all) {
    for (const Change& change : changes) {
      if (fits_with(request, change))
        return text + "; the nearest change that fits: " + change.text;
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
