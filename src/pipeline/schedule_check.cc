#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule.h"

namespace mw::pipeline {
namespace {

// One microbatch of one slice on one replica of a stage.
struct Unit {
  int32_t stage, replica, microbatch, slice;
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

struct Place {
  int32_t rank = -1, index = -1;
  bool valid() const { return rank >= 0; }
};

// Where the work of a unit is done.
struct Work {
  Place f, i, w;  // B sets i and w
};

// The work of every unit: those that a schedule may have in a table, others by themselves.
class WorkTable {
 public:
  explicit WorkTable(const Schedule& schedule)
      : replicas_(schedule.placement.replicas()),
        stages_(schedule.placement.stages()),
        microbatches_(std::max(0, schedule.microbatches)),
        slices_(std::max(1, schedule.slices)),
        least_slice_(schedule.slices == 1 ? -1 : 0),
        table_(static_cast<size_t>(stages_) * static_cast<size_t>(replicas_) *
               static_cast<size_t>(microbatches_) * static_cast<size_t>(slices_)) {}

  Work& at(const Unit& unit) {
    return in_table(unit) ? table_[index(unit)] : others_.try_emplace(unit).first->second;
  }
  // Null: nothing of the unit is there.
  const Work* find(const Unit& unit) const {
    if (!in_table(unit)) {
      const auto it = others_.find(unit);
      return it == others_.end() ? nullptr : &it->second;
    }
    const Work& work = table_[index(unit)];
    return is_there(work) ? &work : nullptr;
  }
  template <typename Function>
  void for_each(Function function) const {
    for (size_t i = 0; i < table_.size(); ++i) {
      if (is_there(table_[i])) function(unit(i), table_[i]);
    }
    for (const auto& [unit, work] : others_) function(unit, work);
  }

 private:
  static bool is_there(const Work& work) {
    return work.f.valid() || work.i.valid() || work.w.valid();
  }
  bool in_table(const Unit& u) const {
    const int32_t slice = u.slice - least_slice_;
    return 0 <= u.stage && u.stage < stages_ && 0 <= u.replica && u.replica < replicas_ &&
           0 <= u.microbatch && u.microbatch < microbatches_ && 0 <= slice && slice < slices_;
  }
  size_t index(const Unit& u) const {
    const int64_t way = int64_t{u.stage} * replicas_ + u.replica;
    return static_cast<size_t>((way * microbatches_ + u.microbatch) * slices_ + u.slice -
                               least_slice_);
  }
  Unit unit(size_t index) const {
    auto i = static_cast<int64_t>(index);
    const auto next = [&](int32_t count) {
      const auto digit = static_cast<int32_t>(i % count);
      i /= count;
      return digit;
    };
    Unit u{};
    u.slice = next(slices_) + least_slice_;
    u.microbatch = next(microbatches_);
    u.replica = next(replicas_);
    u.stage = static_cast<int32_t>(i);
    return u;
  }

  int32_t replicas_, stages_, microbatches_, slices_, least_slice_;
  std::vector<Work> table_;
  std::map<Unit, Work> others_;
};

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule), work_(schedule) {}

  std::vector<std::string> run() {
    if (schedule_.placement.ranks != static_cast<int32_t>(schedule_.ranks.size())) {
      out_.add("the placement has {} ranks, the schedule {}", schedule_.placement.ranks,
               schedule_.ranks.size());
    }
    for (size_t r = 0; r < schedule_.ranks.size(); ++r) collect(static_cast<int32_t>(r));
    check_complete();
    if (out_.empty()) check_progress();
    return out_.first(kMostFindings);
  }

 private:
  bool is_enough() const { return out_.findings().size() > kMostFindings; }

  const Action& action(Place place) const {
    return schedule_.ranks[static_cast<size_t>(place.rank)][static_cast<size_t>(place.index)];
  }

  template <typename Function>
  static void for_units(const Action& action, Function function) {
    for (int32_t k = 0; k < action.count; ++k) {
      function(Unit{action.stage.value, action.replica, action.first + k, action.slice});
    }
  }

  void collect(int32_t rank) {
    const std::vector<Action>& actions = schedule_.ranks[static_cast<size_t>(rank)];
    for (int32_t a = 0; a < static_cast<int32_t>(actions.size()); ++a) {
      const Place here{rank, a};
      if (!is_enough()) check_action(here);
      for_units(action(here), [&](const Unit& unit) {
        if (!is_enough()) collect_unit(unit, here);
      });
    }
  }

  void check_action(Place here) {
    const Action& a = action(here);
    const Placement& placement = schedule_.placement;
    const auto size = static_cast<int32_t>(schedule_.ranks[static_cast<size_t>(here.rank)].size());
    if (!a.stage.valid() || a.stage.value >= placement.stages()) {
      out_.add("rank {} action {} is {}, but the stages are 0 to {}", here.rank, here.index,
               to_string(a), placement.stages() - 1);
    } else if (a.replica < 0 || a.replica >= placement.replicas()) {
      out_.add("rank {} action {} is {}, but the replicas are 0 to {}", here.rank, here.index,
               to_string(a), placement.replicas() - 1);
    } else if (const int32_t rank = placement.rank_of(a.stage.value, a.replica);
               rank != here.rank) {
      out_.add("rank {} action {} is {}, but {}stage {} is on rank {}", here.rank, here.index,
               to_string(a), a.replica == 0 ? "" : fmt::format("replica {} of ", a.replica),
               a.stage.value, rank);
    }
    check_slice(here);
    if (a.first < 0 || a.count < 1 || a.first + a.count > schedule_.microbatches) {
      out_.add("rank {} action {} is {}, but the microbatches are 0 to {}", here.rank, here.index,
               to_string(a), schedule_.microbatches - 1);
    }
    if (a.paired_with < 0) return;
    const bool mutual = a.paired_with < size && a.paired_with != here.index &&
                        action({here.rank, a.paired_with}).paired_with == here.index;
    if (!mutual) {
      out_.add("rank {} action {} ({}) is paired with action {}, which is not paired with it",
               here.rank, here.index, to_string(a), a.paired_with);
    } else if (std::abs(a.paired_with - here.index) != 1) {
      out_.add("rank {} action {} ({}) is paired with action {}, which is not its neighbour",
               here.rank, here.index, to_string(a), a.paired_with);
    } else if (a.paired_with > here.index) {
      check_pair(here, {here.rank, a.paired_with});
    }
  }

  // A pair is a forward and a backward of different units, or they could not run at one time.
  void check_pair(Place first, Place second) {
    const Action &a = action(first), &b = action(second);
    const bool one_forward = (a.kind == ActionKind::kF) != (b.kind == ActionKind::kF);
    const bool apart = a.first + a.count <= b.first || b.first + b.count <= a.first;
    if (one_forward && (a.stage != b.stage || apart)) return;
    out_.add(
        "rank {} action {} ({}) cannot overlap with {}; a pair is a forward and a backward of "
        "different work",
        first.rank, first.index, to_string(a), to_string(b));
  }

  void check_slice(Place here) {
    const Action& a = action(here);
    const bool fits =
        schedule_.slices == 1 ? a.slice == -1 : a.slice >= 0 && a.slice < schedule_.slices;
    if (fits) return;
    out_.add(
        "rank {} action {} is {}, but the slices are {}", here.rank, here.index, to_string(a),
        schedule_.slices == 1 ? "whole sequences" : fmt::format("0 to {}", schedule_.slices - 1));
  }

  // Once of an action of several microbatches, of which the same is wrong.
  template <typename... Args>
  void tell_once(fmt::format_string<Args...> format, Args&&... args) {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    if (out_.empty() || out_.findings().back() != text) out_.add("{}", text);
  }

  // Slices go forward in order and backward in reverse, for a later slice reads the keys and values
  // of the earlier ones, and adds to their gradients.
  void check_slice_order(const Unit& unit, Place here) {
    const bool forward = action(here).kind == ActionKind::kF;
    const bool backward =
        action(here).kind == ActionKind::kI || action(here).kind == ActionKind::kB;
    Unit before = unit;
    if (forward && unit.slice > 0) {
      --before.slice;
    } else if (backward && unit.slice >= 0 && unit.slice + 1 < schedule_.slices) {
      ++before.slice;
    } else {
      return;
    }
    const Work* work = work_.find(before);
    if (work != nullptr && (forward ? work->f : work->i).valid()) return;
    tell_once("rank {} action {} ({}) comes before slice {} of its microbatch", here.rank,
              here.index, to_string(action(here)), before.slice);
  }

  void set(Place& place, Place here) {
    if (place.valid()) {
      tell_once("rank {} action {} ({}) is there twice: rank {} action {} is {}", here.rank,
                here.index, to_string(action(here)), place.rank, place.index,
                to_string(action(place)));
    }
    place = here;
  }
  void need_before(Place place, const char* what, Place here) {
    if (place.valid() && place.rank == here.rank) return;
    tell_once("rank {} action {} ({}) has no {} before it on this rank", here.rank, here.index,
              to_string(action(here)), what);
  }

  void collect_unit(const Unit& unit, Place here) {
    check_slice_order(unit, here);
    Work& work = work_.at(unit);
    switch (action(here).kind) {
      case ActionKind::kF: set(work.f, here); break;
      case ActionKind::kI:
        set(work.i, here);
        need_before(work.f, "F", here);
        break;
      case ActionKind::kW:
        set(work.w, here);
        need_before(work.i, "I", here);
        break;
      case ActionKind::kB:
        set(work.i, here);
        work.w = here;
        need_before(work.f, "F", here);
        break;
      default:
        tell_once(
            "rank {} action {} is {}; a schedule holds F, I, W and B, the lowering adds the rest",
            here.rank, here.index, to_string(action(here)));
    }
  }

  // Every unit has F, I and W; every stage and replica has the same slices of every microbatch.
  void check_complete() {
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>
        slices;  // (stage, replica) -> units per microbatch
    work_.for_each([&](const Unit& unit, const Work& work) {
      if (is_enough()) return;
      // What comes without an F before it was told with its place.
      const Place last = work.w.valid() ? work.w : work.i.valid() ? work.i : work.f;
      const bool told = work.w.valid() && !work.i.valid();  // at the W
      if (!told && (!work.i.valid() || !work.w.valid())) {
        tell_once("rank {} action {} ({}) has no {} of its microbatch after it", last.rank,
                  last.index, to_string(action(last)), work.i.valid() ? "W" : "B");
      }
      auto& counts = slices[{unit.stage, unit.replica}];
      counts.resize(static_cast<size_t>(std::max(schedule_.microbatches, unit.microbatch + 1)));
      ++counts[static_cast<size_t>(unit.microbatch)];
    });
    // Replicas share the microbatches out: each is on one of them, with all its slices.
    struct Idle {
      int32_t rank;
      std::vector<int32_t> stages, microbatches;
    };
    std::vector<Idle> idle;
    for (int32_t s = 0; s < schedule_.placement.stages(); ++s) {
      std::vector<int32_t> without;  // microbatches
      for (int32_t k = 0; k < schedule_.microbatches && !is_enough(); ++k) {
        if (!check_shared_out(s, k, slices)) without.push_back(k);
      }
      if (without.empty()) continue;
      const int32_t rank = schedule_.placement.rank_of_stage[static_cast<size_t>(s)];
      const bool alike =
          !idle.empty() && idle.back().rank == rank && idle.back().microbatches == without;
      if (!alike) idle.push_back({rank, {}, std::move(without)});
      idle.back().stages.push_back(s);
    }
    for (const Idle& one : idle) {
      out_.add("{}stage{} {} {} no work for microbatch{} {}",
               one.rank < 0 ? "" : fmt::format("rank {}: ", one.rank),
               one.stages.size() == 1 ? "" : "s", ranges_text(one.stages),
               one.stages.size() == 1 ? "has" : "have", one.microbatches.size() == 1 ? "" : "es",
               ranges_text(one.microbatches));
    }
    if (out_.empty() && schedule_.placement.replicas() > 1) check_ways();
  }

  // A microbatch goes through the stages of one replica: another one's do not have what it needs.
  void check_ways() {
    std::vector<const Action*> first(static_cast<size_t>(schedule_.microbatches), nullptr);
    work_.for_each([&](const Unit& unit, const Work& work) {
      const Action*& way = first[static_cast<size_t>(unit.microbatch)];
      if (way == nullptr) way = &action(work.f);
      if (way->replica == unit.replica || is_enough()) return;
      out_.add(
          "rank {} action {} ({}) is on replica {}, but {} is on replica {}: a microbatch goes "
          "through one replica",
          work.f.rank, work.f.index, to_string(action(work.f)), unit.replica, to_string(*way),
          way->replica);
    });
  }

  // "0 to 3, 7": ascending.
  static std::string ranges_text(const std::vector<int32_t>& numbers) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin < numbers.size();) {
      size_t end = begin + 1;
      while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
      if (parts.size() == 8) return join(parts, ", ") + ", and more";
      parts.push_back(end - begin == 1 ? std::to_string(numbers[begin])
                                       : fmt::format("{} to {}", numbers[begin], numbers[end - 1]));
      begin = end;
    }
    return join(parts, ", ");
  }

  // False: no work for it at all.
  bool check_shared_out(int32_t stage, int32_t microbatch,
                        const std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>>& slices) {
    int32_t units = 0, replica = -1;
    for (auto it = slices.lower_bound({stage, 0}); it != slices.end() && it->first.first == stage;
         ++it) {
      const int32_t here = it->second[static_cast<size_t>(microbatch)];
      if (here == 0) continue;
      if (replica >= 0) {
        out_.add("stage {} has microbatch {} on replica {} and on replica {}", stage, microbatch,
                 replica, it->first.second);
      }
      replica = it->first.second;
      units += here;
    }
    if (units > 0 && units < schedule_.slices) {
      out_.add("stage {} has {} of the {} slices of microbatch {}", stage, units, schedule_.slices,
               microbatch);
    }
    return units > 0;
  }

  // The place of the action that `here` waits for and that has not run, if any.
  Place missing(Place here, const std::vector<int32_t>& done) const {
    const Action& a = action(here);
    const int32_t last = schedule_.placement.stages() - 1;
    Place result;
    for_units(a, [&](Unit unit) {
      Place need;
      if (a.kind == ActionKind::kF && unit.stage > 0) {
        --unit.stage;
        if (const Work* work = work_.find(unit)) need = work->f;
      } else if ((a.kind == ActionKind::kB || a.kind == ActionKind::kI) && unit.stage < last) {
        ++unit.stage;
        if (const Work* work = work_.find(unit)) need = work->i;
      }
      if (need.valid() && need.index >= done[static_cast<size_t>(need.rank)]) result = need;
    });
    return result;
  }

  // An action, and what it waits for.
  struct Wait {
    Place here, need;
  };
  // What keeps a rank from its next action, or from a pair, whose two parts begin together.
  Wait next_wait(int32_t rank, const std::vector<int32_t>& done) const {
    Place here{rank, done[static_cast<size_t>(rank)]};
    const bool is_pair = action(here).paired_with == here.index + 1;
    const Place need = missing(here, done);
    if (need.valid() || !is_pair) return {here, need};
    ++here.index;
    return {here, missing(here, done)};
  }

  // Runs the ranks until all are at their end or none can move. A rank that waits is woken by the
  // rank it waits for.
  void check_progress() {
    const size_t ranks = schedule_.ranks.size();
    std::vector<int32_t> done(ranks, 0);
    std::vector<std::vector<int32_t>> waiters(ranks);
    std::vector<int32_t> ready;
    for (size_t r = 0; r < ranks; ++r) ready.push_back(static_cast<int32_t>(r));
    while (!ready.empty()) {
      const int32_t rank = ready.back();
      ready.pop_back();
      const auto r = static_cast<size_t>(rank);
      while (done[r] < static_cast<int32_t>(schedule_.ranks[r].size())) {
        const Wait wait = next_wait(rank, done);
        if (wait.need.valid()) {
          waiters[static_cast<size_t>(wait.need.rank)].push_back(rank);
          break;
        }
        done[r] = wait.here.index + 1;
        ready.insert(ready.end(), waiters[r].begin(), waiters[r].end());
        waiters[r].clear();
      }
    }
    for (size_t r = 0; r < ranks; ++r) {
      if (done[r] == static_cast<int32_t>(schedule_.ranks[r].size())) continue;
      const auto [here, need] = next_wait(static_cast<int32_t>(r), done);
      out_.add("rank {} waits forever at action {} ({}) for {} of rank {}", r, here.index,
               to_string(action(here)), to_string(action(need)), need.rank);
    }
  }

  const Schedule& schedule_;
  WorkTable work_;
  Diagnostics out_;
};

}  // namespace

std::vector<std::string> findings(const Schedule& schedule) { return Checker(schedule).run(); }

std::vector<int32_t> peak_in_flight(const Schedule& schedule) {
  std::vector<int32_t> peaks;
  for (const std::vector<Action>& actions : schedule.ranks) {
    int32_t live = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kF) live += action.count;
      peak = std::max(peak, live);
      if (action.kind == ActionKind::kW || action.kind == ActionKind::kB) live -= action.count;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace mw::pipeline
