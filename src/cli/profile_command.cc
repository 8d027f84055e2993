#include <algorithm>
#include <memory>
#include <thread>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "cli/output_file.h"
#include "cluster/measured.h"
#include "models/model.h"
#include "predict/predict.h"
#include "runtime/measure.h"

namespace mw::cli {
namespace {

struct ProfileOptions {
  std::string model, output;
  int64_t seq_len = 0, batch = 8;
};

// The ops of one step of the model on one rank, as `train` would run them beside its other ranks.
std::vector<runtime::OpTiming> time_step(const predict::Request& request, int beside) {
  const pipeline::Program program = predict::program_of(request);
  std::vector<runtime::OpTiming> timings;
  for (const pipeline::Fragment& fragment : program.fragments) {
    for (const runtime::OpTiming& t : runtime::time_ops(fragment, program.mesh, 5, beside))
      timings.push_back(t);
  }
  return timings;
}

Bytes needed_memory(const pipeline::Program& program) {
  Bytes most;
  for (const pipeline::Fragment& fragment : program.fragments)
    most = std::max(most, runtime::time_ops_bytes(fragment));
  return most;
}

// Before anything is allocated: how many threads can each run the step at a time, one a core at the
// most. A step that the memory has no room for is refused, with the batch that it has.
int threads_with_memory(FileSystem& fs, const predict::Request& request) {
  const Bytes needed = needed_memory(predict::program_of(request));
  const Bytes available = runtime::available_memory(fs);
  if (needed <= available) {
    const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
    const int64_t steps = available.value / std::max<int64_t>(1, needed.value);
    return static_cast<int>(std::min(steps, cores));
  }
  predict::Request fewer = request;
  while (fewer.global_batch > 1) {
    fewer.global_batch /= 2;
    if (needed_memory(predict::program_of(fewer)) > available) continue;
    throw_error("{}: a step of {} sequences of {} needs {}, and {} are available; --batch {} fits",
                request.model.source, request.global_batch, request.seq_len,
                format_bytes(needed.value), format_bytes(available.value), fewer.global_batch);
  }
  throw_error(
      "{}: a step of {} sequences of {} needs {}, and {} are available; one sequence needs {}, so "
      "give a shorter --seq-len or a smaller model",
      request.model.source, request.global_batch, request.seq_len, format_bytes(needed.value),
      format_bytes(available.value), format_bytes(needed_memory(predict::program_of(fewer)).value));
}

// What the measured step and threads cover.
cluster::Stack covered(const predict::Request& request, int64_t cores) {
  const auto hidden = static_cast<double>(request.model.hidden_size);
  const auto sequence = static_cast<double>(request.seq_len);
  cluster::Stack stack;
  stack.measured = {{"hidden", hidden, hidden},
                    {"sequence", sequence, sequence},
                    {"microbatch", 1, static_cast<double>(request.global_batch)},
                    {"devices", 1, static_cast<double>(cores)}};
  stack.precisions = {"f32"};
  return stack;
}

void run_profile(const ProfileOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics = words;
  predict::Request request;
  const std::string file = options.model.empty() ? "gpt-tiny" : options.model;
  attempt(diagnostics, [&] {
    const std::string path = model_file(fs, file);
    request.model = models::parse_config(fs.read_file(path), path);
    if (const std::string what = request.model.only_simulated(); !what.empty())
      throw_error("{}: has {}, which has no kernels to measure yet; give a model without", path,
                  what);
    const std::string wrong = models::positions_finding(request.model, options.seq_len);
    if (!wrong.empty()) throw_error("--seq-len: {}", wrong);
  });
  request.seq_len = options.seq_len > 0 ? options.seq_len : request.model.max_positions;
  request.global_batch = options.batch;
  request.precision = DType::kF32;
  request.cluster.file = "this machine";
  check_outputs(fs, {{"--output", options.output}}, named_files(fs, file, "", ""), diagnostics);
  diagnostics.throw_if_any();
  const int threads = threads_with_memory(fs, request);
  const int beside = threads - 1;
  const runtime::MachineProfile profile =
      runtime::machine_profile(runtime::time_products(beside), time_step(request, beside));
  std::string text = runtime::to_toml(
      profile,
      fmt::format("measured by `meshwright profile`: products over shapes, the ops of a "
                  "step of {} with {} sequences of {} on {} threads at a time, a copy, "
                  "messages and all-reduces between threads",
                  base_name(request.model.source), options.batch, request.seq_len, threads));
  text += cluster::measured_toml(covered(request, profile.cores));
  if (options.output.empty()) {
    fmt::print("{}", text);
  } else {
    write_output(fs, options.output, text);
  }
}

}  // namespace

void add_profile(CLI::App& app, const Diagnostics& words) {
  CLI::App* command =
      app.add_subcommand("profile", "Measure this machine and write it as a cluster file");
  auto options = std::make_shared<ProfileOptions>();
  command
      ->add_option("-o,--output", options->output,
                   "The cluster file, such as clusters/this-machine.toml; printed if not given")
      ->check(written_file());
  command->add_option("--model", options->model,
                      "A model of models/ by name, or a config.json, whose ops are measured; "
                      "gpt-tiny if not given");
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence; the model's most")
      ->check(whole(1));
  command->add_option("--batch", options->batch, "Sequences of a step")->check(whole(1));
  command->callback([options, &words] { run_profile(*options, words); });
}

}  // namespace mw::cli
