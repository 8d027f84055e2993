#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "base/count.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/in_parallel.h"
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
  std::string profile, cluster, kernels, output;
  int64_t threads = 0, runs_per_source = 120, iterations = 12;
  double split_at = 0;  // billion parameters
  bool summary = false, no_left_out = false, bounded = false;
};

// What tables of collectives and of kernels say something of, and what runs of any stack do.
const std::vector<std::string> kOfCollectives = {"collective_latency_us", "node_bus_fraction",
                                                 "network_bus_fraction"};
const std::vector<std::string> kOfKernels = {
    "matrix_fraction",          "product_half_k",        "fp8_fraction",
    "attention_fraction",       "attention_half_keys",   "attention_grad_fraction",
    "attention_grad_half_keys", "memory_fraction",       "loss_traffic",
    "update_traffic",           "gradient_copy_traffic", "host_op_us"};
const std::vector<std::string> kOfRuns = {"matrix_fraction", "memory_fraction", "launch_us",
                                          "host_op_us"};

// --constants; else those that the profile marks as fitted; else, without a profile, the usual
// ones. Without runs those of kernels among them.
std::vector<std::string> constants_of(const CalibrateOptions& options,
                                      const cluster::Profile& profile,
                                      const calibrate::MeasuredKernels& measured) {
  const std::vector<std::string>& of_table = measured.kernels.empty() ? kOfCollectives : kOfKernels;
  std::vector<std::string> names = options.constants, known;
  for (const cluster::ConstantInfo& info : cluster::constant_infos()) known.emplace_back(info.name);
  if (names.empty()) {
    const bool blank = profile.file.empty();
    const auto is_of_table = [&](const std::string& name) {
      return std::find(of_table.begin(), of_table.end(), name) != of_table.end();
    };
    if (blank) names = of_table;
    for (const std::string& name : kOfRuns) {
      if (blank && !options.runs.empty() && !is_of_table(name)) names.push_back(name);
    }
    for (const cluster::Constant& c : profile.constants) {
      if (c.source == "fit" && (is_of_table(c.name) || !options.runs.empty()))
        names.push_back(c.name);
    }
  }
  Diagnostics diagnostics;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      diagnostics.add("--constants: unknown constant '{}'{}; known are {}", name,
                      did_you_mean(name, known), join(known, ", "));
    } else if (!seen.insert(name).second) {
      diagnostics.add("--constants: {} is there twice; name it once", name);
    }
  }
  if (names.empty() && !profile.file.empty())
    diagnostics.add("{}: marks no constant with source = \"fit\"; name some with --constants",
                    profile.file);
  if (names.size() > calibrate::kMostConstants)
    diagnostics.add("{} constants are too many to fit; at most {}", names.size(),
                    calibrate::kMostConstants);
  diagnostics.throw_if_any();
  return names;
}

// All that a fit needs, read.
struct Input {
  std::vector<calibrate::Run> runs;  // of all files
  calibrate::Machines machines;
  cluster::Profile profile;  // to begin with
  calibrate::MeasuredKernels measured;
  calibrate::FitOptions fit;
};

// As the profile that the row is of has it, if there is one.
std::string software_name(const calibrate::Run& run, const calibrate::Machines& machines) {
  if (calibrate::cluster_of(run, machines) == nullptr) return run.software;
  const cluster::Profile* taken = calibrate::profile_of(run, machines);
  return taken != nullptr && calibrate::is_of(run, *taken, machines) ? taken->software
                                                                     : run.software;
}

// The software of the runs on the device, which without a profile must be one.
std::string software_of(const Input& input, const CalibrateOptions& options,
                        const std::string& device) {
  if (options.runs.empty()) return "kernels";
  std::vector<std::string> stacks;
  for (const calibrate::Run& run : input.runs) {
    if (run.gpu == device && std::find(stacks.begin(), stacks.end(), run.software) == stacks.end())
      stacks.push_back(run.software);
  }
  if (stacks.empty()) throw_error("{}: no row is of {}", join(options.runs, ", "), device);
  if (stacks.size() != 1) {
    throw_error("{}: the rows of {} are of {} software stacks ({}); name one with --profile",
                join(options.runs, ", "), device, stacks.size(), join(stacks, ", "));
  }
  return stacks[0];
}

// The name by which --profile takes it.
std::string name_of(const cluster::Profile& profile) {
  const std::string file = base_name(profile.file);
  return file.substr(0, file.rfind(".toml"));
}

// Without --profile and --cluster: the profile of the one stack that the rows marked fit are of;
// nullptr with a finding where they are of several, or of one that has none.
const cluster::Profile* profile_of_rows(const Input& input, Diagnostics& diagnostics) {
  std::set<std::pair<std::string, std::string>> stacks;  // device and software
  for (const calibrate::Run& run : input.runs) {
    if (run.fits()) stacks.emplace(run.gpu, software_name(run, input.machines));
  }
  std::vector<std::string> names, known;
  const cluster::Profile* made = nullptr;
  for (const auto& [device, software] : stacks) {
    names.push_back(fmt::format("{} with {}", device, software.empty() ? "no software" : software));
    for (const cluster::Profile& profile : input.machines.profiles) {
      if (profile.device != device || profile.software != software) continue;
      known.push_back(name_of(profile));
      made = &profile;
    }
  }
  if (stacks.size() == 1 && known.size() == 1) return made;
  diagnostics.add(
      "--profile: is missing, and {}; give a profile to begin with{}, or with --cluster a device",
      stacks.empty() ? "no row is marked fit"
                     : fmt::format("the rows marked fit are of {}", join(names, ", ")),
      known.empty() ? "" : fmt::format(" ({})", join(known, ", ")));
  return nullptr;
}

// By its name or file, also in profiles/ in the folder `beside`; or by its software, as other
// commands take it, of the device of rows marked fit.
cluster::Profile profile_named(FileSystem& fs, const std::string& name, const Input& input,
                               const std::string& beside) {
  if (const cluster::ProfileName named = cluster::parse_profile_name(name);
      !named.version.empty()) {
    throw_error(
        "--profile: '{}' is a version; a profile is fitted, its versions take over what they "
        "do not say; use {}",
        clipped(name), named.name.empty() ? "a profile's name" : clipped(named.name));
  }
  std::vector<std::string> names;
  std::vector<const cluster::Profile*> of_rows;
  for (const cluster::Profile& profile : input.machines.profiles) {
    if (profile.software != name) continue;
    names.push_back(name_of(profile));
    const auto is_of = [&](const calibrate::Run& run) {
      return run.fits() && run.gpu == profile.device;
    };
    if (std::any_of(input.runs.begin(), input.runs.end(), is_of)) of_rows.push_back(&profile);
  }
  if (of_rows.size() == 1) return *of_rows.front();
  if (!names.empty())
    throw_error("--profile: '{}' is the software of {}; name one of them", name, join(names, ", "));
  std::vector<std::string> folders = data_folders("clusters");
  if (!beside.empty()) folders.insert(folders.begin(), beside);
  const std::string file = cluster::find_profile(fs, name, folders);
  return cluster::parse_profile(fs.read_file(file), file);
}

// `all_runs`: every row was read, so that what they have not is known.
void read_profile(FileSystem& fs, const CalibrateOptions& options, bool all_runs, Input& input,
                  Diagnostics& diagnostics) {
  std::optional<cluster::Cluster> cluster;
  if (!options.cluster.empty()) {
    attempt(diagnostics, [&] {
      cluster =
          calibrate::take_cluster(fs, options.cluster, data_folders("clusters"), input.machines);
    });
  }
  calibrate::name_devices(input.runs, input.machines);
  if (options.profile.empty() && options.cluster.empty() && all_runs) {
    if (const cluster::Profile* own = profile_of_rows(input, diagnostics)) input.profile = *own;
  }
  attempt(diagnostics, [&] {
    if (!options.profile.empty()) {
      input.profile =
          profile_named(fs, options.profile, input, cluster ? parent_path(cluster->file) : "");
    } else if (cluster && all_runs) {
      input.profile =
          calibrate::blank_profile(*cluster, software_of(input, options, cluster->device.name));
      input.machines.profiles = {input.profile};
    }
  });
  const std::string& device = input.profile.device;
  if (!device.empty()) calibrate::take_profile(input.profile, input.machines);
  if (cluster && !device.empty() && cluster->device.name != device) {
    diagnostics.add("--cluster: {} is of {}, and {} of {}; leave out --cluster or --profile",
                    cluster->name, cluster->device.name, input.profile.file, device);
  }
  const bool known =
      std::any_of(input.machines.clusters.begin(), input.machines.clusters.end(),
                  [&](const cluster::Cluster& c) { return c.device.name == device; });
  if (!device.empty() && !known) {
    diagnostics.add("{}: no cluster has its device {}; name one with --cluster", input.profile.file,
                    device);
  }
}

Input read_input(FileSystem& fs, const CalibrateOptions& options, const Diagnostics& words) {
  Diagnostics diagnostics = words;
  Input input;
  if (options.runs.empty() && options.kernels.empty())
    diagnostics.add("runs: are missing; give CSV files of runs, or --kernels alone");
  if (options.runs.empty() && options.split_at > 0)
    diagnostics.add("--split-at: divides runs, and there are none; leave it out");
  if (options.runs.empty() && options.bounded)
    diagnostics.add("--bounded: is of runs, and there are none; leave it out");
  std::vector<std::string> seen;
  bool all_runs = true;
  for (const std::string& file : options.runs) {
    const bool twice = std::any_of(seen.begin(), seen.end(), [&](const std::string& other) {
      return other == file || same_file(other, file);
    });
    if (twice) {
      diagnostics.add(
          "runs: {} is there twice, and its rows would count as many more; give it once", file);
      continue;
    }
    seen.push_back(file);
    all_runs &= attempt(diagnostics, [&] {
      for (calibrate::Run& run : calibrate::read_runs(fs, file, published_amendments(fs)))
        input.runs.push_back(std::move(run));
    });
  }
  attempt(diagnostics, [&] {
    input.machines = calibrate::read_machines(fs, data_folder("clusters"));
    read_profile(fs, options, all_runs, input, diagnostics);
  });
  if (!options.kernels.empty()) {
    attempt(diagnostics, [&] {
      input.measured = calibrate::parse_kernels(fs.read_file(options.kernels), options.kernels,
                                                input.profile.device);
    });
  }
  attempt(diagnostics,
          [&] { input.fit.constants = constants_of(options, input.profile, input.measured); });
  std::vector<std::string> inputs = named_files(fs, "", options.cluster, options.profile);
  inputs.insert(inputs.end(), options.runs.begin(), options.runs.end());
  inputs.push_back(options.kernels);
  check_outputs(fs, {{"--output", options.output}}, inputs, diagnostics);
  diagnostics.throw_if_any();
  input.fit.threads = threads_or_cores(options.threads);
  input.fit.runs_per_source = static_cast<int>(options.runs_per_source);
  input.fit.iterations = static_cast<int>(options.iterations);
  input.fit.bounded = options.bounded;
  return input;
}

void print_larger(const Input& input, const CalibrateOptions& options,
                  const std::vector<calibrate::Run>& larger, const cluster::Profile& fitted) {
  calibrate::Machines machines = input.machines;
  calibrate::take_profile(fitted, machines);
  fmt::print("\nmodels above {:g} billion parameters, none of them fitted on:\n{}",
             options.split_at,
             calibrate::to_text(calibrate::validate(larger, machines, input.fit.threads),
                                !options.summary));
}

void run_calibrate(const CalibrateOptions& options, const Diagnostics& words) {
  FileSystem& fs = posix_fs();
  const Input input = read_input(fs, options, words);
  std::vector<const calibrate::Run*> fit_on;
  std::vector<calibrate::Run> larger;
  for (const calibrate::Run& run : input.runs) {
    if (!calibrate::is_of(run, input.profile, input.machines)) continue;
    if (options.split_at > 0 && calibrate::billion_parameters(run) > options.split_at) {
      larger.push_back(run);
      larger.back().use = "check";  // whatever the row says
    } else if (run.fits()) {
      fit_on.push_back(&run);
    }
  }
  if (fit_on.empty() && input.measured.size() == 0) {
    if (options.runs.empty()) {
      throw_error(
          "{}: no all_reduce (others are not fitted on) and no kernel is of {}; nothing to fit on",
          options.kernels, input.profile.device);
    }
    throw_error("{}: no row is of {} with {} and marked fit{}; nothing to fit on",
                join(options.runs, ", "), input.profile.device, input.profile.software,
                options.split_at > 0 && !larger.empty()
                    ? fmt::format(", of at most {:g} billion parameters", options.split_at)
                    : "");
  }
  const calibrate::Fitter fitter(fit_on, input.measured, input.machines, input.profile, input.fit);
  if (options.profile.empty() && options.cluster.empty())
    fmt::print("the rows marked fit are of {}: beginning with {}\n", input.profile.name,
               input.profile.file);
  fmt::print("{}", calibrate::to_text(fitter.skipped()));
  for (const auto& [collective, rows] : input.measured.others)
    fmt::print("not fitted on: {} of {} in {}, whose all-reduces are\n", counted(rows, "row"),
               collective, options.kernels);
  if (fitter.sources().empty())
    throw_error("{}: no row can be fitted on", join(options.runs, ", "));
  if (const size_t rows = fitter.sources().size(), wanted = input.fit.constants.size();
      rows <= wanted) {
    throw_error(
        "--constants: {} {} cannot determine {} constants and say how sure they are; name "
        "fewer, or give more rows",
        rows, rows == 1 ? "row" : "rows", wanted);
  }
  const calibrate::Fit fit = fitter.fit();
  std::vector<cluster::LeftOut> left_out;
  if (!options.no_left_out) left_out = calibrate::left_out(fitter);
  fmt::print("{}", calibrate::to_text(fit, left_out, !options.summary));
  const cluster::Profile fitted = calibrate::fitted_profile(
      input.profile, fit, left_out, {.runs = options.runs, .kernels = options.kernels});
  if (!larger.empty()) print_larger(input, options, larger, fitted);
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
