// Schedule: per pipeline rank an ordered list of actions. Data, never code in the executor:
// generators return it, the lowering turns it into commands, torch.distributed.pipelining's CSV
// carries it in and out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace mw::pipeline {

enum class ActionKind : uint8_t {
  kF,
  kI,
  kW,
  kB,
  kUnshard,
  kReshard,
  kReduceGrad,
  kUpdate,
  kValidate,
  kRollback
};

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

// Which pipeline rank hosts which stage. Looped: stage s on rank s mod ranks.
struct Placement {
  int32_t ranks = 1;
  std::vector<int32_t> rank_of_stage;  // [stage], replica 0
  int32_t stages() const { return static_cast<int32_t>(rank_of_stage.size()); }
  friend bool operator==(const Placement&, const Placement&) = default;
};

struct Schedule {
  std::string name;
  Placement placement;
  int32_t microbatches = 1;
  std::vector<std::vector<Action>> ranks;  // compute actions only; the lowering adds the rest
};

// What a generator is asked for.
struct ScheduleRequest {
  std::string kind = "1f1b";  // "gpipe", "1f1b", "interleaved-1f1b"
  int32_t ranks = 1;
  int32_t chunks = 1;  // stages a rank
  int32_t microbatches = 1;
};

// Throws Error with all findings: unknown kind (did you mean), chunks with a kind that has none,
// microbatches that an interleaved schedule cannot take (with the nearest that it can). With one
// rank every kind is gradient accumulation: microbatch after microbatch, but for gpipe, which keeps
// all.
Schedule make_schedule(const ScheduleRequest& request);
std::vector<std::string> schedule_kinds();

// Why the schedule cannot run: work that is missing, there twice or on a rank that does not host
// the stage; a backward before its forward, a pairing that is not mutual; ranks that wait for each
// other. Empty: it can. F of a stage needs F of the stage before, B or I needs that of the stage
// behind, of the same microbatch and slice.
std::vector<std::string> findings(const Schedule& schedule);
// [rank] the most units of work (stage, microbatch, slice) at any time whose F has begun and whose
// W or B has not ended.
std::vector<int32_t> peak_in_flight(const Schedule& schedule);

// torch.distributed.pipelining's compute_only grammar, one line a rank: "0F0,0F1,1F0,1B0,…", an
// overlapped pair as
// "(1F3;2B0)OVERLAP_F_B". Throws Error for what that grammar cannot hold: replicas, slices, several
// microbatches.
std::string to_csv(const Schedule& schedule);
// Empty cells are idle time and vanish. The placement follows from the rows, the schedule is named
// after the file. Throws Error with everything that is wrong with the text, or with all findings of
// the schedule.
Schedule parse_csv(const std::string& text, const std::string& file);
// "F", "REDUCE_GRAD", …
std::string to_string(ActionKind kind);
// "3F7", "3REDUCE_GRAD", "UPDATE"; beyond torch's grammar "3F4-5" (two microbatches), "3F7/1"
// (slice), "3F7^1" (replica).
std::string to_string(const Action& action);

}  // namespace mw::pipeline
