#include "calibrate/fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/linear.h"
#include "calibrate/parallel.h"
#include "cost/collective.h"
#include "simulate/prepared.h"

namespace mw::calibrate {
namespace {

constexpr double kStep = 0.02;     // of a constant's logarithm, for derivatives
constexpr double kPrior = 3.0;     // standard deviation of a constant's logarithm around its start
constexpr double kTypical = 0.05;  // expected residual: what the prior is weighed against

const std::string kKernels = "measured kernels";  // their source

// Runs of a source that count, evenly spaced.
std::vector<bool> spaced(size_t count, size_t most) {
  std::vector<bool> taken(count, most == 0 || count <= most);
  if (count <= most || most == 0) return taken;
  for (size_t i = 0; i < most; ++i) taken[i * count / most] = true;
  return taken;
}

std::vector<const Run*> chosen(const std::vector<const Run*>& runs, const Machines& machines,
                               int per_source) {
  std::map<std::string, std::vector<const Run*>> by_source;
  for (const Run* run : runs) {
    if (reason(*run, machines).empty()) by_source[run->source].push_back(run);
  }
  std::vector<const Run*> all;
  for (const auto& [source, rows] : by_source) {
    const std::vector<bool> taken = spaced(rows.size(), static_cast<size_t>(per_source));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (taken[i]) all.push_back(rows[i]);
    }
  }
  return all;
}

}  // namespace

struct Fitter::Parts {
  // A run made ready, with its cluster without what is fitted. Where it leaves microbatch or
  // recomputation open, all that fit the memory; the fastest counts.
  struct Case {
    double measured = 0;
    cluster::Cluster cluster;
    std::vector<simulate::Prepared> prepared;
    double step(const cluster::Cluster& at) {
      double least = prepared[0].step(at).value;
      for (size_t i = 1; i < prepared.size(); ++i)
        least = std::min(least, prepared[i].step(at).value);
      return least;
    }
  };

  FitOptions options;
  cluster::Profile profile;
  std::vector<const Run*> runs;
  std::vector<CollectiveRow> collectives;
  cluster::Cluster collectives_on;
  mutable std::vector<Case> cases;

  size_t rows() const { return runs.size() + collectives.size(); }
  std::string source(size_t row) const { return row < runs.size() ? runs[row]->source : kKernels; }

  // [row] log(predicted / measured): runs, then collectives.
  std::vector<double> residuals(const std::vector<double>& logs,
                                const std::vector<bool>& used) const {
    std::vector<double> r(rows(), 0);
    for_each_index(runs.size(), options.threads, [&](size_t i) {
      if (!used[i]) return;
      cluster::Cluster at = cases[i].cluster;
      set(at, logs);
      r[i] = std::log(cases[i].step(at) / cases[i].measured);
    });
    cluster::Cluster at = collectives_on;
    if (!collectives.empty()) set(at, logs);
    for (size_t i = 0; i < collectives.size(); ++i) {
      if (!used[runs.size() + i]) continue;
      const CollectiveRow& row = collectives[i];
      cluster::GroupShape group;
      group.size = row.ranks;
      group.ways = {row.ranks / row.nodes};
      if (row.nodes > 1) group.ways.push_back(row.nodes);
      group.ways.resize(at.links.size(), 1);
      const double time =
          cost::collective_time(at, ir::OpKind::kAllReduce, row.bytes, group).time.value +
          at.device.attained.collective_latency.value;
      r[runs.size() + i] = std::log(time * 1e6 / row.time_us);
    }
    return r;
  }
  void set(cluster::Cluster& at, const std::vector<double>& logs) const {
    for (size_t p = 0; p < logs.size(); ++p)
      cluster::set_constant(at, options.constants[p], std::exp(logs[p]));
  }

  // [row] what its square counts: every source alike, the table of collectives as one.
  std::vector<double> weights(const std::vector<bool>& used) const {
    std::map<std::string, double> count;
    for (size_t i = 0; i < rows(); ++i) {
      if (used[i]) ++count[source(i)];
    }
    std::vector<double> w(rows(), 0);
    for (size_t i = 0; i < rows(); ++i) {
      if (used[i]) w[i] = 1 / count[source(i)];
    }
    return w;
  }
};

Fitter::Fitter(const std::vector<const Run*>& runs, const std::vector<CollectiveRow>& collectives,
               const Machines& machines, const cluster::Profile& profile, FitOptions options)
    : parts_(std::make_unique<Parts>()) {
  MW_CHECK(options.constants.size() <= kMostConstants, "{} constants", options.constants.size());
  Machines with = machines;
  with.profiles = {profile};
  parts_->options = options;
  parts_->profile = profile;
  parts_->runs = chosen(runs, with, options.runs_per_source);
  parts_->collectives = collectives;
  for (const cluster::Cluster& cluster : machines.clusters) {
    if (cluster.device.name == profile.device) parts_->collectives_on = cluster;
  }
  parts_->cases.resize(parts_->runs.size());
  for_each_index(parts_->runs.size(), options.threads, [&](size_t i) {
    const Run& run = *parts_->runs[i];
    Parts::Case& made = parts_->cases[i];
    const bool open = run.micro_batch == 0 || run.recompute == "unknown";
    for (const int64_t size : micro_batches(run)) {
      for (const compile::Recompute way : recomputes(run, machines)) {
        const predict::Request request = request_of(run, with, size, way);
        if (open && !predict::predict(request).too_full().empty()) continue;
        made.measured = published_step(run, request);
        made.cluster = request.cluster;
        made.prepared.emplace_back(predict::program_of(request), request.cluster, request.options);
        break;
      }
    }
    if (made.prepared.empty())
      throw_error("{}: no microbatch and recomputation fits the memory", run.model);
  });
}
Fitter::~Fitter() = default;

std::vector<std::string> Fitter::sources() const {
  std::vector<std::string> sources;
  for (size_t i = 0; i < parts_->rows(); ++i) sources.push_back(parts_->source(i));
  return sources;
}

Fit Fitter::fit(const std::vector<bool>& given) const {
  const Parts& parts = *parts_;
  const size_t n = parts.options.constants.size();
  std::vector<bool> used = given;
  used.resize(parts.rows(), given.empty());
  const std::vector<double> w = parts.weights(used);
  std::vector<double> least, most, x, start;
  cluster::Cluster at = parts.collectives_on;
  cluster::apply(parts.profile, at);
  for (const std::string& name : parts.options.constants) {
    const auto infos = cluster::constant_infos();
    const auto info = std::find_if(infos.begin(), infos.end(),
                                   [&](const auto& known) { return known.name == name; });
    MW_CHECK(info != infos.end(), "constant {}", name);
    least.push_back(std::log(info->least));
    most.push_back(std::log(info->most));
    x.push_back(std::clamp(std::log(std::max(1e-9, cluster::constant(at, name))), least.back(),
                           most.back()));
  }
  start = x;
  const double prior = kTypical * kTypical / (kPrior * kPrior);
  const auto cost = [&](const std::vector<double>& r, const std::vector<double>& at_x) {
    double sum = 0;
    for (size_t i = 0; i < r.size(); ++i) sum += w[i] * r[i] * r[i];
    for (size_t p = 0; p < n; ++p) sum += prior * (at_x[p] - start[p]) * (at_x[p] - start[p]);
    return sum;
  };
  std::vector<double> r = parts.residuals(x, used);
  double best = cost(r, x), damping = 1e-3;
  Matrix normal(n, std::vector<double>(n));
  for (int iteration = 0; iteration < parts.options.iterations; ++iteration) {
    std::vector<std::vector<double>> jacobian;
    for (size_t p = 0; p < n; ++p) {
      std::vector<double> moved = x;
      const double step = x[p] + kStep <= most[p] ? kStep : -kStep;
      moved[p] += step;
      std::vector<double> column = parts.residuals(moved, used);
      for (size_t i = 0; i < column.size(); ++i) column[i] = (column[i] - r[i]) / step;
      jacobian.push_back(std::move(column));
    }
    std::vector<double> gradient(n, 0);
    for (size_t p = 0; p < n; ++p) {
      for (size_t i = 0; i < r.size(); ++i) gradient[p] += w[i] * jacobian[p][i] * r[i];
      gradient[p] += prior * (x[p] - start[p]);
      for (size_t q = 0; q < n; ++q) {
        normal[p][q] = p == q ? prior : 0;
        for (size_t i = 0; i < r.size(); ++i)
          normal[p][q] += w[i] * jacobian[p][i] * jacobian[q][i];
      }
    }
    bool better = false;
    for (int attempt = 0; attempt < 6 && !better; ++attempt) {
      Matrix damped = normal;
      for (size_t p = 0; p < n; ++p) damped[p][p] *= 1 + damping;
      const Matrix solve = inverse(damped);
      std::vector<double> moved = x;
      for (size_t p = 0; p < n; ++p) {
        double change = 0;
        for (size_t q = 0; q < n; ++q) change -= solve[p][q] * gradient[q];
        moved[p] = std::clamp(x[p] + std::clamp(change, -0.7, 0.7), least[p], most[p]);
      }
      const std::vector<double> tried = parts.residuals(moved, used);
      const double now = cost(tried, moved);
      better = now < best;
      if (!better) {
        damping *= 8;
        continue;
      }
      const double gain = (best - now) / best;
      x = moved;
      r = tried;
      best = now;
      damping = std::max(1e-6, damping / 4);
      if (gain < 1e-4) iteration = parts.options.iterations;
    }
    if (!better) break;
  }

  Fit fit;
  double sum = 0, total = 0;
  for (size_t i = 0; i < (parts.runs.empty() ? parts.rows() : parts.runs.size()); ++i) {
    if (!used[i]) continue;
    sum += w[i] * r[i] * r[i];
    total += w[i];
  }
  fit.deviation = total > 0 ? std::sqrt(sum / total) : 0;
  // Effective number of rows: that of equal weights with the same total.
  double squares = 0, weight = 0;
  for (const double v : w) weight += v, squares += v * v;
  const double effective = squares > 0 ? weight * weight / squares : 1;
  if (parts.options.iterations == 0) {
    for (size_t p = 0; p < n; ++p) normal[p][p] = 1;
  }
  const Matrix covariance = inverse(normal);
  for (size_t p = 0; p < n; ++p) {
    const double deviation =
        std::sqrt(covariance[p][p] * fit.deviation * fit.deviation * weight / effective);
    fit.constants.push_back({parts.options.constants[p], std::exp(start[p]), std::exp(x[p]),
                             std::exp(x[p] - 1.96 * deviation), std::exp(x[p] + 1.96 * deviation),
                             normal[p][p] > prior});
  }
  r = parts.residuals(x, std::vector<bool>(parts.rows(), true));
  for (size_t i = 0; i < parts.runs.size(); ++i)
    fit.residuals.push_back({parts.runs[i], nullptr, std::exp(r[i]) - 1});
  for (size_t i = 0; i < parts.collectives.size(); ++i) {
    fit.residuals.push_back(
        {nullptr, &parts.collectives[i], std::exp(r[parts.runs.size() + i]) - 1});
  }
  return fit;
}

std::vector<cluster::LeftOut> left_out(const Fitter& fitter) {
  const std::vector<std::string> sources = fitter.sources();
  std::vector<cluster::LeftOut> made;
  const auto leave = [&](const std::string& name, const std::vector<bool>& used) {
    cluster::LeftOut out;
    // Parts of one table are sources of their own behind a comma.
    out.name = std::string(trim(std::string_view(name).substr(0, name.find_first_of(";("))));
    out.runs = std::count(used.begin(), used.end(), false);
    if (out.runs == 0 || out.runs == static_cast<int64_t>(used.size())) return;
    const Fit fit = fitter.fit(used);
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      const double error = fit.residuals[i].error;
      out.mean += std::abs(error) / static_cast<double>(out.runs);
      if (std::abs(error) > std::abs(out.worst)) out.worst = error;
    }
    made.push_back(out);
  };
  for (const bool kernels : {false, true}) {
    std::vector<bool> fifth(sources.size(), true);
    size_t n = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      if ((sources[i] == kKernels) == kernels) fifth[i] = n++ % 5 != 2;
    }
    leave(kernels ? "every fifth measured kernel" : "every fifth run", fifth);
  }
  std::vector<std::string> left;
  for (const std::string& source : sources) {
    if (std::find(left.begin(), left.end(), source) != left.end()) continue;
    left.push_back(source);
    std::vector<bool> used;
    for (const std::string& other : sources) used.push_back(other != source);
    leave(source, used);
  }
  return made;
}

}  // namespace mw::calibrate
