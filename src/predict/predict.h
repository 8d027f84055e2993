// From a model, a cluster and a plan to numbers: compiles the plan and simulates one training step
// of it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "cluster/hardware.h"
#include "compile/compile.h"
#include "compile/plan.h"
#include "models/config.h"
#include "predict/goodput.h"
#include "simulate/simulate.h"

namespace mw::predict {

// Words of --overlap and --slowdown, in their order.
struct Asked {
  std::vector<std::string> overlap, slowdown;
};

struct Request {
  models::ModelConfig model;
  cluster::Cluster cluster;
  compile::Plan plan;
  int64_t global_batch = 1;  // sequences of a step
  int64_t seq_len = 1;
  DType precision = DType::kBF16;  // of weights and activations; f32, bf16 or f16 (with fp8 bf16)
  simulate::Options options;       // the profile's, with what is asked for
  Asked asked;
};

struct StageMemory {
  std::vector<int32_t> stages;  // that the pipeline rank hosts
  Bytes peak;                   // reserved: states, slots, step arena
  Bytes alive;                  // at the fullest instant
};

struct Prediction {
  Seconds step;
  double tokens_per_s = 0;
  double tflops_per_device = 0;  // of the model: the numerator of MFU
  double mfu = 0, hfu = 0;
  double causal_mfu = 0;         // without what lies behind the causal mask
  cluster::FlopsPerSecond peak;  // dense, that both are told against
  std::string peak_format;       // "bf16"
  double bubble = 0;
  std::map<std::string, Seconds> exposed_comm;  // by group, mean over pipeline ranks
  std::vector<StageMemory> memory;              // [pipeline rank]
  Bytes memory_limit;                           // of a device, for tensors
  int64_t sharing = 1;  // ranks that share one such memory: all of them, or 1
  int64_t parameters = 0;
  int64_t devices = 0;
  Seconds compile_time, simulate_time;  // that this prediction took
  simulate::Result result;
  std::vector<std::string> path;         // the critical path in words
  std::vector<std::string> suggestions;  // what to change; sentences() of an AdviceReport
  std::string profile;                   // "" if the cluster has none
  // The profile's: how far predictions of its runs were off, a standard deviation; 0: no profile.
  double error = 0;
  std::vector<std::string> outside;         // what lies outside the runs behind the profile
  std::vector<std::string> without_effect;  // settings that change nothing (without_effect.h)
  std::shared_ptr<const std::vector<simulate::Held>> held;  // held_by, as it was simulated with

  // The fullest rank's reserved memory; of ranks that share one memory, all of theirs.
  Bytes needed() const;
  // Pipeline ranks whose reserved memory is beyond the device's; all, where what they share is.
  std::vector<int32_t> too_full() const;
};

// "bf16", "f32", …, "fp8", "mxfp8": the format of the linear layers' products.
std::string precision_name(const Request& request);
// Sets it by that name. False for an unknown one.
bool set_precision(Request& request, const std::string& name);
// Why the cluster's devices do not have it; "" if they do.
std::string precision_finding(const Request& request);
// Dense, of the format that products run in: the denominator of MFU and HFU.
cluster::FlopsPerSecond dense_peak(const Request& request);

// The names that set_precision knows.
const std::vector<std::string>& precision_names();

// What a plan is held against.
compile::ModelShape model_shape(const Request& request);
// What the request's cluster, and its model, sequence and batch, have against a plan, as far as its
// text is right; both.
std::vector<std::string> cluster_findings(const Request& request,
                                          const compile::PlanReading& reading);
std::vector<std::string> model_findings(const Request& request,
                                        const compile::PlanReading& reading);
std::vector<std::string> findings(const Request& request, const compile::PlanReading& reading);

// A training step's program. It does not depend on how it is simulated, nor on the cluster but for
// what its stack saves (precision.h) and runs again (hardware.h, Stack).
struct Step {
  pipeline::Program program;
  int64_t parameters = 0;
  Seconds compile_time;
};
// What the steps of several plans begin with that differ in no more than
// compile::partitioning_plan leaves out.
class StepBase;
// Throws Error with all findings: a plan that does not fit the model or the batch, a cluster with
// too few devices. `base`: of a request that differs in the plan alone, and there in so little;
// null: none.
Step compile_step(const Request& request, const StepBase* base = nullptr);
class StepBase {
 public:
  explicit StepBase(const Request& request);  // throws as compile_step

 private:
  friend Step compile_step(const Request& request, const StepBase* base);
  explicit StepBase(const Request& flushed, ir::Module model);
  ir::Module model_;
  compile::PartitionedModel partitioned_;
};
// What the step's ranks hold where the stack has an allocator of its own; else empty.
std::vector<simulate::Held> held_by(const Request& request, const Step& step);
// Its program alone.
pipeline::Program program_of(const Request& request);
// REQUIRES: the step is of the request's model, plan, batch, sequence and precision.
Prediction predict(const Request& request, const Step& step);
// The same, where a prediction of this step is there, with other options or on a faster or slower
// cluster: what its ranks hold is as it was if a device has as much memory.
Prediction predict(const Request& request, const Step& step, const Prediction& of_step);
// Empty: it needs more memory than there is; told without a simulation where the stack's own
// allocator says so.
std::optional<Prediction> predict_if_fits(const Request& request, const Step& step);
// Both of them.
Prediction predict(const Request& request);

// Seconds of F, I and W of a microbatch on a stage in the middle of the pipeline, as the plan's
// `costs` has them (compile/plan.h). REQUIRES: the plan has several stages and one chunk a rank.
std::vector<double> stage_costs(const Request& request);

// What of the request lies outside the runs behind the cluster's profile: "tp 16 (measured 1 to
// 8)".
std::vector<std::string> outside_profile(const Request& request);
// " +- 9 %", of what lies outside the runs behind it " +- 9 % or more"; "" without an error.
std::string error_text(double error, bool outside);
// "80.0 GiB", or "77.4 GiB for tensors (of 80.0 GiB)" where a part is reserved.
std::string limit_text(const cluster::Device& device);
// The error, or null without one.
Json error_json(double error);
// A line about what lies outside, "" if nothing does.
std::string outside_text(const std::string& profile, const std::vector<std::string>& outside);
// That line, one about what is without effect, and one about an HFU that no device has.
std::string remarks_text(const Prediction& prediction);

// For people: step, throughput, utilization with the peak's name, bubble, communication, memory by
// stage, the critical path, what to change.
std::string to_text(const Request& request, const Prediction& prediction);
// step_s, tokens_per_s, tflops_per_gpu, mfu, hfu, bubble, exposed_comm_s, peak_bytes (a list by
// pipeline rank), and more.
Json to_json(const Request& request, const Prediction& prediction);
// Two of these: {axis or group: seconds}, and [pipeline rank] reserved bytes.
Json exposed_json(const Prediction& prediction);
Json peaks_json(const Prediction& prediction);

// What failures cost, for people and as JSON.
std::string to_text(const Failures& failures, const Goodput& goodput, const Prediction& prediction);
Json to_json(const Failures& failures, const Goodput& goodput, const Prediction& prediction);

// What is too full, when, what holds it, and the nearest change of the plan that fits ("" if all
// fits). Compiles the changes that it tries.
std::string memory_findings(const Request& request, const Prediction& prediction);

}  // namespace mw::predict
