// Order: a schedule's actions as small numbers in an order in which they can run, so that its
// makespan under given costs is one pass over an array.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipeline/schedule.h"

namespace mw::predict {

class Order {
 public:
  // Replicas and slices of a stage are stages of their own, as the compiler has them
  // (compile/replicas.h): here "copies". REQUIRES: the schedule has no finding, and a flush.
  explicit Order(const pipeline::Schedule& schedule);

  static constexpr size_t kKinds = 4;  // F, I, W, B: the first of pipeline::ActionKind
  // The second of a forward and a whole backward that the schedule lays together: pieces of work
  // (slice * stages + stage).
  struct Pair {
    pipeline::ActionKind kind = pipeline::ActionKind::kB;
    int32_t piece = 0, first_piece = 0;
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  // What a message takes: the time that it occupies its port, one after another, and the way.
  struct Hop {
    double port_seconds = 0, latency = 0;
    int32_t port = 0;    // below hops().size()
    int32_t into = 0;    // the receiver's port, below hops().size()
    double gather = 0;   // seconds that the receiver puts the parts together
    bool holds = false;  // the sender goes on when it has arrived
  };
  // The caller's to use again.
  struct Room {
    std::vector<double> ends, arrivals;  // [step] of the run: its end, what it sends is there
    std::vector<double> ports;           // [port] free from then on
    std::vector<std::pair<double, double>> into;  // [port] its last message, from and to
  };
  // How long a rank keeps what it received: until its forward has read it, or its backward.
  enum class Slot : uint8_t { kForward, kHeld };
  // `costs`: [(slice * stages + stage) * kKinds + kind] seconds, and behind these [pair] what the
  // second takes behind the first; `hop_costs`: [hop]. A sender waits
  // for a free slot of `slots()`. Returns [rank] when its last action ends; the vector is the
  // caller's to use again.
  void run(const std::vector<double>& costs, const std::vector<Hop>& hop_costs, Slot slot,
           Room& room, std::vector<double>& rank_ends) const;

  // From a pipeline rank to another, where some value goes.
  const std::vector<std::pair<int32_t, int32_t>>& hops() const { return hops_; }
  const std::vector<Pair>& pairs() const { return pairs_; }
  int32_t ranks() const { return ranks_; }
  // Of all copies; the first `stages` of them are the stages.
  int32_t copies() const { return static_cast<int32_t>(rank_of_.size()); }
  int32_t rank_of(int32_t copy) const { return rank_of_[static_cast<size_t>(copy)]; }
  int32_t stages() const { return stages_; }
  int32_t stage_of(int32_t copy) const { return copy % stages_; }
  int32_t slices() const { return slices_; }
  // Whether some backward is B, and whether some is I and W.
  bool has_whole() const { return has_whole_; }
  bool has_split() const { return has_split_; }
  int32_t replicas() const { return copies() / stages_ / slices_; }

  // Bytes that a piece of work keeps: from F to B or I, from there to W, what I makes of that; and
  // what goes to the next stage and stays on the rank.
  struct Kept {
    double saved = 0, for_weights = 0, by_input_grad = 0;
  };
  struct Passed {
    double bytes = 0;
    bool held = false;  // until the backward of who reads it
  };
  // `kept`: [slice * stages + stage]. Returns [rank] the most bytes at one time; the vector is the
  // caller's to use again.
  void run_memory(const std::vector<Kept>& kept, const Passed& passed,
                  std::vector<double>& most) const;

  // Seconds of a rank's work from when a copy's last backward that makes gradients of weights
  // begins, to the rank's end; and of that backward alone.
  struct Tail {
    double to_end = 0, backward = 0;
  };
  // `costs`: as of `run`. [copy]; what has no such backward has zeros.
  std::vector<Tail> tails(const std::vector<double>& costs) const;

  // [copy] slots that its channels have, as the compiler counts them (compile/channels.h): for
  // what it receives, where the backward reads that too (`held`) or not, and for gradients.
  struct Slots {
    int32_t forward = 0, held = 0, gradients = 0;
  };
  const std::vector<Slots>& slots() const { return slots_; }

 private:
  // Bytes that an action makes, and that go behind it.
  struct Change {
    double begins = 0, ends = 0;
  };
  Change change_of(int32_t copy, pipeline::ActionKind kind, const Kept& kept,
                   const Passed& passed) const;
  // Small, for a search keeps millions of them.
  struct Step {
    int32_t copy = 0, cost = 0;
    int32_t need = -1;  // step that must have ended
    int16_t rank = 0;
    int16_t hop = -1;                        // of the message with what it makes
    std::array<int32_t, 2> slot = {-1, -1};  // [Slot] step at whose end its message has a slot
  };
  // Of a schedule's steps: [step] the microbatch, and how many there are.
  struct Microbatches {
    std::vector<int32_t> of_step;
    size_t count = 0;
  };
  Microbatches sort_actions(const pipeline::Schedule& schedule);
  // Returns [step] its end in a run in which nobody waited for a slot.
  std::vector<double> count_slots(const Microbatches& microbatches);
  void sort_by(const std::vector<double>& ends, Microbatches& microbatches);
  void assign_slots(const Microbatches& microbatches);

  int32_t pieces() const { return stages_ * slices_; }
  // Of the pieces of work that cost the same: a slice of a stage, on whichever replica.
  int32_t piece_of(int32_t copy) const { return copy % pieces(); }
  // `at`: the action's place among its rank's `actions`.
  int32_t cost_of(const std::vector<pipeline::Action>& actions, size_t at);
  pipeline::ActionKind kind_of(const Step& step) const;
  // The copy before (-1) or behind (1) in the chain; -1: none.
  int32_t neighbour(int32_t copy, int32_t by) const {
    const int32_t stage = stage_of(copy) + by;
    return stage < 0 || stage >= stages_ ? -1 : copy + by;
  }

  int32_t ranks_ = 0, stages_ = 0, slices_ = 1;
  bool has_whole_ = false, has_split_ = false;
  std::vector<int32_t> rank_of_;
  std::vector<Step> steps_;
  std::vector<std::pair<int32_t, int32_t>> hops_;
  std::vector<Pair> pairs_;
  std::vector<Slots> slots_;
};

}  // namespace mw::predict
