// A training run with its folder: metrics, evaluation, checkpoints, progress.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/fs.h"
#include "train/job.h"

namespace mw::train {

struct RunOptions {
  std::optional<std::string>
      run_dir;  // default: the first of runs/<job>, runs/<job>-2, … that is not there
  std::optional<std::string> resume;  // a run folder
  std::optional<std::string> init;    // safetensors with Hugging Face names
  std::optional<int64_t> steps;       // the last step's number; default: the job's horizon
  std::optional<int64_t> trace_step;  // that trace.json shows; default: the run's second
  int threads_per_rank = 0;           // 0: cores / ranks, at least 1
  // ExecutorOptions::on_slow.
  std::function<void(const std::string& report)> on_slow;
};

struct RunSummary {
  std::string run_dir;
  int64_t steps = 0;  // the last step's number
  float final_loss = 0;
  std::optional<float> held_out_loss;
  double tokens_per_s = 0;  // median over the steps, of more than one without the first
  int64_t peak_bytes_per_rank = 0, bytes_sent_per_step = 0;
};

// Called with one line of progress at a time.
using Progress = std::function<void(const std::string& line)>;

// What is wrong with a run before anything is compiled: a model without kernels, a folder that
// holds a run, weights that are not there, a step to trace that it does not have.
void check(FileSystem& fs, const Job& job, const RunOptions& options, Diagnostics& diagnostics);

// Writes plan.json, job.json, config.json, metrics.jsonl, trace.json (of one step) and
// checkpoint/ into the run folder. Nothing is written before the job has compiled and its programs
// are verified. Throws Error where the run folder that is asked for holds a run, even one that
// began at the same time.
RunSummary run(FileSystem& fs, const Job& job, const RunOptions& options, const Progress& progress);

}  // namespace mw::train
