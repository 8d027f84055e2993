#include "train/run.h"

#include <algorithm>

#include "base/error.h"
#include "base/median.h"
#include "base/text.h"
#include "checkpoint/store.h"
#include "trace/chrome_trace.h"
#include "train/run_checkpoint.h"
#include "train/trainer.h"

namespace mw::train {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kPlan = "plan.json";
constexpr const char* kJob = "job.json";
constexpr const char* kConfig = "config.json";
constexpr const char* kTrace = "trace.json";

std::string taken_text(FileSystem& fs, const std::string& folder) {
  const bool resumes = !checkpoint::list_steps(fs, join_path(folder, kCheckpoints)).empty();
  return fmt::format(
      "--run-dir: {} already holds a run; choose another folder{}", folder,
      resumes ? fmt::format(", or resume it with --resume {} into a new one", folder) : "");
}

// Why a run cannot have that folder; "" if it can.
std::string folder_finding(FileSystem& fs, const std::string& folder) {
  std::string there = folder;  // as far as it is there
  while (!fs.exists(there) && parent_path(there) != there) there = parent_path(there);
  if (fs.exists(there) && !fs.is_directory(there))
    return fmt::format("--run-dir: {} is a file, must be a folder", there);
  for (const char* name : {kMetrics, kCheckpoints}) {
    if (fs.exists(join_path(folder, name))) return taken_text(fs, folder);
  }
  std::vector<std::string> lost;
  for (const char* name : {kPlan, kJob, kConfig, kTrace}) {
    if (fs.exists(join_path(folder, name))) lost.emplace_back(name);
  }
  if (lost.empty()) return "";
  return fmt::format("--run-dir: {} holds {}, which a run writes; choose another folder", folder,
                     join(lost, ", "));
}

// Whether there is nothing to start from; "" if there may be.
std::string init_finding(FileSystem& fs, const std::string& path) {
  if (!fs.exists(path)) return fs.missing_message(path);
  const std::string newest = checkpoint::newest_step(fs, join_path(path, kCheckpoints));
  if (newest.empty()) return "";
  return fmt::format("--init: {} is a run; its checkpoints are folders such as {}", path, newest);
}

// "" for a step of the run.
std::string trace_finding(int64_t traced, int64_t begun, int64_t last) {
  if (begun < traced && traced <= last) return "";
  return fmt::format("--trace-step: {} is none of this run's steps, {} to {}", traced, begun + 1,
                     last);
}

// The folder that is asked for, which of runs that begin at once belongs to the one that makes the
// checkpoints' folder in it; or the first of runs/<job>, runs/<job>-2, … that is not there.
std::string make_folder(FileSystem& fs, const Job& job, const RunOptions& options) {
  if (options.run_dir) {
    fs.make_directories(*options.run_dir);
    if (!fs.make_directory(join_path(*options.run_dir, kCheckpoints)))
      throw Error(taken_text(fs, *options.run_dir));
    return *options.run_dir;
  }
  fs.make_directories("runs");
  std::string folder = fmt::format("runs/{}", job.name);
  for (int n = 2; !fs.make_directory(folder); ++n) folder = fmt::format("runs/{}-{}", job.name, n);
  return folder;
}

class Run {
 public:
  Run(FileSystem& fs, const Job& job, const RunOptions& options, const Progress& progress)
      : fs_(fs),
        job_(job),
        options_(options),
        progress_(progress),
        trainer_(fs, job, options.threads_per_rank, options.on_slow),
        last_(options.steps.value_or(job.horizon)) {}

  RunSummary go() {
    start();
    begun_ = trainer_.state().step;
    traced_ = options_.trace_step.value_or(std::min(begun_ + 2, last_));
    if (begun_ >= last_) {
      throw_error("--steps: {} is not beyond step {}, where the run {} stands", last_, begun_,
                  options_.resume.value_or(job_.name));
    }
    if (const std::string finding = trace_finding(traced_, begun_, last_); !finding.empty())
      throw Error(finding);
    if (options_.resume) {
      progress_(fmt::format("resumed {} at step {} under {}", *options_.resume, begun_,
                            compile::short_form(job_.plan)));
    }
    open_folder();
    try {
      while (trainer_.state().step < last_) some_steps();
    } catch (const RunError&) {
      if (metrics_ != nullptr) metrics_->close();
      throw;
    }
    if (saved_ != last_) save();
    metrics_->close();
    summary_.steps = last_;
    summary_.tokens_per_s = median(rates_);
    summary_.peak_bytes_per_rank = trainer_.peak_bytes_per_rank();
    summary_.bytes_sent_per_step = trainer_.bytes_sent_per_step();
    return summary_;
  }

 private:
  void start() {
    if (options_.resume) {
      trainer_.resume(*options_.resume);
      return;
    }
    trainer_.initialize();
    if (options_.init) trainer_.load(*options_.init);
  }

  void open_folder() {
    folder_ = summary_.run_dir = make_folder(fs_, job_, options_);
    write(kPlan, compile::to_json(job_.plan).dump_pretty());
    write(kJob, run_record(job_).dump_pretty());
    write(kConfig, job_.model_json);
    metrics_ = fs_.create_file(join_path(folder_, kMetrics));
  }

  void write(const std::string& name, const std::string& text) {
    require_run_folder(fs_, folder_);
    fs_.write_file_atomically(join_path(folder_, name), text);
  }

  // Up to the next that something else must wait for: an evaluation, a checkpoint; and the traced
  // step by itself.
  void some_steps() {
    const int64_t begun = trainer_.state().step;
    int64_t last = last_;
    for (const int64_t every : {job_.eval_every, job_.checkpoint_every}) {
      if (every > 0) last = std::min(last, (begun / every + 1) * every);
    }
    const bool traced = begun + 1 == traced_;
    if (traced) last = traced_;
    if (begun + 1 < traced_) last = std::min(last, traced_ - 1);
    trace::Trace trace;
    StepResult newest;
    trainer_.steps(
        last - begun,
        [&](const StepResult& result) {
          newest = result;
          if (result.step < last) record(result);
        },
        traced ? &trace : nullptr);
    if (traced) {
      trace.step = traced_;
      write(kTrace, trace::to_chrome_json(trace));
    }
    if (job_.eval_every > 0 && (last % job_.eval_every == 0 || last == last_)) evaluate();
    record(newest);
    if (job_.checkpoint_every > 0 && last % job_.checkpoint_every == 0) save();
  }

  // With the held-out loss, if it is of this step.
  void record(const StepResult& result) {
    const double rate = static_cast<double>(job_.global_batch * job_.seq_len) / result.seconds;
    if (result.step == begun_ + 2) rates_.clear();  // of the first step, which warms up
    rates_.push_back(rate);
    summary_.final_loss = result.loss;
    Json line{JsonObject{}};
    line["step"] = result.step;
    line["loss"] = static_cast<double>(result.loss);
    line["grad_norm"] = static_cast<double>(result.grad_norm);
    line["lr"] = result.lr;
    line["step_s"] = result.seconds;
    line["tokens_per_s"] = rate;
    if (evaluated_ == result.step)
      line["held_out_loss"] = static_cast<double>(*summary_.held_out_loss);
    const std::string text = line.dump() + "\n";
    metrics_->write(text);
    report(result, rate);
  }

  // The usual tokens/s of late.
  double recent_rate() const {
    constexpr size_t kRecent = 100;  // steps
    const size_t count = std::min(kRecent, rates_.size());
    return median({rates_.end() - static_cast<std::ptrdiff_t>(count), rates_.end()});
  }

  void report(const StepResult& result, double rate) const {
    const double left = static_cast<double>(last_ - result.step) *
                        static_cast<double>(job_.global_batch * job_.seq_len) / recent_rate();
    std::string line = fmt::format(
        "step {:>6}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  ETA {}",
        result.step, last_, result.loss, result.grad_norm, result.lr, rate, format_seconds(left));
    if (evaluated_ == result.step)
      line += fmt::format("  held-out loss {:.4f}", *summary_.held_out_loss);
    progress_(line);
  }

  void evaluate() {
    summary_.held_out_loss = trainer_.evaluate();
    evaluated_ = trainer_.state().step;
  }
  void save() {
    trainer_.save(folder_);
    saved_ = trainer_.state().step;
  }

  FileSystem& fs_;
  const Job& job_;
  const RunOptions& options_;
  const Progress& progress_;
  Trainer trainer_;
  std::string folder_;
  std::unique_ptr<WritableFile> metrics_;
  RunSummary summary_;
  std::vector<double> rates_;
  // Steps by number: done when the run began, the last one, the traced one, …
  int64_t last_;
  int64_t begun_ = 0, traced_ = 0, saved_ = -1, evaluated_ = -1;
};

}  // namespace

void check(FileSystem& fs, const Job& job, const RunOptions& options, Diagnostics& diagnostics) {
  const auto add = [&](const std::string& finding) {
    if (!finding.empty()) diagnostics.add("{}", finding);
  };
  add(kernels_finding(job));
  if (options.run_dir) add(folder_finding(fs, *options.run_dir));
  if (options.init && !options.resume) add(init_finding(fs, *options.init));
  if (options.trace_step)
    add(trace_finding(*options.trace_step, 0, options.steps.value_or(job.horizon)));
}

RunSummary run(FileSystem& fs, const Job& job, const RunOptions& options,
               const Progress& progress) {
  Diagnostics diagnostics;
  check(fs, job, options, diagnostics);
  diagnostics.throw_if_any();
  return Run(fs, job, options, progress).go();
}

}  // namespace mw::train
