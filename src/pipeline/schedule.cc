#include "pipeline/schedule.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/generators.h"

namespace mw::pipeline {

// A new kind of schedule is one file and one line here.
static constexpr std::array kKinds = {&kGPipe, &kOneFOneB, &kInterleaved};

std::vector<std::string> schedule_kinds() {
  std::vector<std::string> names;
  for (const ScheduleKind* kind : kKinds) names.emplace_back(kind->name);
  return names;
}

static const ScheduleKind* find_kind(const std::string& name) {
  for (const ScheduleKind* kind : kKinds) {
    if (name == kind->name) return kind;
  }
  return nullptr;
}

static void check_request(const ScheduleRequest& request, const ScheduleKind* kind,
                          Diagnostics& out) {
  const auto at_least_one = [&](const char* what, int32_t value) {
    if (value < 1) out.add("schedule {}: {}={} must be at least 1", request.kind, what, value);
  };
  if (kind == nullptr) {
    const std::vector<std::string> names = schedule_kinds();
    out.add("schedule '{}' is unknown{}; it must be one of {}", request.kind,
            did_you_mean(request.kind, names), join(names, ", "));
  }
  at_least_one("ranks", request.ranks);
  at_least_one("chunks", request.chunks);
  at_least_one("microbatches", request.microbatches);
  if (kind != nullptr && !kind->takes_chunks && request.chunks > 1) {
    out.add(
        "schedule {}: chunks={} must be 1: a rank hosts one stage; use interleaved-1f1b for more",
        request.kind, request.chunks);
  }
  const bool in_range = request.ranks >= 1 && request.chunks >= 1 && request.microbatches >= 1;
  if (kind != nullptr && kind->check != nullptr && in_range) kind->check(request, out);
}

// All stages on one rank: one microbatch after the other, its backward in reverse.
static std::vector<Action> accumulation_order(const ScheduleRequest& request) {
  std::vector<Action> actions;
  for (int32_t k = 0; k < request.microbatches; ++k) {
    for (int32_t c = 0; c < request.chunks; ++c) actions.push_back(forward_action(c, k));
    for (int32_t c = request.chunks - 1; c >= 0; --c) actions.push_back(backward_action(c, k));
  }
  return actions;
}

Schedule make_schedule(const ScheduleRequest& request) {
  const ScheduleKind* kind = find_kind(request.kind);
  Diagnostics diagnostics;
  check_request(request, kind, diagnostics);
  diagnostics.throw_if_any();

  Schedule schedule{
      .name = request.kind, .placement = {}, .microbatches = request.microbatches, .ranks = {}};
  schedule.placement.ranks = request.ranks;
  for (int32_t s = 0; s < request.ranks * request.chunks; ++s) {
    schedule.placement.rank_of_stage.push_back(s % request.ranks);
  }
  for (int32_t r = 0; r < request.ranks; ++r) {
    const bool accumulates = request.ranks == 1 && kind != &kGPipe;
    schedule.ranks.push_back(accumulates ? accumulation_order(request) : kind->order(request, r));
  }
  return schedule;
}

std::string to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kF: return "F";
    case ActionKind::kI: return "I";
    case ActionKind::kW: return "W";
    case ActionKind::kB: return "B";
    case ActionKind::kUnshard: return "UNSHARD";
    case ActionKind::kReshard: return "RESHARD";
    case ActionKind::kReduceGrad: return "REDUCE_GRAD";
    case ActionKind::kUpdate: return "UPDATE";
    case ActionKind::kValidate: return "VALIDATE";
    case ActionKind::kRollback: return "ROLLBACK";
  }
  return "?";
}

static bool is_compute(ActionKind kind) {
  return kind == ActionKind::kF || kind == ActionKind::kI || kind == ActionKind::kW ||
         kind == ActionKind::kB;
}

std::string to_string(const Action& action) {
  std::string text = action.stage.valid() ? std::to_string(action.stage.value) : "";
  text += to_string(action.kind);
  if (is_compute(action.kind)) {
    text += std::to_string(action.first);
    if (action.count != 1) text += fmt::format("-{}", action.first + action.count - 1);
    if (action.slice >= 0) text += fmt::format("/{}", action.slice);
  }
  if (action.replica != 0) text += fmt::format("^{}", action.replica);
  return text;
}

}  // namespace mw::pipeline
