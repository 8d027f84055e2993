// Options that every subcommand with a job has.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/data_folders.h"
#include "train/job.h"

namespace mw::cli {

struct JobOptions {
  std::string job;
  train::JobOverrides overrides;
};

// With the file of a model that is given by name; a path that is there, or ends as one does, stays.
inline train::JobOverrides overrides_of(FileSystem& fs, const JobOptions& options) {
  train::JobOverrides overrides = options.overrides;
  if (overrides.model && !fs.exists(*overrides.model))
    overrides.model = model_file(fs, *overrides.model);
  return overrides;
}

// What is wrong is added to `diagnostics`; where there is no job or no such model, what is with the
// overrides. `resume`: the run that goes on with it.
inline train::Job read_job(FileSystem& fs, const JobOptions& options, Diagnostics& diagnostics,
                           train::JobUse use = train::JobUse::kCompile,
                           const std::optional<std::string>& resume = std::nullopt) {
  train::Job job;
  require(options.job, "job", "a TOML file such as examples/gpt-tiny.toml", diagnostics);
  train::JobOverrides overrides = options.overrides;
  const bool named = attempt(diagnostics, [&] { overrides = overrides_of(fs, options); });
  if (!named) overrides.model.reset();
  attempt(diagnostics, [&] {
    if (options.job.empty() || !named) return train::check_overrides(fs, overrides);
    if (!resume) {
      job = train::read_job(fs, options.job, overrides, use);
    } else {
      job = train::read_resumed_job(fs, options.job, *resume, overrides, use);
    }
  });
  return job;
}

inline std::shared_ptr<JobOptions> add_job_options(CLI::App& command) {
  auto options = std::make_shared<JobOptions>();
  command.add_option("job", options->job, "The job: a TOML file such as examples/gpt-tiny.toml");
  command
      .add_option(
          "--plan", options->overrides.plan,
          "The plan: dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=8,sp,zero=1,"
          "recompute=selective,grad_reduce=step,layers=3:5 (schedule may be a CSV file); or its "
          "JSON; or a file such as R/plan.json; train also takes auto, the fastest for this "
          "machine")
      ->check(not_empty());
  command
      .add_option(
          "--model", options->overrides.model,
          "A model of models/ by name, or a Hugging Face config.json, in place of the job's")
      ->check(not_empty());
  command
      .add_option("--data", options->overrides.data,
                  "A text file or a .bin/.idx prefix in place of the job's")
      ->check(not_empty());
  command
      .add_option("--seed", options->overrides.seed,
                  "Seed of the weights, the sample order and dropout")
      ->check(any_whole());
  return options;
}

}  // namespace mw::cli
