#include "planner/simulated.h"

#include <algorithm>
#include <optional>

#include "base/in_parallel.h"

namespace mw::planner {
namespace {

Candidate candidate_of(const compile::Plan& plan, const predict::Prediction& prediction) {
  Candidate made;
  made.plan = plan;
  made.step = prediction.step;
  made.tokens_per_s = prediction.tokens_per_s;
  made.mfu = prediction.mfu;
  for (const predict::StageMemory& memory : prediction.memory) made.peak.push_back(memory.peak);
  made.needed = prediction.needed();
  const auto ranks = static_cast<double>(prediction.result.ranks.size());
  for (const simulate::RankResult& rank : prediction.result.ranks) {
    made.seconds["computation"] += rank.compute.value / ranks;
    made.seconds["host gaps"] += rank.gaps.value / ranks;
    made.seconds["bubble"] += (rank.total_wait() + rank.idle).value / ranks;
    if (rank.core_wait.value > 0) made.seconds["waits for cores"] += rank.core_wait.value / ranks;
    for (const auto& [label, time] : rank.exposed_comm)
      made.seconds["exposed " + label] += time.value / ranks;
  }
  return made;
}

// Indices of plans that may have one StepBase, the largest groups first.
std::vector<std::vector<size_t>> partitioned_alike(const std::vector<compile::Plan>& plans) {
  std::vector<compile::Plan> kinds;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < plans.size(); ++i) {
    const compile::Plan kind = compile::partitioning_plan(plans[i]);
    const auto at =
        static_cast<size_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
    if (at == kinds.size()) {
      kinds.push_back(kind);
      groups.emplace_back();
    }
    groups[at].push_back(i);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return groups;
}

}  // namespace

int thread_count(const Request& request) { return threads_or_cores(request.threads); }

Simulated simulate_plans(const Request& request, const std::vector<compile::Plan>& plans) {
  Simulated simulated(plans.size());
  const std::vector<std::vector<size_t>> groups = partitioned_alike(plans);
  in_parallel(groups.size(), thread_count(request), [&](size_t g) {
    predict::Request one = request.base;
    one.options.trace = one.options.figures = false;
    std::optional<predict::StepBase> base;
    for (const size_t i : groups[g]) {
      one.plan = plans[i];
      if (groups[g].size() > 1 && !base) base.emplace(one);
      const std::optional<predict::Prediction> prediction =
          predict::predict_if_fits(one, predict::compile_step(one, base ? &*base : nullptr));
      if (prediction) simulated[i] = candidate_of(plans[i], *prediction);
    }
  });
  return simulated;
}

void add_fitting(Simulated simulated, Found& found) {
  found.simulated += static_cast<int64_t>(simulated.size());
  for (std::optional<Candidate>& one : simulated) {
    if (one) found.plans.push_back(*std::move(one));
  }
  std::stable_sort(found.plans.begin(), found.plans.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.step != b.step ? a.step < b.step : a.needed < b.needed;
                   });
  found.front.clear();
  for (size_t i = 0; i < found.plans.size(); ++i) {
    if (found.front.empty() || found.plans[i].needed < found.plans[found.front.back()].needed)
      found.front.push_back(i);
  }
}

}  // namespace mw::planner
