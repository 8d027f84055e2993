// Hanayo [Liu 2023, 2308.15762]: w waves, so 2 w chunks a rank on a folded placement: the pipeline
// runs down and up the ranks w times, without Chimera's second copy of the weights. The order is
// that of list scheduling with b + w = 2 f: of some rules for what goes first and some limits of
// what is alive when a chunk begins, the one with the shortest makespan among those that hold no
// more than 1F1B does; or equal parts of the microbatches one after the other, where that is
// shorter.
//
// Two families of rules. Backwards first, with a rule for a tie: best up to about as many
// microbatches as ranks, which is what the paper draws. And what would come first if every
// microbatch did what the one before does, as much later as a microbatch takes on a rank: the order
// of a building block [Qi 2024, 2405.15362], which leaves nothing idle between the ends, however
// many microbatches there are. (How long forwards and backwards take from rank to rank in the
// block: of 75 choices those that were best for 2 to 8 ranks and up to 48 microbatches.)
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "pipeline/schedule_timeline.h"
#include "pipeline/schedules/list_schedule.h"

namespace mw::pipeline {
namespace {

// Backwards first, and which of two forwards, or of two backwards: of the older microbatch; of the
// later stage; of the older group of as many microbatches as ranks, and there of the later stage.
enum class Tie { kOlder, kLater, kLaterOfGroup };

// A microbatch's forwards are `f` apart from stage to stage, its backwards `b`, and between them
// lies `turn`, with every rank another 3 `turn_rank`.
struct Block {
  int32_t f, b, turn, turn_rank;
};

// `more`: chunks alive when another begins, beyond those that never hold more than 1F1B.
struct Try {
  std::variant<Tie, Block> rule;
  int32_t more = 0;
};
constexpr std::array<Try, 4> kOneWave = {
    {{Block{1, 2, 0, 1}}, {Block{1, 3, 0, 1}}, {Tie::kOlder}, {Tie::kLater}}};
// With more microbatches than kFew a rank, of 348 pipelines of 2 to 64 ranks none is shorter by
// another rule than these.
constexpr size_t kOneWaveBlocks = 2;
constexpr std::array<Try, 12> kWaves = {{{Tie::kOlder},
                                         {Tie::kLater},
                                         {Tie::kLaterOfGroup},
                                         {Tie::kLater, 2},
                                         {Tie::kLaterOfGroup, 2},
                                         {Block{2, 4, 1, 0}},
                                         {Block{1, 5, 0, 1}},
                                         {Block{2, 5, 6, 0}},
                                         {Block{4, 5, 1, 0}},
                                         {Block{1, 3, 0, 1}},
                                         {Block{2, 4, 0, 1}, 2},
                                         {Block{1, 3, 0, 2}, 4}}};

std::function<ListRules::Key(const Action&)> key_of(const Try& one,
                                                    const ScheduleRequest& request) {
  const int32_t p = request.ranks, stages = p * request.chunks;
  if (const Tie* tie = std::get_if<Tie>(&one.rule)) {
    return [tie = *tie, p](const Action& action) -> ListRules::Key {
      const int32_t forward = action.kind == ActionKind::kB ? 0 : 1;
      const int32_t age = action.first, before_end = -action.stage.value;
      switch (tie) {
        case Tie::kOlder: return {forward, age, before_end, 0};
        case Tie::kLater: return {forward, before_end, age, 0};
        case Tie::kLaterOfGroup: return {forward, age / p, before_end, age};
      }
      return {};
    };
  }
  const Block block = std::get<Block>(one.rule);
  const int32_t apart = 3 * request.chunks;  // what a microbatch takes on a rank
  const int32_t turned = block.f * (stages - 1) + block.turn + 3 * p * block.turn_rank;
  return [=](const Action& action) -> ListRules::Key {
    const bool is_forward = action.kind != ActionKind::kB;
    const int32_t s = action.stage.value;
    const int32_t at = is_forward ? block.f * s : turned + block.b * (stages - 1 - s);
    return {apart * action.first + at, is_forward ? 1 : 0, 0, 0};
  };
}

constexpr int32_t kFew = 2;  // microbatches a rank, by which the rule for more is chosen

struct Made {
  Schedule schedule;
  double makespan = 0;
  const Try* by = nullptr;  // of a list
};

// By the best of `tries`; of none, where each holds more than 1F1B does.
Made listed(const ScheduleRequest& request, std::span<const Try> tries) {
  const int32_t p = request.ranks, v = request.chunks;
  std::vector<std::vector<Action>> forwards(1);
  for (int32_t k = 0; k < request.microbatches; ++k) forwards[0].push_back(forward_action(0, k));
  const int32_t as_1f1b = std::min(p, request.microbatches) * v;  // chunks alive on a rank
  Made best;
  for (const Try& one : tries) {
    ListRules rules;
    // A later chunk always finds room, so that earlier ones cannot block it.
    for (int32_t s = 0; s < p * v; ++s)
      rules.most_alive.push_back(as_1f1b - v + s / p + 1 + one.more);
    rules.rank_of_action = key_of(one, request);
    rules.alive_at_most = as_1f1b;
    if (best.by != nullptr) rules.sooner_than = static_cast<int32_t>(best.makespan);
    Schedule schedule = empty_schedule(request, folded_placement(p, v));
    const std::optional<ListOutcome> made = list_schedule(schedule, forwards, rules);
    if (made) best = {std::move(schedule), static_cast<double>(made->makespan), &one};
  }
  return best;
}

// As many microbatches as `request` in parts of so many, each in the order of `part`.
Made in_parts(const ScheduleRequest& request, const Schedule& part) {
  Made made{.schedule = part};
  made.schedule.microbatches = request.microbatches;
  for (std::vector<Action>& actions : made.schedule.ranks) {
    const std::vector<Action> once = actions;
    for (int32_t first = part.microbatches; first < request.microbatches;
         first += part.microbatches) {
      for (Action action : once) {
        action.first += first;
        actions.push_back(action);
      }
    }
  }
  made.makespan = timeline(made.schedule, ScheduleCosts{}).makespan;
  return made;
}

// [microbatches] what was found, of one pipeline.
using Known = std::map<int32_t, Made>;

const Made& shortest(const ScheduleRequest& request, Known& known) {
  const auto [it, is_new] = known.try_emplace(request.microbatches);
  Made& best = it->second;
  if (!is_new) return best;
  const auto of = [&](int32_t microbatches) -> const Made& {
    ScheduleRequest other = request;
    other.microbatches = microbatches;
    return shortest(other, known);
  };
  const auto tries = request.chunks == 2 ? std::span<const Try>(kOneWave) : std::span(kWaves);
  const int32_t m = request.microbatches, p = request.ranks, half = m / 2, few = kFew * p;
  // Of many microbatches the rule that is best for few: a block's goes on as it is.
  if (const Made* shown = request.chunks > 2 && m > few ? &of(few) : nullptr;
      shown != nullptr && shown->by != nullptr && std::holds_alternative<Block>(shown->by->rule)) {
    best = listed(request, std::span(shown->by, 1));
    if (best.by != nullptr) return best;
  }
  if (request.chunks == 2 && m > few) best = listed(request, tries.first(kOneWaveBlocks));
  if (best.by == nullptr) best = listed(request, tries);
  if (request.chunks == 2) return best;
  const auto try_parts = [&](int32_t part) {
    Made made = in_parts(request, of(part).schedule);
    if (made.makespan < best.makespan) best = std::move(made);
  };
  if (m % 2 == 0) try_parts(half);
  if (m % p == 0 && m > p && half != p) try_parts(p);
  return best;
}

Schedule make_hanayo(const ScheduleRequest& request) {
  Known known;
  return shortest(request, known).schedule;
}

}  // namespace

extern const ScheduleKind kHanayo = {.name = "hanayo",
                                     .summary = "waves down and up the ranks",
                                     .since = 202308,
                                     .chunks = {.usual = 2, .least = 2, .most = 0, .step = 2},
                                     .options = {},
                                     .check = nullptr,
                                     .make = make_hanayo,
                                     .period = 0};

}  // namespace mw::pipeline
