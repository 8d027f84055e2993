#include "pipeline/schedules/zb_exact.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "pipeline/schedule_timeline.h"
#include "solver/integer_program.h"

namespace mw::pipeline {
namespace {

using solver::IntegerProgram;
using solver::kInfinity;

// A span that is longer than the bound by no more than this, in proportion, is taken for the
// shortest: the sum of the solver's tolerances.
constexpr double kExact = 1e-5;

constexpr std::array kKinds = {ActionKind::kF, ActionKind::kI, ActionKind::kW};

// One F, I or W of a stage.
struct Work {
  size_t kind;  // 0 F, 1 I, 2 W
  int32_t microbatch;
  friend auto operator<=>(const Work&, const Work&) = default;
};

// Whether `a` always runs before `b` on a stage: F, I and W of a microbatch in this order, each
// kind in the order of the microbatches.
bool always_before(const Work& a, const Work& b) {
  return a != b && a.kind <= b.kind && a.microbatch <= b.microbatch;
}

// Costs in units of the largest, and so memory: the solver's tolerances are for numbers like 1. All
// are multiples of 2^-30, so that sums of them are exact and no tie hangs on a rounding.
ScheduleCosts of_largest(const ScheduleRequest& request) {
  ScheduleCosts costs = request.costs;
  const std::array lists = {&costs.f, &costs.b, &costs.w};
  double largest = request.ranks > 1 ? costs.comm : 0;
  for (const std::vector<double>* list : lists)
    largest = std::max(largest, *std::max_element(list->begin(), list->end()));
  const auto in_units = [&](double cost) {
    return std::ldexp(std::round(std::ldexp(cost / largest, 30)), -30);
  };
  for (std::vector<double>* list : lists)
    std::transform(list->begin(), list->end(), list->begin(), in_units);
  costs.comm = in_units(costs.comm);
  const double memory = std::max(costs.mb, costs.mw);
  costs.mb /= memory;
  costs.mw /= memory;
  return costs;
}

class OrderProgram {
 public:
  OrderProgram(const ScheduleRequest& request, const Schedule& start)
      : request_(request),
        costs_(of_largest(request)),
        p_(request.ranks),
        m_(request.microbatches) {
    read_start(start);
    for (int32_t s = 0; s < p_; ++s) add_ends(s);
    for (int32_t s = 0; s < p_; ++s) {
      add_stage_order(s);
      add_memory(s);
    }
    add_chains();
    add_span();
  }

  Schedule solve(int32_t most_nodes) {
    const solver::Solution solution =
        solver::solve(program_, {.most_nodes = most_nodes, .start = start_values_});
    MW_CHECK(!solution.values.empty(), "no order, though there is one to start from");
    Schedule schedule = empty_schedule(request_, looped_placement(p_, 1));
    for (int32_t s = 0; s < p_; ++s) {
      for (const Work& work : order_of(s, solution.values)) {
        schedule.ranks[static_cast<size_t>(s)].push_back(
            action_of(kKinds[work.kind], s, work.microbatch));
      }
    }
    if (is_as_good(schedule)) schedule.ranks = start_ranks_;
    const double span = span_of(timeline(schedule, costs_));
    const double gap = span > 0 ? std::max(0.0, 1 - solution.bound / span) : 0;
    const bool optimal = solution.status == solver::Solution::Status::kOptimal && gap <= kExact;
    schedule.name = optimal ? "zb-auto, exact"
                            : fmt::format("zb-auto, within {:.1f} % of the exact one", 100 * gap);
    return schedule;
  }

 private:
  static size_t index(int32_t variable) { return static_cast<size_t>(variable); }

  // As the bits say: ends tie where a work takes no time. Next comes what is before all that is
  // left.
  std::vector<Work> order_of(int32_t s, const std::vector<double>& values) const {
    const auto is_before = [&](const Work& a, const Work& b) {
      if (always_before(a, b) || always_before(b, a)) return always_before(a, b);
      const auto bit = bits_.find({s, a, b});
      return bit != bits_.end() ? values[index(bit->second)] > 0.5
                                : values[index(bits_.at({s, b, a}))] < 0.5;
    };
    std::vector<Work> left = works(), order;
    while (!left.empty()) {
      const auto next = std::find_if(left.begin(), left.end(), [&](const Work& work) {
        return std::none_of(left.begin(), left.end(), [&](const Work& other) {
          return other != work && is_before(other, work);
        });
      });
      MW_CHECK(next != left.end(), "the order of stage {} goes round in a circle", s);
      order.push_back(*next);
      left.erase(next);
    }
    return order;
  }

  // Whether the order to start from has a shorter span, or the same and its last rank ends no
  // later.
  bool is_as_good(const Schedule& found) const {
    const Timeline times = timeline(found, costs_);
    return std::pair(start_span_, start_makespan_) <= std::pair(span_of(times), times.makespan);
  }

  static double span_of(const Timeline& times) {
    double longest = 0;
    for (const auto& rank : times.times)
      longest = std::max(longest, rank.back().end - rank.front().start);
    return longest;
  }

  std::vector<Work> works() const {
    std::vector<Work> result;
    for (size_t kind = 0; kind < 3; ++kind) {
      for (int32_t k = 0; k < m_; ++k) result.push_back({kind, k});
    }
    return result;
  }
  double cost(int32_t stage, const Work& work) const {
    const StageId id(stage);
    return work.kind == 0 ? costs_.f_of(id) : work.kind == 1 ? costs_.b_of(id) : costs_.w_of(id);
  }
  int32_t end_of(int32_t stage, const Work& work) const { return ends_.at({stage, work}); }

  void read_start(const Schedule& start) {
    const Timeline times = timeline(start, costs_);
    start_ranks_ = start.ranks;
    start_span_ = span_of(times);
    start_makespan_ = times.makespan;
    double last_weights = 0;
    for (size_t s = 0; s < start.ranks.size(); ++s) {
      for (size_t a = 0; a < start.ranks[s].size(); ++a) {
        const Action& action = start.ranks[s][a];
        const auto kind = static_cast<size_t>(std::find(kKinds.begin(), kKinds.end(), action.kind) -
                                              kKinds.begin());
        const std::pair at{static_cast<int32_t>(s), Work{kind, action.first}};
        start_end_[at] = times.times[s][a].end;
        start_place_[at] = a;
      }
      last_weights = std::max(last_weights, m_ * cost(static_cast<int32_t>(s), {2, 0}));
    }
    // Stage 0 begins at 0, so ends by its span; every other stage's last I ends before that, and
    // only its W can follow.
    horizon_ = std::max(start_span_ + last_weights, times.makespan);
  }

  int32_t add(IntegerProgram::Variable variable, double start) {
    start_values_.push_back(start);
    return program_.add_variable(variable);
  }
  void after(int32_t later, int32_t earlier, double at_least) {
    program_.add_row(at_least, kInfinity, {{later, 1}, {earlier, -1}});
  }

  // A stage begins as soon as it can, as a timeline has it: a later begin would make a span shorter
  // than the one that is told.
  void add_ends(int32_t s) {
    for (const Work& work : works()) {
      const double start = start_end_.at({s, work});
      const bool first = work == Work{0, 0};
      ends_[{s, work}] =
          add({.lower = first ? start : cost(s, work), .upper = first ? start : horizon_}, start);
    }
  }

  // Pairs that may run in either order get a bit: 1, the first of the two runs first.
  void add_stage_order(int32_t s) {
    const std::vector<Work> all = works();
    for (const Work& a : all) {
      for (const Work& b : all) {
        const bool next = always_before(a, b) &&
                          (a.kind == b.kind ? b.microbatch == a.microbatch + 1
                                            : b.kind == a.kind + 1 && b.microbatch == a.microbatch);
        if (next) after(end_of(s, b), end_of(s, a), cost(s, b));
        if (a.kind >= b.kind || always_before(a, b)) continue;
        // b is of an earlier microbatch than a, or it would come later.
        const bool a_first = start_place_.at({s, a}) < start_place_.at({s, b});
        const int32_t bit = add({.lower = 0, .upper = 1, .integer = true}, a_first ? 1 : 0);
        bits_[{s, a, b}] = bit;
        program_.add_row(cost(s, b) - horizon_, kInfinity,
                         {{end_of(s, b), 1}, {end_of(s, a), -1}, {bit, -horizon_}});
        program_.add_row(cost(s, a), kInfinity,
                         {{end_of(s, a), 1}, {end_of(s, b), -1}, {bit, horizon_}});
      }
    }
    for (const auto& [key, bit] : bits_) {
      const auto& [stage, a, b] = key;
      if (stage != s) continue;
      // What runs before b runs before all that follows b; what follows a, after what b is before.
      for (const Work& later : {Work{b.kind, b.microbatch + 1}, Work{b.kind + 1, b.microbatch}}) {
        if (const auto it = bits_.find({s, a, later}); it != bits_.end()) after(it->second, bit, 0);
      }
      for (const Work& later : {Work{a.kind, a.microbatch + 1}, Work{a.kind + 1, a.microbatch}}) {
        if (const auto it = bits_.find({s, later, b}); it != bits_.end()) after(bit, it->second, 0);
      }
    }
    add_circles(s);
  }

  // No three works run in a circle: then the bits are an order. Times forbid it only where works
  // take longer than the solver tells apart.
  void add_circles(int32_t s) {
    for (int32_t c = 0; c < m_; ++c) {
      for (int32_t b = 0; b < c; ++b) {
        for (int32_t a = 0; a < b; ++a) {
          const Work f{0, c}, i{1, b}, w{2, a};
          program_.add_row(
              0, 1,
              {{bits_.at({s, f, i}), 1}, {bits_.at({s, i, w}), 1}, {bits_.at({s, f, w}), -1}});
        }
      }
    }
  }

  double delta(size_t kind) const {
    return kind == 0 ? costs_.mb : kind == 1 ? costs_.mw - costs_.mb : -costs_.mw;
  }

  // What is held when a work that adds to it begins is below the limit.
  void add_memory(int32_t s) {
    const double limit = (request_.memory_limit + kMemorySlack) * costs_.mb;
    const std::vector<Work> all = works();
    for (const Work& work : all) {
      if (delta(work.kind) <= 0) continue;
      double held = delta(work.kind);
      std::vector<IntegerProgram::Term> terms;
      for (const Work& other : all) {
        if (always_before(other, work)) held += delta(other.kind);
        if (const auto it = bits_.find({s, other, work}); it != bits_.end())
          terms.push_back({it->second, delta(other.kind)});
        if (const auto it = bits_.find({s, work, other}); it != bits_.end()) {
          held += delta(other.kind);
          terms.push_back({it->second, -delta(other.kind)});
        }
      }
      if (!terms.empty()) program_.add_row(-kInfinity, limit - held, std::move(terms));
    }
  }

  void add_chains() {
    const double comm = costs_.comm;
    for (int32_t s = 0; s + 1 < p_; ++s) {
      for (int32_t k = 0; k < m_; ++k) {
        after(end_of(s + 1, {0, k}), end_of(s, {0, k}), cost(s + 1, {0, k}) + comm);
        after(end_of(s, {1, k}), end_of(s + 1, {1, k}), cost(s, {1, k}) + comm);
      }
    }
  }

  void add_span() {
    double work = 0;
    for (int32_t s = 0; s < p_; ++s)
      work = std::max(work, m_ * (cost(s, {0, 0}) + cost(s, {1, 0}) + cost(s, {2, 0})));
    const int32_t span = add({.cost = 1, .lower = work, .upper = start_span_}, start_span_);
    for (int32_t s = 0; s < p_; ++s) {
      program_.add_row(cost(s, {0, 0}), kInfinity,
                       {{span, 1}, {end_of(s, {2, m_ - 1}), -1}, {end_of(s, {0, 0}), 1}});
    }
  }

  const ScheduleRequest& request_;
  const ScheduleCosts costs_;
  int32_t p_, m_;
  IntegerProgram program_;
  std::vector<double> start_values_;
  std::map<std::pair<int32_t, Work>, int32_t> ends_;
  std::map<std::pair<int32_t, Work>, double> start_end_;
  std::map<std::tuple<int32_t, Work, Work>, int32_t> bits_;
  std::map<std::pair<int32_t, Work>, size_t> start_place_;  // on its rank
  std::vector<std::vector<Action>> start_ranks_;
  double start_span_ = 0, start_makespan_ = 0, horizon_ = 0;
};

}  // namespace

void check_exact(const ScheduleRequest& request, Diagnostics& out) {
  const int64_t bits =
      int64_t{request.ranks} * 3 * request.microbatches * (request.microbatches - 1) / 2;
  if (bits <= kMostOrderVariables) return;
  out.add(
      "schedule zb-auto: the exact order of ranks={} and microbatches={} has {} order variables; "
      "at "
      "most {} are solved",
      request.ranks, request.microbatches, bits, kMostOrderVariables);
}

Schedule exact_order(const ScheduleRequest& request, const Schedule& start, int32_t most_nodes) {
  return OrderProgram(request, start).solve(most_nodes);
}

}  // namespace mw::pipeline
