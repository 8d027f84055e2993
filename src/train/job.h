// Job: what to train, on what, for how long; from a TOML file and the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/fs.h"
#include "base/json.h"
#include "compile/optimizer.h"
#include "compile/plan.h"
#include "models/config.h"

namespace mw::train {

struct Job {
  std::string name;        // of the file, without folder and ending
  std::string model_file;  // where the config was read
  std::string model_json;  // its text: the run folder keeps it
  models::ModelConfig model;
  std::string data_file;
  double valid_fraction = 0.05;
  int64_t seq_len = 256, global_batch = 16;
  int64_t horizon = 1000;  // steps over which the learning rate falls; --steps only stops the run
  double lr = 3e-4, min_lr = 3e-5;
  int64_t warmup = 50;
  compile::OptimizerSpec optimizer;
  int64_t eval_every = 100, eval_batches = 8;  // 0: never
  int64_t checkpoint_every = 100, keep = 2;
  int64_t seed = 1;
  compile::Plan plan;
};

// What the command line says over the file.
struct JobOverrides {
  std::optional<std::string> model, data, plan;
  std::optional<int64_t> seed;
  int64_t devices = 0;  // which give the dp that `plan` leaves out
};

// What a job is read for: only what trains opens its data too, only what simulates takes a schedule
// that does not run.
enum class JobUse : uint8_t { kSimulate, kCompile, kTrain };

// Throws Error with everything that is wrong with the file, the model's config, the plan and the
// data. Paths in the file are relative to its folder.
Job read_job(FileSystem& fs, const std::string& path, const JobOverrides& overrides,
             JobUse use = JobUse::kCompile);

// Throws Error with what is wrong with a plan and a model of the command line by themselves.
void check_overrides(FileSystem& fs, const JobOverrides& overrides);

// The same to resume the run of a folder: model and seed are the run's. Throws Error also where an
// override, or what the job says of its samples, conflicts with the run.
Job read_resumed_job(FileSystem& fs, const std::string& path, const std::string& run_dir,
                     const JobOverrides& overrides, JobUse use = JobUse::kCompile);
// What that needs of a run, for its folder.
Json run_record(const Job& job);

// Heads and batch, for the plan's checks.
compile::ModelShape model_shape(const Job& job);

// Linear warm-up, then cosine to min_lr at the horizon. Steps count from 1.
double learning_rate(const Job& job, int64_t step);

}  // namespace mw::train
