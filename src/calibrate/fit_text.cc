// A fit as a profile and for people.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/fit.h"

namespace mw::calibrate {

cluster::Profile blank_profile(const cluster::Cluster& cluster, const std::string& software) {
  cluster::Profile profile;
  profile.name = fmt::format("{} on {}", software, cluster.device.name);
  profile.device = cluster.device.name;
  profile.software = profile.stack.name = software;
  profile.source = fmt::format("the figures of {}", cluster.file);
  return profile;
}

namespace {

constexpr std::string_view kFittedOn = "fitted by meshwright calibrate on ", kBefore = "; before: ";

// "fitted by meshwright calibrate on 90 rows of runs.csv: host_op_us; before: …" An earlier fit's
// words give way.
std::string source_of(const Fit& fit, const FitFiles& files, std::string_view before) {
  const auto runs = std::count_if(fit.residuals.begin(), fit.residuals.end(),
                                  [](const Residual& r) { return r.run != nullptr; });
  const auto collectives = std::count_if(fit.residuals.begin(), fit.residuals.end(),
                                         [](const Residual& r) { return r.collective != nullptr; });
  const auto kernels = static_cast<std::ptrdiff_t>(fit.residuals.size()) - runs - collectives;
  std::vector<std::string> rows, constants;
  if (runs > 0) rows.push_back(fmt::format("{} rows of {}", runs, join(files.runs, ", ")));
  if (collectives > 0)
    rows.push_back(fmt::format("{} all-reduces of {}", collectives, files.kernels));
  if (kernels > 0) rows.push_back(fmt::format("{} kernels of {}", kernels, files.kernels));
  for (const Fitted& fitted : fit.constants) {
    if (fitted.determined) constants.push_back(fitted.name);
  }
  if (const size_t at = before.find(kBefore); before.starts_with(kFittedOn) && at != before.npos)
    before.remove_prefix(at + kBefore.size());
  return fmt::format("{}{}: {}{}{}", kFittedOn, join(rows, " and "),
                     constants.empty() ? "nothing" : join(constants, ", "), kBefore, before);
}

}  // namespace

cluster::Profile fitted_profile(cluster::Profile profile, const Fit& fit,
                                std::vector<cluster::LeftOut> left_out, const FitFiles& files) {
  profile.source = source_of(fit, files, profile.source);
  for (const Fitted& fitted : fit.constants) {
    if (!fitted.determined) continue;
    const auto it = std::find_if(profile.constants.begin(), profile.constants.end(),
                                 [&](const auto& c) { return c.name == fitted.name; });
    cluster::Constant& constant =
        it == profile.constants.end() ? profile.constants.emplace_back() : *it;
    constant = {fitted.name, fitted.value, fitted.low, fitted.high, "fit"};
  }
  // Kernels alone say nothing of steps.
  if (std::none_of(fit.residuals.begin(), fit.residuals.end(),
                   [](const Residual& residual) { return residual.run != nullptr; }))
    return profile;
  profile.stack.error = fit.deviation;
  profile.left_out = std::move(left_out);
  profile.stack.measured.clear();
  // What is less than `least` is not said by the row.
  const auto cover = [&](const std::string& name, auto value, double least = 1) {
    cluster::Stack::Range range{name, 1e300, -1};
    for (const Residual& residual : fit.residuals) {
      if (residual.run == nullptr) continue;
      const double v = static_cast<double>(value(*residual.run));
      if (v < least) continue;
      range.least = std::min(range.least, v);
      range.most = std::max(range.most, v);
    }
    if (range.most >= least) profile.stack.measured.push_back(range);
  };
  cover("hidden", [](const Run& run) { return run.hidden; });
  cover("sequence", [](const Run& run) { return run.seq; });
  cover("microbatch", [](const Run& run) { return run.micro_batch; });
  cover("devices", [](const Run& run) { return run.gpus; });
  cover("tp", [](const Run& run) { return run.tp; });
  cover("pp", [](const Run& run) { return run.pp; });
  cover("dp", [](const Run& run) { return run.dp; });
  cover("cp", [](const Run& run) { return run.cp; });
  cover("zero", [](const Run& run) { return run.zero; }, 0);
  cover("experts", [](const Run& run) { return expert_count(run); }, 0);
  std::set<std::string> precisions;
  for (const Residual& residual : fit.residuals) {
    if (residual.run != nullptr) precisions.emplace(precision_name(*residual.run));
  }
  profile.stack.precisions.assign(precisions.begin(), precisions.end());
  return profile;
}

namespace {

// "12 runs: mean error 3.4 %, worst -9.0 %"
std::string errors_text(const Fit& fit, bool kernels) {
  double mean = 0, worst = 0;
  int count = 0;
  for (const Residual& residual : fit.residuals) {
    if ((residual.run == nullptr) != kernels) continue;
    ++count;
    mean += std::abs(residual.error);
    if (std::abs(residual.error) > std::abs(worst)) worst = residual.error;
  }
  if (count == 0) return "";
  return fmt::format("{} {}: mean error {}, worst {}", count, kernels ? "measured kernels" : "runs",
                     format_percent(mean / count), format_change(worst));
}

std::string residual_text(const Residual& residual) {
  const std::string error = fmt::format("{:>8}\n", format_change(residual.error));
  if (residual.collective != nullptr) {
    const CollectiveRow& row = *residual.collective;
    return fmt::format("  all_reduce of {} on {} ranks of {} nodes {}",
                       format_bytes(row.bytes.value), row.ranks, row.nodes, error);
  }
  if (residual.kernel != nullptr) {
    const KernelRow& row = *residual.kernel;
    return fmt::format("  {:<15} {:<48} {:>8.4g} us {}", row.kernel, row.sizes, row.time_us, error);
  }
  const Run& run = *residual.run;
  return fmt::format("  {:<18} tp={} pp={} dp={} mb={} batch {:<5} {}", run.model, run.tp, run.pp,
                     run.dp, run.micro_batch, run.global_batch, error);
}

}  // namespace

std::string to_text(const Fit& fit, const std::vector<cluster::LeftOut>& left_out, bool rows) {
  std::string text =
      fmt::format("{:<24} {:>10} {:>10}   {}\n", "constant", "start", "fitted", "95 % interval");
  for (const Fitted& c : fit.constants) {
    text += fmt::format("{:<24} {:>10.4g} ", c.name, c.start);
    text += c.determined ? fmt::format("{:>10.4g}   {:.4g} to {:.4g}\n", c.value, c.low, c.high)
                         : fmt::format("{:>10}   no row depends on it\n", "-");
  }
  if (rows) {
    text += "\nresiduals:\n";
    for (const Residual& residual : fit.residuals) text += residual_text(residual);
  }
  std::vector<std::string> errors;
  for (const bool kernels : {false, true}) {
    if (std::string one = errors_text(fit, kernels); !one.empty()) errors.push_back(std::move(one));
  }
  text += fmt::format("\n{}; standard deviation of the logarithm, every source alike, {:.3f}\n",
                      join(errors, "; "), fit.deviation);
  if (!left_out.empty()) text += "\nleft out of the fit, then predicted:\n";
  for (const cluster::LeftOut& out : left_out)
    text += fmt::format("  {:<72} {:>4} {:<5} mean {:>7}, worst {:>8}\n", ending_of(out.name, 72),
                        out.runs, out.runs == 1 ? "row:" : "rows:", format_percent(out.mean),
                        format_change(out.worst));
  return text;
}

std::string to_text(const std::vector<Skipped>& skipped) {
  std::string text;
  for (const auto& [run, why] : skipped)
    text += fmt::format("not fitted on: line {}, {} ({}): {}\n", run->line, run->model,
                        source_name(run->source), why);
  return text;
}

}  // namespace mw::calibrate
