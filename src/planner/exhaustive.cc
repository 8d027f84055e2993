// Every uniform plan. Coarse estimates bound each layout from below, the most promising first, so
// that most schedules are never looked at; the result is as if all had been.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "planner/front.h"
#include "planner/search.h"
#include "planner/shortlist.h"
#include "planner/simulated.h"
#include "planner/space.h"
#include "planner/workers.h"

namespace mw::planner {
namespace {

using compile::Plan;

// A group whose work alone takes so many times the slowest of the best is not tried with larger
// microbatches.
constexpr double kTooSlow = 1.15;

// Plans for the front that are compiled at a time.
constexpr size_t kBatch = 32;
// Layouts that are looked at side by side.
constexpr double kBeyond = 1.5;  // of the limit of estimates: what may fit for all they say
constexpr size_t kSideBySide = 32;

// For the front.
bool promises_more(const Estimated& a, const Estimated& b) {
  const auto area = [](const Estimated& of) {
    return of.step.value * static_cast<double>(of.peak.value);
  };
  return area(a) < area(b);
}

class Search {
 public:
  Search(const Request& request, predict::Coarse& coarse)
      : request_(request),
        coarse_(coarse),
        limit_(static_cast<double>(request.base.cluster.device.usable_memory().value) *
               memory_slack(request)),
        workers_(coarse, thread_count(request)) {}

  Found run() {
    const BySize by_size = plans_by_size();
    // ZeRO 2 and 3 last: they take long to look at, and by then little of them is fast enough.
    for (const bool divided : {false, true}) {
      given_up_.clear();
      for (const auto& [microbatch, groups] : by_size) look_at_size(groups, divided);
    }
    find_front(by_size);
    keep_gathered();
    std::sort(best_.begin(), best_.end(), faster);
    simulate();
    return std::move(found_);
  }

 private:
  using Group = std::tuple<int64_t, int64_t, bool, compile::Recompute>;  // tp, ep, sp
  static Group group_of(const Plan& plan) { return {plan.tp, plan.ep, plan.sp, plan.recompute}; }
  // [sequences of a microbatch][group] layouts.
  using BySize = std::map<int64_t, std::map<Group, std::vector<Plan>>>;

  const std::vector<Pipelining>& pipelinings(const Plan& plan) const {
    return pipelinings_.at({plan.pp, plan.recompute});
  }

  // Of those of its stages, how many the plan can have; whatever else it has.
  int64_t pipelinings_taken(const Plan& plan) {
    const auto [known, is_new] =
        taken_.try_emplace({plan.pp, plan.dp, plan.microbatches, plan.recompute}, 0);
    if (is_new) {
      for (const Pipelining& pipelining : pipelinings(plan))
        known->second += coarse_.takes_order(under({plan, {}, {}}, pipelining).plan) ? 1 : 0;
    }
    return known->second;
  }

  BySize plans_by_size() {
    std::vector<Plan> plans;
    std::vector<Estimated> filling;
    std::set<std::tuple<int64_t, int64_t, compile::Recompute>> seen;  // pp, microbatches
    for (const Layout& layout : planner::layouts(request_, request_.gpus)) {
      for (Plan& plan : layout_plans(request_, layout)) {
        if (!pipelinings_.contains({plan.pp, plan.recompute}))
          pipelinings_.try_emplace({plan.pp, plan.recompute}, planner::pipelinings(request_, plan));
        // Of the others it is known without an order.
        if (plan.microbatches < 2 * plan.pp &&
            seen.emplace(plan.pp, plan.microbatches, plan.recompute).second) {
          for (const Pipelining& pipelining : pipelinings(plan))
            filling.push_back(under({plan, {}, {}}, pipelining));
        }
        plans.push_back(std::move(plan));
      }
    }
    make_orders(filling);
    BySize by_size;
    for (Plan& plan : plans) {
      found_.candidates += pipelinings_taken(plan);
      const int64_t microbatch = request_.base.global_batch / plan.dp / plan.microbatches;
      by_size[microbatch][group_of(plan)].push_back(std::move(plan));
    }
    return by_size;
  }

  template <typename Has>  // a plan
  void make_orders(const std::vector<Has>& all) {
    std::vector<const Plan*> plans;
    for (const Has& has : all) plans.push_back(&has.plan);
    workers_.make_orders(plans);
  }

  // All layouts with microbatches of one size, with ZeRO 0 and 1, or 2 and 3. A group is given up
  // when its microbatch fits with none of them and no mesh, or is so slow that a larger one, which
  // does the same work in larger products, will not make it up.
  void look_at_size(const std::map<Group, std::vector<Plan>>& groups, bool divided) {
    std::vector<Plan> plans;
    for (const auto& [group, of_group] : groups) {
      if (given_up_.contains(group)) continue;
      for (const Plan& plan : of_group) {
        if ((plan.zero >= 2) == divided) plans.push_back(plan);
      }
    }
    if (divided && request_.only.takes("zero", 1)) keep_dividing(plans);
    std::map<Group, Seconds> fastest;
    std::set<Group> tried;
    for (const Plan& plan : plans) tried.insert(group_of(plan));
    look_at_plans(plans, fastest);
    for (const Group& group : tried) {
      const auto it = fastest.find(group);
      const bool full = it == fastest.end();
      if (full ||
          (best_.size() >= wanted() && it->second.value > kTooSlow * best_.front().step.value))
        given_up_.insert(group);
    }
  }

  // ZeRO 2 and 3 do the same work with more communication: they are for what ZeRO 1 does not make
  // fit, and for a single microbatch, beside which their communication hides.
  void keep_dividing(std::vector<Plan>& plans) {
    const auto beside = [](Plan plan) {
      plan.zero = 1;
      return plan;
    };
    std::vector<Plan> others;
    for (const Plan& plan : plans) {
      if (plan.microbatches > 1) others.push_back(beside(plan));
    }
    coarse_.prepare(others, workers_.threads());
    std::erase_if(plans, [&](const Plan& plan) {
      return plan.microbatches > 1 && surely_fits(coarse_.memory(beside(plan)).peak);
    });
  }

  void look_at_plans(std::vector<Plan> plans, std::map<Group, Seconds>& fastest) {
    std::vector<Estimated> layouts = fitting(std::move(plans));
    for (const auto& [plan, step, peak] : layouts) {
      const auto [it, is_new] = fastest.try_emplace(group_of(plan), step);
      it->second = std::min(it->second, step);
    }
    std::stable_sort(layouts.begin(), layouts.end(), faster);
    coarse_.prepare_exact(soon(layouts), workers_.threads());
    for (size_t at = 0; at < layouts.size() && may_be_among_best(layouts[at]); at += kSideBySide) {
      const auto looked =
          look_side_by_side(layouts, at, [&](predict::Coarse& coarse, Looked& here) {
            here.peak = coarse.memory(here.plan).peak;
            if (fits(here.peak)) here.step = coarse.step(here.plan);
          });
      for (size_t i = 0; i < looked.size(); ++i) {
        if (!may_be_among_best(layouts[at + i])) return;  // nor what follows
        for (const Looked& here : looked[i]) take(here);
      }
    }
  }

  // What a layout takes under one of its pipelinings.
  struct Looked : Estimated {
    bool dear = false;  // at the least; otherwise as it is, the step if it was worth while
  };

  // [layout] from `at` on, under those of its pipelinings that it can have. What is not dear is
  // looked at by `look_at_cheap`, which starts from what the layout takes at the least and may read
  // what was found so far.
  template <typename LookAtCheap>
  std::vector<std::vector<Looked>> look_side_by_side(const std::vector<Estimated>& layouts,
                                                     size_t at, const LookAtCheap& look_at_cheap) {
    std::vector<std::vector<Looked>> looked(std::min(kSideBySide, layouts.size() - at));
    std::vector<Looked> all;
    std::vector<size_t> layout_of;
    for (size_t i = 0; i < looked.size(); ++i) {
      for (const Pipelining& pipelining : pipelinings(layouts[at + i].plan)) {
        all.push_back({under(layouts[at + i], pipelining)});
        layout_of.push_back(i);
      }
    }
    make_orders(all);
    std::vector<char> has_order(all.size(), 0);
    workers_.run(all.size(), [&](predict::Coarse& coarse, size_t i) {
      has_order[i] = coarse.has_order(all[i].plan) ? 1 : 0;
    });
    std::vector<Plan> plans;
    for (size_t i = 0; i < all.size(); ++i) {
      if (has_order[i]) plans.push_back(all[i].plan);
    }
    coarse_.prepare_scheduled(plans, workers_.threads());
    workers_.run(all.size(), [&](predict::Coarse& coarse, size_t i) {
      if (!has_order[i]) return;
      Looked& here = all[i];
      here.dear = is_dear(here.plan);
      if (!here.dear) return look_at_cheap(coarse, here);
      const predict::Estimate least = coarse.least_scheduled(here.plan);
      here.step = least.step;
      here.peak = least.peak;
    });
    for (size_t i = 0; i < all.size(); ++i) {
      if (has_order[i]) looked[layout_of[i]].push_back(std::move(all[i]));
    }
    return looked;
  }

  // Those of the layouts that may fit, with what they take at the least.
  std::vector<Estimated> fitting(std::vector<Plan> plans) {
    coarse_.prepare_states(plans, workers_.threads());
    std::erase_if(plans, [&](const Plan& plan) { return !fits(coarse_.states(plan)); });
    coarse_.prepare(plans, workers_.threads());
    std::vector<Estimated> layouts;
    for (Plan& plan : plans) {
      const predict::Estimate least = coarse_.least(plan);
      if (fits(least.peak)) {
        layouts.push_back({std::move(plan), least.step, least.peak});
      } else if (may_fit(least.peak)) {
        for (const Pipelining& pipelining : pipelinings(plan))
          add_beyond(under({plan, least.step, least.peak}, pipelining));
      }
    }
    return layouts;
  }

  // All layouts that may fit. Where a group fits on no mesh, neither does it with twice the
  // microbatch or three times: all meshes that take that take this.
  std::vector<Estimated> all_fitting(const BySize& by_size) {
    std::vector<Estimated> layouts;
    std::map<Group, std::vector<int64_t>> full;  // sizes
    for (const auto& [microbatch, groups] : by_size) {
      std::vector<Plan> plans;
      std::set<Group> tried;
      for (const auto& [group, of_group] : groups) {
        const std::vector<int64_t>& sizes = full[group];
        if (std::any_of(sizes.begin(), sizes.end(),
                        [size = microbatch](int64_t fewer) { return size % fewer == 0; }))
          continue;
        tried.insert(group);
        plans.insert(plans.end(), of_group.begin(), of_group.end());
      }
      for (Estimated& layout : fitting(std::move(plans))) {
        tried.erase(group_of(layout.plan));
        layouts.push_back(std::move(layout));
      }
      for (const Group& group : tried) full[group].push_back(microbatch);
    }
    return layouts;
  }

  // Adds to the front what the search for the fastest left out. Layouts that promise most first,
  // and what takes long to look at last.
  void find_front(const BySize& by_size) {
    std::vector<Estimated> layouts = all_fitting(by_size), dear;
    std::stable_sort(layouts.begin(), layouts.end(), promises_more);
    const auto promising = [&](const Estimated& here) {
      return fits(here.peak) && front_.takes(here.step, here.peak);
    };
    for (size_t at = 0; at < layouts.size(); at += kSideBySide) {
      std::erase_if(layouts, [&, i = size_t{0}](const Estimated& layout) mutable {
        return i++ >= at && !front_.takes(layout.step, layout.peak);
      });
      if (at >= layouts.size()) break;
      const auto looked =
          look_side_by_side(layouts, at, [&](predict::Coarse& coarse, Looked& here) {
            here.peak = coarse.memory(here.plan).peak;
            if (promising(here)) here.step = coarse.step(here.plan);
          });
      for (const std::vector<Looked>& of_layout : looked) {
        for (const Looked& here : of_layout) {
          if (!promising(here)) continue;
          here.dear ? dear.push_back(here) : front_.keep(here);
        }
      }
    }
    std::stable_sort(dear.begin(), dear.end(), promises_more);
    for (auto next = dear.begin(); next != dear.end();) next = look_at_dear(next, dear.end());
  }

  // The best once more without `regather`: what sequence parallelism gathers is saved, where the
  // memory allows it. Only they, as most plans have not the room.
  void keep_gathered() {
    std::vector<Plan> plans;
    for (const Estimated& best : best_) {
      if (!best.plan.regather) continue;
      plans.push_back(best.plan);
      plans.back().regather = false;
    }
    found_.candidates += static_cast<int64_t>(plans.size());
    coarse_.prepare_exact(plans, workers_.threads());
    for (Plan& plan : plans) {
      Looked here;
      here.plan = std::move(plan);
      here.peak = coarse_.memory(here.plan).peak;
      if (!fits(here.peak)) continue;
      here.step = coarse_.step(here.plan);
      take(std::move(here));
    }
  }

  using Next = std::vector<Estimated>::iterator;
  // The next few that may be on the front; returns what follows them.
  Next look_at_dear(Next next, Next end) {
    std::vector<Estimated> batch;
    std::vector<Plan> plans;
    for (; next != end && batch.size() < kBatch; ++next) {
      if (!front_.takes(next->step, next->peak)) continue;
      batch.push_back(*next);
      plans.push_back(next->plan);
    }
    coarse_.prepare_exact(plans, workers_.threads());
    for (const Estimated& here : batch) look_at_front(here);
    return next;
  }

  // With what it takes at the least. REQUIRES: it has an order.
  void look_at_front(Estimated here) {
    if (!front_.takes(here.step, here.peak)) return;
    here.peak = coarse_.memory(here.plan).peak;
    if (!fits(here.peak) || !front_.takes(here.step, here.peak)) return;
    here.step = coarse_.step(here.plan);
    front_.keep(here);
  }

  static Estimated under(Estimated layout, const Pipelining& pipelining) {
    lay(pipelining, layout.plan);
    return layout;
  }

  // ZeRO 2 and 3, and slices of sequences, are compiled only for what may be told.
  static bool is_dear(const Plan& plan) { return plan.zero >= 2 || plan.sequence_slices() > 1; }

  // The dear plans that will be looked at, as far as can be told now.
  std::vector<Plan> soon(const std::vector<Estimated>& layouts) {
    std::vector<Plan> plans;
    size_t count = 0;
    const bool full = best_.size() >= wanted();
    for (size_t at = 0; at < layouts.size(); at += kSideBySide) {
      if (full && layouts[at].step >= best_.front().step) break;
      const auto looked = look_side_by_side(layouts, at, [](predict::Coarse&, Looked&) {});
      for (size_t i = 0; i < looked.size(); ++i) {
        if (full ? layouts[at + i].step >= best_.front().step : best_.size() + count >= wanted())
          return plans;
        for (const Looked& here : looked[i]) {
          ++count;
          if (here.dear && may_be_best(here)) plans.push_back(here.plan);
        }
      }
    }
    return plans;
  }

  bool may_be_among_best(const Estimated& least) const {
    return best_.size() < wanted() || least.step < best_.front().step;
  }

  bool fits(Bytes peak) const { return static_cast<double>(peak.value) <= limit_; }
  // Whatever a stack's own allocator makes of it.
  bool surely_fits(Bytes peak) const {
    const double usable = limit_ / memory_slack(request_);
    return static_cast<double>(peak.value) * (tells_memory() ? 1 : memory_slack(request_)) <=
           usable;
  }
  // Whether it is the program's plan of memory, which estimates tell.
  bool tells_memory() const {
    return request_.base.cluster.stack.allocator == cluster::Allocator::kPlan;
  }
  // Whether its simulation may fit though its estimate does not.
  bool may_fit(Bytes peak) const {
    return !tells_memory() && static_cast<double>(peak.value) <= kBeyond * limit_;
  }
  // Whether it can be one of the best, where it takes no less than that.
  bool may_be_best(const Estimated& least) const {
    return fits(least.peak) && may_be_among_best(least);
  }

  size_t simulated() const { return static_cast<size_t>(request_.simulated); }
  // Twice as many where only its simulation tells whether a plan fits.
  size_t wanted() const { return tells_memory() ? simulated() : 2 * simulated(); }

  // Whether its estimate is too full; where it may fit all the same, it is looked at in the end.
  bool leave_beyond(const Looked& here) {
    if (fits(here.peak)) return false;
    if (may_fit(here.peak)) add_beyond(here);
    return true;
  }
  void add_beyond(Estimated here) {
    beyond_.push_back(std::move(here));
    if (beyond_.size() < 4 * simulated()) return;
    const auto most = beyond_.begin() + static_cast<std::ptrdiff_t>(2 * simulated());
    std::nth_element(beyond_.begin(), most, beyond_.end(), less_full);
    beyond_.erase(most, beyond_.end());
  }
  static bool less_full(const Estimated& a, const Estimated& b) { return a.peak < b.peak; }

  void take(Looked here) {
    if (leave_beyond(here)) return;
    if (here.dear) {
      if (!may_be_best(here)) return;
      here.peak = coarse_.memory(here.plan).peak;
      if (leave_beyond(here)) return;
      here.step = coarse_.step(here.plan);
    }
    front_.keep(here);
    // The slowest of the best is on top.
    if (best_.size() >= wanted()) {
      if (!faster(here, best_.front())) return;
      std::pop_heap(best_.begin(), best_.end(), faster);
      best_.pop_back();
    }
    best_.push_back(std::move(here));
    std::push_heap(best_.begin(), best_.end(), faster);
  }

  // The fastest, and the front; long programs as far as they may be told. More of the fastest as
  // long as fewer fit than were asked for.
  void simulate() {
    const auto behind =
        best_.begin() + static_cast<std::ptrdiff_t>(std::min(simulated(), best_.size()));
    simulate(std::vector<Estimated>(best_.begin(), behind), front_.told());
    for (auto next = behind; next != best_.end() && found_.plans.size() < simulated();) {
      const auto missing = static_cast<std::ptrdiff_t>(simulated() - found_.plans.size());
      const auto end = next + std::min(missing, best_.end() - next);
      simulate(std::vector<Estimated>(next, end), {});
      next = end;
    }
    simulate_beyond();
  }
  // Where fewer fit than may be told, those whose estimates are too full, the least full first.
  void simulate_beyond() {
    std::stable_sort(beyond_.begin(), beyond_.end(), less_full);
    std::vector<Estimated> next;
    for (Estimated& here : beyond_) {
      if (next.size() + found_.plans.size() >= simulated()) break;
      const auto is_same = [&](const Estimated& other) { return other.plan == here.plan; };
      if (std::none_of(next.begin(), next.end(), is_same) && coarse_.takes_order(here.plan))
        next.push_back(std::move(here));
    }
    if (!next.empty()) simulate(std::move(next), {});
  }
  void simulate(std::vector<Estimated> all, std::vector<Estimated> front) {
    for (Estimated& of_front : front) {
      if (std::none_of(all.begin(), all.end(),
                       [&](const Estimated& other) { return other.plan == of_front.plan; }))
        all.push_back(std::move(of_front));
    }
    const Shortlist list = shortlist(all);
    std::vector<Plan> plans;
    for (const Estimated& estimated : list.first) plans.push_back(estimated.plan);
    add_fitting(simulate_plans(request_, plans), found_);
    auto next = list.later.begin();
    for (; next != list.later.end() &&
           (found_.plans.empty() || Shortlist::may_win(*next, found_.plans.front().step));
         ++next)
      add_fitting(simulate_plans(request_, {next->plan}), found_);
    found_.not_simulated += list.later.end() - next;
  }

  const Request& request_;
  predict::Coarse& coarse_;
  double limit_;
  Workers workers_;
  // [pp, recompute]
  std::map<std::pair<int64_t, compile::Recompute>, std::vector<Pipelining>> pipelinings_;
  // [pp, dp, microbatches, recompute]
  std::map<std::tuple<int64_t, int64_t, int64_t, compile::Recompute>, int64_t> taken_;
  std::set<Group> given_up_;
  std::vector<Estimated> best_;    // a heap
  Front front_;                    // of all looked at
  std::vector<Estimated> beyond_;  // some of those whose estimates are too full
  Found found_;
};

}  // namespace

Found exhaustive(const Request& request, predict::Coarse& coarse) {
  return Search(request, coarse).run();
}

}  // namespace mw::planner
