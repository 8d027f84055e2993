// Coarse estimates: a plan's step time and fullest rank in microseconds, from facts of one stage
// (probe.h) and the schedule's order of actions. For searches; what is reported comes from
// `predict`.
//
// What differs from the simulation: messages of a rank leave one after another and share no port
// where they arrive, slots never run out, stages between the first and the last are alike, and long
// schedules are continued from shorter ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "predict/order.h"
#include "predict/predict.h"
#include "predict/probe.h"
#include "predict/state_programs.h"

namespace mw::predict {

struct Estimate {
  Seconds step;
  // States, slots, activations and workspace of the fullest pipeline rank; of ranks that share one
  // memory, of all.
  Bytes peak;
  int32_t fullest = -1;  // that rank
};

class Coarse {
 public:
  // Model, cluster, batch, precision and options; its plan is not read.
  explicit Coarse(Request request);
  ~Coarse();

  // Whether the schedule can be had: it is one that the compiler lowers, and takes the plan's
  // chunks and microbatches, whose parts are whole sequences. Slices only with a pipeline.
  bool has_order(const compile::Plan& plan);
  // REQUIRES: has_order(plan), compile::plan_findings(plan) is empty.
  Estimate estimate(const compile::Plan& plan);
  // The parts of it.
  Estimate memory(const compile::Plan& plan);
  Seconds step(const compile::Plan& plan);
  // Bounds from below, whatever the schedule and the chunks: all work without a bubble, or ZeRO's
  // collectives alone, whichever is longer; states, and one microbatch. REQUIRES: pp divides the
  // blocks.
  Estimate least(const compile::Plan& plan);
  // And with this schedule: without ZeRO's collectives in forward and backward and what they hold,
  // or with them alone, and where slices of a sequence take no longer than the whole.
  // REQUIRES: as `estimate`.
  Estimate least_scheduled(const compile::Plan& plan);
  // States alone of a rank between the ends, or of as many as share a memory. REQUIRES: pp divides
  // the blocks.
  Bytes states(const compile::Plan& plan);

  // Compile what `states` and `least` of these plans will ask for, on so many threads.
  void prepare_states(const std::vector<compile::Plan>& plans, int threads);
  void prepare(const std::vector<compile::Plan>& plans, int threads);
  // And what `least_scheduled` will, then what `estimate` will. REQUIRES: has_order of each.
  void prepare_scheduled(const std::vector<compile::Plan>& plans, int threads);
  void prepare_exact(const std::vector<compile::Plan>& plans, int threads);

 private:
  // What tells programs of a few layers apart.
  struct ProgramKey {
    int64_t tp = 1, zero = 0;
    int64_t blocks = 0;  // of every stage; 0: any number
    int64_t slices = 1;
    compile::Recompute recompute = compile::Recompute::kNone;
    compile::GradReduce grad_reduce = compile::GradReduce::kStep;
    bool sp = false, regather = false, data_parallel = false, pipelined = false;
    friend auto operator<=>(const ProgramKey&, const ProgramKey&) = default;
  };
  // And what tells those of updates apart.
  struct StatesKey {
    int64_t tp = 1;
    std::optional<compile::GradReduce> grad_reduce;
    bool sp = false, data_parallel = false, pipelined = false, folded = false;
    friend auto operator<=>(const StatesKey&, const StatesKey&) = default;
  };
  struct Orders {
    Order *shorter = nullptr, *longer = nullptr;  // longer alone: it is the whole schedule
    int32_t short_microbatches = 0, long_microbatches = 0;
    bool whole() const { return shorter == nullptr; }
  };
  using OrderKey = std::tuple<std::string, int64_t, int64_t, int64_t>;
  struct Known {
    bool compiled = false, continued = true;
    int64_t periods = 1;  // its order comes again after so many times the pipeline's ranks
  };
  // A stage's facts under a plan, and the plan's orders; of the plan that was asked about last.
  struct Setting {
    compile::Plan plan;
    bool bare = false;  // work without ZeRO's collectives, slices as parts of the whole
    const Probe* work = nullptr;
    StageFacts state;
    Orders orders;
  };

  // And what is read off them, where.
  struct ProbeKey {
    ProgramKey program;
    int64_t dp = 1, pp = 1, microbatch = 1;
    friend auto operator<=>(const ProbeKey&, const ProbeKey&) = default;
  };
  struct StateKey {
    StatesKey program;
    int64_t dp = 1, pp = 1, zero = 0;
    friend auto operator<=>(const StateKey&, const StateKey&) = default;
  };

  // What shows a plan's work, and its states and update.
  ProbeKey work_key(const compile::Plan& plan) const;
  static StateKey state_key(const compile::Plan& plan, bool folded);
  Request request_of(const ProgramKey& key) const;
  Request request_of(const StatesKey& key) const;
  const Probe& work_facts(const compile::Plan& plan);
  const StageFacts& state_facts(const compile::Plan& plan, bool folded = false);
  const Known& known(const std::string& kind);
  Order* order(const compile::Plan& plan, int64_t microbatches);
  Orders orders(const compile::Plan& plan);
  bool is_folded(const compile::Plan& plan);
  const Setting& setting(const compile::Plan& plan, bool bare = false);
  void probe_missing(const std::vector<ProbeKey>& keys, int threads);
  void probe_missing(const std::vector<StateKey>& keys, int threads);
  static compile::Plan bare_of(compile::Plan plan);
  Seconds dividing(const compile::Plan& plan);
  Estimate memory(const Setting& now);
  int64_t sharing(const compile::Plan& plan) const;
  Seconds step(const Setting& now);

  void fill_costs(const Setting& setting);
  // Of a copy of a stage (Order::copies).
  Facts piece_facts(const Setting& setting, int32_t copy) const;
  double beside_collectives(const Setting& setting, size_t level) const;
  void run(Order& order, const Setting& setting, std::vector<double>& ends);
  double update_seconds(const std::vector<double>& ends) const;
  void fill_needs(const Setting& now, const std::function<double(double, double)>& grown);
  void fill_states(const Setting& setting);
  double replica_sum(const Setting& setting) const;

  Request base_;
  std::map<ProgramKey, std::unique_ptr<ProbePrograms>> programs_;
  std::map<ProbeKey, std::unique_ptr<Probe>> probes_;
  std::map<StatesKey, std::unique_ptr<StatePrograms>> state_programs_;
  std::map<StateKey, std::unique_ptr<StageFacts>> states_of_;
  std::map<std::string, Known> known_;
  std::map<OrderKey, std::unique_ptr<Order>> order_;
  std::optional<Setting> setting_;
  // Of the setting: [stage] blocks; [rank] its stages together, as the update sees them.
  std::vector<int64_t> blocks_;
  std::vector<Facts> states_;
  double replica_sum_ = 0;  // seconds
  std::vector<double> costs_, short_ends_, ends_;
  std::vector<Order::Kept> kept_;                                       // [piece]
  std::vector<double> workspace_, slot_bytes_, activations_, shorter_;  // [rank]
  std::vector<Order::Hop> hop_costs_;
  std::vector<int32_t> port_of_;  // [pipeline rank * link levels + level]
};

}  // namespace mw::predict
