// Profile: what a software stack makes of a kind of device: constants with a unit and a source, or
// fitted ones with their interval. It replaces what a cluster file says of the device and its
// links. Read from a TOML file in clusters/profiles/; written by `meshwright calibrate`.
//
//   name = "Megatron-LM on A100 80 GB"
//   device = "A100-SXM-80GB"          # a cluster's device.name
//   software = "megatron"
//   runs_that_say = ["DeepSpeed"]     # optional; see Profile
//   source = "…"
//   overlap = ["grad_reduce"]         # as `simulate --overlap` takes them
//   scatter_gather, gloo, global_sums, fused_attention, blocked_softmax, fused_elementwise,
//   fused_linears, keeps_gathered, accumulation, gradient_bytes, bf16_gradient_bytes, …
//   (docs/profiles.md: all) error = 0.06                      # standard deviation of log(predicted
//   / measured)
//   [[versions]]                      # optional; see Profile
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

struct Profile {
  std::string file;  // for messages
  std::string name, device, software, source;
  // Texts in the source or the notes of a published run that name this stack, where the run's
  // software column names another one (whose layers ran under this stack's engine).
  std::vector<std::string> runs_that_say;
  // Versions of the stack that hide other work, have another attention, add gradients up otherwise
  // or reduce them in another format: of published runs with such texts in source or notes. What a
  // version leaves out is the profile's.
  struct Version {
    std::vector<std::string> runs_that_say, overlap;
    std::string source;
    bool fused_attention = true, attention_copies = false, f16_gradients = false;
    Accumulation accumulation = Accumulation::kProducts;
    int64_t gradient_bytes = 4, bf16_gradient_bytes = 0;
    std::vector<Constant> constants;
  };
  std::vector<Version> versions;
  bool fused_attention = true;
  bool blocked_softmax = false;
  bool fused_elementwise = true;
  bool fused_linears = false;
  bool keeps_gathered = false;  // with full recomputation, until the gradients: no Plan::regather
  int64_t gradient_bytes = 4;   // an element in which gradients are reduced
  int64_t bf16_gradient_bytes = 0;  // those of bf16 weights; 0: as gradient_bytes
  std::vector<Constant> constants;
  Stack stack;
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

// Throws Error where the profile is of another device.
void apply(const Profile& profile, Cluster& cluster);
// After its profile.
void apply(const Profile::Version& version, Cluster& cluster);
// The version that says so, which results then name with the stack. Throws Error with those that
// there are where none or several do.
void apply_version(const Profile& profile, const std::string& says, Cluster& cluster);

}  // namespace mw::cluster
