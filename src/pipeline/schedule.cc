#include "pipeline/schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedules/generators.h"

namespace mw::pipeline {

constexpr double kMostWork = 5e7;  // forwards of a schedule: some gigabytes of actions

template <auto kMember>
static constexpr RequestOption option(const char* key, const char* words, bool KindOptions::* has) {
  return {
      key, words, has,
      [](const ScheduleRequest& request) { return request.*kMember != ScheduleRequest().*kMember; },
      [](ScheduleRequest& to, const ScheduleRequest& from) { to.*kMember = from.*kMember; }};
}

std::span<const RequestOption> request_options() {
  using Request = ScheduleRequest;
  static constexpr RequestOption kOptions[] = {
      option<&Request::group>("group", "group", &KindOptions::group),
      option<&Request::slices>("slices", "slices", &KindOptions::slices),
      option<&Request::pairs>("pairs", "pairs", &KindOptions::pairs),
      option<&Request::memory_limit>("memory_limit", "memory limit", &KindOptions::memory_limit),
      option<&Request::sync>("sync", "gradient synchronisation to choose", &KindOptions::sync),
      option<&Request::exact>("exact", "exact order", &KindOptions::exact)};
  return kOptions;
}

// What was not asked for gets the kind's usual value.
static ScheduleRequest filled_in(ScheduleRequest request, const ScheduleKind& kind) {
  if (request.chunks == 0) request.chunks = kind.chunks.usual;
  if (request.group == 0) request.group = request.ranks;
  if (request.slices == 0) request.slices = kUsualSlices;
  if (request.pairs == 0) request.pairs = 1;
  if (request.memory_limit == 0) request.memory_limit = request.ranks;
  return request;
}

static void check_chunks(const ScheduleRequest& request, const ScheduleKind& kind,
                         Diagnostics& out) {
  constexpr int32_t kSeveral = 2;
  const ChunkRange& range = kind.chunks;
  if (range.holds(request.chunks)) return;
  if (range.most == 1) {
    out.add("schedule {}: chunks={} must be 1: a rank hosts one stage; use {} for more",
            request.kind, request.chunks, kind_with_chunks(kind_of(kUsualKind), kSeveral).name);
  } else if (range.most == range.least) {
    out.add("schedule {}: chunks={} must be {}", request.kind, request.chunks, range.least);
  } else {
    const std::string others =
        range.least == range.step ? fmt::format("a multiple of {}", range.step)
                                  : fmt::format("{}, {}, …", range.least, range.least + range.step);
    out.add("schedule {}: chunks={} must be {}", request.kind, request.chunks, others);
  }
}

static void check_options(const ScheduleRequest& asked, const ScheduleKind& kind,
                          Diagnostics& out) {
  for (const RequestOption& option : request_options()) {
    if (!option.given(asked) || kind.options.*option.has) continue;
    out.add("schedule {}: has no {}, an option of {}", kind.name, option.words,
            join(kinds_with(option.has), ", "));
  }
}

ScheduleRequest own_options(ScheduleRequest request) {
  const ScheduleKind* kind = find_kind(request.kind);
  if (kind == nullptr) return request;
  if (kind->chunks.most == kind->chunks.least) request.chunks = 0;
  for (const RequestOption& option : request_options()) {
    if (!(kind->options.*option.has)) option.copy(request, {});
  }
  return request;
}

static void check_request(const ScheduleRequest& asked, const ScheduleKind* kind,
                          Diagnostics& out) {
  const auto at_least = [&](const char* what, int32_t value, int32_t least) {
    if (value < least) out.add("schedule {}: {}={} must be at least 1", asked.kind, what, value);
    return value >= least;
  };
  if (kind == nullptr) out.add("{}", kind_finding(asked.kind));
  bool in_range = at_least("ranks", asked.ranks, 1);
  in_range &= at_least("chunks", asked.chunks, 0);
  in_range &= at_least("microbatches", asked.microbatches, 1);
  in_range &= at_least("group", asked.group, 0);
  in_range &= at_least("slices", asked.slices, 0);
  in_range &= at_least("pairs", asked.pairs, 0);
  if (kind == nullptr) return;
  if (!(asked.memory_limit >= 0)) {
    out.add("schedule {}: the memory limit of {} must be above 0", asked.kind, asked.memory_limit);
    in_range = false;
  }
  check_options(asked, *kind, out);
  if (!in_range) return;
  const ScheduleRequest request = filled_in(asked, *kind);
  check_chunks(request, *kind, out);
  const double work = static_cast<double>(request.ranks) * request.chunks * request.microbatches *
                      (kind->options.slices ? request.slices : 1);
  if (work > kMostWork) {
    out.add("schedule {}: {} ranks x {} chunks x {} microbatches{} are more than {:g} forwards",
            request.kind, request.ranks, request.chunks, request.microbatches,
            kind->options.slices ? fmt::format(" x {} slices", request.slices) : "", kMostWork);
    return;
  }
  if (kind->check != nullptr) kind->check(request, out);
}

std::vector<std::string> request_findings(const ScheduleRequest& request) {
  Diagnostics diagnostics;
  check_request(request, find_kind(request.kind), diagnostics);
  return diagnostics.findings();
}

Schedule make_schedule(const ScheduleRequest& request) {
  const ScheduleKind* kind = find_kind(request.kind);
  if (const std::vector<std::string> found = request_findings(request); !found.empty())
    throw Error(found);
  Schedule schedule = kind->make(filled_in(request, *kind));
  schedule.weight_versions = kind->weight_versions;
  schedule.post_validation = request.post_validation;
  schedule.sync = request.sync;
  if (schedule.post_validation && schedule.weight_versions > 1) {
    throw_error(
        "schedule {}: has no post-validation, for its updates wait for nothing; leave it out",
        request.kind);
  }
  return schedule;
}

Placement looped_placement(int32_t ranks, int32_t chunks) {
  Placement placement{.ranks = ranks, .rank_of_stage = {}};
  for (int32_t s = 0; s < ranks * chunks; ++s) placement.rank_of_stage.push_back(s % ranks);
  return placement;
}

Placement folded_placement(int32_t ranks, int32_t chunks) {
  Placement placement{.ranks = ranks, .rank_of_stage = {}};
  for (int32_t s = 0; s < ranks * chunks; ++s) {
    const int32_t along = s % ranks;
    placement.rank_of_stage.push_back(s / ranks % 2 == 0 ? along : ranks - 1 - along);
  }
  return placement;
}

Schedule empty_schedule(const ScheduleRequest& request, Placement placement) {
  Schedule schedule;
  schedule.name = request.kind;
  schedule.placement = std::move(placement);
  schedule.microbatches = request.microbatches;
  schedule.ranks.resize(static_cast<size_t>(request.ranks));
  return schedule;
}

std::vector<Action> accumulation_order(const ScheduleRequest& request) {
  std::vector<Action> actions;
  for (int32_t k = 0; k < request.microbatches; ++k) {
    for (int32_t c = 0; c < request.chunks; ++c) actions.push_back(forward_action(c, k));
    for (int32_t c = request.chunks - 1; c >= 0; --c) actions.push_back(backward_action(c, k));
  }
  return actions;
}

int32_t Placement::rank_of(int32_t stage, int32_t replica) const {
  const auto s = static_cast<size_t>(stage);
  return replica == 0 ? rank_of_stage[s] : rank_of_replica[static_cast<size_t>(replica - 1)][s];
}

bool Placement::looped() const {
  for (int32_t s = 0; s < stages(); ++s) {
    if (rank_of_stage[static_cast<size_t>(s)] != s % ranks) return false;
  }
  return rank_of_replica.empty();
}

std::vector<int32_t> Placement::shares() const {
  std::vector<int32_t> most(static_cast<size_t>(ranks), 1);
  const auto count = [&](const std::vector<int32_t>& row) {
    std::vector<int32_t> hosted(most.size(), 0);
    for (const int32_t rank : row) {
      if (rank >= 0) ++hosted[static_cast<size_t>(rank)];
    }
    for (size_t r = 0; r < most.size(); ++r) most[r] = std::max(most[r], hosted[r]);
  };
  count(rank_of_stage);
  for (const std::vector<int32_t>& row : rank_of_replica) count(row);
  return most;
}

ScheduleNeeds needs(const Schedule& schedule) {
  ScheduleNeeds result;
  result.replicas = schedule.placement.replicas() > 1;
  result.folded = !result.replicas && !schedule.placement.looped();
  result.slices = schedule.slices > 1;
  result.no_flush = schedule.weight_versions > 1;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<int32_t> last(static_cast<size_t>(schedule.placement.stages()), -1);
    for (const Action& action : actions) {
      result.split_backward |= action.kind == ActionKind::kI || action.kind == ActionKind::kW;
      result.joined |= action.count > 1;
      result.pairs |= action.paired_with >= 0;
      const bool sums = action.kind == ActionKind::kB || action.kind == ActionKind::kW;
      if (!sums) continue;
      result.reversed |= action.first < last[action.stage.index()];
      last[action.stage.index()] = action.first;
    }
  }
  return result;
}

std::vector<std::string> describe(const ScheduleNeeds& needs) {
  std::vector<std::string> words;
  if (needs.split_backward) words.emplace_back("input and weight gradients apart");
  if (needs.folded) words.emplace_back("a folded placement");
  if (needs.replicas) words.emplace_back("stages on several ranks");
  if (needs.slices) words.emplace_back("slices of sequences");
  if (needs.joined) words.emplace_back("several microbatches in one action");
  if (needs.pairs) words.emplace_back("a forward beside a backward");
  if (needs.reversed) words.emplace_back("backwards in another order than the microbatches'");
  if (needs.no_flush) words.emplace_back("weights of an older step");
  return words;
}

std::string to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kF: return "F";
    case ActionKind::kI: return "I";
    case ActionKind::kW: return "W";
    case ActionKind::kB: return "B";
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
