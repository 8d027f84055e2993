#include "calibrate/validate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/in_parallel.h"
#include "base/text.h"
#include "calibrate/choices.h"
#include "calibrate/run_model.h"
#include "solver/rank_correlation.h"

namespace mw::calibrate {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

void take(const predict::Request& request, const predict::Prediction& prediction, Comparison& c) {
  c.predicted = prediction.step.value;
  c.published = published_step(c.run, request);
  c.error = c.published > 0 ? c.predicted / c.published - 1 : 0;
  c.work = model_flops(request.model, c.run.seq, c.run.global_batch).value /
           static_cast<double>(c.run.gpus);
}

void take_memory(const predict::Prediction& prediction, Comparison& c) {
  c.fits = prediction.too_full().empty();
  c.predicted_GiB = 0;
  for (const predict::StageMemory& memory : prediction.memory)
    c.predicted_GiB = std::max(c.predicted_GiB, static_cast<double>(memory.peak.value) / kGiB);
}

// What a row was compiled to: by ranks of both kinds, chunks, post-validation, microbatch and
// recomputation; and by what a program depends on of what a change has: whether attention is fused
// and what its softmax keeps else (predict/precision.h), and the costs that its order is made for.
using Steps = std::map<std::tuple<int64_t, int64_t, int64_t, bool, int64_t, compile::Recompute,
                                  std::pair<bool, bool>, std::vector<double>>,
                       predict::Step>;

const predict::Step& step_of(const predict::Request& request, int64_t size, compile::Recompute way,
                             Steps& steps) {
  const cluster::Attained& attained = request.cluster.device.attained;
  const std::tuple key(
      request.plan.tp, request.plan.pp, request.plan.chunks, request.plan.post_validation, size,
      way, std::pair(attained.fused_attention, attained.blocked_softmax), request.plan.costs);
  const auto it = steps.find(key);
  if (it != steps.end()) return it->second;
  return steps.emplace(key, predict::compile_step(request)).first->second;
}

std::string assumed(const Run& run, const Run& laid, const Machines& machines, int64_t size,
                    compile::Recompute way) {
  std::vector<std::string> parts;
  if (run.tp == 0) parts.push_back(fmt::format("tp={}", laid.tp));
  if (run.pp == 0) parts.push_back(fmt::format("{} stages", laid.pp));
  if (chunks_open(run, machines)) parts.push_back(fmt::format("{} chunks", laid.vpp));
  if (run.micro_batch == 0) parts.push_back(fmt::format("microbatch {}", size));
  if (run.recompute == "unknown") parts.push_back("recompute " + std::string(name_of(way)));
  parts.insert(parts.end(), run.usual.begin(), run.usual.end());
  if (const std::string blocks = blocks_of(run).assumed; !blocks.empty()) parts.push_back(blocks);
  if (const std::string sizes = odd_sizes(run); !sizes.empty()) parts.push_back(sizes);
  if (const std::string profile = assumed_profile(run, machines); !profile.empty())
    parts.push_back(profile);
  return join(parts, ", ");
}

// The fastest of what the row leaves open, among what fits the memory if anything does.
class Search {
 public:
  Search(const Run& run, const Machines& machines, const Change& change, Steps& steps)
      : run_(run), machines_(machines), change_(change), steps_(steps) {}

  Comparison best() {
    best_.run = run_;
    best_.reason = reason(run_, machines_);
    if (!best_.reason.empty()) return best_;
    for_each_choice(run_, machines_, [&](const Run& laid, int64_t size, compile::Recompute way) {
      return consider(laid, size, way);
    });
    if (!found_) best_.reason = first_error_;
    return best_;
  }

 private:
  Outcome consider(const Run& laid, int64_t size, compile::Recompute way) {
    predict::Request request = request_of(laid, machines_, size, way);
    if (change_) change_(request);
    Comparison made;
    made.run = run_;
    made.assumed = assumed(run_, laid, machines_, size, way);
    try {
      set_costs(request);
      const predict::Prediction prediction =
          predict::predict(request, step_of(request, size, way, steps_));
      take(request, prediction, made);
      take_memory(prediction, made);
      if (request.plan.post_validation) {
        // Ours restores from a copy of weights and moments, published runs roll back in place [Qi
        // 2024, arXiv:2401.10241, appendix C].
        request.plan.post_validation = false;
        take_memory(predict::predict(request, step_of(request, size, way, steps_)), made);
      }
    } catch (const Error& error) {
      if (first_error_.empty()) first_error_ = replace_all(error.what(), "\n", "; ");
      return Outcome::kCannot;
    }
    const bool better = made.fits != best_.fits ? made.fits
                        : made.fits             ? made.predicted < best_.predicted
                                                : made.predicted_GiB < best_.predicted_GiB;
    if (!found_ || better) best_ = made;
    found_ = true;
    return made.fits ? Outcome::kFits : Outcome::kTooFull;
  }

  const Run& run_;
  const Machines& machines_;
  const Change& change_;
  Steps& steps_;
  Comparison best_;
  bool found_ = false;
  std::string first_error_;
};

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
  in_parallel(runs.size(), threads, [&](size_t i) {
    Steps steps;
    for (size_t c = 0; c < changes.size(); ++c)
      comparisons[c][i] = Search(runs[i], machines, changes[c], steps).best();
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
  const auto differ = [](const std::vector<double>& values) {
    return std::any_of(values.begin(), values.end(), [&](double v) { return v != values[0]; });
  };
  if (differ(predicted) && differ(published))
    s.rank_correlation = solver::rank_correlation(predicted, published);
  return s;
}

std::vector<Summary> summaries(const std::vector<Comparison>& comparisons) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<const Comparison*>> rows;
  for (const Comparison& c : comparisons) {
    if (!c.reason.empty() || c.published <= 0) continue;
    const std::string name = source_name(c.run.source) + (c.assumed.empty() ? "" : " (assumed)");
    if (!rows.contains(name)) names.push_back(name);
    rows[name].push_back(&c);
  }
  std::vector<Summary> made;
  for (const std::string& name : names) made.push_back(summary(name, rows[name]));
  return made;
}

}  // namespace mw::calibrate
