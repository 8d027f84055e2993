// A published run as something to predict: model, cluster and plan of a row, and its step time.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/runs.h"
#include "cluster/profile.h"
#include "predict/predict.h"

namespace mw::calibrate {

// All cluster files of a folder and the profiles beside them, to find a row's device and software
// by their names.
struct Machines {
  std::vector<cluster::Cluster> clusters;
  std::vector<cluster::Profile> profiles;
};
Machines read_machines(FileSystem& fs, const std::string& folder);
// The cluster is then the one of its device.
void take_cluster(const cluster::Cluster& cluster, Machines& machines);
// So, by its name or file (cluster::load_cluster), with the profile that the file names. Returns it
// without that profile's figures. Throws Error.
cluster::Cluster take_cluster(FileSystem& fs, const std::string& name,
                              const std::vector<std::string>& folders, Machines& machines);
// In place of the one of its device and software, if there is one.
void take_profile(const cluster::Profile& profile, Machines& machines);

// Rows whose gpu is another name of a device get the device's own.
void name_devices(std::vector<Run>& runs, const Machines& machines);

// Of the row's device; nullptr: there is none.
const cluster::Cluster* cluster_of(const Run& run, const Machines& machines);

// Why the row cannot be simulated, "" if it can: all of its cells' findings, of what graph, rules
// or costs do not have, a device that no cluster file has, numbers that do not go together.
std::string reason(const Run& run, const Machines& machines);

// The profile of the row's device and stack: one whose runs_that_say the row's source or notes say,
// else the software column's, else the one that the cluster file names; nullptr: there is none.
// REQUIRES: no reason.
const cluster::Profile* profile_of(const Run& run, const Machines& machines);
// Whether the row itself says that profile's stack, whatever its letters' case, or says none and
// takes the profile as its cluster's. REQUIRES: the row's device has a cluster file.
bool is_of(const Run& run, const cluster::Profile& profile, const Machines& machines);
// With that profile. REQUIRES: no reason, one of layouts(run) (choices.h); the row's microbatch and
// recompute must be stated, or given.
predict::Request request_of(const Run& run, const Machines& machines, int64_t micro_batch,
                            compile::Recompute recompute);

// zb-auto's costs, which its order hangs on, are the stages' own.
void set_costs(predict::Request& request);

// Of the model: params_b, else what the row's sizes make; 0 where some are wrong.
double billion_parameters(const Run& run);
// As predict::precision_names has it; "": the row's is unknown.
std::string_view precision_name(const Run& run);
int64_t expert_count(const Run& run);
// "software megatron": whose profile a row gets where its device has none of its software; else "".
std::string assumed_profile(const Run& run, const Machines& machines);

// Seconds of a step, from whatever the source published:
// tokens/s: global batch * sequence / tokens/s; sequences/s: global batch / value;
// model TFLOP/s and MFU: 72 B s l h^2 (1 + s/6h + V/12lh) for a GPT, three times the forward
// products in general [Korthikanti 2022, appendix A];
// hardware TFLOP/s: with full recomputation (the request's) 96 B s l h^2 (1 + s/6h + V/16lh)
// [Narayanan 2021, eq. 3]. 0 where the source tells a place alone. What of these needs no model is
// stated_step; else 0.
double stated_step(const Run& run);
double published_step(const Run& run, const predict::Request& request);
// Of a row that is not simulated; 0 where it takes the device's peak or a recomputation that the
// row does not say.
double published_step(const Run& run);
Flops model_flops(const models::ModelConfig& model, int64_t seq, int64_t global_batch);
// With the forward pass of the blocks once more.
Flops full_recompute_flops(const models::ModelConfig& model, int64_t seq, int64_t global_batch);

}  // namespace mw::calibrate
