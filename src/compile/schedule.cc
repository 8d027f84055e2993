#include "compile/schedule.h"

#include <fmt/format.h>

#include "base/count.h"
#include "base/error.h"

namespace mw::compile {
namespace {

using pipeline::ActionKind;

// What a schedule may not have: all findings together.
void check_schedule(const pipeline::Schedule& schedule, const Plan& plan) {
  Diagnostics diagnostics;
  for (const std::string& finding : pipeline::findings(schedule))
    diagnostics.add("schedule {}: {}", schedule.name, finding);
  for (const std::string& finding : schedule_findings(schedule, plan))
    diagnostics.add("{}", finding);
  diagnostics.throw_if_any();
}

// Replicas that have no microbatch.
std::vector<int32_t> without_work(const pipeline::Schedule& schedule) {
  std::vector<bool> works(static_cast<size_t>(schedule.placement.replicas()), false);
  for (const auto& actions : schedule.ranks) {
    for (const pipeline::Action& action : actions)
      works[static_cast<size_t>(action.replica)] = true;
  }
  std::vector<int32_t> idle;
  for (size_t j = 0; j < works.size(); ++j) {
    if (!works[j]) idle.push_back(static_cast<int32_t>(j));
  }
  return idle;
}

// Nothing where all have work; in the microbatches that were asked for.
std::vector<std::string> told(const pipeline::Schedule& schedule, const std::vector<int32_t>& idle,
                              const std::string& advice) {
  if (idle.empty()) return {};
  const size_t others = idle.size() - 1;
  const std::string more =
      others == 0 ? "" : fmt::format(", nor {} {} more", others == 1 ? "has" : "have", others);
  return {fmt::format("schedule {}: replica {} of the stages has none of the {} microbatches{}; {}",
                      schedule.name, idle.front(), schedule.microbatches / schedule.parts, more,
                      advice)};
}

// With which every replica has work; 0: no number that a plan can have is enough. REQUIRES: with
// those of the request one has none.
int32_t least_microbatches(pipeline::ScheduleRequest request) {
  const auto enough = [&](int64_t microbatches) {
    request.microbatches = static_cast<int32_t>(microbatches);
    return pipeline::request_findings(request).empty() &&
           without_work(pipeline::make_schedule(request)).empty();
  };
  const int64_t most = kMostUnits / (int64_t{request.ranks} * request.chunks);
  int64_t few = request.microbatches, many = std::min(most, 2 * few);
  while (many > few && !enough(many)) {
    few = many;
    many = std::min(most, 2 * many);
  }
  if (many <= few) return 0;
  while (many - few > 1) {
    const int64_t middle = (few + many) / 2;
    (enough(middle) ? many : few) = middle;
  }
  return static_cast<int32_t>(many);
}

}  // namespace

std::vector<std::string> schedule_findings(const pipeline::Schedule& schedule, const Plan& plan) {
  Diagnostics diagnostics;
  const auto& placement = schedule.placement;
  if (placement.stages() != plan.stages() || placement.ranks != plan.pp) {
    diagnostics.add("schedule {}: has {} on {}, the plan {} on {}", schedule.name,
                    counted(placement.stages(), "stage"), counted(placement.ranks, "pipeline rank"),
                    plan.stages(), plan.pp);
  }
  if (schedule.microbatches != plan.units()) {
    diagnostics.add("schedule {}: has {} microbatches, the plan {}", schedule.name,
                    schedule.microbatches, plan.units());
  }
  if (schedule.slices != plan.sequence_slices()) {
    diagnostics.add("schedule {}: has {} slices of a sequence, the plan {}", schedule.name,
                    schedule.slices, plan.sequence_slices());
  }
  for (const std::string& finding :
       told(schedule, without_work(schedule), "give every replica some"))
    diagnostics.add("{}", finding);
  return diagnostics.findings();
}

std::vector<std::string> idle_replicas(const pipeline::ScheduleRequest& request) {
  const pipeline::Schedule schedule = pipeline::make_schedule(request);
  const std::vector<int32_t> idle = without_work(schedule);
  if (idle.empty()) return {};
  const int32_t least = least_microbatches(request);
  return told(schedule, idle,
              least > 0 ? fmt::format("it takes at least {}", least) : "use fewer pairs");
}

pipeline::Schedule schedule_of(const Plan& plan) {
  if (plan.written) {
    pipeline::Schedule schedule = *plan.written.schedule;
    schedule.post_validation = plan.post_validation;
    return schedule;
  }
  return pipeline::make_schedule(schedule_request(plan));
}

pipeline::Schedule given_schedule(const pipeline::Schedule* asked, const Plan& plan) {
  pipeline::Schedule schedule = asked != nullptr ? *asked : schedule_of(plan);
  check_schedule(schedule, plan);
  return schedule;
}

pipeline::Schedule forward_only(pipeline::Schedule schedule) {
  for (auto& actions : schedule.ranks) {
    std::erase_if(actions,
                  [](const pipeline::Action& action) { return action.kind != ActionKind::kF; });
  }
  return schedule;
}

}  // namespace mw::compile
