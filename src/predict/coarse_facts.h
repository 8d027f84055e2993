// What coarse estimates are made of: facts of one stage (probe.h), of its states, and schedules'
// orders of actions, each compiled or made once. Any thread may ask; what is missing is made then.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "predict/order.h"
#include "predict/predict.h"
#include "predict/probe.h"
#include "predict/state_programs.h"

namespace mw::predict {

// Blocks with one MLP before those with experts.
int64_t dense_blocks(const models::ModelConfig& model);
// Of so many blocks from `place` on those of the model's second kind (stage_facts.h).
int64_t second_blocks(const models::ModelConfig& model, int64_t place, int64_t blocks);

class CoarseFacts {
 public:
  explicit CoarseFacts(Request request);
  ~CoarseFacts();
  const Request& base() const { return base_; }

  // What a stage's forward and backward take. REQUIRES: the plan has no finding.
  const Probe& work(const compile::Plan& plan);
  // What it holds and updates; `folded`: a rank has the first stage and the last.
  const StageFacts& states(const compile::Plan& plan, bool folded);
  struct Orders {
    // Longer alone: it is the whole schedule. Null: the schedule cannot be had.
    const Order *shorter = nullptr, *longer = nullptr;
    int32_t short_microbatches = 0, long_microbatches = 0;
    bool folded = false;  // a rank of a pipeline has the first stage and the last
    bool whole() const { return shorter == nullptr; }
  };
  Orders orders(const compile::Plan& plan);

  // Make what will be asked for on so many threads. `scheduled`: folded as the plans' schedules
  // are, which they must have; otherwise not.
  void prepare_work(const std::vector<compile::Plan>& plans, int threads);
  void prepare_states(const std::vector<compile::Plan>& plans, bool scheduled, int threads);

  // What was found out about an order of stages with equal shares of the blocks.
  struct Run {
    const Order* order = nullptr;
    const Probe* work = nullptr;
    int64_t stride = 0;   // ranks from one pipeline coordinate to the next; 0: memory, not time
    int64_t outer = 0;    // ranks of one pipeline coordinate, in strides
    int64_t divides = 0;  // the ZeRO stage of which only collectives' bounds count
    friend bool operator==(const Run&, const Run&) = default;
  };
  // [rank]; null: nothing was remembered.
  const std::vector<double>* remembered(const Run& run);
  void remember(const Run& run, std::vector<double> of_ranks);

 private:
  // What tells programs of a few layers apart.
  struct ProgramKey {
    int64_t tp = 1, ep = 1, zero = 0;
    int64_t blocks = 0;  // of every stage; 0: any number
    int64_t slices = 1;
    compile::Recompute recompute = compile::Recompute::kNone;
    compile::GradReduce grad_reduce = compile::GradReduce::kStep;
    // data_parallel: beside the ranks over which experts are divided there are others.
    bool sp = false, regather = false, data_parallel = false, pipelined = false;
    bool dense = false;  // with one MLP in every block
    friend auto operator<=>(const ProgramKey&, const ProgramKey&) = default;
  };
  // And what tells those of updates apart.
  struct StatesKey {
    int64_t tp = 1, ep = 1;
    std::optional<compile::GradReduce> grad_reduce;
    bool sp = false, data_parallel = false, pipelined = false, folded = false;
    bool dense = false;  // with one MLP in every block
    friend auto operator<=>(const StatesKey&, const StatesKey&) = default;
  };
  struct OrderKey {
    const pipeline::ScheduleKind* kind = nullptr;
    int64_t pp = 1, chunks = 1, microbatches = 1, slices = 1, group = 0;
    friend bool operator==(const OrderKey&, const OrderKey&) = default;
  };
  struct HashOfKey {
    size_t operator()(const OrderKey& key) const;
    size_t operator()(const Run& run) const;
  };
  struct Made {
    std::once_flag once;
    std::unique_ptr<Order> order;
    bool folded = false;
  };
  // And what is read off them, where.
  struct ProbeKey {
    ProgramKey program;
    int64_t dp = 1, pp = 1, microbatch = 1;
    // Of a replica, where a stack casts weights once for all of them, or keeps the first's
    // gradients.
    int64_t microbatches = 1;
    friend auto operator<=>(const ProbeKey&, const ProbeKey&) = default;
  };
  struct StateKey {
    StatesKey program;
    int64_t dp = 1, pp = 1, zero = 0;
    friend auto operator<=>(const StateKey&, const StateKey&) = default;
  };

  // What shows a plan's work, and its states and update.
  ProbeKey work_key(const compile::Plan& plan) const;
  // What programs have in common whose models are partitioned alike (compile::partitioning_plan).
  static ProgramKey partitioned_as(ProgramKey key);
  static StateKey state_key(const compile::Plan& plan, bool folded);
  Request request_of(const ProgramKey& key) const;
  Request request_of(const StatesKey& key) const;
  // What shows the model's blocks with one MLP, where others have experts: no axis divides them.
  static ProbeKey dense_of(ProbeKey key);
  static StateKey dense_of(StateKey key);
  // And those.
  template <typename Key>
  std::vector<Key> with_dense(std::vector<Key> keys) const;
  // REQUIRES: the caller holds facts_mutex_.
  void probe_missing(const std::vector<ProbeKey>& asked, int threads);
  void probe_missing(const std::vector<StateKey>& asked, int threads);
  const Made& made_order(const compile::Plan& plan, const pipeline::ScheduleKind& kind,
                         int64_t microbatches);

  const Request base_;
  std::mutex facts_mutex_;
  std::map<ProgramKey, std::unique_ptr<ProbePrograms>> programs_;
  std::map<ProbeKey, std::unique_ptr<Probe>> probes_;
  std::set<int64_t> turns_;  // of all programs
  std::map<StatesKey, std::unique_ptr<StatePrograms>> state_programs_;
  std::map<StateKey, std::unique_ptr<StageFacts>> states_of_;
  std::shared_mutex orders_mutex_;  // of the table; each order has its own flag
  std::unordered_map<OrderKey, Made, HashOfKey> orders_;
  std::shared_mutex runs_mutex_;
  std::unordered_map<Run, std::vector<double>, HashOfKey> runs_;
};

}  // namespace mw::predict
