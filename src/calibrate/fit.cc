#include "calibrate/fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/count.h"
#include "base/error.h"
#include "base/in_parallel.h"
#include "base/text.h"
#include "calibrate/choices.h"
#include "calibrate/linear.h"
#include "cluster/group_shape.h"
#include "cost/collective.h"
#include "simulate/prepared.h"

namespace mw::calibrate {
namespace {

constexpr double kStep = 0.01;       // of a constant's logarithm, up and down, for derivatives
constexpr double kLeastGain = 1e-6;  // of what is minimised, for another step
constexpr double kPrior = 3.0;       // standard deviation of a constant's logarithm, from its start
constexpr double kTypical = 0.05;    // a row's expected residual, before any is known
constexpr double kLeast = 1e-5;      // of what a row is taken to be off by
// A step's damping [Marquardt 1963]: where it begins, what it grows by when a step does not gain,
// at most so often, what it falls by when one does, and down to what.
constexpr double kDamping = 1e-3, kDampingUp = 8, kDampingDown = 4, kLeastDamping = 1e-6;
constexpr int kAttempts = 6;
constexpr double kLongest = 0.7;   // of a step, in a constant's logarithm: a factor of two
constexpr int kRounds = 3;         // the prior is weighed anew by how far rows are off
constexpr int kBoundedRounds = 6;  // so are runs
constexpr double kBound = 1.345;   // where Huber's estimate is 95 % as efficient as least squares
constexpr double kOfMedian = 1.4826;  // the deviation of normal residuals over their median

const std::string kKernels = "measured kernels";  // their source

// Runs of a source that count, evenly spaced.
std::vector<bool> spaced(size_t count, size_t most) {
  std::vector<bool> taken(count, most == 0 || count <= most);
  if (count <= most || most == 0) return taken;
  for (size_t i = 0; i < most; ++i) taken[i * count / most] = true;
  return taken;
}

// Why a row says nothing of a fit, "" if it does.
std::string no_fit_reason(const Run& run, const Machines& machines) {
  if (const std::string why = reason(run, machines); !why.empty()) return why;
  if (run.metric == "place") return "tells a place and no time";
  if (run.overlap == kPostValidation || pipeline::kind_of(run.schedule).weight_versions > 1)
    return "its step runs into the next, of which a fit knows nothing";
  return "";
}

// What is fitted on; the others go to `skipped`.
std::vector<const Run*> chosen(const std::vector<const Run*>& runs, const Machines& machines,
                               int per_source, std::vector<Skipped>& skipped) {
  std::map<std::string, std::vector<const Run*>> by_source;
  for (const Run* run : runs) {
    const std::string why = no_fit_reason(*run, machines);
    if (why.empty()) {
      by_source[run->source].push_back(run);
    } else {
      skipped.push_back({run, why});
    }
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

// The logarithms of the constants: where they begin, and their range.
struct Range {
  std::vector<double> start, least, most;
};
// Logarithms of the constants, and the residuals of all rows there.
struct Point {
  std::vector<double> x, r;
};

}  // namespace

struct Fitter::Parts {
  // A run made ready, with its cluster without what is fitted. Where it leaves microbatch or
  // recomputation open, all that fit the memory; the fastest counts.
  struct Choice {
    double measured = 0;  // what the row published comes to, if it was this
    cluster::Cluster cluster;
    simulate::Prepared prepared;
  };
  struct Case {
    std::vector<Choice> choices;  // at least one
  };
  static std::string make_ready(const Run& run, const Machines& machines, Case& made);

  FitOptions options;
  cluster::Profile profile;
  std::vector<const Run*> runs;
  std::vector<Skipped> skipped;
  MeasuredKernels measured;
  cluster::Cluster measured_on;
  mutable std::vector<Case> cases;

  size_t rows() const { return runs.size() + measured.size(); }
  std::string source(size_t row) const { return row < runs.size() ? runs[row]->source : kKernels; }
  // What a row's weight is shared by.
  std::string share(size_t row) const {
    const size_t before = runs.size() + measured.collectives.size();
    return row < before ? source(row) : kKernels + ' ' + measured.kernels[row - before].kernel;
  }

  // [row] log(predicted / measured): runs, collectives, kernels.
  std::vector<double> residuals(const std::vector<double>& logs,
                                const std::vector<bool>& used) const {
    std::vector<double> r(rows(), 0);
    in_parallel(runs.size(), options.threads, [&](size_t i) {
      if (!used[i]) return;
      double least = 0, measured = 0;
      for (Choice& choice : cases[i].choices) {
        cluster::Cluster at = choice.cluster;
        set(at, logs);
        const double step = choice.prepared.step(at).value;
        if (measured == 0 || step < least) least = step, measured = choice.measured;
      }
      r[i] = std::log(least / measured);
    });
    cluster::Cluster at = measured_on;
    if (measured.size() > 0) set(at, logs);
    for (size_t i = 0; i < measured.collectives.size(); ++i) {
      if (!used[runs.size() + i]) continue;
      const CollectiveRow& row = measured.collectives[i];
      const double time =
          cost::collective_time(at, ir::OpKind::kAllReduce, row.bytes, group_of(row)).time.value +
          at.device.attained.collective_latency.value;
      r[runs.size() + i] = std::log(time * 1e6 / row.time_us);
    }
    const size_t before = runs.size() + measured.collectives.size();
    for (size_t i = 0; i < measured.kernels.size(); ++i) {
      const KernelRow& row = measured.kernels[i];
      if (used[before + i])
        r[before + i] = std::log(kernel_time(at.device, row).value * 1e6 / row.time_us);
    }
    return r;
  }
  // The first devices of so many nodes.
  cluster::GroupShape group_of(const CollectiveRow& row) const {
    const int64_t here = row.ranks / row.nodes, node = std::max(here, measured_on.node_devices());
    std::vector<RankId> members;
    for (int64_t r = 0; r < row.ranks; ++r) members.emplace_back(r / here * node + r % here);
    return cluster::group_shape(measured_on, members);
  }
  // Whether the device's cluster has groups as they were measured.
  void check_collectives() const {
    if (measured.collectives.empty()) return;
    if (measured_on.links.empty())
      throw_error("{}: has no [[link]], and all-reduces were measured", measured_on.file);
    if (measured_on.node() == nullptr) return;
    const int64_t node = measured_on.node_devices();
    for (const CollectiveRow& row : measured.collectives) {
      if (row.ranks / row.nodes <= node) continue;
      throw_error("{}: an all-reduce was measured on {} ranks of {}, and a node has {}",
                  measured_on.file, row.ranks, counted(row.nodes, "node"), counted(node, "device"));
    }
  }
  // Whether it has what the kernels were measured in.
  void check_kernels() const {
    const auto is_fp8 = [](const KernelRow& row) { return row.fp8 != cost::Fp8::kOff; };
    const std::vector<KernelRow>& rows = measured.kernels;
    if (measured_on.device.peak("fp8").value > 0 || std::none_of(rows.begin(), rows.end(), is_fp8))
      return;
    throw_error(
        "{}: {} has no fp8 products (peak_TFLOPs.fp8), and some were measured; leave their rows "
        "out",
        measured_on.file, measured_on.device.name);
  }
  void set(cluster::Cluster& at, const std::vector<double>& logs) const {
    for (size_t p = 0; p < logs.size(); ++p)
      cluster::set_constant(at, options.constants[p], std::exp(logs[p]));
  }

  // [constant][row] their derivatives at x.
  std::vector<std::vector<double>> jacobian(const std::vector<double>& x,
                                            const std::vector<double>& most,
                                            const std::vector<bool>& used) const;
  // Steps downhill from `at` until they gain little.
  void descend(Point& at, const Range& range, const std::vector<bool>& used,
               const std::vector<double>& w, double prior) const;
  double deviation(const std::vector<double>& r, const std::vector<bool>& used,
                   const std::vector<double>& w) const;
  Fit fit_at(const Point& at, const Range& range, const std::vector<bool>& used,
             const std::vector<double>& w, double prior) const;

  // [row] what its square counts: every source alike, a table as one more, its kernels' kinds
  // alike; without runs each kind as much as a source.
  std::vector<double> weights(const std::vector<bool>& used) const {
    std::map<std::string, double> count;
    for (size_t i = 0; i < rows(); ++i) {
      if (used[i]) ++count[share(i)];
    }
    const auto kinds =
        static_cast<double>(std::count_if(count.begin(), count.end(), [](const auto& shared) {
          return shared.first.starts_with(kKernels) && shared.first != kKernels;
        }));
    std::vector<double> w(rows(), 0);
    for (size_t i = 0; i < rows(); ++i) {
      if (used[i]) w[i] = 1 / count[share(i)];
      if (used[i] && !runs.empty() && share(i) != source(i)) w[i] /= kinds;
    }
    return w;
  }
};

// Compiles it, or says why it cannot be.
std::string Fitter::Parts::make_ready(const Run& run, const Machines& machines, Case& made) {
  std::string first_error;
  const bool open = leaves_open(run, machines);
  for_each_choice(run, machines, [&](const Run& laid, int64_t size, compile::Recompute way) {
    try {
      predict::Request request = request_of(laid, machines, size, way);
      set_costs(request);
      predict::Step step = predict::compile_step(request);
      if (open && !predict::predict(request, step).too_full().empty()) return Outcome::kTooFull;
      made.choices.push_back(
          {published_step(run, request), request.cluster,
           simulate::Prepared(std::move(step.program), request.cluster, request.options)});
      return Outcome::kFits;
    } catch (const Error& error) {
      if (first_error.empty()) first_error = replace_all(error.what(), "\n", "; ");
      return Outcome::kCannot;
    }
  });
  if (!made.choices.empty()) return "";
  return first_error.empty() ? "nothing of what it leaves open fits the memory" : first_error;
}

Fitter::Fitter(const std::vector<const Run*>& runs, const MeasuredKernels& measured,
               const Machines& machines, const cluster::Profile& profile, FitOptions options)
    : parts_(std::make_unique<Parts>()) {
  MW_CHECK(options.constants.size() <= kMostConstants, "{} constants", options.constants.size());
  Machines with = machines;
  with.profiles = {profile};
  Parts& parts = *parts_;
  parts.options = options;
  parts.profile = profile;
  parts.measured = measured;
  for (const cluster::Cluster& cluster : machines.clusters) {
    if (cluster.device.name != profile.device) continue;
    parts.measured_on = cluster;
    cluster::apply(profile, parts.measured_on);
  }
  parts.check_collectives();
  parts.check_kernels();
  const std::vector<const Run*> all = chosen(runs, with, options.runs_per_source, parts.skipped);
  std::vector<Parts::Case> cases(all.size());
  std::vector<std::string> wrong(all.size());
  in_parallel(all.size(), options.threads,
              [&](size_t i) { wrong[i] = Parts::make_ready(*all[i], with, cases[i]); });
  for (size_t i = 0; i < all.size(); ++i) {
    if (wrong[i].empty()) {
      parts.runs.push_back(all[i]);
      parts.cases.push_back(std::move(cases[i]));
    } else {
      parts.skipped.push_back({all[i], wrong[i]});
    }
  }
}
Fitter::~Fitter() = default;

std::vector<std::string> Fitter::sources() const {
  std::vector<std::string> sources;
  for (size_t i = 0; i < parts_->rows(); ++i) sources.push_back(parts_->source(i));
  return sources;
}

const std::vector<Skipped>& Fitter::skipped() const { return parts_->skipped; }

namespace {

Range range_of(const std::vector<std::string>& constants, const cluster::Cluster& at) {
  const auto infos = cluster::constant_infos();
  Range range;
  for (const std::string& name : constants) {
    const auto info = std::find_if(infos.begin(), infos.end(),
                                   [&](const auto& known) { return known.name == name; });
    MW_CHECK(info != infos.end(), "constant {}", name);
    range.least.push_back(std::log(info->least));
    range.most.push_back(std::log(info->most));
    // What is off begins in the middle: near nothing it would matter too little to be found.
    const double value = cluster::constant(at, name);
    const double middle = info->least > 0 ? std::sqrt(info->least * info->most) : info->most / 2;
    const double start = value == 0 ? middle : std::max(1e-9, value);
    range.start.push_back(std::clamp(std::log(start), range.least.back(), range.most.back()));
  }
  return range;
}

// Rows of equal weight that would tell as much.
double effective_rows(const std::vector<double>& w) {
  double squares = 0, weight = 0;
  for (const double v : w) weight += v, squares += v * v;
  return squares > 0 ? weight * weight / squares : 1;
}

// What the square of a constant's way from its start counts where a row is off by `residual`.
double prior_weight(const std::vector<double>& w, double residual) {
  const double weight = std::accumulate(w.begin(), w.end(), 0.0);
  const double off = std::max(kLeast, residual);
  return off * off / (kPrior * kPrior) * weight / effective_rows(w);
}

// The rows' weights, less of runs that are further off than most are: beyond kBound deviations of
// normal residuals with their median, a run pulls as hard as one that is just there [Huber 1964].
// Kernels behind the `runs` were measured for the table, and count as they are.
std::vector<double> bounded_weights(size_t runs, const std::vector<double>& r,
                                    const std::vector<double>& w) {
  std::vector<std::pair<double, double>> sizes;
  double all = 0;
  for (size_t i = 0; i < runs; ++i) sizes.emplace_back(std::abs(r[i]), w[i]), all += w[i];
  std::sort(sizes.begin(), sizes.end());
  double below = 0, median = 0;
  for (const auto& [size, weight] : sizes) {
    if (below < all / 2) median = size;
    below += weight;
  }
  const double bound = kBound * kOfMedian * std::max(kLeast, median);
  std::vector<double> bounded = w;
  for (size_t i = 0; i < runs; ++i) bounded[i] *= std::min(1.0, bound / std::abs(r[i]));
  return bounded;
}

// What a round minimises: squares of residuals and of ways from the start.
double cost(const std::vector<double>& r, const std::vector<double>& w,
            const std::vector<double>& x, const std::vector<double>& start, double prior) {
  double sum = 0;
  for (size_t i = 0; i < r.size(); ++i) sum += w[i] * r[i] * r[i];
  for (size_t p = 0; p < x.size(); ++p) sum += prior * (x[p] - start[p]) * (x[p] - start[p]);
  return sum;
}

// Of `cost` at x, from the residuals' derivatives [constant][row].
struct NormalEquations {
  Matrix matrix;
  std::vector<double> gradient;
};
NormalEquations normal_equations(const std::vector<std::vector<double>>& jacobian,
                                 const std::vector<double>& r, const std::vector<double>& w,
                                 const std::vector<double>& x, const std::vector<double>& start,
                                 double prior) {
  const size_t n = x.size();
  NormalEquations made{Matrix(n, std::vector<double>(n, 0)), std::vector<double>(n, 0)};
  for (size_t p = 0; p < n; ++p) {
    made.gradient[p] = prior * (x[p] - start[p]);
    made.matrix[p][p] = prior;
    for (size_t i = 0; i < r.size(); ++i) made.gradient[p] += w[i] * jacobian[p][i] * r[i];
    for (size_t q = 0; q < n; ++q) {
      for (size_t i = 0; i < r.size(); ++i)
        made.matrix[p][q] += w[i] * jacobian[p][i] * jacobian[q][i];
    }
  }
  return made;
}

// A damped step from x, inside the range.
std::vector<double> damped_step(const NormalEquations& equations, double damping,
                                const std::vector<double>& x, const Range& range) {
  Matrix damped = equations.matrix;
  for (size_t p = 0; p < x.size(); ++p) damped[p][p] *= 1 + damping;
  const Matrix solve = inverse(damped);
  std::vector<double> moved = x;
  for (size_t p = 0; p < x.size(); ++p) {
    double change = 0;
    for (size_t q = 0; q < x.size(); ++q) change -= solve[p][q] * equations.gradient[q];
    moved[p] =
        std::clamp(x[p] + std::clamp(change, -kLongest, kLongest), range.least[p], range.most[p]);
  }
  return moved;
}

}  // namespace

std::vector<std::vector<double>> Fitter::Parts::jacobian(const std::vector<double>& x,
                                                         const std::vector<double>& most,
                                                         const std::vector<bool>& used) const {
  std::vector<std::vector<double>> columns;
  for (size_t p = 0; p < x.size(); ++p) {
    std::vector<double> moved = x;
    moved[p] = std::min(x[p] + kStep, most[p]);
    const double above = moved[p];
    std::vector<double> column = residuals(moved, used);
    moved[p] = x[p] - kStep;
    const std::vector<double> below = residuals(moved, used);
    for (size_t i = 0; i < column.size(); ++i)
      column[i] = (column[i] - below[i]) / (above - moved[p]);
    columns.push_back(std::move(column));
  }
  return columns;
}

Fit Fitter::fit(const std::vector<bool>& given) const {
  const Parts& parts = *parts_;
  std::vector<bool> used = given;
  used.resize(parts.rows(), given.empty());
  const std::vector<double> w = parts.weights(used);
  const Range range = range_of(parts.options.constants, parts.measured_on);
  Point at{range.start, parts.residuals(range.start, used)};
  double prior = prior_weight(w, kTypical);
  std::vector<double> bounded = w;
  const bool bound = parts.options.bounded;
  for (int round = 0; round < (bound ? kBoundedRounds : kRounds); ++round) {
    parts.descend(at, range, used, bounded, prior);
    if (bound) bounded = bounded_weights(parts.runs.size(), at.r, w);
    prior = prior_weight(w, parts.deviation(at.r, used, w));
  }
  return parts.fit_at(at, range, used, w, prior);
}

void Fitter::Parts::descend(Point& at, const Range& range, const std::vector<bool>& used,
                            const std::vector<double>& w, double prior) const {
  double best = cost(at.r, w, at.x, range.start, prior), damping = kDamping, gain = 1;
  for (int iteration = 0; iteration < options.iterations && gain >= kLeastGain; ++iteration) {
    const NormalEquations equations =
        normal_equations(jacobian(at.x, range.most, used), at.r, w, at.x, range.start, prior);
    gain = 0;
    for (int attempt = 0; attempt < kAttempts && gain == 0; ++attempt) {
      const std::vector<double> moved = damped_step(equations, damping, at.x, range);
      const std::vector<double> tried = residuals(moved, used);
      const double now = cost(tried, w, moved, range.start, prior);
      if (now >= best) {
        damping *= kDampingUp;
        continue;
      }
      gain = (best - now) / best;
      at = {moved, tried};
      best = now;
      damping = std::max(kLeastDamping, damping / kDampingDown);
    }
  }
}

// Of the runs' residuals, every source alike; of the kernels' where there is no run.
double Fitter::Parts::deviation(const std::vector<double>& r, const std::vector<bool>& used,
                                const std::vector<double>& w) const {
  double sum = 0, total = 0;
  for (size_t i = 0; i < (runs.empty() ? rows() : runs.size()); ++i) {
    if (!used[i]) continue;
    sum += w[i] * r[i] * r[i];
    total += w[i];
  }
  return total > 0 ? std::sqrt(sum / total) : 0;
}

// What is told of the constants at x, with the residuals r of the rows that are used.
Fit Fitter::Parts::fit_at(const Point& at, const Range& range, const std::vector<bool>& used,
                          const std::vector<double>& w, double prior) const {
  const auto& [x, r] = at;
  const std::vector<double>& start = range.start;
  Fit fit;
  fit.deviation = deviation(r, used, w);
  const double weight = std::accumulate(w.begin(), w.end(), 0.0), effective = effective_rows(w);
  const Matrix normal =
      normal_equations(jacobian(x, range.most, used), r, w, x, start, prior).matrix;
  const Matrix covariance = inverse(normal);
  // As the prior takes it: rows without noise are not sure of what they do not tell.
  const double off = std::max(kLeast, fit.deviation);
  for (size_t p = 0; p < x.size(); ++p) {
    const double deviation = std::sqrt(covariance[p][p] * off * off * weight / effective);
    fit.constants.push_back({options.constants[p], std::exp(start[p]), std::exp(x[p]),
                             std::exp(x[p] - 1.96 * deviation), std::exp(x[p] + 1.96 * deviation),
                             normal[p][p] > prior});
  }
  const std::vector<double> all = residuals(x, std::vector<bool>(rows(), true));
  for (size_t i = 0; i < runs.size(); ++i)
    fit.residuals.push_back({runs[i], nullptr, nullptr, std::exp(all[i]) - 1});
  size_t row = runs.size();
  for (const CollectiveRow& collective : measured.collectives)
    fit.residuals.push_back({nullptr, &collective, nullptr, std::exp(all[row++]) - 1});
  for (const KernelRow& kernel : measured.kernels)
    fit.residuals.push_back({nullptr, nullptr, &kernel, std::exp(all[row++]) - 1});
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
