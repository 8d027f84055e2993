// Every uniform plan. Coarse estimates bound each layout from below, the most promising first, so
// that most schedules are never looked at; the result is as if all had been.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "planner/search.h"
#include "planner/simulated.h"
#include "planner/space.h"

namespace mw::planner {
namespace {

using compile::Plan;

struct Estimated {
  Plan plan;
  Seconds step;
  Bytes peak;
};
// The front is told up to so many times the best step, by so many plans.
constexpr double kFrontReach = 1.5;
constexpr size_t kFrontSimulated = 8;
// A group whose work alone takes so many times the slowest of the best is not tried with larger
// microbatches.
constexpr double kTooSlow = 1.15;

bool faster(const Estimated& a, const Estimated& b) {
  return a.step != b.step ? a.step < b.step : a.peak < b.peak;
}

class Search {
 public:
  Search(const Request& request, predict::Coarse& coarse)
      : request_(request),
        coarse_(coarse),
        limit_(static_cast<double>(request.base.cluster.device.memory.value) * kMemorySlack) {}

  Found run() {
    const std::map<int64_t, std::map<Group, std::vector<Plan>>> by_size = plans_by_size();
    // ZeRO 2 and 3 last: they take long to look at, and by then little of them is fast enough.
    for (const bool divided : {false, true}) {
      given_up_.clear();
      for (const auto& [microbatch, groups] : by_size) look_at_size(groups, divided);
    }
    std::sort(best_.begin(), best_.end(), faster);
    simulate();
    return std::move(found_);
  }

 private:
  using Group = std::tuple<int64_t, bool, compile::Recompute>;  // tp, sp

  const std::vector<Pipelining>& pipelinings(int64_t pp) {
    const auto [it, is_new] = pipelinings_.try_emplace(pp);
    if (is_new) it->second = planner::pipelinings(request_.base, pp);
    return it->second;
  }

  // [sequences of a microbatch][group] layouts.
  std::map<int64_t, std::map<Group, std::vector<Plan>>> plans_by_size() {
    std::map<int64_t, std::map<Group, std::vector<Plan>>> by_size;
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
    coarse_.prepare_states(plans, thread_count(request_));
    std::erase_if(plans, [&](const Plan& plan) { return !fits(coarse_.states(plan)); });
    coarse_.prepare(plans, thread_count(request_));
    std::vector<Estimated> layouts;
    for (const Plan& plan : plans) {
      const predict::Estimate least = coarse_.least(plan);
      if (!fits(least.peak)) continue;
      const auto [it, is_new] = fastest.try_emplace({plan.tp, plan.sp, plan.recompute}, least.step);
      it->second = std::min(it->second, least.step);
      layouts.push_back({plan, least.step, least.peak});
    }
    std::stable_sort(layouts.begin(), layouts.end(), faster);
    prepare_exact(soon(layouts));
    for (const Estimated& layout : layouts) look_at(layout);
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
        Plan plan = layout.plan;
        plan.schedule = pipelining.schedule;
        plan.chunks = pipelining.chunks;
        if (coarse_.has_order(plan)) plans.push_back(std::move(plan));
      }
    }
    return plans;
  }

  // Compiles what they will ask for.
  void prepare_exact(std::vector<Plan> plans) {
    coarse_.prepare_scheduled(plans, thread_count(request_));
    std::erase_if(plans, [&](const Plan& plan) {
      return !is_dear(plan) || !may_be_told(coarse_.least_scheduled(plan));
    });
    coarse_.prepare_exact(plans, thread_count(request_));
  }

  void look_at(const Estimated& layout) {
    if (best_.size() < wanted() || layout.step < best_.front().step) {
      for (const Pipelining& pipelining : pipelinings(layout.plan.pp)) look_at(layout, pipelining);
      return;
    }
    // Too slow for the best; the front takes it under the usual schedule, if it needs less memory.
    if (may_be_on_front(layout.step, layout.peak)) look_at(layout, {"1f1b", 1});
  }

  bool fits(Bytes peak) const { return static_cast<double>(peak.value) <= limit_; }
  bool may_be_on_front(Seconds step, Bytes peak) const {
    return step.value <= kFrontReach * fastest_.value &&
           std::none_of(front_.begin(), front_.end(), [&](const Estimated& other) {
             return other.step <= step && other.peak <= peak;
           });
  }
  // Whether it can be one of the best or on the front, where it takes no less than that.
  bool may_be_told(const predict::Estimate& least) const {
    if (!fits(least.peak)) return false;
    if (best_.size() < wanted() || least.step < best_.front().step) return true;
    return may_be_on_front(least.step, least.peak);
  }

  size_t wanted() const { return static_cast<size_t>(request_.simulated); }

  void look_at(const Estimated& layout, const Pipelining& pipelining) {
    Estimated here = layout;
    here.plan.schedule = pipelining.schedule;
    here.plan.chunks = pipelining.chunks;
    if (!coarse_.has_order(here.plan)) return;
    if (is_dear(here.plan) && !may_be_told(coarse_.least_scheduled(here.plan))) return;
    here.peak = coarse_.memory(here.plan).peak;
    if (!fits(here.peak)) return;
    here.step = coarse_.step(here.plan);
    if (fastest_.value == 0 || here.step < fastest_) fastest_ = here.step;
    keep_on_front(here);
    // The slowest of the best is on top.
    if (best_.size() >= wanted()) {
      if (!faster(here, best_.front())) return;
      std::pop_heap(best_.begin(), best_.end(), faster);
      best_.pop_back();
    }
    best_.push_back(std::move(here));
    std::push_heap(best_.begin(), best_.end(), faster);
  }

  void keep_on_front(const Estimated& here) {
    const bool dominated = std::any_of(front_.begin(), front_.end(), [&](const Estimated& other) {
      return other.step <= here.step && other.peak <= here.peak;
    });
    if (dominated) return;
    std::erase_if(front_, [&](const Estimated& other) {
      return here.step <= other.step && here.peak <= other.peak;
    });
    front_.push_back(here);
  }

  // The fastest, and as many of the front as tell it from end to end.
  void simulate() {
    std::vector<Plan> plans;
    for (const Estimated& estimated : best_) plans.push_back(estimated.plan);
    std::erase_if(front_, [&](const Estimated& estimated) {
      return estimated.step.value > kFrontReach * fastest_.value;
    });
    std::sort(front_.begin(), front_.end(), faster);
    const size_t count = std::min(kFrontSimulated, front_.size());
    for (size_t i = 0; i < count; ++i) {
      const Plan& plan = front_[count == 1 ? 0 : i * (front_.size() - 1) / (count - 1)].plan;
      if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
    }
    add_fitting(simulate_plans(request_, plans), found_);
  }

  const Request& request_;
  predict::Coarse& coarse_;
  double limit_;
  std::map<int64_t, std::vector<Pipelining>> pipelinings_;  // [pp]
  std::set<Group> given_up_;
  Seconds fastest_;              // of all looked at
  std::vector<Estimated> best_;  // a heap
  std::vector<Estimated> front_;
  Found found_;
};

}  // namespace

Found exhaustive(const Request& request, predict::Coarse& coarse) {
  return Search(request, coarse).run();
}

}  // namespace mw::planner
