#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "pipeline/schedule.h"
#include "planner/simulated.h"
#include "planner/space.h"

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

// The plan that needs the least memory on so many devices, under the usual schedule or, where none
// fits into `limit` so, under any that may. Empty: no layout.
std::optional<Least> least_memory(const Request& request, int64_t devices, Bytes limit,
                                  predict::Coarse& coarse) {
  std::optional<Least> least;
  const auto look_at = [&](const Plan& plan) {
    const Bytes peak = coarse.memory(plan).peak;
    if (!least || peak < least->peak) least = Least{peak, plan};
  };
  std::vector<Plan> all;
  for (const Layout& layout : layouts(request, devices)) {
    if (std::optional<Plan> plan = divided(request, layout)) all.push_back(std::move(*plan));
  }
  if (request.only.takes_schedule(pipeline::kUsualKind)) {
    for (const Plan& plan : all) {
      if (plan.pp == 1 || request.only.takes("chunks", 1)) look_at(plan);
    }
    if (!least || least->peak <= limit) return least;
  }
  for (Plan& plan : all) {
    const Bytes bound = coarse.least(plan).peak;  // whatever the schedule
    if (bound > limit) {
      if (!least || bound < least->peak) least = Least{bound, plan};
      continue;
    }
    for (const Pipelining& pipelining : pipelinings(request, plan.pp)) {
      lay(pipelining, plan);
      if (coarse.has_order(plan)) look_at(plan);
    }
  }
  return least;
}

}  // namespace

Needs least_devices(const Request& request, predict::Coarse& coarse) {
  const predict::Request& base = request.base;
  const Bytes limit = base.cluster.device.usable_memory();
  Request unbounded = request;  // more devices than there are, too
  unbounded.base.cluster.devices = 0;
  Needs needs;
  if (const auto least = least_memory(request, request.gpus, limit, coarse))
    needs.least = least->peak;
  if (base.cluster.links.empty()) return needs;  // nothing joins more devices than one
  const auto fits = [&](int64_t devices) {
    const auto least = least_memory(request, devices, limit, coarse);
    if (!least || least->peak > limit || !simulate_plans(unbounded, {least->plan}).fits[0])
      return false;
    needs.devices = devices;
    needs.plan = least->plan;
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
                                         predict::Coarse& coarse) {
  const Needs needs = least_devices(request, coarse);
  if (needs.least <= found.memory_limit && request.method == Method::kPtdP) {
    throw_error(
        "{}: no plan by the rules of ptdp fits on {} devices of {}, but others do; use --planner "
        "exhaustive",
        request.base.model.source, request.gpus, request.base.cluster.name);
  }
  const std::string what = fmt::format(
      "{}: does not fit on {} {} of {}: {} at least {}, {} {}", request.base.model.source,
      request.gpus, request.gpus == 1 ? "device" : "devices", request.base.cluster.name,
      found.shared ? "the ranks need" : "the fullest rank needs", format_bytes(needs.least.value),
      found.shared ? "and share" : request.base.cluster.device.name + " has",
      predict::limit_text(request.base.cluster.device));
  Diagnostics out;
  const int64_t has = request.base.cluster.devices;
  if (found.shared && needs.devices > 0) {
    out.add("{}; {} would do, with {}", what, needs.devices, short_form(needs.plan));
  } else if (found.shared) {
    out.add("{}; fewer would not do with this batch either", what);
  } else if (needs.devices == 0) {
    out.add("{}; nor on sixty-four times as many with this batch of {}", what,
            request.base.global_batch);
  } else {
    out.add("{}; the least that would do is {} devices{}, with {}", what, needs.devices,
            has > 0 && needs.devices > has ? fmt::format(" (it has {})", has) : "",
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
  if (found.plans.empty()) throw_too_large(request, found, coarse);
  found.search = steady_clock().now() - begin;
  return found;
}

}  // namespace mw::planner
