// Every uniform plan. Coarse estimates bound each layout from below, the most promising first, so
// that most schedules are never looked at; the result is as if all had been.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "planner/front.h"
#include "planner/search.h"
#include "planner/simulated.h"
#include "planner/space.h"

namespace mw::planner {
namespace {

using compile::Plan;

// A group whose work alone takes so many times the slowest of the best is not tried with larger
// microbatches.
constexpr double kTooSlow = 1.15;

// Plans for the front that are compiled at a time.
constexpr size_t kBatch = 32;

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
        limit_(static_cast<double>(request.base.cluster.device.memory.value) * kMemorySlack) {}

  Found run() {
    const BySize by_size = plans_by_size();
    // ZeRO 2 and 3 last: they take long to look at, and by then little of them is fast enough.
    for (const bool divided : {false, true}) {
      given_up_.clear();
      for (const auto& [microbatch, groups] : by_size) look_at_size(groups, divided);
    }
    find_front(by_size);
    std::sort(best_.begin(), best_.end(), faster);
    simulate();
    return std::move(found_);
  }

 private:
  using Group = std::tuple<int64_t, bool, compile::Recompute>;  // tp, sp
  // [sequences of a microbatch][group] layouts.
  using BySize = std::map<int64_t, std::map<Group, std::vector<Plan>>>;

  const std::vector<Pipelining>& pipelinings(int64_t pp) {
    const auto [it, is_new] = pipelinings_.try_emplace(pp);
    if (is_new) it->second = planner::pipelinings(request_.base, pp);
    return it->second;
  }

  BySize plans_by_size() {
    BySize by_size;
    for (const Layout& layout : planner::layouts(request_.base, request_.gpus)) {
      for (const Plan& plan : layout_plans(request_.base, layout)) {
        found_.candidates += static_cast<int64_t>(pipelinings(plan.pp).size());
        const int64_t microbatch = request_.base.global_batch / plan.dp / plan.microbatches;
        by_size[microbatch][{plan.tp, plan.sp, plan.recompute}].push_back(plan);
      }
    }
    return by_size;
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
    if (divided) keep_dividing(plans);
    std::map<Group, Seconds> fastest;
    std::set<Group> tried;
    for (const Plan& plan : plans) tried.insert({plan.tp, plan.sp, plan.recompute});
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
    coarse_.prepare(others, thread_count(request_));
    std::erase_if(plans, [&](const Plan& plan) {
      return plan.microbatches > 1 &&
             static_cast<double>(coarse_.memory(beside(plan)).peak.value) * kMemorySlack <= limit_;
    });
  }

  void look_at_plans(std::vector<Plan> plans, std::map<Group, Seconds>& fastest) {
    std::vector<Estimated> layouts = fitting(std::move(plans));
    for (const auto& [plan, step, peak] : layouts) {
      const auto [it, is_new] = fastest.try_emplace({plan.tp, plan.sp, plan.recompute}, step);
      it->second = std::min(it->second, step);
    }
    std::stable_sort(layouts.begin(), layouts.end(), faster);
    prepare_exact(soon(layouts));
    for (const Estimated& layout : layouts) look_at(layout);
  }

  // Those of the layouts that may fit, with what they take at the least.
  std::vector<Estimated> fitting(std::vector<Plan> plans) {
    coarse_.prepare_states(plans, thread_count(request_));
    std::erase_if(plans, [&](const Plan& plan) { return !fits(coarse_.states(plan)); });
    coarse_.prepare(plans, thread_count(request_));
    std::vector<Estimated> layouts;
    for (Plan& plan : plans) {
      const predict::Estimate least = coarse_.least(plan);
      if (fits(least.peak)) layouts.push_back({std::move(plan), least.step, least.peak});
    }
    return layouts;
  }

  // Adds to the front what the search for the fastest left out. Layouts that promise most first,
  // and what takes long to look at last.
  void find_front(const BySize& by_size) {
    std::vector<Plan> plans;
    for (const auto& [microbatch, groups] : by_size) {
      for (const auto& [group, of_group] : groups)
        plans.insert(plans.end(), of_group.begin(), of_group.end());
    }
    std::vector<Estimated> layouts = fitting(std::move(plans)), dear;
    std::stable_sort(layouts.begin(), layouts.end(), promises_more);
    for (const Estimated& layout : layouts) {
      if (!front_.takes(layout.step, layout.peak)) continue;
      for (const Pipelining& pipelining : pipelinings(layout.plan.pp)) {
        Estimated here = under(layout, pipelining);
        if (!coarse_.has_order(here.plan)) continue;
        if (!is_dear(here.plan)) {
          look_at_front(here);
          continue;
        }
        const predict::Estimate least = coarse_.least_scheduled(here.plan);
        here.step = least.step;
        here.peak = least.peak;
        if (fits(here.peak) && front_.takes(here.step, here.peak)) dear.push_back(std::move(here));
      }
    }
    std::stable_sort(dear.begin(), dear.end(), promises_more);
    for (auto next = dear.begin(); next != dear.end();) next = look_at_dear(next, dear.end());
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
    coarse_.prepare_exact(plans, thread_count(request_));
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
    layout.plan.schedule = pipelining.schedule;
    layout.plan.chunks = pipelining.chunks;
    return layout;
  }

  // ZeRO 2 and 3, and slices of sequences, are compiled only for what may be told.
  static bool is_dear(const Plan& plan) { return plan.zero >= 2 || plan.sequence_slices() > 1; }

  // The plans that will be looked at, as far as can be told now.
  std::vector<Plan> soon(const std::vector<Estimated>& layouts) {
    std::vector<Plan> plans;
    const bool full = best_.size() >= wanted();
    for (const Estimated& layout : layouts) {
      if (full ? layout.step >= best_.front().step : best_.size() + plans.size() >= wanted()) break;
      for (const Pipelining& pipelining : pipelinings(layout.plan.pp)) {
        Plan plan = under(layout, pipelining).plan;
        if (coarse_.has_order(plan)) plans.push_back(std::move(plan));
      }
    }
    return plans;
  }

  // Compiles what they will ask for.
  void prepare_exact(std::vector<Plan> plans) {
    coarse_.prepare_scheduled(plans, thread_count(request_));
    std::erase_if(plans, [&](const Plan& plan) {
      return !is_dear(plan) || !may_be_best(coarse_.least_scheduled(plan));
    });
    coarse_.prepare_exact(plans, thread_count(request_));
  }

  void look_at(const Estimated& layout) {
    if (best_.size() >= wanted() && layout.step >= best_.front().step) return;
    for (const Pipelining& pipelining : pipelinings(layout.plan.pp)) look_at(layout, pipelining);
  }

  bool fits(Bytes peak) const { return static_cast<double>(peak.value) <= limit_; }
  // Whether it can be one of the best, where it takes no less than that.
  bool may_be_best(const predict::Estimate& least) const {
    return fits(least.peak) && (best_.size() < wanted() || least.step < best_.front().step);
  }

  size_t wanted() const { return static_cast<size_t>(request_.simulated); }

  void look_at(const Estimated& layout, const Pipelining& pipelining) {
    Estimated here = under(layout, pipelining);
    if (!coarse_.has_order(here.plan)) return;
    if (is_dear(here.plan) && !may_be_best(coarse_.least_scheduled(here.plan))) return;
    here.peak = coarse_.memory(here.plan).peak;
    if (!fits(here.peak)) return;
    here.step = coarse_.step(here.plan);
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

  // The fastest, and the front.
  void simulate() {
    std::vector<Plan> plans;
    for (const Estimated& estimated : best_) plans.push_back(estimated.plan);
    for (Plan& plan : front_.told()) {
      if (std::find(plans.begin(), plans.end(), plan) == plans.end())
        plans.push_back(std::move(plan));
    }
    add_fitting(simulate_plans(request_, plans), found_);
  }

  const Request& request_;
  predict::Coarse& coarse_;
  double limit_;
  std::map<int64_t, std::vector<Pipelining>> pipelinings_;  // [pp]
  std::set<Group> given_up_;
  std::vector<Estimated> best_;  // a heap
  Front front_;                  // of all looked at
  Found found_;
};

}  // namespace

Found exhaustive(const Request& request, predict::Coarse& coarse) {
  return Search(request, coarse).run();
}

}  // namespace mw::planner
