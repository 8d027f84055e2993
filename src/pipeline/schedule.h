// Schedule: per pipeline rank an ordered list of actions. Data, never code in the executor:
// generators return it, the lowering turns it into commands, torch.distributed.pipelining's CSV
// carries it in and out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "pipeline/schedule_kind.h"

namespace mw::pipeline {

enum class ActionKind : uint8_t { kF, kI, kW, kB, kUpdate, kValidate, kRollback };

struct Action {
  ActionKind kind = ActionKind::kF;
  StageId stage;        // invalid: the whole rank (update, validate, rollback)
  int32_t replica = 0;  // which copy of the stage (Chimera, DualPipe)
  int32_t first = 0;    // samples: the microbatches [first, first + count)
  int32_t count = 1;
  int32_t slice = -1;        // sequence slice, -1: whole sequences
  int32_t paired_with = -1;  // index of the action of the same rank that it overlaps with, -1: none
  friend bool operator==(const Action&, const Action&) = default;
};

// Which pipeline rank hosts which stage. Looped: stage s on rank s mod ranks. Folded ("V", waves):
// every other round of stages runs back, so stages p - 1 and p are neighbours on one rank. Chimera
// and DualPipe host every stage more than once: replicas, each on a rank of its own.
struct Placement {
  int32_t ranks = 1;
  std::vector<int32_t> rank_of_stage;                      // [stage], replica 0
  std::vector<std::vector<int32_t>> rank_of_replica = {};  // [replica - 1][stage]

  int32_t stages() const { return static_cast<int32_t>(rank_of_stage.size()); }
  int32_t replicas() const { return static_cast<int32_t>(rank_of_replica.size()) + 1; }
  // REQUIRES: the stage and the replica are there.
  int32_t rank_of(int32_t stage, int32_t replica) const;
  bool looped() const;
  // [rank] Stages that a microbatch goes through there: what the rank hosts of the replica of which
  // it hosts the most; at least 1.
  std::vector<int32_t> shares() const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

// When the replicas of a stage add up their gradients (Chimera's options): behind all work of a
// rank; behind the last backward of the stage on the rank, beside the work that is left; or so
// where the rank then waits, and behind all work where it does not.
enum class GradientSync : uint8_t { kEnd, kEager, kEagerOpt };

struct Schedule {
  std::string name;
  Placement placement;
  int32_t microbatches = 1;
  int32_t slices = 1;  // sequence slices of a microbatch; 1: whole sequences
  int32_t parts = 1;   // microbatches here for one that was asked for (backward halving: 2)
  int32_t weight_versions =
      1;  // that a rank keeps of its weights; 2 without a flush (PipeDream-2BW)
  // The optimizer takes its step without waiting for the norm of all stages, and once more from a
  // copy where that says so [Qi 2024, 2401.10241, section 4]: a rank begins its next step when it
  // has ended this one.
  bool post_validation = false;
  GradientSync sync = GradientSync::kEnd;
  std::vector<std::vector<Action>> ranks;  // compute actions only; the lowering adds the rest
};

// Costs of one microbatch on one stage, and what one stage keeps of it. A list has one value for
// all stages, or one a stage.
struct ScheduleCosts {
  std::vector<double> f = {1}, b = {1}, w = {1};  // forward, input gradient, weight gradient
  double comm = 0;                                // from one rank to another; the sender is free
  double pair = -1;       // F and B that overlap take this long; negative: f + b + w
  double mb = 1, mw = 1;  // memory from F to the end of I, and from there to the end of W
  double sync = 0;        // of the sum of one stage's gradients over its replicas

  double f_of(StageId stage) const { return of(f, stage); }
  double b_of(StageId stage) const { return of(b, stage); }
  double w_of(StageId stage) const { return of(w, stage); }

 private:
  static double of(const std::vector<double>& list, StageId stage) {
    return list.size() == 1 ? list.front() : list[stage.index()];
  }
};

// What a generator is asked for. 0: what is usual for the kind. Which kinds have an option is said
// by KindOptions.
struct ScheduleRequest {
  std::string kind = kUsualKind;
  int32_t ranks = 1;
  int32_t chunks = 0;  // stages a rank
  int32_t microbatches = 1;
  int32_t group = 0;         // microbatches a round; usual: ranks
  int32_t slices = 0;        // of a sequence; usual: kUsualSlices
  int32_t pairs = 0;         // of a down and an up pipeline; usual: 1
  double memory_limit = 0;   // in units of costs.mb; usual: ranks
  bool exact = false;        // an integer program in place of a heuristic
  ScheduleCosts costs = {};  // what a kind with KindOptions::costs minimises
  bool post_validation = false;
  GradientSync sync = GradientSync::kEnd;  // kinds with replicas
};

// An option of a request that only some kinds have (chunks are every kind's, in a range).
struct RequestOption {
  const char* key;  // as plans have it, "memory_limit"
  const char* words;
  bool KindOptions::* has;
  bool (*given)(const ScheduleRequest& request);
  void (*copy)(ScheduleRequest& to, const ScheduleRequest& from);
};
std::span<const RequestOption> request_options();
// The request without the options and chunks that its kind does not have.
ScheduleRequest own_options(ScheduleRequest request);
// Throws Error with all findings: unknown kind (did you mean), chunks that the kind does not have,
// microbatches that it cannot take (with the nearest that it can), options of other kinds. With one
// rank 1f1b and interleaved-1f1b are gradient accumulation: microbatch after microbatch.
Schedule make_schedule(const ScheduleRequest& request);
// What it would throw, without making it, but for post-validation.
std::vector<std::string> request_findings(const ScheduleRequest& request);
// The shortest rounds (ScheduleRequest::group) that so many microbatches fill, the last with as
// many as there are ranks at the least: where they are no multiple of the ranks, of which rounds
// usually are. All of them, where they are fewer.
int32_t shortest_rounds(int32_t ranks, int32_t microbatches);
inline constexpr int32_t kUsualSlices = 2;  // of a sequence, of the kinds that have them

// What a schedule asks of whoever runs it, beyond F and B of whole microbatches on a looped
// placement.
struct ScheduleNeeds {
  bool split_backward = false;  // I and W apart
  bool folded = false;          // a placement that is not looped
  bool replicas = false;        // stages on several ranks, whose gradients are summed
  bool slices = false;          // parts of sequences, with keys and values kept for the later ones
  bool joined = false;          // one action of several microbatches
  bool pairs = false;     // F and B of one rank at the same time; one after the other is right too
  bool reversed = false;  // backwards of a stage not in the order of the microbatches
  bool no_flush = false;  // weights of an older step
};
ScheduleNeeds needs(const Schedule& schedule);
// The needs in words, for a message: {"I and W apart", …}; empty: none.
std::vector<std::string> describe(const ScheduleNeeds& needs);

// Why the schedule cannot run: work that is missing, there twice or on a rank that does not host
// the stage; a backward before its forward, slices out of order, a pairing that is not of two
// neighbours; ranks that wait for each other. Empty: it can. F of a stage needs F of the stage
// before, B or I needs that of the stage behind, of the same microbatch and slice.
std::vector<std::string> findings(const Schedule& schedule);
inline constexpr size_t kMostFindings = 100;  // that are told; more of them nobody reads
// [rank] the most units of work (stage, microbatch, slice) at any time whose F has begun and whose
// W or B has not ended.
std::vector<int32_t> peak_in_flight(const Schedule& schedule);

// torch.distributed.pipelining's compute_only format, one line a rank: "0F0,0F1,1F0,1B0,…", an
// overlapped pair as "(1F3;2B0)OVERLAP_F_B". What torch lacks has tags: see to_string(Action).
std::string to_csv(const Schedule& schedule);
// Compute alone or with communication (schedule_comms.h). Gathers, reductions and, where a cell has
// one, messages are checked and left out. Empty cells are idle time and vanish. The placement
// follows from the rows, the schedule is named after the file; without replica tags the
// microbatches that take the same way through the ranks are one replica. Throws Error with
// everything that is wrong with the text, or with all findings of the schedule.
Schedule parse_csv(const std::string& text, const std::string& file);
// "F", "UPDATE", …
std::string to_string(ActionKind kind);
// "3F7", "UPDATE"; beyond torch's grammar "3F4-5" (two microbatches), "3F7/1"
// (slice), "3F7^1" (replica).
std::string to_string(const Action& action);

}  // namespace mw::pipeline
