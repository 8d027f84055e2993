#include <memory>
#include <optional>

#include <fmt/core.h>

#include "base/error.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "cli/output_file.h"
#include "cli/plan_file.h"
#include "cli/request_options.h"
#include "planner/planner.h"

namespace mw::cli {
namespace {

struct PlanOptions {
  std::string model, cluster, profile, precision = "bf16", planner = "exhaustive", output;
  std::vector<std::string> only;
  int64_t gpus = 0, global_batch = 0, seq_len = 0, top = 5;
  bool json = false, tf32 = false;
  std::optional<bool> scatter_gather;
};

planner::Request read_request(FileSystem& fs, const PlanOptions& options,
                              Diagnostics& diagnostics) {
  planner::Request request;
  predict::Request& base = request.base;
  read_model(fs, options.model, options.seq_len, base, diagnostics);
  read_cluster(fs, options.cluster, options.profile, base, diagnostics);
  if (options.gpus == 0) diagnostics.add("--gpus: is missing; give the number of devices");
  read_batch(options.global_batch, base, diagnostics);
  read_precision(options.precision, options.tf32, {}, base, diagnostics);
  if (options.scatter_gather) base.options.scatter_gather = *options.scatter_gather;
  base.options.program_hash = base.options.order_hash = false;
  request.gpus = options.gpus;
  request.only = planner::parse_only(options.only, diagnostics);
  request.method =
      options.planner == "ptdp" ? planner::Method::kPtdP : planner::Method::kExhaustive;
  for (const std::string& finding : planner::findings(request)) diagnostics.add("{}", finding);
  return request;
}

compile::PlannedStep planned_step(const PlanOptions& options, int64_t seq_len) {
  return beside_plan_file({.model = options.model,
                           .cluster = options.cluster,
                           .profile = options.profile,
                           .precision = options.precision,
                           .global_batch = options.global_batch,
                           .seq_len = seq_len,
                           .tf32 = options.tf32,
                           .scatter_gather = options.scatter_gather},
                          options.output);
}

void run_plan(const PlanOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics = words;
  const planner::Request request = read_request(fs, options, diagnostics);
  check_outputs(fs, {{"--output", options.output}},
                named_files(fs, options.model, options.cluster, options.profile), diagnostics);
  diagnostics.throw_if_any();
  const planner::Found found = planner::search(request);
  if (!options.output.empty())
    write_output(
        fs, options.output,
        compile::to_json(found.plans.front().plan, planned_step(options, request.base.seq_len))
            .dump_pretty());
  if (options.json) {
    fmt::print("{}", planner::to_json(request, found, options.top).dump_pretty());
  } else {
    fmt::print("{}", planner::to_text(request, found, options.top));
  }
}

}  // namespace

void add_plan(CLI::App& app, const Diagnostics& words) {
  CLI::App* command =
      app.add_subcommand("plan", "Find the fastest plan of a model on a cluster that fits");
  auto options = std::make_shared<PlanOptions>();
  command->add_option("--model", options->model,
                      "A model of models/ by name, such as gpt3-175b, or a config.json");
  command->add_option("--cluster", options->cluster,
                      "A cluster of clusters/ by name, such as selene, or a TOML file");
  add_profile_option(*command, options->profile);
  command->add_option("--gpus", options->gpus, "Devices")->check(whole(1, kMostWhole32));
  command->add_option("--global-batch", options->global_batch, "Sequences of a step")
      ->check(whole(1));
  command
      ->add_option("--seq-len", options->seq_len,
                   "Tokens of a sequence; the model's most if not given")
      ->check(whole(1));
  command
      ->add_option(
          "--precision", options->precision,
          "Of weights and activations: bf16 (if not given), f16, f32; fp8, mxfp8: bf16, and the "
          "linear layers' products in fp8")
      ->check(one_of(predict::precision_names()));
  command
      ->add_option("--planner", options->planner,
                   "exhaustive: every uniform plan; ptdp: the rules of the PTD-P paper")
      ->check(one_of({"exhaustive", "ptdp"}));
  one_word(
      command->add_option("--only", options->only,
                          "Values that plans may have of tp, pp, dp, ep, chunks, microbatches, "
                          "zero, sp, recompute or schedule, such as tp=1,2,4,8"),
      "KEY=VALUE,..., again for more");
  command->add_option("--top", options->top, "Plans that are listed (5)")->check(whole(1));
  command
      ->add_option(
          "-o,--output", options->output,
          "Write the best plan and the step that it is for as JSON, for simulate, what-if, verify "
          "and train")
      ->check(written_file());
  add_scatter_gather_option(*command, options->scatter_gather);
  command->add_flag("--tf32", options->tf32, "f32 products on tensor cores");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &words] { run_plan(*options, words); });
}

}  // namespace mw::cli
