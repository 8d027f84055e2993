#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include <fmt/core.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/data_folders.h"
#include "cli/job_options.h"
#include "cli/standard_error.h"
#include "planner/planner.h"
#include "train/run.h"
#include "train/trainer.h"

namespace mw::cli {
namespace {

// Of a rank: more than machines have cores.
constexpr int64_t kMostThreads = 1024;

struct TrainOptions {
  train::RunOptions run;
  bool json = false, quiet = false;
};

// The step with the fastest plan for as many ranks as this machine has cores, by its profile.
predict::Request step_for_this_machine(FileSystem& fs, const train::Job& job) {
  planner::Request request;
  predict::Request& base = request.base;
  base.model = job.model;
  base.cluster = cluster::load_cluster(fs, "this-machine", data_folders("clusters"));
  base.global_batch = job.global_batch;
  base.seq_len = job.seq_len;
  base.precision = DType::kF32;
  base.options.program_hash = base.options.order_hash = false;
  request.gpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  while (request.gpus > 1 && !planner::findings(request).empty()) --request.gpus;
  base.plan = planner::search(request).plans.front().plan;
  return base;
}

void train_job(const JobOptions& job_options, const TrainOptions& options,
               const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  const auto say = [&options](const std::string& line) {
    if (options.quiet) return;
    if (options.json) return tell(line);
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const bool automatic = job_options.overrides.plan == "auto";
  JobOptions asked = job_options;
  if (automatic) asked.overrides.plan = "dp=1";
  Diagnostics diagnostics = words;
  if (options.run.init && options.run.resume)
    diagnostics.add(
        "--init: a run that is resumed has its own weights; leave out --init or --resume");
  train::Job job = read_job(fs, asked, diagnostics, train::JobUse::kTrain, options.run.resume);
  train::check(fs, job, options.run, diagnostics);
  diagnostics.throw_if_any();
  if (automatic) {
    const predict::Request step = step_for_this_machine(fs, job);
    job.plan = step.plan;
    say("plan " + short_form(job.plan));
    const std::string outside = predict::outside_text("", predict::outside_profile(step));
    if (!outside.empty()) say(std::string(trim(outside)));
  }
  train::RunOptions run = options.run;
  run.on_slow = [](const std::string& report) {
    tell("meshwright: " + report + "\n  the run goes on");
  };
  const train::RunSummary summary = train::run(fs, job, run, say);
  if (!options.json) {
    fmt::print("run folder {}\n", summary.run_dir);
    return;
  }
  Json json{JsonObject{}};
  json["run_dir"] = summary.run_dir;
  json["plan"] = short_form(job.plan);
  json["steps"] = summary.steps;
  json["final_loss"] = static_cast<double>(summary.final_loss);
  if (summary.held_out_loss) json["held_out_loss"] = static_cast<double>(*summary.held_out_loss);
  json["tokens_per_s"] = summary.tokens_per_s;
  json["peak_bytes_per_rank"] = summary.peak_bytes_per_rank;
  json["bytes_sent_per_step"] = summary.bytes_sent_per_step;
  fmt::print("{}\n", json.dump());
}

}  // namespace

void add_train(CLI::App& app, const Diagnostics& words) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a job under a plan, on ranks that are threads of this process");
  auto job = add_job_options(*command);
  auto options = std::make_shared<TrainOptions>();
  command
      ->add_option("--steps", options->run.steps,
                   "Number of the last step (default: the job's horizon)")
      ->check(whole(1));
  command
      ->add_option("--trace-step", options->run.trace_step,
                   "Number of the step that trace.json shows (default: the run's second)")
      ->check(whole(1));
  command
      ->add_option("--run-dir", options->run.run_dir,
                   "Folder for metrics, trace and checkpoints (default: runs/<job>)")
      ->check(not_empty());
  command
      ->add_option("--resume", options->run.resume,
                   "Go on with a run, under this or any other plan")
      ->check(not_empty());
  command
      ->add_option(
          "--init", options->run.init,
          "Start from the weights of a safetensors file, of its index, or of a folder with "
          "model.safetensors (Hugging Face names)")
      ->check(not_empty());
  command
      ->add_option("--threads-per-rank", options->run.threads_per_rank,
                   "Threads of every rank (default: cores / ranks, at least 1)")
      ->check(whole(1, kMostThreads));
  command->add_flag("--json", options->json,
                    "The last line of standard output is one object with the results");
  command->add_flag("--quiet", options->quiet, "No progress lines");
  command->callback([job, options, &words] { train_job(*job, *options, words); });
}

}  // namespace mw::cli
