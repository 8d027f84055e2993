#include "calibrate/fit_input.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/fs.h"
#include "base/text.h"
#include "calibrate/fit.h"

namespace mw::calibrate {
namespace {

// --constants; else those that the profile marks as fitted; else, without a profile, the usual
// ones. Without runs those of kernels among them.
std::vector<std::string> constants_of(const FitRequest& asked, const cluster::Profile& profile,
                                      const MeasuredKernels& measured) {
  const std::span<const cluster::ConstantInfo> infos = cluster::constant_infos();
  const auto is_of_table = [&](const cluster::ConstantInfo& info) {
    return measured.kernels.empty() ? info.of_collectives : info.of_kernels;
  };
  std::vector<std::string> names = asked.constants, known;
  for (const cluster::ConstantInfo& info : infos) known.emplace_back(info.name);
  if (names.empty() && profile.file.empty()) {
    for (const cluster::ConstantInfo& info : infos) {
      if (is_of_table(info) || (info.of_runs && !asked.runs.empty())) names.emplace_back(info.name);
    }
  } else if (names.empty()) {
    for (const cluster::Constant& c : profile.constants) {
      const auto info = std::find_if(infos.begin(), infos.end(),
                                     [&](const auto& one) { return one.name == c.name; });
      if (c.source == "fit" && (is_of_table(*info) || !asked.runs.empty())) names.push_back(c.name);
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
  if (names.size() > kMostConstants)
    diagnostics.add("{} constants are too many to fit; at most {}", names.size(), kMostConstants);
  diagnostics.throw_if_any();
  return names;
}

// As the profile that the row is of has it, if there is one.
std::string software_name(const Run& run, const Machines& machines) {
  if (cluster_of(run, machines) == nullptr) return run.software;
  const cluster::Profile* taken = profile_of(run, machines);
  return taken != nullptr && is_of(run, *taken, machines) ? taken->software : run.software;
}

// The software of the runs on the device, which without a profile must be one.
std::string software_of(const FitInput& input, const FitRequest& asked, const std::string& device) {
  if (asked.runs.empty()) return "kernels";
  std::vector<std::string> stacks;
  for (const Run& run : input.runs) {
    if (run.gpu == device && std::find(stacks.begin(), stacks.end(), run.software) == stacks.end())
      stacks.push_back(run.software);
  }
  if (stacks.empty()) throw_error("{}: no row is of {}", join(asked.runs, ", "), device);
  if (stacks.size() != 1) {
    throw_error("{}: the rows of {} are of {} software stacks ({}); name one with --profile",
                join(asked.runs, ", "), device, stacks.size(), join(stacks, ", "));
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
const cluster::Profile* profile_of_rows(const FitInput& input, Diagnostics& diagnostics) {
  std::set<std::pair<std::string, std::string>> stacks;  // device and software
  for (const Run& run : input.runs) {
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
cluster::Profile profile_named(FileSystem& fs, const std::string& name, const FitInput& input,
                               const std::vector<std::string>& cluster_folders,
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
    const auto is_of = [&](const Run& run) { return run.fits() && run.gpu == profile.device; };
    if (std::any_of(input.runs.begin(), input.runs.end(), is_of)) of_rows.push_back(&profile);
  }
  if (of_rows.size() == 1) return *of_rows.front();
  if (!names.empty())
    throw_error("--profile: '{}' is the software of {}; name one of them", name, join(names, ", "));
  std::vector<std::string> folders = cluster_folders;
  if (!beside.empty()) folders.insert(folders.begin(), beside);
  const std::string file = cluster::find_profile(fs, name, folders);
  return cluster::parse_profile(fs.read_file(file), file);
}

// `all_runs`: every row was read, so that what they have not is known.
void read_profile(FileSystem& fs, const FitRequest& asked, bool all_runs, FitInput& input,
                  Diagnostics& diagnostics) {
  std::optional<cluster::Cluster> cluster;
  if (!asked.cluster.empty()) {
    attempt(diagnostics, [&] {
      cluster = take_cluster(fs, asked.cluster, asked.cluster_folders, input.machines);
    });
  }
  name_devices(input.runs, input.machines);
  if (asked.profile.empty() && asked.cluster.empty() && all_runs) {
    if (const cluster::Profile* own = profile_of_rows(input, diagnostics)) input.profile = *own;
  }
  attempt(diagnostics, [&] {
    if (!asked.profile.empty()) {
      input.profile = profile_named(fs, asked.profile, input, asked.cluster_folders,
                                    cluster ? parent_path(cluster->file) : "");
    } else if (cluster && all_runs) {
      input.profile = blank_profile(*cluster, software_of(input, asked, cluster->device.name));
      input.machines.profiles = {input.profile};
    }
  });
  const std::string& device = input.profile.device;
  if (!device.empty()) take_profile(input.profile, input.machines);
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

}  // namespace

FitInput read_fit_input(FileSystem& fs, const FitRequest& asked, Diagnostics& diagnostics) {
  FitInput input;
  if (asked.runs.empty() && asked.kernels.empty())
    diagnostics.add("runs: are missing; give CSV files of runs, or --kernels alone");
  bool all_runs = true;
  for (const std::string& file : asked.runs) {
    all_runs &= attempt(diagnostics, [&] {
      for (Run& run : read_runs(fs, file, asked.facts)) input.runs.push_back(std::move(run));
    });
  }
  attempt(diagnostics, [&] {
    input.machines = read_machines(fs, asked.machines);
    read_profile(fs, asked, all_runs, input, diagnostics);
  });
  if (!asked.kernels.empty()) {
    attempt(diagnostics, [&] {
      input.measured =
          parse_kernels(fs.read_file(asked.kernels), asked.kernels, input.profile.device);
    });
  }
  attempt(diagnostics,
          [&] { input.constants = constants_of(asked, input.profile, input.measured); });
  return input;
}

FitRows fit_rows(const FitInput& input, double most_billions) {
  FitRows rows;
  for (const Run& run : input.runs) {
    if (!is_of(run, input.profile, input.machines)) continue;
    if (most_billions > 0 && billion_parameters(run) > most_billions) {
      rows.larger.push_back(run);
      rows.larger.back().use = "check";  // whatever the row says
    } else if (run.fits()) {
      rows.fitted.push_back(&run);
    }
  }
  return rows;
}

}  // namespace mw::calibrate
