#include "calibrate/run_request.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/choices.h"
#include "calibrate/run_model.h"
#include "models/model.h"

namespace mw::calibrate {

void name_devices(std::vector<Run>& runs, const Machines& machines) {
  for (Run& run : runs) {
    if (cluster_of(run, machines) != nullptr) continue;
    for (const cluster::Cluster& cluster : machines.clusters) {
      const std::vector<std::string>& also = cluster.device.also;
      if (std::find(also.begin(), also.end(), run.gpu) == also.end()) continue;
      run.gpu = cluster.device.name;
      break;
    }
  }
}

const cluster::Cluster* cluster_of(const Run& run, const Machines& machines) {
  for (const cluster::Cluster& cluster : machines.clusters) {
    if (cluster.device.name == run.gpu) return &cluster;
  }
  return nullptr;
}

const cluster::Profile* profile_of(const Run& run, const Machines& machines) {
  const cluster::Profile *named = nullptr, *column = nullptr, *usual = nullptr;
  const std::string& own = cluster_of(run, machines)->profile;
  for (const cluster::Profile& profile : machines.profiles) {
    if (profile.device != run.gpu) continue;
    if (says_one_of(run, profile.runs_that_say)) named = &profile;
    if (to_lower(profile.software) == to_lower(run.software)) column = &profile;
    if (!own.empty() && ends_with(profile.file, "/" + own + ".toml")) usual = &profile;
  }
  if (named != nullptr) return named;
  return column != nullptr ? column : usual;
}

namespace {

// Stages where the blocks are two short of an even deal: the embedding and the head count as a
// block each, so the first and the last stage have one fewer [Qi 2024, arXiv:2401.10241, section 5;
// Dubey 2024, arXiv:2407.21783, section 3.3.2].
std::vector<int64_t> stage_layers(const Run& run, int64_t stages) {
  if (stages < 2 || run.layers % stages == 0 || (run.layers + 2) % stages != 0) return {};
  std::vector<int64_t> layers(static_cast<size_t>(stages), (run.layers + 2) / stages);
  --layers.front();
  --layers.back();
  return layers;
}

// Where a kind has pairs of pipelines, the column vpp counts them.
void set_schedule(const Run& run, compile::Plan& plan) {
  const pipeline::PublishedKind named = pipeline::published_kind(run.schedule);
  const pipeline::ScheduleKind& kind = *named.kind;
  plan.schedule = kind.name;
  plan.memory_limit = static_cast<double>(named.limit * run.pp);
  if (kind.options.pairs) {
    plan.pairs = run.vpp > 1 ? run.vpp : 0;
  } else {
    plan.chunks = std::max<int64_t>(run.vpp, kind.chunks.least);
    plan.schedule = pipeline::kind_with_chunks(kind, plan.chunks).name;
  }
  plan.post_validation = run.overlap == kPostValidation;
  plan.layers = stage_layers(run, plan.stages());
}

// Where a row has another network than its device usually has.
void set_network(cluster::Cluster& cluster, double nic_GBps) {
  for (cluster::Link& link : cluster.links) {
    if (link.kind != cluster::LinkKind::kNetwork) continue;
    const double factor = nic_GBps * 1e9 / link.bandwidth.value;
    link.bandwidth = cluster::BytesPerSecond(link.bandwidth.value * factor);
    link.bus_bandwidth = cluster::BytesPerSecond(link.bus_bandwidth.value * factor);
  }
}

std::vector<std::string> device_names(const Machines& machines) {
  std::vector<std::string> names;
  for (const cluster::Cluster& cluster : machines.clusters) {
    names.push_back(cluster.device.name);
    names.insert(names.end(), cluster.device.also.begin(), cluster.device.also.end());
  }
  return names;
}

// Of what a row calls its experts, precision, sharding, overlap and device.
void add_findings_of_words(const Run& run, const Machines& machines,
                           std::vector<std::string>& findings) {
  const std::optional<Experts> experts = experts_of(run.moe);
  if (!run.moe.empty() && !experts) {
    findings.push_back(fmt::format(
        "moe: unknown form {}; must be such as E256k8s1f2048 (experts, experts of a token, shared "
        "ones, an expert's ffn), then also ;3 dense (layers) and ;MLA",
        run.moe));
  }
  if (experts && run.layers > 0 && experts->dense > run.layers)
    findings.push_back(fmt::format("moe: {} dense layers of {}", experts->dense, run.layers));
  if (experts && experts->latent && !(run.family && run.family->has_latent_attention()))
    findings.emplace_back("moe: MLA is of no known family of models");
  if (precision_name(run).empty()) {
    findings.push_back(fmt::format("precision: unknown '{}', known: bf16, fp16, fp32, fp8, fp8-mx",
                                   run.precision));
  }
  if (run.zero > 3) findings.push_back(fmt::format("zero: is {}, must be 0 to 3", run.zero));
  if (run.overlap == kPostValidation && run.pp == 1)
    findings.emplace_back("overlap: post-validation is of several pipeline ranks, and pp is 1");
  if (cluster_of(run, machines) == nullptr) {
    findings.push_back(run.gpu.empty()
                           ? "gpu: is empty; give a device that a file of clusters/ has"
                           : fmt::format("no file of clusters/ has the device {}{}", run.gpu,
                                         did_you_mean(run.gpu, device_names(machines))));
  }
}

// Of numbers that do not go together. What a cell has not told is 0, and a finding already.
void add_findings_of_layout(const Run& run, std::vector<std::string>& findings) {
  const auto is_wrong = [&](const char* column) {
    return std::any_of(run.findings.begin(), run.findings.end(), [&](const std::string& finding) {
      return starts_with(finding, fmt::format("{}:", column));
    });
  };
  for (const auto& [name, count] : {std::pair("tp", run.tp), {"pp", run.pp}, {"dp", run.dp}}) {
    if (run.pp + run.dp > 0 && count == 0 && !is_wrong(name)) {
      findings.push_back(
          fmt::format("{}: is empty; give all of tp, pp and dp, or neither pp nor dp", name));
    }
  }
  const double devices =
      static_cast<double>(run.tp * run.pp * run.dp) * static_cast<double>(run.cp);
  if (devices > 0 && run.gpus > 0 && devices != static_cast<double>(run.gpus)) {
    findings.push_back(fmt::format("tp*pp*dp{}={}*{}*{}{} is not the {} devices",
                                   run.cp > 1 ? "*cp" : "", run.tp, run.pp, run.dp,
                                   run.cp > 1 ? fmt::format("*{}", run.cp) : "", run.gpus));
  }
  if (run.hidden > 0 && run.heads > 0 && run.hidden % run.heads != 0)
    findings.push_back(fmt::format("{} heads do not divide hidden {}", run.heads, run.hidden));
  const int64_t micro_batch = std::max<int64_t>(1, run.micro_batch);
  if (run.dp > 0 && run.global_batch % (run.dp * micro_batch) != 0) {
    findings.push_back(fmt::format("a batch of {} is no multiple of dp {} x microbatch {}",
                                   run.global_batch, run.dp, micro_batch));
  }
}

}  // namespace

std::string_view precision_name(const Run& run) {
  if (run.precision.empty() || run.precision == "bf16") return "bf16";
  if (run.precision == "fp16") return "f16";
  if (run.precision == "fp32") return "f32";
  if (run.precision == "fp8-mx") return "mxfp8";
  return run.precision == "fp8" ? "fp8" : "";
}

double billion_parameters(const Run& run) {
  if (run.params_b > 0) return run.params_b;
  if (!run.findings.empty() || (!run.moe.empty() && !experts_of(run.moe))) return 0;
  const ir::Module model = models::build_model(model_of(run), {1, run.seq});
  return static_cast<double>(models::parameter_count(model)) / 1e9;
}

int64_t expert_count(const Run& run) {
  const auto experts = experts_of(run.moe);
  return experts ? experts->experts : 0;
}

std::string assumed_profile(const Run& run, const Machines& machines) {
  if (run.software.empty() || run.software == "other") return "";
  const cluster::Profile* profile = profile_of(run, machines);
  if (profile == nullptr || to_lower(profile->software) == to_lower(run.software)) return "";
  return says_one_of(run, profile->runs_that_say) ? "" : "software " + profile->software;
}

Machines read_machines(FileSystem& fs, const std::string& folder) {
  Machines machines;
  for (const std::string& file : fs.list(folder)) {
    if (!ends_with(file, ".toml")) continue;
    const std::string path = join_path(folder, file);
    machines.clusters.push_back(cluster::parse_cluster(fs.read_file(path), path));
  }
  machines.profiles = cluster::read_profiles(fs, join_path(folder, "profiles"));
  return machines;
}

void take_cluster(const cluster::Cluster& cluster, Machines& machines) {
  std::erase_if(machines.clusters, [&](const cluster::Cluster& other) {
    return other.device.name == cluster.device.name;
  });
  machines.clusters.push_back(cluster);
}

cluster::Cluster take_cluster(FileSystem& fs, const std::string& name,
                              const std::vector<std::string>& folders, Machines& machines) {
  const std::string file = cluster::load_cluster(fs, name, folders, "none").file;
  const cluster::Cluster cluster = cluster::parse_cluster(fs.read_file(file), file);
  if (!cluster.profile.empty()) {
    std::vector<std::string> nearest = {parent_path(file)};
    nearest.insert(nearest.end(), folders.begin(), folders.end());
    const std::string path = cluster::find_profile(fs, cluster.profile, nearest);
    take_profile(cluster::parse_profile(fs.read_file(path), path), machines);
  }
  take_cluster(cluster, machines);
  return cluster;
}

void take_profile(const cluster::Profile& profile, Machines& machines) {
  std::erase_if(machines.profiles, [&](const cluster::Profile& other) {
    return other.device == profile.device && other.software == profile.software;
  });
  machines.profiles.push_back(profile);
}

bool is_of(const Run& run, const cluster::Profile& profile, const Machines& machines) {
  if (run.gpu != profile.device) return false;
  const cluster::Profile* taken = profile_of(run, machines);
  if (taken == nullptr || taken->software != profile.software) return false;
  return run.software.empty() || to_lower(run.software) == to_lower(profile.software) ||
         says_one_of(run, profile.runs_that_say);
}

std::string reason(const Run& run, const Machines& machines) {
  std::vector<std::string> findings = run.findings;
  if (!run.is_odd) {
    add_findings_of_words(run, machines, findings);
    add_findings_of_layout(run, findings);
  }
  if (findings.empty() && run.pp == 0 && run.dp == 0 && layouts(run, machines).empty())
    findings.push_back(
        fmt::format("no pipeline{} of {} layers divides {} devices",
                    run.schedule.empty() ? "" : " of two ranks or more under " + run.schedule,
                    run.layers, run.gpus));
  return join(findings, "; ");
}

predict::Request request_of(const Run& run, const Machines& machines, int64_t micro_batch,
                            compile::Recompute recompute) {
  predict::Request request;
  request.model = model_of(run);
  request.cluster = *cluster_of(run, machines);
  const cluster::Profile* profile = profile_of(run, machines);
  if (profile != nullptr) {
    cluster::apply(*profile, request.cluster);
    for (const cluster::ProfileSettings& version : profile->versions) {
      if (says_one_of(run, version.runs_that_say)) cluster::apply_version(version, request.cluster);
    }
  }
  request.options = simulate::options_of(request.cluster.stack);
  simulate::set_overlap(request.options.overlap, run.overlap);
  if (run.overlap == kNoScatterGather) request.options.scatter_gather = false;
  if (run.nic_GBps > 0) set_network(request.cluster, run.nic_GBps);
  compile::Plan& plan = request.plan;
  plan.dp = run.dp;
  plan.tp = run.tp;
  plan.pp = run.pp;
  plan.cp = run.cp;
  plan.ep = run.ep;
  plan.sp = run.sp && run.tp > 1;
  // As Megatron-LM does (megatron/core/tensor_parallel/layers.py), and torchtitan's selective
  // recomputation.
  const bool keeps = profile != nullptr && profile->stack.keeps_gathered;
  plan.regather = plan.sp && !(keeps && recompute == compile::Recompute::kFull);
  plan.zero = run.zero;
  const double bucket = request.cluster.device.attained.reduce_bucket;
  if (bucket > 0) plan.bucket_mb = std::llround(bucket);
  set_schedule(run, plan);
  plan.recompute = recompute;
  plan.microbatches = run.global_batch / (run.dp * micro_batch);
  request.global_batch = run.global_batch;
  request.seq_len = run.seq;
  predict::set_precision(request, std::string(precision_name(run)));
  return request;
}

void set_costs(predict::Request& request) {
  const compile::Plan& plan = request.plan;
  // Of one stage there is nothing to weigh, and kinds that are made for costs have one a rank.
  if (pipeline::kind_of(plan.schedule).options.costs && plan.pp > 1 && plan.chunks == 1)
    request.plan.costs = predict::stage_costs(request);
}

Flops model_flops(const models::ModelConfig& model, int64_t seq, int64_t global_batch) {
  return Flops(models::model_flops_per_token(model, seq).training.value *
               static_cast<double>(seq * global_batch));
}

Flops full_recompute_flops(const models::ModelConfig& model, int64_t seq, int64_t global_batch) {
  const double head = 2.0 * static_cast<double>(model.hidden_size * model.vocab_size);
  const double forward = models::model_flops_per_token(model, seq).forward.value;
  return Flops((4 * forward - head) * static_cast<double>(seq * global_batch));
}

double stated_step(const Run& run) {
  if (run.value <= 0) return 0;
  const auto batch = static_cast<double>(run.global_batch);
  if (run.metric == "iteration_time") return run.value;
  if (run.metric == "sequences_per_s") return batch / run.value;
  if (run.metric == "tokens_per_s_per_gpu" && run.gpus > 0)
    return batch * static_cast<double>(run.seq) / static_cast<double>(run.gpus) / run.value;
  return 0;
}

double published_step(const Run& run) {
  const bool hardware = run.metric == "hw_tflops_per_gpu" && run.recompute != "unknown";
  if (run.metric != "model_tflops_per_gpu" && !hardware) return stated_step(run);
  if (!run.findings.empty() || (!run.moe.empty() && !experts_of(run.moe))) return 0;
  predict::Request request;
  request.model = model_of(run);
  if (run.recompute == "full") request.plan.recompute = compile::Recompute::kFull;
  return published_step(run, request);
}

double published_step(const Run& run, const predict::Request& request) {
  const double devices = static_cast<double>(run.gpus);
  const auto flops = [&](bool hardware) {
    const bool twice = hardware && request.plan.recompute == compile::Recompute::kFull;
    const auto of = twice ? full_recompute_flops : model_flops;
    return of(request.model, run.seq, run.global_batch).value;
  };
  if (const double stated = stated_step(run); stated > 0) return stated;
  if (run.metric == "place" || run.value <= 0) return 0;
  if (run.metric == "mfu") {
    return flops(false) / devices / (run.value / 100 * predict::dense_peak(request).value);
  }
  return flops(run.metric == "hw_tflops_per_gpu") / devices / (run.value * 1e12);
}

}  // namespace mw::calibrate
