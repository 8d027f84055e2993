#include <algorithm>
#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "predict/predict.h"
#include "trace/chrome_trace.h"
#include "train/job.h"

namespace mw::cli {
namespace {

struct SimulateOptions {
  std::string what;  // a job or a plan, or empty
  std::string model, cluster, plan, precision = "bf16", trace;
  std::vector<std::string> overlap;
  int64_t gpus = 0, global_batch = 0, seq_len = 0;
  double slowdown = 1;
  bool json = false, scatter_gather = false, tf32 = false, ops = false, ignore_memory = false;
};

std::string model_file(FileSystem& fs, const std::string& name) {
  if (ends_with(name, ".json")) return name;
  std::vector<std::string> known;
  for (const std::string& folder : data_folders("models")) {
    const std::string path = join_path(folder, name + ".json");
    if (fs.exists(path)) return path;
    if (!fs.is_directory(folder)) continue;
    for (const std::string& file : fs.list(folder)) {
      if (ends_with(file, ".json")) known.push_back(file.substr(0, file.size() - 5));
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw_error("--model: there is no model '{}'{}; known are {}; or give a file, x.json", name,
              did_you_mean(name, known), join(known, ", "));
}

void read_overlap(const SimulateOptions& options, predict::Request& request,
                  Diagnostics& diagnostics) {
  simulate::Overlap& overlap = request.options.overlap;
  static const std::vector<std::string> kKnown = {"messages",    "no-messages",  "collectives",
                                                  "grad_reduce", "param_gather", "none"};
  for (const std::string& what : options.overlap) {
    if (!simulate::set_overlap(overlap, what)) {
      diagnostics.add("--overlap: unknown word '{}'{}; known are {}", what,
                      did_you_mean(what, kKnown), join(kKnown, ", "));
    }
  }
  overlap.slowdown = options.slowdown;
}

// A job gives model, plan, batch and sequence; a plan file the plan; options replace them.
predict::Request read_request(FileSystem& fs, const SimulateOptions& options) {
  predict::Request request;
  Diagnostics diagnostics;
  std::string plan = options.plan;
  std::string plan_source = "--plan";
  if (ends_with(options.what, ".toml")) {
    train::JobOverrides overrides;
    if (!plan.empty()) overrides.plan = plan;
    if (!options.model.empty()) overrides.model = model_file(fs, options.model);
    const train::Job job = train::read_job(fs, options.what, overrides);
    request.model = job.model;
    request.plan = job.plan;
    request.global_batch = job.global_batch;
    request.seq_len = job.seq_len;
  } else {
    if (!options.what.empty()) {
      plan = fs.read_file(options.what);
      plan_source = options.what;
    } else if (ends_with(plan, ".json")) {
      plan_source = plan;
      plan = fs.read_file(plan);
    }
    if (plan.empty()) diagnostics.add("--plan: is missing; give a plan such as tp=8,pp=8,dp=16");
    if (options.model.empty()) diagnostics.add("--model: is missing; give a name or a config.json");
    if (options.global_batch == 0)
      diagnostics.add("--global-batch: is missing; give the sequences of a step");
    diagnostics.throw_if_any();
    const std::string file = model_file(fs, options.model);
    request.model = models::parse_config(fs.read_file(file), file);
    request.seq_len = request.model.max_positions;
    request.plan = compile::parse_plan(plan, plan_source);
  }
  if (options.global_batch > 0) request.global_batch = options.global_batch;
  if (options.seq_len > 0) request.seq_len = options.seq_len;
  if (options.cluster.empty())
    throw_error("--cluster: is missing; give a cluster of clusters/ such as selene, or x.toml");
  request.cluster = cluster::load_cluster(fs, options.cluster, data_folders("clusters"));
  request.precision = *parse_dtype(options.precision);
  request.options.scatter_gather = options.scatter_gather;
  request.options.tf32 = options.tf32;
  request.options.trace = !options.trace.empty();
  request.options.op_spans = options.ops;
  request.options.program_hash = request.options.order_hash = false;
  read_overlap(options, request, diagnostics);
  if (options.gpus > 0 && options.gpus != request.plan.ranks()) {
    diagnostics.add("--gpus: is {}, but the plan has dp*tp*pp={}*{}*{}={} ranks; use dp={}",
                    options.gpus, request.plan.dp, request.plan.tp, request.plan.pp,
                    request.plan.ranks(),
                    std::max<int64_t>(1, options.gpus / (request.plan.tp * request.plan.pp)));
  }
  diagnostics.throw_if_any();
  return request;
}

void run_simulate(const SimulateOptions& options) {
  FileSystem& fs = posix_fs();
  const predict::Request request = read_request(fs, options);
  std::unique_ptr<WritableFile> trace;  // before the work, so that a wrong path is said at once
  if (!options.trace.empty()) trace = fs.create_file(options.trace);
  const predict::Prediction prediction = predict::predict(request);
  if (trace) {
    trace->write(trace::to_chrome_json(prediction.result.trace));
    trace->close();
  }
  if (options.json) {
    fmt::print("{}", predict::to_json(request, prediction).dump_pretty());
  } else {
    fmt::print("{}", predict::to_text(request, prediction));
  }
  const std::string memory = predict::memory_findings(request, prediction);
  if (!memory.empty() && !options.ignore_memory) throw Error(memory);
}

}  // namespace

void add_simulate(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Say how long a step takes on a cluster, and where time and memory go");
  auto options = std::make_shared<SimulateOptions>();
  command->add_option("what", options->what,
                      "A job (x.toml) or a plan (x.json); without it --model and --plan");
  command->add_option("--model", options->model,
                      "A model of models/ by name, such as gpt3-175b, or a config.json");
  command->add_option("--cluster", options->cluster,
                      "A cluster of clusters/ by name, such as selene, or a TOML file");
  command->add_option("--plan", options->plan, "The plan: tp=8,pp=8,dp=16,microbatches=96,…");
  command->add_option("--gpus", options->gpus, "Devices; must be dp*tp*pp")->check(at_least(1));
  command->add_option("--global-batch", options->global_batch, "Sequences of a step")
      ->check(at_least(1));
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence; the model's most")
      ->check(at_least(1));
  command->add_option("--precision", options->precision, "Of weights and activations")
      ->check(one_of({"bf16", "f16", "f32"}));
  command
      ->add_option("--overlap", options->overlap,
                   "What goes on beside computation: messages (on unless no-messages), "
                   "collectives, grad_reduce, param_gather")
      ->delimiter(',');
  command->add_option("--slowdown", options->slowdown,
                      "How much longer computation takes beside communication: 1.126");
  command->add_flag("--scatter-gather", options->scatter_gather,
                    "Send boundary values in tp parts");
  command->add_flag("--tf32", options->tf32, "f32 products on tensor cores");
  command->add_option("--trace", options->trace, "Write a Chrome trace that Perfetto opens");
  command->add_flag("--ops", options->ops, "With --trace: a span an op in place of a call");
  command->add_flag("--ignore-memory", options->ignore_memory,
                    "Do not fail where the devices have too little memory");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { run_simulate(*options); });
}

}  // namespace mw::cli
