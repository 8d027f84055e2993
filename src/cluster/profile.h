// Profile: what a software stack makes of a kind of device: constants with a unit and a source, or
// fitted ones with their interval. It replaces what a cluster file says of the device and its
// links. Read from a TOML file in clusters/profiles/; written by `meshwright calibrate`.
//
//   name = "Megatron-LM on A100 80 GB"
//   device = "A100-SXM-80GB"          # a cluster's device.name
//   software = "megatron"
//   runs_that_say = ["DeepSpeed"]     # optional; see ProfileSettings
//   source = "…"
//   overlap = ["grad_reduce"]         # as `simulate --overlap` takes them
//   scatter_gather = true             # and other members of Kernels and Stack: docs/profiles.md
//   error = 0.06                      # standard deviation of log(predicted / measured)
//   [[versions]]                      # optional; see ProfileSettings
//   runs_that_say = ["a paper"]
//   overlap = ["serial"]
//   source = "…"
//   constants.attention_fraction = { value = 0.5, source = "…" }   # optional
//   [constants]
//   host_op_us = { value = 30.1, low = 29.0, high = 31.2, source = "fit" }
//   [measured]                        # what the runs behind it cover
//   hidden = [1024, 8192]
//   [[left_out]]                      # fitted without a part of the runs and held against them
//   name = "every fifth run"
//   runs, mean, worst
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/constants.h"
#include "cluster/hardware.h"

namespace mw::cluster {

struct Constant {
  std::string name;
  double value = 0;
  double low = 0, high = 0;  // of a fit: 95 % interval; else both 0
  std::string source;
  bool fitted() const { return high > 0; }
};

// How well a profile that was fitted without some runs predicts them.
struct LeftOut {
  std::string name;            // what was left out: a source, or "every fifth run"
  int64_t runs = 0;            // rows of kernel tables, too
  double mean = 0, worst = 0;  // of |predicted / measured - 1|; the error that is largest in size
};

// What a profile says, and a version of it: runs of the stack, which it is told by, that hide other
// work, have another attention, add gradients up otherwise or reduce them in another format. What a
// version leaves out is the profile's.
struct ProfileSettings {
  // Texts in the source or the notes of a published run that is of this version, or that names this
  // stack where its software column names another one (whose layers ran under this stack's engine).
  std::vector<std::string> runs_that_say;
  std::string source;
  Kernels kernels;
  Stack stack;
  std::vector<Constant> constants;
};

struct Profile : ProfileSettings {
  std::string file;  // for messages
  std::string name, device, software;
  std::vector<ProfileSettings> versions;
  std::vector<LeftOut> left_out;  // empty: it is not known
};

// "NAME:VERSION" as --profile takes it: a profile, and a text that one of its versions has in
// runs_that_say; without a colon no version, without a name the cluster's own profile.
struct ProfileName {
  std::string name, version;
};
ProfileName parse_profile_name(std::string_view text);

// Throws Error with everything that is wrong with the text.
Profile parse_profile(std::string_view toml, const std::string& file);
std::string to_toml(const Profile& profile);
// All *.toml of a folder; none if it is not there.
std::vector<Profile> read_profiles(FileSystem& fs, const std::string& folder);

// What a profile of another device than the cluster's is told; "": it is of the cluster's.
std::string device_finding(const Profile& profile, const Cluster& cluster);
// Throws Error where there is such a finding.
void apply(const Profile& profile, Cluster& cluster);
// After its profile.
void apply_version(const ProfileSettings& version, Cluster& cluster);
// The version that says so, which results then name with the stack. Throws Error with those that
// there are where none or several do.
void apply_version(const Profile& profile, const std::string& says, Cluster& cluster);

}  // namespace mw::cluster
