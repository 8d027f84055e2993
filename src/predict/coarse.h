// Coarse estimates: a plan's step time and fullest rank in microseconds, from facts of one stage
// (probe.h) and the schedule's order of actions. For searches; what is reported comes from
// `predict`.
//
// What differs from the simulation: messages of a rank leave one after another, of two that come to
// one at the same time only the later is slower, stages between the first and the last are alike,
// and long schedules are continued from shorter ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "cluster/group_shape.h"
#include "predict/coarse_facts.h"
#include "predict/order.h"
#include "predict/predict.h"

namespace mw::predict {

struct Estimate {
  Seconds step;
  // States, slots, activations and workspace of the fullest pipeline rank; of ranks that share one
  // memory, of all.
  Bytes peak;
};

class Coarse {
 public:
  // Model, cluster, batch, precision and options; its plan is not read.
  explicit Coarse(Request request);
  ~Coarse();
  // Another one on the same facts: each is for one thread at a time.
  Coarse another() const { return Coarse(facts_); }

  // Whether the schedule can be had: it is one that the compiler lowers, and takes the plan's
  // chunks and microbatches, no more than a plan may have, whose parts are whole sequences. Slices
  // only with a pipeline.
  bool has_order(const compile::Plan& plan);
  // The same, without making a schedule of more than a few microbatches.
  bool takes_order(const compile::Plan& plan);
  // REQUIRES: has_order(plan), compile::plan_findings(plan) is empty.
  Estimate estimate(const compile::Plan& plan);
  // The parts of it.
  Estimate memory(const compile::Plan& plan);
  Seconds step(const compile::Plan& plan);
  // Bounds from below, whatever the schedule and the chunks: all work without a bubble, or ZeRO's
  // collectives alone, whichever is longer; states, and one microbatch. Where pp does not divide
  // the blocks, the slowest rank works at least as long as the mean, the fullest has the states of
  // one block more than the others, and activations are those of the others. REQUIRES: pp is at
  // most the blocks.
  Estimate least(const compile::Plan& plan);
  // And with this schedule: each forward and backward without ZeRO's collectives and what they
  // hold, or with them alone, and slices of a sequence as parts of the whole, less the scores that
  // they leave out. REQUIRES: as `estimate`.
  Estimate least_scheduled(const compile::Plan& plan);
  // States alone, at the least, of the fullest rank between the ends, or of as many as share a
  // memory. REQUIRES: as `least`.
  Bytes states(const compile::Plan& plan);

  // Compile what `states` and `least` of these plans will ask for, on so many threads.
  void prepare_states(const std::vector<compile::Plan>& plans, int threads);
  void prepare(const std::vector<compile::Plan>& plans, int threads);
  // And what `least_scheduled` will, then what `estimate` will. REQUIRES: has_order of each.
  void prepare_scheduled(const std::vector<compile::Plan>& plans, int threads);
  void prepare_exact(const std::vector<compile::Plan>& plans, int threads);

 private:
  // A stage's facts under a plan, and the plan's orders; of the plan that was asked about last.
  struct Setting {
    compile::Plan plan;
    bool bare = false;  // work without ZeRO's collectives, slices as parts of the whole
    const Probe* work = nullptr;
    StageFacts state;
    CoarseFacts::Orders orders;
  };

  explicit Coarse(std::shared_ptr<CoarseFacts> facts);
  // Into whole sequences and slices, in ways that estimates know.
  bool divides_whole(const compile::Plan& plan) const;
  const Setting& setting(const compile::Plan& plan, bool bare = false);
  static compile::Plan bare_of(compile::Plan plan);
  // The ZeRO stage, where it has collectives in forward or backward; otherwise 0.
  static int64_t divided_stage(const compile::Plan& plan);
  Seconds dividing(const compile::Plan& plan);
  Estimate memory(const Setting& now);
  int64_t sharing(const compile::Plan& plan) const;
  Seconds step(const Setting& now);

  void fill_costs(const Setting& setting);
  // Seconds of ZeRO's collectives at the least: a gather in F and in B or I, a scatter in B or W.
  struct Collectives {
    double gather = 0, scatter = 0;
  };
  // In a call of a stage with so many blocks; for so many bytes of weights that a rank holds.
  Collectives collectives_of(const compile::Plan& plan, int64_t blocks);
  Collectives seconds_of(const compile::Plan& plan, double held);
  static bool divides(const Setting& setting);
  static double boundary_bytes(const Setting& setting);  // of a call's value
  struct Scores {
    double forward = 0, backward = 0, saved = 0;  // seconds, and bytes that autograd keeps
  };
  Scores scores_of(const compile::Plan& plan) const;
  int64_t slices_at_most(const compile::Plan& plan) const;
  void leave_out_later_keys(const Setting& setting, int32_t slice, int64_t blocks,
                            Facts& facts) const;
  // Of a copy of a stage (Order::copies).
  const Facts& piece_facts(const Setting& setting, int32_t copy);
  // What goes over the link for one value of a boundary, and how long its receiver gathers the
  // parts.
  struct Sent {
    double bytes = 0, gather = 0;
  };
  Sent sent_of(const Setting& setting);
  double beside_collectives(const Setting& setting, size_t level) const;
  // [rank] when its last action ends; the most that activations take there.
  void run(const Order& order, const Setting& setting, std::vector<double>& ends);
  void run_memory(const Order& order, const Setting& now, std::vector<double>& most);
  double update_seconds(const Setting& setting, const std::vector<double>& ends);
  void wait_for_tied(const Setting& setting, std::vector<double>& begins) const;
  // A stage's part of what a rank sums or gathers beside calls (coarse_beside.cc).
  struct Part;
  bool sums_go_beside() const {
    return base_.options.overlap.grad_reduce && !base_.options.overlap.grad_reduce_idle;
  }
  std::vector<std::vector<Part>> parts_of_ranks(const Setting& setting, Fact fact) const;
  // [rank] seconds of its sums behind its last call, and what sums before that end slow down.
  struct Sums {
    double behind = 0, slower = 0;
  };
  std::vector<Sums> sums_beside(const Setting& setting, const std::vector<double>& over_replicas);
  // By how much the first forwards begin or end later for what is gathered beside them.
  double gathers_beside(const Setting& setting);
  static Bytes whole_bytes(double bytes);
  void fill_needs(const Setting& now, const std::function<double(double, double)>& grown);
  double logits(const compile::Plan& plan) const;
  const Facts& of_process(const Setting& now, int32_t copy, const Facts& of_program);
  void fill_outputs(const Setting& now);
  void fill_states(const Setting& setting);
  // Ranks that hold the same stages, and how long the sum of these stages' gradients takes.
  struct ReplicaSum {
    std::vector<int32_t> ranks;
    double seconds = 0;
  };
  std::vector<ReplicaSum> replica_sums(const Setting& setting);
  // Where the groups of a mesh lie: many plans have the same.
  struct Places {
    std::vector<cluster::GroupShape> along_tp, along_dp;
    std::vector<RankId> beside_pp;  // from rank 0 to the ranks of its stage
  };
  const Places& places(const compile::Plan& plan);

  std::shared_ptr<CoarseFacts> facts_;
  const Request& base_;
  using MeshKey = std::tuple<compile::AxisOrder, int64_t, int64_t, int64_t, int64_t, int64_t>;
  std::map<MeshKey, Places> places_;
  std::optional<Setting> setting_;
  // Of the setting: [stage] blocks, and the first of them; [rank] its stages together, as the
  // update sees them.
  std::vector<int64_t> blocks_, starts_;
  std::vector<Facts> states_;
  // What tells its pieces apart: a pipeline's inner stages are mostly alike.
  struct Piece {
    int32_t slice = 0;
    int64_t blocks = 0, second_blocks = 0;
    bool first = false, last = false;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  std::vector<std::pair<Piece, Facts>> pieces_;
  size_t piece_ = 0;                                     // the one that was asked for last
  std::optional<std::vector<ReplicaSum>> replica_sums_;  // if they were asked for
  std::vector<double> costs_, short_ends_, ends_, saved_;
  Facts of_process_ = {};
  std::vector<Order::Kept> kept_;                                       // [piece]
  std::vector<double> workspace_, slot_bytes_, activations_, shorter_;  // [rank]
  struct Outputs {
    double sent = 0, logits = 0;  // bytes
  };
  std::vector<Outputs> outputs_;  // [rank]
  std::vector<Order::Hop> hop_costs_;
  Order::Room room_;
  std::vector<int32_t> port_of_;  // [(out of each pipeline rank, into each) * link levels + level]
};

}  // namespace mw::predict
