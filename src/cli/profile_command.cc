#include <memory>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "cli/output_file.h"
#include "cluster/measured.h"
#include "predict/predict.h"
#include "runtime/measure.h"

namespace mw::cli {
namespace {

struct ProfileOptions {
  std::string model, output;
  int64_t seq_len = 0, batch = 8;
};

// The ops of one step of the model on one rank, as `train` would run them.
std::vector<runtime::OpTiming> time_step(const predict::Request& request) {
  const pipeline::Program program = predict::program_of(request);
  std::vector<runtime::OpTiming> timings;
  for (const pipeline::Fragment& fragment : program.fragments) {
    for (const runtime::OpTiming& t : runtime::time_ops(fragment, program.mesh, 5))
      timings.push_back(t);
  }
  return timings;
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
  const std::string file =
      options.model.empty() ? join_path(data_folder("models"), "gpt-tiny.json") : options.model;
  attempt(diagnostics, [&] { request.model = models::parse_config(fs.read_file(file), file); });
  request.seq_len = options.seq_len > 0 ? options.seq_len : request.model.max_positions;
  request.global_batch = options.batch;
  request.precision = DType::kF32;
  request.cluster.file = "this machine";
  check_output(fs, options.output, diagnostics);
  diagnostics.throw_if_any();
  const runtime::MachineProfile profile =
      runtime::machine_profile(runtime::time_products(), time_step(request));
  std::string text = runtime::to_toml(
      profile, fmt::format("measured by `meshwright profile`: products over shapes, the ops of a "
                           "step of {} with {} sequences of {}, a copy, messages and all-reduces "
                           "between threads",
                           file.substr(file.rfind('/') + 1), options.batch, request.seq_len));
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
  command->add_option("-o,--output", options->output,
                      "The cluster file, such as clusters/this-machine.toml; printed if not given");
  command->add_option("--model", options->model,
                      "A config.json whose ops are measured; models/gpt-tiny.json if not given");
  command->add_option("--seq-len", options->seq_len, "Tokens of a sequence; the model's most")
      ->check(whole(1));
  command->add_option("--batch", options->batch, "Sequences of a step")->check(whole(1));
  command->callback([options, &words] { run_profile(*options, words); });
}

}  // namespace mw::cli
