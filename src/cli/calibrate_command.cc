#include <algorithm>
#include <memory>
#include <thread>

#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "calibrate/fit.h"
#include "calibrate/validate.h"
#include "cli/command.h"
#include "cli/data_folders.h"
#include "cli/output_file.h"
#include "cli/request_options.h"

namespace mw::cli {
namespace {

struct CalibrateOptions {
  std::vector<std::string> runs, constants;
  std::string profile, kernels, output;
  int64_t threads = 0, runs_per_source = 120, iterations = 12;
  double split_at = 0;  // billion parameters
  bool summary = false, no_held_out = false;
};

// The constants that the profile marks as fitted, unless --constants says others.
std::vector<std::string> constants_of(const CalibrateOptions& options,
                                      const cluster::Profile& profile) {
  std::vector<std::string> names = options.constants, known;
  for (const cluster::ConstantInfo& info : cluster::constant_infos()) known.emplace_back(info.name);
  if (names.empty()) {
    for (const cluster::Constant& c : profile.constants) {
      if (c.source == "fit") names.push_back(c.name);
    }
  }
  Diagnostics diagnostics;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      diagnostics.add("--constants: unknown constant '{}'{}; known are {}", name,
                      did_you_mean(name, known), join(known, ", "));
  }
  if (names.empty())
    diagnostics.add("{}: marks no constant with source = \"fit\"; name some with --constants",
                    profile.file);
  if (names.size() > calibrate::kMostConstants)
    diagnostics.add("{} constants are too many to fit; at most {}", names.size(),
                    calibrate::kMostConstants);
  diagnostics.throw_if_any();
  return names;
}

void run_calibrate(const CalibrateOptions& options) {
  FileSystem& fs = posix_fs();
  Diagnostics diagnostics;
  cluster::Profile profile;
  calibrate::FitOptions fit_options;
  attempt(diagnostics, [&] {
    const std::string file = cluster::find_profile(fs, options.profile, data_folders("clusters"));
    profile = cluster::parse_profile(fs.read_file(file), file);
    fit_options.constants = constants_of(options, profile);
  });
  fit_options.threads = options.threads > 0
                            ? static_cast<int>(options.threads)
                            : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  fit_options.runs_per_source = static_cast<int>(options.runs_per_source);
  fit_options.iterations = static_cast<int>(options.iterations);
  std::vector<calibrate::Run> runs;
  for (const std::string& file : options.runs) {
    attempt(diagnostics, [&] {
      for (calibrate::Run& run : calibrate::read_runs(fs, file, published_amendments(fs)))
        runs.push_back(std::move(run));
    });
  }
  check_output(fs, options.output, diagnostics);
  diagnostics.throw_if_any();
  std::vector<const calibrate::Run*> fit_on;
  std::vector<calibrate::Run> larger;
  for (const calibrate::Run& run : runs) {
    if (run.gpu != profile.device || run.software != profile.software) continue;
    if (options.split_at > 0 && calibrate::block_parameters(run) > options.split_at * 1e9) {
      larger.push_back(run);
    } else if (run.fits()) {
      fit_on.push_back(&run);
    }
  }
  std::vector<calibrate::CollectiveRow> collectives;
  if (!options.kernels.empty())
    collectives = calibrate::parse_collectives(fs.read_file(options.kernels), options.kernels,
                                               profile.device);
  if (fit_on.empty() && collectives.empty()) {
    throw_error("{}: no row is of {} with {} and marked fit; nothing to fit on",
                join(options.runs, ", "), profile.device, profile.software);
  }
  calibrate::Machines machines = calibrate::read_machines(fs, data_folder("clusters"));
  const calibrate::Fitter fitter(fit_on, collectives, machines, profile, fit_options);
  const calibrate::Fit fit = fitter.fit();
  const std::vector<calibrate::HeldOut> held_out =
      options.no_held_out ? std::vector<calibrate::HeldOut>() : calibrate::held_out(fitter);
  fmt::print("{}", calibrate::to_text(fit, held_out, !options.summary));
  if (!larger.empty()) {
    for (cluster::Profile& known : machines.profiles) {
      if (known.device == profile.device && known.software == profile.software)
        known = calibrate::fitted_profile(profile, fit);
    }
    fmt::print("\nmodels above {:g} billion parameters, none of them fitted on:\n{}",
               options.split_at,
               calibrate::to_text(calibrate::validate(larger, machines, fit_options.threads),
                                  !options.summary));
  }
  if (options.output.empty()) return;
  write_output(fs, options.output, cluster::to_toml(calibrate::fitted_profile(profile, fit)));
}

}  // namespace

void add_calibrate(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the constants of a profile to measured runs");
  auto options = std::make_shared<CalibrateOptions>();
  command->add_option("runs", options->runs, "CSV files of runs; rows marked fit are used")
      ->required();
  command
      ->add_option(
          "--profile", options->profile,
          "The profile to begin with, by name or a TOML file: device, software, and what is fitted")
      ->required();
  command->add_option("--kernels", options->kernels,
                      "A CSV table of measured collectives that count as one more source");
  command
      ->add_option("--constants", options->constants,
                   "What to fit; the profile's constants with source = \"fit\" if not given")
      ->delimiter(',');
  command->add_option("-o,--output", options->output, "Write the fitted profile");
  command
      ->add_option("--runs-per-source", options->runs_per_source,
                   "At most so many runs of a source, evenly spaced; 0: all")
      ->check(at_least(0));
  command
      ->add_option("--iterations", options->iterations, "Steps of the fit; 0: the profile as it is")
      ->check(at_least(0));
  command
      ->add_option("--split-at", options->split_at,
                   "Fit on models of at most so many billion parameters, then predict the larger")
      ->check(CLI::PositiveNumber);
  command->add_option("--threads", options->threads, "Runs at a time; as many as there are cores")
      ->check(at_least(1));
  command->add_flag("--summary", options->summary, "No list of residuals");
  command->add_flag("--no-held-out", options->no_held_out,
                    "Do not fit again without a part of the runs");
  command->callback([options] { run_calibrate(*options); });
}

}  // namespace mw::cli
