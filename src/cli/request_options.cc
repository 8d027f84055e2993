#include "cli/request_options.h"

#include <algorithm>
#include <set>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/data_folders.h"
#include "cli/plan_file.h"
#include "train/job.h"

namespace mw::cli {
namespace {

void read_overlap(const RequestOptions& options, predict::Request& request,
                  Diagnostics& diagnostics) {
  request.asked = {options.overlap, options.slowdown};
  simulate::Overlap& overlap = request.options.overlap;
  const std::vector<std::string>& known = simulate::overlap_words();
  for (const std::string& what : options.overlap) {
    if (!simulate::set_overlap(overlap, what)) {
      diagnostics.add("--overlap: unknown word '{}'{}; known are {}", what,
                      did_you_mean(what, known), join(known, ", "));
    }
  }
  for (auto later = options.overlap.begin(); later != options.overlap.end(); ++later) {
    const auto earlier = std::find_if(options.overlap.begin(), later, [&](const std::string& word) {
      return simulate::contradict(word, *later);
    });
    if (earlier != later)
      diagnostics.add("--overlap: '{}' undoes '{}'; leave one of them out", *later, *earlier);
  }
  std::set<std::string> kinds;
  for (const std::string& text : options.slowdown) {
    const size_t equals = text.find('=');
    const std::string kind =
        equals == std::string::npos ? "the one of all" : text.substr(0, equals);
    if (!kinds.insert(kind).second) diagnostics.add("--slowdown: {} is there twice", kind);
    if (const std::string wrong = simulate::set_slowdown(overlap, text); !wrong.empty())
      diagnostics.add("--slowdown: {}", wrong);
  }
}

// The options, and in place of those that are not given what the plan file says of its step. As
// they are where the file cannot be read, `unread` then: messages come later.
RequestOptions with_step(FileSystem& fs, RequestOptions options, bool* unread = nullptr) {
  const std::string& file = options.what.empty() ? options.plan : options.what;
  if (!ends_with(file, ".json")) return options;
  Diagnostics later;
  std::optional<compile::PlannedStep> step;
  const bool reads = attempt(later, [&] {
    step = compile::read_plan(fs.read_file(file), file, compile::files_beside(fs, file)).step;
    if (step) step = from_plan_file(fs, *step, file);
  });
  if (unread != nullptr) *unread = !reads;
  if (!step) return options;
  const auto fill = [](auto& option, const auto& value) {
    if (option == std::decay_t<decltype(option)>()) option = value;
  };
  // A profile is of the step's cluster, a sequence length within the positions of its model, tf32
  // of its precision.
  if (options.cluster.empty()) fill(options.profile, step->profile);
  if (options.model.empty()) fill(options.seq_len, step->seq_len);
  if (options.precision.empty() || options.precision == step->precision)
    fill(options.tf32, step->tf32);
  fill(options.model, step->model);
  fill(options.cluster, step->cluster);
  fill(options.precision, step->precision);
  fill(options.global_batch, step->global_batch);
  fill(options.scatter_gather, step->scatter_gather);
  return options;
}

// What of a request could be read.
struct Known {
  std::optional<compile::PlanReading> plan;
  bool model = false, cluster = false, batch = false;
};

void read_job(FileSystem& fs, const RequestOptions& options, predict::Request& request,
              Known& known) {
  train::JobOverrides overrides;
  if (!options.plan.empty()) overrides.plan = options.plan;
  overrides.devices = options.gpus;
  if (!options.model.empty()) overrides.model = model_file(fs, options.model);
  const train::Job job = train::read_job(fs, options.what, overrides, train::JobUse::kSimulate);
  request.model = job.model;
  request.plan = job.plan;
  request.global_batch = job.global_batch;
  request.seq_len = job.seq_len;
  known.plan = compile::PlanReading{.plan = job.plan, .unsound = {}, .findings = {}, .step = {}};
  known.model = known.batch = true;
}

// --gpus has to be the devices of a plan that was read with them.
void hold_against_gpus(int64_t gpus, const compile::PlanReading& reading,
                       Diagnostics& diagnostics) {
  if (!reading.sound({"tp", "pp", "cp"})) return;
  const compile::Plan& plan = reading.plan;
  const int64_t replica = plan.tp * plan.pp * plan.cp;
  if (gpus == 0 || gpus == plan.ranks()) return;
  if (gpus % replica != 0) {
    const int64_t below = gpus / replica * replica;
    const std::string near =
        fmt::format("{}{}", below > 0 ? fmt::format("{} or ", below) : "", below + replica);
    diagnostics.add("--gpus: is {}, no multiple of the plan's {}={}*{}{}={}; use {}", gpus,
                    plan.cp == 1 ? "tp*pp" : "tp*pp*cp", plan.tp, plan.pp,
                    plan.cp == 1 ? "" : fmt::format("*{}", plan.cp), replica,
                    reading.says_dp && reading.sound({"dp"}) ? plan.rank_text() : near);
  } else if (reading.sound({"dp"})) {
    diagnostics.add("--gpus: is {}, but the plan has {} ranks; use dp={}", gpus, plan.rank_text(),
                    gpus / replica);
  }
}

// `unread`: of a plan file, which may say what is missing.
void read_parts(FileSystem& fs, const RequestOptions& options, bool unread,
                predict::Request& request, Known& known, Diagnostics& diagnostics) {
  const std::string& plan = options.what.empty() ? options.plan : options.what;
  if (!options.what.empty() && !options.plan.empty())
    diagnostics.add(
        "--plan: there are two plans, {} and {}; give one{}", options.what, options.plan,
        options.several.empty()
            ? ""
            : fmt::format(", or for another {0} write {0} {1}", options.several, options.what));
  if (plan.empty()) {
    diagnostics.add("--plan: is missing; give a plan such as tp=8,pp=8,dp=16");
  } else {
    attempt(diagnostics, [&] {
      known.plan = compile::read_plan_option(
          fs, plan, options.what.empty() ? "--plan" : options.what, options.gpus);
      request.plan = known.plan->plan;
      for (const std::string& finding : known.plan->findings) diagnostics.add("{}", finding);
    });
  }
  if (!unread || !options.model.empty())
    known.model = read_model(fs, options.model, options.seq_len, request, diagnostics);
  if (!unread || options.global_batch != 0)
    known.batch = read_batch(options.global_batch, request, diagnostics);
}

}  // namespace

bool read_model(FileSystem& fs, const std::string& model, int64_t seq_len,
                predict::Request& request, Diagnostics& diagnostics) {
  if (model.empty()) {
    diagnostics.add("--model: is missing; give a name or a config.json");
    return false;
  }
  return attempt(diagnostics, [&] {
    const std::string file = model_file(fs, model);
    request.model = models::parse_config(fs.read_file(file), file);
    request.seq_len = seq_len > 0 ? seq_len : request.model.max_positions;
  });
}

bool read_cluster(FileSystem& fs, const std::string& cluster, const std::string& profile,
                  predict::Request& request, Diagnostics& diagnostics) {
  if (cluster.empty()) {
    diagnostics.add("--cluster: is missing; give a cluster of clusters/ such as selene, or x.toml");
    return false;
  }
  return attempt(diagnostics, [&] {
    request.cluster = cluster::load_cluster(fs, cluster, data_folders("clusters"), profile);
    request.options = simulate::options_of(request.cluster.stack);
  });
}

bool read_batch(int64_t global_batch, predict::Request& request, Diagnostics& diagnostics) {
  request.global_batch = std::max<int64_t>(1, global_batch);
  if (global_batch == 0)
    diagnostics.add("--global-batch: is missing; give the sequences of a step");
  return global_batch > 0;
}

void read_precision(const std::string& precision, bool tf32, const PrecisionWords& words,
                    predict::Request& request, Diagnostics& diagnostics) {
  if (!predict::set_precision(request, precision)) {
    diagnostics.add("{}: must be one of {}, is \"{}\"", words.precision,
                    join(predict::precision_names(), ", "), precision);
  }
  request.options.tf32 = tf32;
  const cluster::Device& device = request.cluster.device;  // without a name: not read
  if (tf32 && precision != "f32") {
    diagnostics.add("{}: is of f32 products, and the precision is {}; use {}f32, or leave it out",
                    words.tf32, precision,
                    starts_with(words.precision, "--") ? "--precision " : "");
  } else if (tf32 && !device.name.empty() && device.peak("tf32").value == 0) {
    diagnostics.add("{}: {} has no tf32 products (peak_TFLOPs.tf32); leave it out", words.tf32,
                    device.name);
  }
}

predict::Request read_request(FileSystem& fs, const RequestOptions& given,
                              Diagnostics& diagnostics) {
  predict::Request request;
  Known known;
  bool unread = false;
  const RequestOptions options = with_step(fs, given, &unread);
  if (ends_with(options.what, ".toml")) {
    attempt(diagnostics, [&] { read_job(fs, options, request, known); });
  } else {
    read_parts(fs, options, unread, request, known, diagnostics);
  }
  if (options.global_batch > 0) request.global_batch = options.global_batch;
  if (options.seq_len > 0) request.seq_len = options.seq_len;
  if (!unread || !options.cluster.empty())
    known.cluster = read_cluster(fs, options.cluster, options.profile, request, diagnostics);
  // The option's own values are checked before, those of a file are not.
  const std::string& file = options.what.empty() ? options.plan : options.what;
  PrecisionWords names;
  if (given.precision.empty() && !options.precision.empty())
    names.precision = file + ": for.precision";
  if (!given.tf32 && options.tf32) names.tf32 = file + ": for.tf32";
  read_precision(options.precision.empty() ? "bf16" : options.precision, options.tf32, names,
                 request, diagnostics);
  if (options.scatter_gather) request.options.scatter_gather = *options.scatter_gather;
  request.options.program_hash = request.options.order_hash = false;
  read_overlap(options, request, diagnostics);
  if (known.plan) hold_against_gpus(options.gpus, *known.plan, diagnostics);
  if (known.plan && known.cluster) {
    for (const std::string& finding : predict::cluster_findings(request, *known.plan))
      diagnostics.add("{}", finding);
  }
  if (known.plan && known.model && known.batch) {
    for (const std::string& finding : predict::model_findings(request, *known.plan))
      diagnostics.add("{}", finding);
  }
  return request;
}

std::vector<std::string> input_files(FileSystem& fs, const RequestOptions& given) {
  const RequestOptions options = with_step(fs, given);
  std::vector<std::string> files = named_files(fs, options.model, options.cluster, options.profile);
  files.insert(files.end(), {options.what, options.plan});
  if (ends_with(options.what, ".toml")) {
    Diagnostics told_elsewhere;
    attempt(told_elsewhere, [&] {
      files.push_back(train::read_job(fs, options.what, {}, train::JobUse::kSimulate).model_file);
    });
  }
  return files;
}

predict::Request with_plan(FileSystem& fs, const RequestOptions& options,
                           const predict::Request& request, bool is_known, const std::string& plan,
                           const std::string& where, Diagnostics& diagnostics) {
  predict::Request other = request;
  attempt(diagnostics, [&] {
    const compile::PlanReading reading = compile::read_plan_option(fs, plan, where, options.gpus);
    other.plan = reading.plan;
    for (const std::string& finding : reading.findings) diagnostics.add("{}", finding);
    Diagnostics found;
    if (!reading.says_dp) hold_against_gpus(options.gpus, reading, found);
    if (is_known) {
      for (const std::string& finding : predict::findings(other, reading)) found.add("{}", finding);
    }
    for (const std::string& message : found.findings()) diagnostics.add("{}: {}", where, message);
  });
  return other;
}

void add_profile_option(CLI::App& command, std::string& profile) {
  command
      .add_option("--profile", profile,
                  "What software runs there: a profile of clusters/profiles/ by name, a TOML "
                  "file, or none; the cluster's own if not given. NAME:VERSION: a version that "
                  "the profile has, such as h100-80gb-torch:cudnn")
      ->check(not_empty());
}

void add_scatter_gather_option(CLI::App& command, std::optional<bool>& scatter_gather) {
  CLI::Option* on = command.add_flag_callback(
      "--scatter-gather", [&scatter_gather] { scatter_gather = true; },
      "Send boundary values in tp parts; otherwise as the profile says");
  command
      .add_flag_callback(
          "--no-scatter-gather", [&scatter_gather] { scatter_gather = false; }, "Send them whole")
      ->excludes(on);
}

void add_request_options(CLI::App& command, RequestOptions& options) {
  command.add_option("what", options.what,
                     "A job (x.toml), a plan file (x.json) or a plan; without it --plan");
  command.add_option("--model", options.model,
                     "A model of models/ by name, such as gpt3-175b, or a config.json");
  command.add_option("--cluster", options.cluster,
                     "A cluster of clusters/ by name, such as selene, or a TOML file");
  add_profile_option(command, options.profile);
  command.add_option("--plan", options.plan,
                     "The plan: tp=8,pp=8,dp=16,microbatches=96,…; schedule may be a CSV file");
  command
      .add_option(
          "--gpus", options.gpus,
          "Devices: dp*tp*pp, and *cp of a plan with cp; gives the dp that --plan leaves out")
      ->check(whole(1));
  command.add_option("--global-batch", options.global_batch, "Sequences of a step")
      ->check(whole(1));
  command
      .add_option("--seq-len", options.seq_len,
                  "Tokens of a sequence; the model's most if not given")
      ->check(whole(1));
  command
      .add_option(
          "--precision", options.precision,
          "Of weights and activations: bf16 (if not given), f16, f32; fp8, mxfp8: bf16, and the "
          "linear layers' products in fp8 with a scale a tensor or a block")
      ->check(one_of(predict::precision_names()));
  one_word(
      command.add_option(
          "--overlap", options.overlap,
          "What goes on beside computation: messages (on unless no-messages), "
          "collectives (but for no-tensor those of tensor parallelism; async-tp: with "
          "their own products in parts), weights (ZeRO 2 and 3's inside a microbatch; on unless "
          "no-weights), grad_reduce (grad_reduce_idle: where the rank then "
          "waits), param_gather; serial: no collective of a microbatch; ring (of context "
          "parallelism; on unless no-ring), pairs (experts' exchanges beside the pass that a "
          "schedule lays together with theirs; on unless no-pairs). Beside what the "
          "profile has; none: in its place"),
      kCommas)
      ->delimiter(',');
  one_word(
      command.add_option(
          "--slowdown", options.slowdown,
          "How much longer computation takes beside communication: 1.2, or beside one kind "
          "tensor=1.2 (messages, tensor, grad_reduce, param_gather, ring, other); otherwise as the "
          "profile says beside collectives, and 1 beside messages"),
      kCommas)
      ->delimiter(',');
  add_scatter_gather_option(command, options.scatter_gather);
  command.add_flag("--tf32", options.tf32, "f32 products on tensor cores");
}

}  // namespace mw::cli
