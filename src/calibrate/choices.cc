#include "calibrate/choices.h"

#include <algorithm>

#include "predict/lacking.h"

namespace mw::calibrate {
namespace {

// The ways to divide a layer that a row leaves open: inside a node.
std::vector<int64_t> tensor_ways(const Run& run, const Machines& machines) {
  if (run.tp > 0) return {run.tp};
  const int64_t node = cluster_of(run, machines)->node_devices();
  std::vector<int64_t> ways;
  for (int64_t tp = 1; tp <= node; tp *= 2) {
    if (run.kv_heads % tp == 0 && run.gpus % tp == 0) ways.push_back(tp);
  }
  return ways;
}

// Whether all stages have as many blocks, the embedding and the head counting as none or as one
// each.
bool deals_evenly(const Run& run) {
  const int64_t chunks =
      std::max<int64_t>(run.vpp, pipeline::published_kind(run.schedule).kind->chunks.least);
  const int64_t stages = run.pp * chunks;
  return run.layers % stages == 0 || (run.layers + 2) % stages == 0;
}

}  // namespace

bool chunks_open(const Run& run, const Machines& machines) {
  if (run.pp <= 1 || !run.vpp_unknown) return false;
  const cluster::Profile* profile = profile_of(run, machines);
  return profile == nullptr || !profile->stack.lacks(cluster::Lacking::kInterleaved);
}

std::vector<Run> layouts(const Run& run, const Machines& machines) {
  std::vector<Run> all;
  if (run.pp > 0 || run.dp > 0) {
    all.push_back(run);
    for (int64_t v = 2; chunks_open(run, machines) && v * run.pp <= run.layers + 2; ++v) {
      Run one = run;
      one.vpp = v;
      if (deals_evenly(one)) all.push_back(one);
    }
    return all;
  }
  for (const int64_t tp : tensor_ways(run, machines)) {
    const int64_t stage = tp * run.cp;  // devices
    // A schedule is one of several pipeline ranks.
    for (int64_t pp = run.schedule.empty() ? 1 : 2; pp <= run.layers + 2 && stage * pp <= run.gpus;
         ++pp) {
      Run one = run;
      one.tp = tp;
      one.pp = pp;
      one.dp = run.gpus / (stage * pp);
      const bool divides = stage * pp * one.dp == run.gpus &&
                           run.global_batch % (one.dp * std::max<int64_t>(1, run.micro_batch)) == 0;
      if (divides && deals_evenly(one)) all.push_back(one);
    }
  }
  return all;
}

std::vector<int64_t> micro_batches(const Run& run) {
  if (run.micro_batch > 0) return {run.micro_batch};
  std::vector<int64_t> sizes;
  for (const int64_t size : {1, 2, 4, 8}) {
    if (run.global_batch % (run.dp * size) == 0) sizes.push_back(size);
  }
  return sizes;
}

std::vector<compile::Recompute> recomputes(const Run& run, const Machines& machines) {
  if (run.recompute == "none") return {compile::Recompute::kNone};
  if (run.recompute == "full") return {compile::Recompute::kFull};
  const cluster::Profile* profile = profile_of(run, machines);
  const cluster::Stack stack = profile == nullptr ? cluster::Stack() : profile->stack;
  if (run.recompute == "selective") return {predict::selective_of(stack)};
  return predict::recomputes_of(stack);
}

void for_each_choice(const Run& run, const Machines& machines, const Visit& visit) {
  for (const Run& laid : layouts(run, machines)) {
    for (const int64_t size : micro_batches(laid)) {
      Outcome last = Outcome::kCannot;
      for (const compile::Recompute way : recomputes(laid, machines)) {
        last = visit(laid, size, way);
        if (last == Outcome::kFits) break;
      }
      if (last == Outcome::kTooFull) break;
    }
  }
}

bool leaves_open(const Run& run, const Machines& machines) {
  return run.micro_batch == 0 || run.recompute == "unknown" || run.tp == 0 ||
         run.pp + run.dp == 0 || chunks_open(run, machines);
}

}  // namespace mw::calibrate
