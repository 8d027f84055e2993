// PTD-P's takeaways as rules [Narayanan et al. 2021, arXiv 2104.04473, sections 3 and 5]: tensor
// parallelism inside a node, pipeline parallelism beyond it, as little model parallelism as fits,
// data parallelism with the rest; the microbatch that its pipeline makes fastest; interleaving.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/count.h"
#include "base/divisors.h"
#include "pipeline/schedule_kind.h"
#include "planner/search.h"
#include "planner/simulated.h"
#include "planner/space.h"
#include "predict/lacking.h"

namespace mw::planner {
namespace {

using compile::Plan;
using compile::Recompute;

class Rules {
 public:
  Rules(const Request& request, predict::Coarse& coarse)
      : request_(request),
        base_(request.base),
        coarse_(coarse),
        limit_(static_cast<double>(base_.cluster.device.usable_memory().value)) {}

  Found run() {
    std::vector<Layout> all = layouts(request_, request_.gpus);
    // Ranks that are threads are all in one node.
    const int64_t node =
        base_.cluster.shares_memory() ? request_.gpus : base_.cluster.node_devices();
    // As little model parallelism as fits; inside it tensor parallelism up to the node.
    std::stable_sort(all.begin(), all.end(), [&](const Layout& a, const Layout& b) {
      if (a.tp * a.pp != b.tp * b.pp) return a.tp * a.pp < b.tp * b.pp;
      return a.tp > b.tp;
    });
    int64_t most_tp = 1;
    for (const Layout& layout : all) {
      if (layout.tp <= node) most_tp = std::max(most_tp, layout.tp);
    }
    Found found;
    bool first = true;
    for (const Layout& layout : all) {
      if (layout.tp > node || layout.tp < std::min(most_tp, layout.tp * layout.pp)) continue;
      const bool least = std::exchange(first, false);
      // Without recomputation if that fits.
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        add_fitting(simulate_plans(request_, fitting(layout, recompute, found)), found);
        if (found.plans.empty()) continue;
        explain(found.plans.front().plan, node, least, found);
        explain_schedule(found.plans.front().plan, found);
        return found;
      }
    }
    return found;
  }

 private:
  double peak(const Plan& plan) { return static_cast<double>(coarse_.memory(plan).peak.value); }

  // With the fastest microbatch, under 1F1B and with each number of chunks.
  std::vector<Plan> fitting(const Layout& layout, Recompute recompute, Found& found) {
    Plan plan;
    plan.tp = layout.tp;
    plan.pp = layout.pp;
    plan.dp = layout.dp;
    plan.sp = layout.tp > 1 && base_.model.mixture.experts > 0;  // else tokens would go tp times
    plan.recompute = recompute;
    plan.regather = plan.sp && recompute != Recompute::kFull;
    std::vector<Plan> plans = fastest(plan, found);
    if (!plans.empty() && plan.pp > 1) add_interleaved(plan, plans, found);
    return plans;
  }

  // With the microbatch that is the fastest of those whose estimate fits, and of those that may fit
  // though their estimate does not: which one does shows in the simulation.
  std::vector<Plan> fastest(Plan plan, Found& found) {
    std::optional<Plan> sure, likely;
    Seconds of_sure, of_likely;
    std::vector<int64_t> microbatches = divisors(base_.global_batch / plan.dp);
    std::reverse(microbatches.begin(), microbatches.end());  // the smallest microbatch first
    for (const int64_t m : microbatches) {
      plan.microbatches = m;
      if (m > compile::kMostUnits / plan.stages() || !coarse_.has_order(plan)) continue;
      found.candidates += 1;
      const double needs = peak(plan);
      if (needs > limit_ * memory_slack(request_)) break;
      const Seconds step = coarse_.step(plan);
      const auto take = [&](std::optional<Plan>& best, Seconds& of_best) {
        if (best && step >= of_best) return;
        best = plan;
        of_best = step;
      };
      take(likely, of_likely);
      if (needs <= limit_) take(sure, of_sure);
    }
    std::vector<Plan> plans;
    if (sure) plans.push_back(*sure);
    if (likely && (!sure || likely->microbatches != sure->microbatches)) plans.push_back(*likely);
    return plans;
  }

  // A smaller bubble leaves room for larger microbatches than 1F1B's.
  void add_interleaved(const Plan& plan, std::vector<Plan>& plans, Found& found) {
    not_interleaved_ =
        fmt::format("{} layers give no equal chunks on {} ranks", base_.model.layers, plan.pp);
    for (const int64_t chunks : chunk_counts(request_, plan.pp)) {
      if (chunks == 1) continue;
      Plan interleaved = plan;
      interleaved.schedule =
          pipeline::kind_with_chunks(pipeline::kind_of(plan.schedule), chunks).name;
      interleaved.chunks = chunks;
      if (!predict::lacks_no_more(base_.cluster.stack, interleaved, plan)) {
        not_interleaved_ = "the stack's engine has none";
        continue;
      }
      if (base_.global_batch / plan.dp % plan.pp != 0) {
        not_interleaved_ = fmt::format(
            "the paper's takes multiples of {} microbatches, and a replica has {} sequences (in "
            "rounds of another length: --planner exhaustive)",
            plan.pp, base_.global_batch / plan.dp);
        continue;
      }
      not_interleaved_ = "more chunks do not fit";
      for (Plan& best : fastest(interleaved, found)) plans.push_back(std::move(best));
    }
  }

  // `least`: no layout under these rules has less model parallelism, whether it would fit or not.
  void explain(const Plan& plan, int64_t node, bool least, Found& found) const {
    const auto add = [&](std::string what, std::string rule) {
      found.choices.push_back({std::move(what), std::move(rule)});
    };
    const cluster::Stack& stack = base_.cluster.stack;
    add(fmt::format("tp={}", plan.tp),
        stack.lacks(cluster::Lacking::kTensor) ? "the stack's engine has no tensor parallelism"
        : plan.pp > 1 && plan.tp < node
            ? fmt::format("takeaway 1: tensor parallelism inside a node of {} devices, as far as "
                          "it divides the {} heads and {} devices",
                          node, base_.model.heads, request_.gpus)
            : fmt::format("takeaway 1: tensor parallelism up to the {} of a node, no further",
                          counted(node, "device")));
    const bool forced = least && plan.tp * plan.pp > 1;
    add(fmt::format("pp={}", plan.pp),
        stack.lacks(cluster::Lacking::kPipelines) ? "the stack's engine has no pipelines"
        : plan.pp == 1 ? "takeaway 1: no pipeline, the model fits inside a node"
        : forced       ? "takeaway 1: pipeline parallelism for the devices that data parallelism "
                         "cannot take"
                       : "takeaway 1: pipeline parallelism for what does not fit inside a node");
    add(fmt::format("dp={}", plan.dp),
        forced ? fmt::format("takeaway 2: {} is the least tp*pp that {} devices and a global batch "
                             "of {} leave; data parallelism for the other devices",
                             plan.tp * plan.pp, request_.gpus, base_.global_batch)
               : fmt::format("takeaway 2: {} is the least tp*pp that fits{}; data parallelism for "
                             "the other devices",
                             plan.tp * plan.pp,
                             plan.tp * plan.pp > 1 ? " with tensor parallelism first" : ""));
    add(fmt::format("microbatches={}", plan.microbatches),
        fmt::format("takeaway 3: a microbatch of {} is the fastest that fits, given its effect on "
                    "products, bubble and memory",
                    base_.global_batch / plan.dp / plan.microbatches));
    add(plan.recompute == Recompute::kFull ? "recompute=full" : "recompute=none",
        plan.recompute == Recompute::kFull
            ? "section 3.5: activations do not fit otherwise"
            : "section 3.5: activations fit, so that nothing is computed twice");
  }

  void explain_schedule(const Plan& plan, Found& found) const {
    if (plan.pp == 1) return;
    const bool slower =
        std::any_of(found.plans.begin(), found.plans.end(),
                    [](const Candidate& candidate) { return candidate.plan.chunks > 1; });
    found.choices.push_back(
        {fmt::format("schedule={},chunks={}", plan.schedule, plan.chunks),
         plan.chunks > 1
             ? "section 2.2: the interleaved schedule divides the bubble by the chunks; the fastest"
             : "section 2.2: not the interleaved schedule: " +
                   (slower ? "more chunks cost more in messages than they save in bubble"
                           : not_interleaved_)});
  }

  const Request& request_;
  const predict::Request& base_;
  predict::Coarse& coarse_;
  double limit_;
  std::string not_interleaved_;  // why, where no such plan was simulated and fits
};

}  // namespace

Found ptdp(const Request& request, predict::Coarse& coarse) { return Rules(request, coarse).run(); }

}  // namespace mw::planner
