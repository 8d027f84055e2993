#include <algorithm>
#include <memory>

#include <fmt/core.h>

#include "base/count.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/in_parallel.h"
#include "base/text.h"
#include "calibrate/fit.h"
#include "calibrate/fit_input.h"
#include "calibrate/validate.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "cli/output_file.h"
#include "cli/request_options.h"

namespace mw::cli {
namespace {

struct CalibrateOptions {
  std::vector<std::string> runs, constants;
  std::string profile, cluster, kernels, output;
  int64_t threads = 0, runs_per_source = 120, iterations = 12;
  double split_at = 0;  // billion parameters
  bool summary = false, no_left_out = false, bounded = false;
};

// Files that were named twice are told.
std::vector<std::string> distinct(const std::vector<std::string>& files, Diagnostics& diagnostics) {
  std::vector<std::string> seen;
  for (const std::string& file : files) {
    const bool twice = std::any_of(seen.begin(), seen.end(), [&](const std::string& other) {
      return other == file || same_file(other, file);
    });
    if (twice) {
      diagnostics.add(
          "runs: {} is there twice, and its rows would count as many more; give it once", file);
    } else {
      seen.push_back(file);
    }
  }
  return seen;
}

calibrate::FitInput read_input(FileSystem& fs, const CalibrateOptions& options,
                               const Diagnostics& words) {
  Diagnostics diagnostics = words;
  if (options.runs.empty() && options.split_at > 0)
    diagnostics.add("--split-at: divides runs, and there are none; leave it out");
  if (options.runs.empty() && options.bounded)
    diagnostics.add("--bounded: is of runs, and there are none; leave it out");
  calibrate::FitRequest asked;
  asked.runs = distinct(options.runs, diagnostics);
  asked.kernels = options.kernels;
  asked.profile = options.profile;
  asked.cluster = options.cluster;
  asked.constants = options.constants;
  calibrate::FitInput input;
  attempt(diagnostics, [&] {
    asked.cluster_folders = data_folders("clusters");
    asked.machines = data_folder("clusters");
    asked.facts = published_facts(fs);
    input = calibrate::read_fit_input(fs, asked, diagnostics);
  });
  std::vector<std::string> inputs = named_files(fs, "", options.cluster, options.profile);
  inputs.insert(inputs.end(), options.runs.begin(), options.runs.end());
  inputs.push_back(options.kernels);
  check_outputs(fs, {{"--output", options.output}}, inputs, diagnostics);
  diagnostics.throw_if_any();
  return input;
}

calibrate::FitOptions fit_options(const CalibrateOptions& options,
                                  const std::vector<std::string>& constants) {
  calibrate::FitOptions fit;
  fit.constants = constants;
  fit.threads = threads_or_cores(options.threads);
  fit.runs_per_source = static_cast<int>(options.runs_per_source);
  fit.iterations = static_cast<int>(options.iterations);
  fit.bounded = options.bounded;
  return fit;
}

void print_larger(const calibrate::FitInput& input, const CalibrateOptions& options,
                  const std::vector<calibrate::Run>& larger, const cluster::Profile& fitted) {
  calibrate::Machines machines = input.machines;
  calibrate::take_profile(fitted, machines);
  fmt::print(
      "\nmodels above {:g} billion parameters, none of them fitted on:\n{}", options.split_at,
      calibrate::to_text(calibrate::validate(larger, machines, threads_or_cores(options.threads)),
                         !options.summary));
}

void run_calibrate(const CalibrateOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  const calibrate::FitInput input = read_input(fs, options, words);
  const calibrate::FitRows rows = calibrate::fit_rows(input, options.split_at);
  if (rows.fitted.empty() && input.measured.size() == 0) {
    if (options.runs.empty()) {
      throw_error(
          "{}: no all_reduce (others are not fitted on) and no kernel is of {}; nothing to fit on",
          options.kernels, input.profile.device);
    }
    throw_error("{}: no row is of {} with {} and marked fit{}; nothing to fit on",
                join(options.runs, ", "), input.profile.device, input.profile.software,
                options.split_at > 0 && !rows.larger.empty()
                    ? fmt::format(", of at most {:g} billion parameters", options.split_at)
                    : "");
  }
  const calibrate::Fitter fitter(rows.fitted, input.measured, input.machines, input.profile,
                                 fit_options(options, input.constants));
  if (options.profile.empty() && options.cluster.empty())
    fmt::print("the rows marked fit are of {}: beginning with {}\n", input.profile.name,
               input.profile.file);
  fmt::print("{}", calibrate::to_text(fitter.skipped()));
  for (const auto& [collective, count] : input.measured.others)
    fmt::print("not fitted on: {} of {} in {}, whose all-reduces are\n", counted(count, "row"),
               collective, options.kernels);
  if (fitter.sources().empty())
    throw_error("{}: no row can be fitted on", join(options.runs, ", "));
  if (const size_t given = fitter.sources().size(), wanted = input.constants.size();
      given <= wanted) {
    throw_error(
        "--constants: {} {} cannot determine {} constants and say how sure they are; name "
        "fewer, or give more rows",
        given, given == 1 ? "row" : "rows", wanted);
  }
  const calibrate::Fit fit = fitter.fit();
  std::vector<cluster::LeftOut> left_out;
  if (!options.no_left_out) left_out = calibrate::left_out(fitter);
  fmt::print("{}", calibrate::to_text(fit, left_out, !options.summary));
  const cluster::Profile fitted = calibrate::fitted_profile(
      input.profile, fit, left_out, {.runs = options.runs, .kernels = options.kernels});
  if (!rows.larger.empty()) print_larger(input, options, rows.larger, fitted);
  if (!options.output.empty()) write_output(fs, options.output, cluster::to_toml(fitted));
}

}  // namespace

void add_calibrate(CLI::App& app, const Diagnostics& words) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the constants of a profile to measured runs");
  auto options = std::make_shared<CalibrateOptions>();
  command->add_option("runs", options->runs, "CSV files of runs; rows marked fit are used");
  command->add_option(
      "--profile", options->profile,
      "The profile to begin with, by name or a TOML file: device, software, and what is fitted; if "
      "not given, without --cluster, that of the rows marked fit where they are of one stack");
  command->add_option(
      "--cluster", options->cluster,
      "A cluster by name or a TOML file: whose device's rows are fitted, beginning with its "
      "figures, where no profile is given; with one, the cluster of the profile's device");
  command->add_option(
      "--kernels", options->kernels,
      "A CSV table of measured collectives, or of kernels (scripts/measure_gpu.py), that count as "
      "one more source, or alone");
  one_word(command->add_option(
               "--constants", options->constants,
               "What to fit; if not given the profile's constants with source = \"fit\", without a "
               "profile the best product's and the links' shares, gaps and latencies, and what the "
               "table is of"),
           kCommas)
      ->delimiter(',');
  command->add_option("-o,--output", options->output, "Write the fitted profile")
      ->check(written_file());
  command
      ->add_option("--runs-per-source", options->runs_per_source,
                   "At most so many runs of a source, evenly spaced; 0: all")
      ->check(whole(0, kMostWhole32));
  command
      ->add_option("--iterations", options->iterations, "Steps of the fit; 0: the profile as it is")
      ->check(whole(0, kMostWhole32));
  command
      ->add_option("--split-at", options->split_at,
                   "Fit on models of at most so many billion parameters, then predict the larger")
      ->check(number_above(0));
  command->add_option("--threads", options->threads, "Runs at a time; as many as there are cores")
      ->check(whole(1, kMostWhole32));
  command->add_flag("--bounded", options->bounded,
                    "Runs that are further off than most pull no harder, as tables have them whose "
                    "times scatter");
  command->add_flag("--summary", options->summary, "No list of residuals");
  command->add_flag("--no-left-out", options->no_left_out,
                    "Do not fit again without a part of the runs");
  command->callback([options, &words] { run_calibrate(*options, words); });
}

}  // namespace mw::cli
