#include "planner/space.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/divisors.h"
#include "base/error.h"
#include "base/round.h"
#include "base/text.h"
#include "models/model.h"
#include "pipeline/schedule.h"
#include "predict/lacking.h"

namespace mw::planner {
namespace {

using compile::Plan;
using compile::Recompute;

// Whether `only` has the value; where it does not name the key, whether the stack's engine runs it,
// in a plan that is otherwise like `other`.
bool takes(const Request& request, const char* key, int64_t Plan::* member, int64_t value,
           const Plan& other = Plan()) {
  if (request.only.counts.contains(key)) return request.only.takes(key, value);
  Plan plan = other;
  plan.*member = value;
  return predict::lacks_no_more(request.base.cluster.stack, plan, other);
}

bool takes(const Request& request, Recompute recompute) {
  if (!request.only.recompute.empty()) return request.only.takes(recompute);
  const std::vector<Recompute> ways = predict::recomputes_of(request.base.cluster.stack);
  return std::find(ways.begin(), ways.end(), recompute) != ways.end();
}

bool takes_tp(const Request& request, int64_t tp) {
  const predict::Request& base = request.base;
  const models::ModelConfig& model = base.model;
  if (!takes(request, "tp", &Plan::tp, tp)) return false;
  if (model.heads % tp != 0) return false;
  if (model.kv_heads % tp != 0 && tp % model.kv_heads != 0) return false;
  // Each expert gets a whole number of rows from each part of a sequence (compile/plan.cc).
  const models::Mixture& mixture = model.mixture;
  return mixture.experts == 0 ||
         (base.seq_len % tp == 0 && base.seq_len / tp * mixture.top_k % mixture.experts == 0);
}

int64_t most_blocks(const predict::Request& base, int64_t pp) {
  return ceil_div(base.model.layers, pp);
}

// Pipelines whose ranks have equal shares of the blocks, or some one less, to a quarter of the
// whole: 126 blocks as if they were 128, 36 on 8 ranks as if they were 40.
std::vector<int64_t> pipelines(const Request& request) {
  const predict::Request& base = request.base;
  std::vector<int64_t> found;
  const int64_t layers = base.model.layers;
  for (int64_t pp = 1; pp <= layers; ++pp) {
    if (takes(request, "pp", &Plan::pp, pp) && 4 * most_blocks(base, pp) * pp <= 5 * layers)
      found.push_back(pp);
  }
  return found;
}

// "use 6 or 8 devices, or another batch": the nearest numbers of devices below and above, of those
// that the cluster has, for which there is a layout.
std::string nearest_devices(const Request& request, int64_t devices) {
  const predict::Request& base = request.base;
  const int64_t most = base.cluster.devices > 0 ? base.cluster.devices : 2 * devices;
  const int64_t up_to = std::min(2 * devices, most);
  std::vector<int64_t> counts = device_counts(request, 1, up_to);
  if (counts.empty()) counts = device_counts(request, 1, up_to, false);
  const auto above = std::upper_bound(counts.begin(), counts.end(), devices);
  std::vector<std::string> near;
  if (above != counts.begin()) near.push_back(std::to_string(*std::prev(above)));
  if (above != counts.end()) near.push_back(std::to_string(*above));
  const std::string_view other = request.only.empty() ? "another batch" : "another batch or --only";
  if (near.empty()) return fmt::format("use {}", other);
  return fmt::format("use {} devices, or {}", join(near, " or "), other);
}

}  // namespace

bool fills_nodes(const cluster::Cluster& cluster, int64_t devices) {
  const int64_t node = cluster.node_devices();
  return devices <= node || devices % node == 0;
}

std::vector<Layout> layouts(const Request& request, int64_t devices) {
  const predict::Request& base = request.base;
  std::vector<Layout> found;
  for (const int64_t tp : divisors(base.model.heads)) {
    if (devices % tp != 0 || !takes_tp(request, tp)) continue;
    for (const int64_t pp : pipelines(request)) {
      const int64_t dp = devices / tp / pp;
      if (devices == tp * pp * dp && base.global_batch % dp == 0 && request.only.takes("dp", dp))
        found.push_back({tp, pp, dp});
    }
  }
  return found;
}

std::vector<int64_t> device_counts(const Request& request, int64_t least, int64_t most,
                                   bool whole_nodes) {
  const predict::Request& base = request.base;
  std::set<int64_t> counts;
  const std::vector<int64_t> depths = pipelines(request), replicas = divisors(base.global_batch);
  for (const int64_t tp : divisors(base.model.heads)) {
    if (!takes_tp(request, tp)) continue;
    for (const int64_t pp : depths) {
      for (const int64_t dp : replicas) {
        const int64_t devices = tp * pp * dp;
        if (devices >= least && devices <= most && request.only.takes("dp", dp) &&
            (!whole_nodes || fills_nodes(base.cluster, devices)))
          counts.insert(devices);
      }
    }
  }
  return {counts.begin(), counts.end()};
}

std::vector<int64_t> expert_ways(const Request& request, int64_t dp) {
  const int64_t experts = request.base.model.mixture.experts;
  std::vector<int64_t> ways = divisors(experts == 0 ? 1 : std::gcd(experts, dp));
  std::erase_if(ways, [&](int64_t ep) { return !request.only.takes("ep", ep); });
  return ways;
}

std::vector<Plan> layout_plans(const Request& request, const Layout& layout) {
  const predict::Request& base = request.base;
  const Only& only = request.only;
  std::vector<Plan> plans;
  Plan plan;
  plan.tp = layout.tp;
  plan.pp = layout.pp;
  plan.dp = layout.dp;
  const Plan whole = plan;
  std::vector<std::pair<int64_t, bool>> ways;  // ep, sp
  for (const int64_t ep : expert_ways(request, layout.dp)) {
    for (const bool sp : {false, true}) {
      if (sp && (layout.tp == 1 || base.seq_len % layout.tp != 0)) continue;
      if (!sp && layout.tp > 1 && base.model.mixture.experts > 0) continue;
      if (layout.tp > 1 && !only.takes("sp", sp ? 1 : 0)) continue;
      ways.emplace_back(ep, sp);
    }
  }
  for (const auto& [ep, sp] : ways) {
    plan.ep = ep;
    plan.sp = sp;
    for (plan.zero = 0; plan.zero <= (layout.dp > 1 ? 3 : 0); ++plan.zero) {
      if (layout.dp > 1 && !takes(request, "zero", &Plan::zero, plan.zero, whole)) continue;
      for (const Recompute recompute : transform::kRecomputes) {
        if (!takes(request, recompute)) continue;
        plan.recompute = recompute;
        plan.regather = sp && recompute != Recompute::kFull;
        for (const int64_t microbatches : divisors(base.global_batch / layout.dp)) {
          if (microbatches > compile::kMostUnits / layout.pp) break;  // larger ones follow
          if (!only.takes("microbatches", microbatches)) continue;
          plan.microbatches = microbatches;
          plans.push_back(plan);
        }
      }
    }
  }
  return plans;
}

std::vector<int64_t> chunk_counts(const Request& request, int64_t pp) {
  std::vector<int64_t> counts = divisors(most_blocks(request.base, pp));
  std::erase_if(counts, [&](int64_t chunks) {
    return pp * chunks > request.base.model.layers || !request.only.takes("chunks", chunks);
  });
  return counts;
}

std::vector<Pipelining> pipelinings(const Request& request, const Plan& layout) {
  const int64_t pp = layout.pp;
  if (pp == 1) return {{pipeline::kUsualKind, 1}};
  std::vector<int64_t> counts = chunk_counts(request, pp);
  if (most_blocks(request.base, pp) % 2 != 0 && 2 * pp <= request.base.model.layers &&
      request.only.takes("chunks", 2))
    counts.push_back(2);
  std::vector<Pipelining> found;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    if (!request.only.takes_schedule(kind)) continue;
    for (const int64_t chunks : counts) {
      const bool other = chunks == 1 && pipeline::kind_of(kind).variant.one_chunk != nullptr;
      if (other) continue;
      Plan plan = layout;
      plan.schedule = kind;
      plan.chunks = chunks;
      if (!request.only.schedules.empty() ||
          predict::lacks_no_more(request.base.cluster.stack, plan, layout))
        found.push_back({kind, chunks});
    }
  }
  return found;
}

void lay(const Pipelining& pipelining, Plan& plan) {
  plan.schedule = pipelining.schedule;
  plan.chunks = pipelining.chunks;
  plan.group = 0;
  if (!pipeline::kind_of(plan.schedule).options.group || plan.microbatches % plan.pp == 0 ||
      plan.microbatches < 2 * plan.pp)
    return;
  const int32_t rounds = pipeline::shortest_rounds(static_cast<int32_t>(plan.pp),
                                                   static_cast<int32_t>(plan.microbatches));
  if (2 * rounds <= 3 * plan.pp) plan.group = rounds;
}

// Of those that `only` takes, whatever they need.
static bool has_plans(const Request& request) {
  const std::vector<Layout> all = layouts(request, request.gpus);
  return std::any_of(all.begin(), all.end(), [&](const Layout& layout) {
    const std::vector<Plan> plans = layout_plans(request, layout);
    return std::any_of(plans.begin(), plans.end(),
                       [&](const Plan& plan) { return !pipelinings(request, plan).empty(); });
  });
}

std::vector<std::string> findings(const Request& request) {
  Diagnostics out;
  const predict::Request& base = request.base;
  const cluster::Cluster& cluster = base.cluster;
  const std::string finding =
      cluster.device.name.empty() ? "" : predict::precision_finding(base);  // read
  if (!finding.empty()) out.add("{}", finding);
  constexpr int64_t kMostSequences = 1 << 20;
  if (base.global_batch > kMostSequences) {
    out.add("--global-batch: is {}, must be at most {} sequences", base.global_batch,
            kMostSequences);
  }
  const bool too_many = cluster.devices > 0 && request.gpus > cluster.devices;
  if (too_many) {
    out.add("--gpus: is {}, but {} has {} {}; use at most {}", request.gpus, cluster.file,
            cluster.devices, cluster.devices == 1 ? "device" : "devices", cluster.devices);
  }
  const bool has_model = base.model.layers > 0;
  const std::string too_long =
      has_model ? models::positions_finding(base.model, base.seq_len) : std::string();
  if (!too_long.empty()) out.add("--seq-len: {}", too_long);
  const models::Mixture& mixture = base.model.mixture;
  if (mixture.experts > 0 && base.seq_len * mixture.top_k % mixture.experts != 0) {
    out.add(
        "--seq-len: {} tokens, each for {} of {} experts, give no whole number of rows an "
        "expert; use a multiple of {}",
        base.seq_len, mixture.top_k, mixture.experts,
        mixture.experts / std::gcd(mixture.experts, mixture.top_k));
  } else if (request.gpus > 0 && base.global_batch > 0 && base.global_batch <= kMostSequences &&
             has_model && layouts(request, request.gpus).empty()) {
    out.add(
        "--gpus: no plan{} has {} ranks: tp must divide the {} heads, pp the {} layers or up to a "
        "quarter more, and dp the global batch of {}; {}",
        request.only.empty() ? "" : fmt::format(" with {}", to_string(request.only)), request.gpus,
        base.model.heads, base.model.layers, base.global_batch,
        nearest_devices(request, request.gpus));
  }
  if (!request.only.empty()) {
    if (request.method == Method::kPtdP)
      out.add("--only: the rules of ptdp choose themselves; use --planner exhaustive");
    if (out.findings().empty() && request.gpus > 0 && has_model && base.global_batch > 0 &&
        !has_plans(request))
      out.add("--only: no plan of {} ranks has {}", request.gpus, to_string(request.only));
  }
  return out.findings();
}

}  // namespace mw::planner
