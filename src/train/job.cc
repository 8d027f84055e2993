#include "train/job.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "base/toml.h"
#include "checkpoint/store.h"
#include "data/batch.h"
#include "data/token_source.h"
#include "models/model.h"

namespace mw::train {
namespace {

// Bounds of a job, so that no count of tokens, samples or steps overflows.
constexpr int64_t kMostTokens = int64_t{1} << 30;  // of a global batch
constexpr int64_t kMostSteps = int64_t{1} << 40;

int64_t bounded(JsonReader& reader, std::string_view key, int64_t value, int64_t most) {
  if (value > most) reader.fail(key, "must be at most {}, is {}", most, value);
  return std::min(value, most);
}

std::string relative_to(const std::string& folder, const std::string& path) {
  if (starts_with(path, "/") || folder.empty()) return path;
  return join_path(folder, path);
}

std::string stem(const std::string& path) {
  const std::string name = base_name(path);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

// A path that stands in the job, relative to its folder; what the command line says is taken as it
// is.
// "" after a finding.
std::string read_path(JsonReader& reader, const char* key, const std::string& folder,
                      const std::optional<std::string>& override_path) {
  const bool is_string = reader.has(key) && reader.raw(key)->is_string();
  const std::string path = reader.string(key);
  if (is_string && path.empty()) reader.fail(key, "must be the path of a file, is \"\"");
  if (override_path) return *override_path;
  return path.empty() ? "" : relative_to(folder, path);
}

void read_model(FileSystem& fs, Job& job, Diagnostics& diagnostics) {
  if (job.model_file.empty()) return;  // a finding already
  try {
    job.model_json = fs.read_file(job.model_file);
    job.model = models::parse_config(job.model_json, job.model_file);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
}

// The plan of the command line, its file, or the job's own.
compile::PlanReading read_plan(FileSystem& fs, const JobOverrides& overrides,
                               const std::string& own, const std::string& path) {
  if (!overrides.plan)
    return compile::read_plan(own, path + ": plan", compile::files_beside(fs, path));
  return compile::read_plan_option(fs, *overrides.plan, "--plan", overrides.devices);
}

// `runs`: the schedule is not only simulated.
void add_findings(const compile::PlanReading& reading, const std::string& where, bool runs,
                  Diagnostics& diagnostics) {
  for (const std::string& finding : reading.findings) diagnostics.add("{}", finding);
  if (!runs || !reading.sound({"schedule"})) return;
  const std::string finding = compile::run_finding(reading.plan, where);
  if (!finding.empty()) diagnostics.add("{}", finding);
}

void check_corpus(FileSystem& fs, const Job& job, Diagnostics& diagnostics) {
  try {
    data::split_samples(*data::open_corpus(fs, job.data_file), job.seq_len, job.valid_fraction);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
}

void read_training(JsonReader reader, Job& job) {
  job.global_batch =
      bounded(reader, "global_batch", reader.integer("global_batch", {.min = 1}), kMostTokens);
  job.horizon = bounded(reader, "steps", reader.integer("steps", {.min = 1}), kMostSteps);
  job.lr = reader.number("lr", {.min = 0});
  job.min_lr = reader.number_or("min_lr", job.lr / 10, {.min = 0});
  job.warmup =
      bounded(reader, "warmup", reader.integer_or("warmup", job.warmup, {.min = 0}), kMostSteps);
  job.optimizer.weight_decay =
      reader.number_or("weight_decay", job.optimizer.weight_decay, {.min = 0});
  job.optimizer.beta1 =
      reader.number_or("beta1", job.optimizer.beta1, {.min = 0, .max = 0.9999999});
  job.optimizer.beta2 =
      reader.number_or("beta2", job.optimizer.beta2, {.min = 0, .max = 0.9999999});
  job.optimizer.epsilon = reader.number_or("epsilon", job.optimizer.epsilon, {.min = 0});
  if (static_cast<float>(job.optimizer.epsilon) == 0)  // as the update has it
    reader.fail("epsilon", "must be above 0: a weight without gradients would become 0/0");
  job.optimizer.max_norm = reader.number_or("clip", job.optimizer.max_norm, {.min = 0});
  reader.finish();
}

// Of values that are right each by itself.
void check_together(const Job& job, const std::string& path, Diagnostics& diagnostics) {
  if (job.valid_fraction == 0 && job.eval_every > 0) {
    diagnostics.add(
        "{}: data.valid_fraction: is 0, so that nothing is held out for eval.every={}; "
        "use more, or eval.every=0",
        path, job.eval_every);
  }
  const std::pair<const char*, double> rates[] = {{"lr", job.lr},
                                                  {"weight_decay", job.optimizer.weight_decay},
                                                  {"epsilon", job.optimizer.epsilon}};
  for (const auto& [key, rate] : rates) {
    if (rate > std::numeric_limits<float>::max())
      diagnostics.add("{}: train.{}: is {}, more than a float holds; use less", path, key, rate);
  }
  if (job.min_lr > job.lr) {
    diagnostics.add(
        "{}: train.min_lr: is {}, above lr={}, from which the rate falls to it; use less", path,
        job.min_lr, job.lr);
  }
}

// Tables that a job may leave out.
void read_optional(JsonReader& reader, Job& job) {
  for (const char* optional : {"eval", "checkpoint"}) reader.ignore(optional);
  if (reader.has("eval")) {
    JsonReader eval = reader.object("eval");
    job.eval_every = eval.integer_or("every", job.eval_every, {.min = 0});
    job.eval_batches = eval.integer_or("batches", job.eval_batches, {.min = 1});
    eval.finish();
  }
  if (reader.has("checkpoint")) {
    JsonReader checkpoint = reader.object("checkpoint");
    job.checkpoint_every = checkpoint.integer_or("every", job.checkpoint_every, {.min = 0});
    job.keep = checkpoint.integer_or("keep", job.keep, {.min = 1});
    checkpoint.finish();
  }
}

// Where it cannot be read, its overrides are checked.
Toml read_toml(FileSystem& fs, const std::string& path, const JobOverrides& overrides) {
  Diagnostics diagnostics;
  try {
    const std::string text = fs.read_file(path);
    if (starts_with(trim(without_bom(text)), "{")) {
      throw_error(
          "{}: is JSON; a job is a TOML file such as examples/gpt-tiny.toml, and a plan goes with "
          "--plan",
          path);
    }
    return parse_toml(text, path);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
  try {
    check_overrides(fs, overrides);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
  throw Error(diagnostics.findings());
}

}  // namespace

void check_overrides(FileSystem& fs, const JobOverrides& overrides) {
  Diagnostics diagnostics;
  Job job;
  if (overrides.model) job.model_file = *overrides.model;
  read_model(fs, job, diagnostics);
  try {
    const compile::PlanReading reading = read_plan(fs, overrides, "dp=1", "");
    constexpr bool kRuns = true;
    add_findings(reading, "--plan", kRuns, diagnostics);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
  try {
    if (overrides.data) data::open_corpus(fs, *overrides.data);
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
  diagnostics.throw_if_any();
}

Job read_job(FileSystem& fs, const std::string& path, const JobOverrides& overrides, JobUse use) {
  Diagnostics diagnostics;
  const Toml toml = read_toml(fs, path, overrides);
  JsonReader reader(toml.root, path, &diagnostics, &toml.lines);
  Job job;
  job.name = stem(path);
  const std::string folder = parent_path(path);
  job.model_file = read_path(reader, "model", folder, overrides.model);
  const std::string plan = reader.string_or("plan", "dp=1");
  job.seed = overrides.seed.value_or(reader.integer_or("seed", 1));
  JsonReader data = reader.object("data");
  job.data_file = read_path(data, "file", folder, overrides.data);
  job.seq_len = bounded(data, "seq_len", data.integer("seq_len", {.min = 1}), kMostTokens);
  job.valid_fraction = data.number_or("valid_fraction", job.valid_fraction, {.min = 0, .max = 0.9});
  data.finish();
  read_training(reader.object("train"), job);
  read_optional(reader, job);
  reader.finish();
  if (diagnostics.empty() && job.global_batch * job.seq_len > kMostTokens) {
    diagnostics.add(
        "{}: train.global_batch*data.seq_len={}*{} is more than {} tokens a step; use fewer", path,
        job.global_batch, job.seq_len, kMostTokens);
  }
  if (diagnostics.empty()) check_together(job, path, diagnostics);
  const bool file_is_sound = diagnostics.empty();
  read_model(fs, job, diagnostics);
  const bool model_is_sound = file_is_sound == diagnostics.empty();
  try {
    const compile::PlanReading reading = read_plan(fs, overrides, plan, path);
    job.plan = reading.plan;
    add_findings(reading, overrides.plan ? "--plan" : path + ": plan", use != JobUse::kSimulate,
                 diagnostics);
    if (model_is_sound && file_is_sound) {
      for (const std::string& finding :
           compile::plan_findings(reading, job.model.layers, model_shape(job))) {
        diagnostics.add("{}", finding);
      }
    }
  } catch (const Error& error) {
    diagnostics.absorb(error);
  }
  if (model_is_sound && file_is_sound) {
    const std::string too_long = models::positions_finding(job.model, job.seq_len);
    if (!too_long.empty()) diagnostics.add("{}: data.seq_len: {}", path, too_long);
  }
  if (use == JobUse::kTrain && file_is_sound) check_corpus(fs, job, diagnostics);
  diagnostics.throw_if_any();
  return job;
}

compile::ModelShape model_shape(const Job& job) {
  compile::ModelShape shape;
  shape.name = job.model_file;
  for (const models::DividedSize& one : job.model.divided_sizes()) {
    shape.must_divide[one.axis] = one.size;
    shape.key[one.axis] = one.key;
  }
  shape.global_batch = job.global_batch;
  shape.seq_len = job.seq_len;
  shape.experts = job.model.mixture.experts;
  shape.top_k = job.model.mixture.top_k;
  return shape;
}

Json run_record(const Job& job) {
  Json json{JsonObject{}};
  json["name"] = job.name;
  json["seed"] = job.seed;
  json["data"] = job.data_file;
  json["model_file"] = job.model_file;
  json["seq_len"] = job.seq_len;
  json["global_batch"] = job.global_batch;
  json["valid_fraction"] = job.valid_fraction;
  return json;
}

// Why there is no run in the folder; "" where there is one.
static std::string no_run_finding(FileSystem& fs, const std::string& run_dir,
                                  const std::vector<std::string>& files) {
  if (!fs.exists(run_dir)) return fs.missing_message(run_dir);
  if (checkpoint::is_checkpoint(fs, run_dir)) {
    const std::string run = parent_path(parent_path(run_dir));
    const bool is_run = fs.exists(join_path(run, "job.json"));
    return fmt::format("--resume: {} is a checkpoint; give its run{}", run_dir,
                       is_run ? ", " + run : "");
  }
  for (const std::string& file : files) {
    if (!fs.exists(file)) return fs.missing_message(file);
  }
  return "";
}

Job read_resumed_job(FileSystem& fs, const std::string& path, const std::string& run_dir,
                     const JobOverrides& overrides, JobUse use) {
  const std::string record_path = join_path(run_dir, "job.json");
  const std::string config_path = join_path(run_dir, "config.json");
  const std::string no_run = no_run_finding(fs, run_dir, {record_path, config_path});
  JobOverrides taken = overrides;
  if (!taken.model && no_run.empty()) taken.model = config_path;
  Job asked;
  try {
    asked = read_job(fs, path, taken, use);
  } catch (const Error& error) {
    std::vector<std::string> findings = error.findings();
    if (!no_run.empty()) findings.push_back(no_run);
    throw Error(std::move(findings));
  }
  if (!no_run.empty()) throw Error(no_run);
  const Json record = parse_json(fs.read_file(record_path), record_path);
  Diagnostics diagnostics;
  JsonReader reader(record, record_path, &diagnostics);
  const int64_t seed = reader.integer("seed");
  const int64_t seq_len = reader.integer("seq_len");
  const int64_t global_batch = reader.integer("global_batch");
  // Older runs do not say it.
  const double valid_fraction = reader.number_or("valid_fraction", asked.valid_fraction, {});
  reader.ignore_all();
  const std::string config = fs.read_file(config_path);
  const bool is_read = diagnostics.empty();
  if (is_read && overrides.seed && *overrides.seed != seed) {
    diagnostics.add("--seed: is {}, but the run {} has seed {}; leave --seed out to resume it",
                    *overrides.seed, run_dir, seed);
  }
  if (overrides.model && asked.model_json != config) {
    diagnostics.add("--model: {} is not the model of the run {}; leave --model out to resume it",
                    *overrides.model, run_dir);
  }
  if (is_read && asked.seq_len != seq_len) {
    diagnostics.add("data.seq_len: is {}, but the run {} has {}; resume it with a job of {}",
                    asked.seq_len, run_dir, seq_len, seq_len);
  }
  if (is_read && asked.global_batch != global_batch) {
    diagnostics.add("train.global_batch: is {}, but the run {} has {}; resume it with a job of {}",
                    asked.global_batch, run_dir, global_batch, global_batch);
  }
  if (is_read && asked.valid_fraction != valid_fraction) {
    diagnostics.add(
        "data.valid_fraction: is {}, but the run {} has {}, and with another one other samples in "
        "another order; resume it with a job of {}",
        asked.valid_fraction, run_dir, valid_fraction, valid_fraction);
  }
  diagnostics.throw_if_any();
  Job job = asked;
  job.seed = seed;
  job.model_file = config_path;
  return job;
}

double learning_rate(const Job& job, int64_t step) {
  if (step <= job.warmup)
    return job.lr * static_cast<double>(step) / static_cast<double>(job.warmup);
  const double span = static_cast<double>(std::max<int64_t>(1, job.horizon - job.warmup));
  const double done = std::min(1.0, static_cast<double>(step - job.warmup) / span);
  return job.min_lr + 0.5 * (job.lr - job.min_lr) * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace mw::train
