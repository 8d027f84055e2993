#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "base/clock.h"
#include "base/count.h"
#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule.h"
#include "planner/simulated.h"
#include "planner/space.h"
#include "planner/workers.h"

namespace mw::planner {
namespace {

using compile::Plan;

struct Least {
  Bytes peak;
  Plan plan;
};

// Of a layout's plans the one with everything divided, recomputed and taken in the smallest
// microbatches; empty: there is none.
std::optional<Plan> divided(const Request& request, const Layout& layout) {
  const auto order = [](const Plan& plan) {
    return std::tuple(plan.zero, plan.recompute, plan.ep, plan.sp, plan.microbatches);
  };
  std::optional<Plan> most;
  for (Plan& plan : layout_plans(request, layout)) {
    if (!most || order(plan) > order(*most)) most = std::move(plan);
  }
  return most;
}

// Whether a plan may fit that is estimated to need so much.
bool may_fit(const Request& request, Bytes estimate) {
  return static_cast<double>(estimate.value) <=
         static_cast<double>(request.base.cluster.device.usable_memory().value) *
             memory_slack(request);
}

// Looks for it on several threads.
class LeastMemory {
 public:
  LeastMemory(const Request& request, predict::Coarse& coarse)
      : request_(request),
        coarse_(coarse),
        workers_(coarse, thread_count(request)),
        limit_(request.base.cluster.device.usable_memory()) {}

  // The plan that needs the least on so many devices, under the usual schedule or, where none fits
  // so, under any that may. Empty: no layout.
  std::optional<Least> on(int64_t devices) {
    std::vector<Plan> all;
    for (const Layout& layout : layouts(request_, devices)) {
      if (std::optional<Plan> plan = divided(request_, layout)) all.push_back(std::move(*plan));
    }
    std::optional<Least> least;
    if (request_.only.takes_schedule(pipeline::kUsualKind)) {
      std::vector<Plan> usual;
      for (const Plan& plan : all) {
        if (plan.pp == 1 || request_.only.takes("chunks", 1)) usual.push_back(plan);
      }
      look_at(usual, least);
      if (least && least->peak <= limit_) return least;
    }
    look_at(under_others(std::move(all), least), least);
    return least;
  }

 private:
  // What may fit, under every schedule that it can have. What cannot is looked at by its bound.
  std::vector<Plan> under_others(std::vector<Plan> all, std::optional<Least>& least) {
    coarse_.prepare(all, workers_.threads());
    std::vector<Plan> plans;
    for (Plan& plan : all) {
      const Bytes bound = coarse_.least(plan).peak;  // whatever the schedule
      if (!may_fit(request_, bound)) {
        if (!least || bound < least->peak) least = Least{bound, plan};
        continue;
      }
      for (const Pipelining& pipelining : pipelinings(request_, plan)) {
        lay(pipelining, plan);
        plans.push_back(plan);
      }
    }
    std::vector<const Plan*> orders;
    for (const Plan& plan : plans) orders.push_back(&plan);
    workers_.make_orders(orders);
    std::erase_if(plans, [&](const Plan& plan) { return !coarse_.has_order(plan); });
    return plans;
  }

  // REQUIRES: they have orders.
  void look_at(const std::vector<Plan>& plans, std::optional<Least>& least) {
    coarse_.prepare_exact(plans, workers_.threads());
    std::vector<Bytes> peaks(plans.size());
    workers_.run(plans.size(), [&](predict::Coarse& coarse, size_t i) {
      peaks[i] = coarse.memory(plans[i]).peak;
    });
    for (size_t i = 0; i < plans.size(); ++i) {
      if (!least || peaks[i] < least->peak) least = Least{peaks[i], plans[i]};
    }
  }

  const Request& request_;
  predict::Coarse& coarse_;
  Workers workers_;
  Bytes limit_;
};

// What the plan needs, simulated.
Bytes needed_by(const Request& request, const Plan& plan) {
  predict::Request one = request.base;
  one.options.trace = one.options.figures = false;
  one.plan = plan;
  return predict::predict(one, predict::compile_step(one)).needed();
}

// A plan that fits on so many devices. The one that needs the least by its estimate; where a
// stack's own allocator makes more or less of it, any that the search finds.
std::optional<Plan> fitting(const Request& request, int64_t devices, LeastMemory& least_memory,
                            predict::Coarse& coarse) {
  const std::optional<Least> least = least_memory.on(devices);
  if (!least || !may_fit(request, least->peak)) return std::nullopt;
  if (simulate_plans(request, {least->plan})[0]) return least->plan;
  if (request.base.cluster.stack.allocator == cluster::Allocator::kPlan) return std::nullopt;
  Request there = request;
  there.gpus = devices;
  const Found found = exhaustive(there, coarse);
  if (found.plans.empty()) return std::nullopt;
  return found.plans.front().plan;
}

}  // namespace

Needs least_devices(const Request& request, predict::Coarse& coarse) {
  const predict::Request& base = request.base;
  const Bytes limit = base.cluster.device.usable_memory();
  // More devices than there are, too, on the outermost link; a torus has its sides.
  Request unbounded = request;
  unbounded.base.cluster.devices = 0;
  std::vector<cluster::Link>& links = unbounded.base.cluster.links;
  const bool closed =
      !links.empty() && links.back().kind != cluster::LinkKind::kTorus && links.back().devices > 0;
  if (closed) links.back().devices = 0;
  std::optional<predict::Coarse> open;
  if (closed) open.emplace(unbounded.base);
  predict::Coarse& coarse_there = open ? *open : coarse;
  LeastMemory least_memory(unbounded, coarse_there);
  Needs needs;
  if (const auto least = least_memory.on(request.gpus)) {
    const bool near = may_fit(request, least->peak);
    needs.least = near ? needed_by(unbounded, least->plan) : least->peak;
    if (near && needs.least <= limit) needs.here = least->plan;
  }
  if (request.method == Method::kPtdP && !needs.here)
    needs.here = fitting(unbounded, request.gpus, least_memory, coarse_there);
  if (needs.here || links.empty()) return needs;  // nothing joins more devices than one
  const auto fits = [&](int64_t devices) {
    const std::optional<Plan> plan = fitting(unbounded, devices, least_memory, coarse_there);
    if (!plan) return false;
    needs.devices = devices;
    needs.plan = *plan;
    return true;
  };
  if (base.cluster.shares_memory()) {  // the fewer ranks, the less they need together
    std::vector<int64_t> fewer = device_counts(request, 1, request.gpus - 1);
    std::reverse(fewer.begin(), fewer.end());
    for (const int64_t devices : fewer) {
      if (fits(devices)) break;
    }
    return needs;
  }
  // The most that is looked at is sixty-four times what was asked for.
  for (const int64_t devices : device_counts(request, request.gpus + 1, 64 * request.gpus)) {
    if (fits(devices)) break;
  }
  return needs;
}

// Throws what is wrong: the model does not fit, or only by the rules.
[[noreturn]] static void throw_too_large(const Request& request, const Found& found,
                                         const Needs& needs) {
  const std::string devices = counted(request.gpus, "device");
  if (needs.here && request.method == Method::kPtdP) {
    throw_error(
        "{}: no plan by the rules of ptdp fits on {} of {}, but others do; use --planner "
        "exhaustive",
        request.base.model.source, devices, request.base.cluster.name);
  }
  const std::string what = fmt::format(
      "{}: does not fit on {} of {}: {} at least {}, {} {}", request.base.model.source, devices,
      request.base.cluster.name, found.shared ? "the ranks need" : "the fullest rank needs",
      format_bytes(needs.least.value),
      found.shared ? "and share" : request.base.cluster.device.name + " has",
      predict::limit_text(request.base.cluster.device));
  Diagnostics out;
  const int64_t has = request.base.cluster.devices;
  if (found.shared && needs.devices > 0) {
    out.add("{}; {} would do, with {}", what, needs.devices, short_form(needs.plan));
  } else if (found.shared) {
    out.add("{}; fewer would not do with this batch either", what);
  } else if (request.base.cluster.links.empty()) {
    out.add("{}; it has no [[link]] to other devices", what);
  } else if (needs.devices == 0) {
    out.add("{}; nor on sixty-four times as many with this batch of {}", what,
            request.base.global_batch);
  } else {
    const int64_t node = request.base.cluster.node_devices();
    out.add("{}; the least that would do{} is {} devices{}, with {}", what,
            needs.devices > node && node > 1 ? fmt::format(" in whole nodes of {}", node) : "",
            needs.devices, has > 0 && needs.devices > has ? fmt::format(" (it has {})", has) : "",
            short_form(needs.plan));
  }
  for (const std::string& note : notes(request)) out.add("{}", note);
  throw Error(out.findings());
}

Found search(const Request& request) {
  const std::vector<std::string> wrong = findings(request);
  if (!wrong.empty()) throw Error(wrong);
  const Seconds begin = steady_clock().now();
  predict::Coarse coarse(request.base);
  Found found =
      request.method == Method::kPtdP ? ptdp(request, coarse) : exhaustive(request, coarse);
  found.memory_limit = request.base.cluster.device.usable_memory();
  found.shared = request.base.cluster.shares_memory();
  // Layouts alone, whose schedules take nothing of this.
  if (found.candidates == 0 && !request.only.empty()) {
    throw_error(
        "--only: no plan of {} ranks has {}: no schedule of these takes such chunks and "
        "microbatches",
        request.gpus, to_string(request.only));
  }
  if (found.plans.empty()) {
    const Needs needs = least_devices(request, coarse);
    if (!needs.here || request.method == Method::kPtdP) throw_too_large(request, found, needs);
    add_fitting(simulate_plans(request, {*needs.here}), found);  // its estimate was too full
  }
  found.search = steady_clock().now() - begin;
  return found;
}

}  // namespace mw::planner
