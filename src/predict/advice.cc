#include "predict/advice.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/round.h"
#include "base/text.h"
#include "predict/endless.h"
#include "predict/lacking.h"

namespace mw::predict {
namespace {

// Twice as many stages a rank and half as many, the backward in two, and what takes less time than
// the usual kind in its memory.
void add_schedules(const compile::Plan& plan, std::vector<Settings>& changes) {
  if (plan.written) return;  // what is like it only its author knows
  const auto takes = [&](int64_t chunks) {
    const pipeline::ScheduleKind& kind =
        pipeline::kind_with_chunks(pipeline::kind_of(plan.schedule), chunks);
    return kind.chunks.holds(chunks);
  };
  const auto add = [&](int64_t chunks) {
    if (!takes(chunks)) return;
    const pipeline::ScheduleKind& kind = pipeline::kind_of(plan.schedule);
    changes.push_back({{"schedule", pipeline::kind_with_chunks(kind, chunks).name},
                       {"chunks", std::to_string(chunks)}});
  };
  add(2 * plan.chunks);
  if (plan.chunks % 2 == 0) add(plan.chunks / 2);
  const pipeline::ScheduleKind& now =
      pipeline::kind_with_chunks(pipeline::kind_of(plan.schedule), plan.chunks);
  if (const pipeline::ScheduleKind* split = pipeline::with_split_backward(now)) {
    changes.push_back({{"schedule", split->name}});
    if (plan.chunks > 1) changes.back().push_back({"chunks", std::to_string(plan.chunks)});
  }
  const pipeline::ScheduleKind* shorter =
      pipeline::shorter_in_same_memory(pipeline::kind_of(pipeline::kUsualKind));
  if (shorter == nullptr || shorter == &now) return;
  const int64_t chunks = shorter->chunks.usual;
  if (!plan.layers.empty() && chunks * plan.pp != plan.stages()) return;  // that are named
  changes.push_back({{"schedule", shorter->name}, {"chunks", std::to_string(chunks)}});
}

// Experts over twice as many ranks and half as many, where a mixture has as many.
void add_experts(const Request& request, std::vector<Settings>& changes) {
  const compile::Plan& plan = request.plan;
  const int64_t experts = request.model.mixture.experts, twice = 2 * plan.ep;
  if (experts > 0 && plan.dp % twice == 0 && experts % twice == 0)
    changes.push_back({{"ep", std::to_string(twice)}});
  if (plan.ep % 2 == 0) changes.push_back({{"ep", std::to_string(plan.ep / 2)}});
}

}  // namespace

std::vector<std::pair<std::string, simulate::Options>> option_changes(const Request& request) {
  std::vector<std::pair<std::string, simulate::Options>> changes;
  const compile::Plan& plan = request.plan;
  const simulate::Overlap& now = request.options.overlap;
  const auto add = [&](const char* name, auto change) {
    simulate::Options options = request.options;
    change(options);
    changes.emplace_back(name, options);
  };
  if (!now.messages && plan.pp > 1)
    add("--overlap messages", [](simulate::Options& o) { o.overlap.messages = true; });
  if (!now.collectives && plan.tp * plan.dp * plan.cp > 1)
    add("--overlap collectives", [](simulate::Options& o) { o.overlap.collectives = true; });
  if (now.ring && plan.cp > 1)
    add("--overlap no-ring", [](simulate::Options& o) { o.overlap.ring = false; });
  const bool every_microbatch = plan.effective_grad_reduce() == compile::GradReduce::kMicrobatch;
  if (!now.weights && plan.dp * plan.cp > 1 && every_microbatch)
    add("--overlap weights", [](simulate::Options& o) { o.overlap.weights = true; });
  if (!(now.grad_reduce && !now.grad_reduce_idle && now.param_gather) && plan.dp * plan.cp > 1) {
    add("--overlap grad_reduce,param_gather", [](simulate::Options& o) {
      o.overlap.grad_reduce = o.overlap.param_gather = true;
      o.overlap.grad_reduce_idle = false;
    });
  }
  if (!request.options.scatter_gather && plan.tp > 1 && plan.pp > 1 && !plan.sp)
    add("--scatter-gather", [](simulate::Options& o) { o.scatter_gather = true; });
  return changes;
}

std::vector<Settings> plan_changes(const Request& request) {
  const compile::Plan& p = request.plan;
  std::vector<Settings> changes;
  const auto text = [](int64_t n) { return std::to_string(n); };
  const int64_t sequences = request.global_batch / p.dp;  // of a replica
  if (sequences % (2 * p.microbatches) == 0)
    changes.push_back({{"microbatches", text(2 * p.microbatches)}});
  if (p.microbatches % 2 == 0) changes.push_back({{"microbatches", text(p.microbatches / 2)}});
  if (p.pp > 1) add_schedules(p, changes);
  if (p.pp > 1 && !p.post_validation && !is_endless(request))
    changes.push_back({{"post_validation", "true"}});
  if (p.tp > 1 && !p.sp) changes.push_back({{"sp", "true"}});
  if (p.sp) changes.push_back({{"regather", p.regather ? "false" : "true"}});
  if (const int64_t parts = p.tp * p.cp; p.sp && request.seq_len % parts != 0) {
    // What does not divide is padded and trimmed beside each collective.
    changes.push_back({{"seq_len", text(round_up(request.seq_len, parts))}});
  }
  if (p.dp * p.cp > 1 && p.zero != 1) changes.push_back({{"zero", "1"}});
  add_experts(request, changes);
  const auto recompute = [&](compile::Recompute less) {
    changes.push_back({{"recompute", std::string(name_of(less))}});
    // What no longer fits may, where less of it is kept.
    if (p.sp && !p.regather) changes.push_back({changes.back().front(), {"regather", "true"}});
  };
  if (p.recompute == compile::Recompute::kFull) recompute(selective_of(request.cluster.stack));
  if (p.recompute != compile::Recompute::kNone) recompute(compile::Recompute::kNone);
  const auto shift = [&](const char* from, int64_t less, const char* to, int64_t more) {
    if (less % 2 == 0) changes.push_back({{from, text(less / 2)}, {to, text(2 * more)}});
  };
  if (p.layers.empty()) {
    shift("tp", p.tp, "pp", p.pp);
    shift("pp", p.pp, "tp", p.tp);
    shift("tp", p.tp, "dp", p.dp);
    shift("pp", p.pp, "dp", p.dp);
    shift("dp", p.dp, "pp", p.pp);
  }
  return changes;
}

namespace {

std::string settings_text(const Settings& settings) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : settings)
    parts.push_back(value == "true" ? key : key + "=" + value);
  return join(parts, ",");
}

// Figures of the cluster, doubled (times: halved).
std::vector<std::pair<std::string, Settings>> figure_changes(const cluster::Cluster& cluster) {
  std::vector<std::pair<std::string, Settings>> changes = {
      {"matrix peak", {{"matrix_peak", "2"}}},
      {"memory bandwidth", {{"memory_bandwidth", "2"}}},
      {"host and launch time", {{"host_time", "0.5"}}}};
  for (const cluster::Link& link : cluster.links) {
    const char* what = link.kind == cluster::LinkKind::kMemory ? " link bandwidth" : " bandwidth";
    changes.push_back({link.name + what, {{"link_bandwidth." + link.name, "2"}}});
  }
  if (!cluster.links.empty()) changes.push_back({"link latency", {{"link_latency", "0.5"}}});
  return changes;
}

class Advisor {
 public:
  Advisor(const Request& request, const Prediction& base) : base_(base), quick_(request) {
    quick_.options.trace = false;
    quick_.options.figures = false;
  }

  void try_options(const Step& step) {
    for (const auto& [name, options] : option_changes(quick_)) {
      Request other = quick_;
      other.options = options;
      add(name, predict(other, step, base_), "");
    }
    for (const auto& [name, settings] : figure_changes(quick_.cluster)) {
      const Prediction other = predict(changed(quick_, settings), step, base_);
      report_.bounds.push_back({name, gain(other)});
    }
  }

  void try_plans() {
    for (const Settings& settings : plan_changes(quick_)) {
      try {
        const Request other = changed(quick_, settings);
        if (!lacks_no_more(other.cluster.stack, other.plan, quick_.plan)) continue;
        const std::string followed = followers(quick_.plan, other.plan, settings);
        add(settings_text(settings) + (followed.empty() ? "" : " (" + followed + ")"),
            predict(other), compile::short_form(other.plan));
      } catch (const Error&) {
        ++report_.tried;  // such a plan cannot be
      }
    }
  }

  AdviceReport report() {
    std::stable_sort(report_.advice.begin(), report_.advice.end(),
                     [](const Advice& a, const Advice& b) { return a.step < b.step; });
    std::stable_sort(report_.bounds.begin(), report_.bounds.end(),
                     [](const Bound& a, const Bound& b) { return a.gain > b.gain; });
    return std::move(report_);
  }

 private:
  double gain(const Prediction& other) const { return 1 - other.step.value / base_.step.value; }
  void add(const std::string& name, const Prediction& other, std::string plan) {
    ++report_.tried;
    if (gain(other) < kLeastGain || !other.too_full().empty()) return;
    report_.advice.push_back({name, other.step, gain(other), other.needed(), std::move(plan)});
  }

  const Prediction& base_;
  Request quick_;
  AdviceReport report_;
};

}  // namespace

AdviceReport advise(const Request& request, const Prediction& prediction, const Step& step,
                    Trials trials) {
  Advisor advisor(request, prediction);
  if (trials != Trials::kNone) advisor.try_options(step);
  if (trials == Trials::kPlans) advisor.try_plans();
  AdviceReport report = advisor.report();
  report.trials = trials;
  report.shared = prediction.sharing > 1;
  return report;
}

std::vector<std::string> sentences(const AdviceReport& report) {
  std::vector<std::string> lines;
  for (const Advice& advice : report.advice) {
    lines.push_back(fmt::format("{}: {}, {:.1f} % less ({} {})", advice.change,
                                format_seconds(advice.step.value), 100 * advice.gain,
                                format_bytes(advice.peak.value),
                                report.shared ? "of all ranks" : "on the fullest rank"));
  }
  if (report.advice.empty() && report.trials != Trials::kNone) {
    lines.push_back(
        report.tried == 0 ? fmt::format("there are no {} to try",
                                        report.trials == Trials::kPlans ? "changes" : "options")
        : report.tried == 1
            ? fmt::format("the one change that was tried saves less than {:.1f} %, or does not fit",
                          100 * kLeastGain)
            : fmt::format("none of {} changes that were tried saves {:.1f} % or more and fits",
                          report.tried, 100 * kLeastGain));
  }
  std::vector<std::string> parts;
  for (const Bound& bound : report.bounds) {
    if (bound.gain >= kLeastGain)
      parts.push_back(fmt::format("{} {:.1f} %", bound.figure, 100 * bound.gain));
  }
  if (!parts.empty()) lines.push_back("twice as good a cluster would save: " + join(parts, ", "));
  if (report.trials == Trials::kOptions) {
    lines.push_back(fmt::format("{}--advice plans tries neighbours of the plan{}",
                                report.tried > 0 ? "these are options; " : "",
                                report.tried > 0 ? " too" : ""));
  }
  return lines;
}

Json to_json(const AdviceReport& report) {
  Json json{JsonObject{}};
  Json advice{JsonArray{}}, bounds{JsonArray{}};
  for (const Advice& one : report.advice) {
    Json entry{JsonObject{}};
    entry["change"] = one.change;
    entry["step_s"] = one.step.value;
    entry["gain"] = one.gain;
    if (!one.plan.empty()) entry["plan"] = one.plan;
    entry["memory_needed_bytes"] = one.peak.value;
    advice.push_back(std::move(entry));
  }
  for (const Bound& bound : report.bounds) {
    Json entry{JsonObject{}};
    entry["figure"] = bound.figure;
    entry["gain"] = bound.gain;
    bounds.push_back(std::move(entry));
  }
  json["tried"] = report.tried;
  json["changes"] = std::move(advice);
  json["twice_as_good"] = std::move(bounds);
  return json;
}

}  // namespace mw::predict
