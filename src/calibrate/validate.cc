#include "calibrate/validate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/parallel.h"

namespace mw::calibrate {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string recompute_name(compile::Recompute recompute) {
  switch (recompute) {
    case compile::Recompute::kNone: return "none";
    case compile::Recompute::kSelective: return "selective";
    case compile::Recompute::kFull: return "full";
  }
  return "?";
}

void take(const predict::Request& request, const predict::Prediction& prediction, Comparison& c) {
  c.predicted = prediction.step.value;
  c.published = published_step(c.run, request);
  c.error = c.predicted / c.published - 1;
  c.fits = prediction.too_full().empty();
  c.predicted_GiB = 0;
  for (const predict::StageMemory& memory : prediction.memory)
    c.predicted_GiB = std::max(c.predicted_GiB, static_cast<double>(memory.peak.value) / kGiB);
}

// What a row was compiled to: by microbatch and recomputation.
using Steps = std::map<std::pair<int64_t, compile::Recompute>, predict::Step>;

const predict::Step& step_of(const predict::Request& request, int64_t size, compile::Recompute way,
                             Steps& steps) {
  const auto it = steps.find({size, way});
  if (it != steps.end()) return it->second;
  return steps.emplace(std::pair(size, way), predict::compile_step(request)).first->second;
}

Comparison compare(const Run& run, const Machines& machines, const Change& change, Steps& steps) {
  Comparison best;
  best.run = run;
  best.reason = reason(run, machines);
  if (!best.reason.empty()) return best;
  const std::vector<int64_t> sizes = micro_batches(run);
  const std::vector<compile::Recompute> ways = recomputes(run);
  const bool open = sizes.size() > 1 || ways.size() > 1;
  bool found = false;
  for (const int64_t size : sizes) {
    for (const compile::Recompute way : ways) {
      predict::Request request = request_of(run, machines, size, way);
      if (change) change(request);
      Comparison made;
      made.run = run;
      try {
        take(request, predict::predict(request, step_of(request, size, way, steps)), made);
      } catch (const Error& error) {
        made.reason = replace_all(error.what(), "\n", "; ");
        if (!open) return made;
        continue;
      }
      if (!open) return made;
      const std::string what =
          (run.micro_batch == 0 ? fmt::format("microbatch {}", size) : std::string()) +
          (run.micro_batch == 0 && ways.size() > 1 ? ", " : "") +
          (ways.size() > 1 ? "recompute " + recompute_name(way) : std::string());
      made.assumed = what;
      if (!made.fits) continue;
      if (!found || made.predicted < best.predicted) best = made;
      found = true;
      break;  // more recomputation at the same microbatch only takes longer
    }
  }
  if (!found) best.reason = "no microbatch and recomputation fits the memory";
  return best;
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t j = i; j < end; ++j)
      ranks[order[j]] = (static_cast<double>(i) + static_cast<double>(end) - 1) / 2;
    i = end;
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

std::vector<Comparison> validate(const std::vector<Run>& runs, const Machines& machines,
                                 int threads, const Change& change) {
  return validate(runs, machines, threads, std::vector<Change>{change}).front();
}

std::vector<std::vector<Comparison>> validate(const std::vector<Run>& runs,
                                              const Machines& machines, int threads,
                                              const std::vector<Change>& changes) {
  std::vector<std::vector<Comparison>> comparisons(changes.size(),
                                                   std::vector<Comparison>(runs.size()));
  for_each_index(runs.size(), threads, [&](size_t i) {
    Steps steps;
    for (size_t c = 0; c < changes.size(); ++c)
      comparisons[c][i] = compare(runs[i], machines, changes[c], steps);
  });
  return comparisons;
}

Summary summary(const std::string& name, const std::vector<const Comparison*>& comparisons) {
  Summary s;
  s.name = name;
  std::vector<double> predicted, published;
  for (const Comparison* c : comparisons) {
    ++s.rows;
    s.mean += std::abs(c->error);
    s.bias += c->error;
    if (std::abs(c->error) > std::abs(s.worst)) s.worst = c->error;
    predicted.push_back(c->predicted);
    published.push_back(c->published);
  }
  if (s.rows == 0) return s;
  s.mean /= s.rows;
  s.bias /= s.rows;
  s.rank_correlation = correlation(ranks_of(predicted), ranks_of(published));
  return s;
}

std::vector<Summary> summaries(const std::vector<Comparison>& comparisons) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<const Comparison*>> rows;
  for (const Comparison& c : comparisons) {
    if (!c.reason.empty()) continue;
    const std::string name = source_name(c.run.source) + (c.assumed.empty() ? "" : " (assumed)");
    if (!rows.contains(name)) names.push_back(name);
    rows[name].push_back(&c);
  }
  std::vector<Summary> made;
  for (const std::string& name : names) made.push_back(summary(name, rows[name]));
  return made;
}

}  // namespace mw::calibrate
