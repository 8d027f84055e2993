// Order: a schedule's actions as small numbers in an order in which they can run, so that its
// makespan under given costs is one pass over an array.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pipeline/schedule.h"

namespace mw::predict {

class Order {
 public:
  // REQUIRES: the schedule has no finding, and no replicas, slices or joined microbatches.
  explicit Order(const pipeline::Schedule& schedule);

  static constexpr size_t kKinds = 4;  // F, I, W, B: the first of pipeline::ActionKind
  // What a message takes: the time that it occupies its port, one after another, and the way.
  struct Hop {
    double port_seconds = 0, latency = 0;
    int32_t port = 0;  // below hops().size()
  };
  // `costs`: [stage * kKinds + kind] seconds; `hop_costs`: [hop]. Returns [rank] when its last
  // action ends; the vector is the caller's to use again.
  void run(const std::vector<double>& costs, const std::vector<Hop>& hop_costs,
           std::vector<double>& rank_ends);

  // From a pipeline rank to another, where some value goes.
  const std::vector<std::pair<int32_t, int32_t>>& hops() const { return hops_; }
  int32_t ranks() const { return ranks_; }
  int32_t rank_of(int32_t stage) const { return rank_of_[static_cast<size_t>(stage)]; }

  // How many microbatches a rank holds at one time: of its other stages and of the last stage
  // between F and I or B, and of all between I and W; and whether an I is under way.
  struct Held {
    int32_t others = 0, last = 0, for_weights = 0, input_grads = 0;
  };
  // [rank] those that no other of the rank's is above.
  const std::vector<std::vector<Held>>& held() const { return held_; }
  // [stage] slots that its channels have, as the compiler counts them (compile/channels.h): for
  // what it receives, where the backward reads that too (`held`) or not, and for gradients.
  struct Slots {
    int32_t forward = 0, held = 0, gradients = 0;
  };
  const std::vector<Slots>& slots() const { return slots_; }

 private:
  struct Step {
    int32_t rank = 0, cost = 0;
    int32_t need = -1;  // step that must have ended
    int32_t hop = -1;   // of the message with what it makes
    int32_t microbatch = 0;
  };
  void count_held(const pipeline::Schedule& schedule);
  void sort_actions(const pipeline::Schedule& schedule);
  void count_slots(int32_t microbatches);

  int32_t ranks_ = 0;
  std::vector<int32_t> rank_of_;
  std::vector<Step> steps_;
  std::vector<double> ends_, arrivals_;  // [step] of the run: its end, what it sends is there
  std::vector<double> ports_;            // [port] free from then on
  std::vector<std::pair<int32_t, int32_t>> hops_;
  std::vector<std::vector<Held>> held_;
  std::vector<Slots> slots_;
};

}  // namespace mw::predict
