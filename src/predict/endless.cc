#include "predict/endless.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mw::predict {
namespace {

// Seconds in which a rank is not kept by others, for a whole step.
std::vector<double> busy(const simulate::Result& result) {
  std::vector<double> seconds;
  for (const simulate::RankResult& rank : result.ranks)
    seconds.push_back((rank.compute + rank.total_exposed_comm() + rank.gaps).value);
  return seconds;
}

simulate::Result of_steps(const Request& request, int64_t steps) {
  Request longer = flushed(request);
  longer.plan.microbatches *= steps;
  longer.global_batch *= steps;
  longer.options.trace = false;
  const Step step = compile_step(longer);
  return simulate::simulate(step.program, longer.cluster, longer.options, held_by(longer, step));
}

}  // namespace

bool is_endless(const Request& request) {
  return pipeline::kind_of(request.plan.schedule).variant.flushed != nullptr;
}

Request flushed(Request request) {
  if (is_endless(request))
    request.plan.schedule = pipeline::kind_of(request.plan.schedule).variant.flushed;
  return request;
}

void take_out_flush(const Request& request, simulate::Result& result) {
  // Long enough to be full of microbatches in its middle.
  const int64_t few = std::max<int64_t>(
      1, (2 * request.plan.pp + request.plan.microbatches - 1) / request.plan.microbatches);
  const simulate::Result fewer = of_steps(request, few), more = of_steps(request, few + 1);
  const std::vector<double> all = busy(result), less = busy(fewer), longer = busy(more);
  // What the update takes is in all three once.
  size_t most = 0;
  for (size_t r = 0; r < all.size(); ++r) {
    if (longer[r] - less[r] > longer[most] - less[most]) most = r;
  }
  const double update = all[most] - (longer[most] - less[most]);
  const double step =
      std::max((more.step - fewer.step).value + update, *std::max_element(all.begin(), all.end()));
  result.step = Seconds(step);
  result.critical_path.clear();
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    // Microbatches of several steps are under way where a step has fewer than the pipeline ranks.
    result.ranks[r].reserved = fewer.ranks[r].reserved;
    result.ranks[r].peak = fewer.ranks[r].peak;
    result.ranks[r].peak.time = Seconds(std::fmod(result.ranks[r].peak.time.value, step));
    result.ranks[r].waits = {};
    result.ranks[r].idle = Seconds(step - all[r]);
    result.ranks[r].core_wait = Seconds(0);
    result.waits[r].clear();
  }
}

void hold_older_weights(const Step& step, Prediction& prediction) {
  const std::vector<double> all = busy(prediction.result);
  const auto most = std::max_element(all.begin(), all.end());
  for (size_t r = 0; r < prediction.memory.size(); ++r) {
    simulate::MemoryPeak& peak = prediction.result.ranks[r].peak;
    Bytes weights;
    for (const pipeline::Buffer& buffer : step.program.ranks[r].buffers) {
      if (buffer.category == pipeline::Category::kWeights &&
          buffer.storage.kind == pipeline::Storage::Kind::kState)
        weights += buffer.bytes();
    }
    prediction.result.ranks[r].reserved += weights;
    prediction.memory[r].peak += weights;
    prediction.memory[r].alive += weights;
    peak.bytes += weights;
    peak.by_category[pipeline::Category::kWeights] += weights;
    for (trace::MemorySample& sample : prediction.result.trace.memory) {
      if (sample.rank == prediction.result.ranks[r].rank &&
          sample.category == trace::MemoryCategory::kWeight)
        sample.bytes += weights;
    }
  }
  prediction.path = {fmt::format(
      "a step follows another without a flush, on weights one step old, of which every rank holds "
      "two versions; pipeline rank {} works through {:.1f} % of it (the time line is of one step "
      "by itself)",
      most - all.begin(), 100 * *most / prediction.step.value)};
}

}  // namespace mw::predict
