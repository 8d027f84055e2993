// What of an update goes beside calls, of coarse estimates (coarse.h): sums of gradients beside the
// last backwards, gathers of weights beside the first forwards of the next step.
#include <algorithm>
#include <cmath>

#include "predict/coarse.h"
#include "simulate/overlap.h"

namespace mw::predict {

struct Coarse::Part {
  int32_t copy = 0;
  double seconds = 0;
  double pieces = 1;  // collectives, each of some of the blocks
  double ends = 0;    // of `seconds`, what stands before and behind the blocks
};

// [rank] of `fact`, by stage. Of slices of a sequence the first, whose backward is the last.
std::vector<std::vector<Coarse::Part>> Coarse::parts_of_ranks(const Setting& setting,
                                                              Fact fact) const {
  const Order& order = *setting.orders.longer;
  const auto stages = static_cast<int32_t>(blocks_.size());
  // Buckets are counted in f32. ZeRO 3, which divides weights, has no update's collectives.
  const double bucket = static_cast<double>(setting.plan.bucket_mb) * 0x1p20,
               in_f32 = static_cast<double>(dtype_size(DType::kF32)) /
                        static_cast<double>(dtype_size(base_.precision));
  std::vector<std::vector<Part>> parts(states_.size());
  for (int32_t copy = 0; copy < order.copies(); ++copy) {
    if (copy / stages % order.slices() != 0) continue;
    const auto s = static_cast<size_t>(order.stage_of(copy));
    const bool first = s == 0, last = s + 1 == blocks_.size();
    const auto of = [&](bool is_first, bool is_last) {
      return setting.state.of(blocks_[s], is_first, is_last,
                              second_blocks(base_.model, starts_[s], blocks_[s]));
    };
    const Facts here = of(first, last);
    const double alone = setting.plan.pp == 1 ? std::max(0.0, setting.state.base[fact])
                                              : here[fact] - of(false, false)[fact];
    const double all = here[kWeights] * in_f32;
    const double block = all / static_cast<double>(std::max<int64_t>(1, blocks_[s]));
    const double pieces = std::max(1.0, std::floor(all / std::max(bucket, block)));
    parts[static_cast<size_t>(order.rank_of(copy))].push_back(
        {copy, here[fact], pieces, std::max(0.0, alone)});
  }
  // A rank's stages together take what it takes.
  for (size_t r = 0; r < parts.size(); ++r) {
    double all = 0;
    for (const Part& part : parts[r]) all += part.seconds;
    for (Part& part : parts[r]) part.seconds *= all > 0 ? states_[r][fact] / all : 0;
  }
  return parts;
}

// A stage's sums begin one after the other as its last backward comes to their blocks; those of the
// embedding are behind all of it.
std::vector<Coarse::Sums> Coarse::sums_beside(const Setting& setting,
                                              const std::vector<double>& over_replicas) {
  fill_costs(setting);
  const std::vector<Order::Tail> tails = setting.orders.longer->tails(costs_);
  std::vector<std::vector<Part>> parts = parts_of_ranks(setting, kUpdateSums);
  const double slower = simulate::slowdowns_of(
      base_.options.overlap,
      base_.cluster.device)[static_cast<size_t>(simulate::Beside::kGradReduce)];
  std::vector<Sums> sums(parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto tail = [&](const Part& part) { return tails[static_cast<size_t>(part.copy)]; };
    std::stable_sort(parts[r].begin(), parts[r].end(),
                     [&](const Part& a, const Part& b) { return tail(a).to_end > tail(b).to_end; });
    double end = -tail(parts[r].front()).to_end, all = 0;  // before the rank's end
    for (const Part& part : parts[r]) {
      const double seconds = part.seconds + over_replicas[r] / static_cast<double>(parts[r].size());
      const double begin = -tail(part).to_end, backward = tail(part).backward;
      const bool first = setting.orders.longer->stage_of(part.copy) == 0;
      const double last = std::max(first ? part.ends : 0.0, seconds / part.pieces);
      end = std::max(std::max(end, begin + backward / part.pieces) + seconds,
                     begin + backward + last);
      all += seconds;
    }
    sums[r].behind = std::clamp(end, 0.0, all);
    sums[r].slower = (all - sums[r].behind) * (slower - 1);
  }
  return sums;
}

// They go one after the other from the step's begin, in the order in which stages read them.
double Coarse::gathers_beside(const Setting& setting) {
  if (!base_.options.overlap.param_gather || setting.bare) return 0;
  fill_costs(setting);
  const auto forward = [&](size_t stage) {
    return costs_[stage * Order::kKinds + static_cast<size_t>(pipeline::ActionKind::kF)];
  };
  std::vector<double> begins(blocks_.size(), 0);  // [stage] of its first forward
  for (size_t s = 1; s < begins.size(); ++s) begins[s] = begins[s - 1] + forward(s - 1);
  const double slower = simulate::slowdowns_of(
      base_.options.overlap,
      base_.cluster.device)[static_cast<size_t>(simulate::Beside::kParamGather)];
  double most = 0;
  for (std::vector<Part>& parts : parts_of_ranks(setting, kUpdateGathers)) {
    const auto stage = [&](const Part& part) {
      return static_cast<size_t>(setting.orders.longer->stage_of(part.copy));
    };
    std::stable_sort(parts.begin(), parts.end(),
                     [&](const Part& a, const Part& b) { return stage(a) < stage(b); });
    double sent = 0, later = 0;
    for (const Part& part : parts) {
      const double begin = begins[stage(part)], takes = forward(stage(part));
      const double first = std::max(stage(part) == 0 ? part.ends : 0.0, part.seconds / part.pieces);
      later = std::max({later, sent + first - begin,
                        sent + part.seconds - begin - takes * (1 - 1 / part.pieces)});
      sent += part.seconds;
    }
    later = std::min(later, sent);
    most = std::max(most, later + (sent - later) * (slower - 1));
  }
  return most;
}

}  // namespace mw::predict
