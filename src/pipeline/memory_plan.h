// Static memory plan: byte offsets for the values inside a fragment and for the step buffers of a rank.
#pragma once

#include <vector>

#include "pipeline/program.h"

namespace mw::pipeline {

inline constexpr int64_t kAlignment = 64;  // bytes; every buffer starts at a multiple

// Something that needs `bytes` from step `first` to step `last`, both included.
struct Interval {
  int64_t first = 0, last = 0;
  int64_t bytes = 0;
};
struct Packing {
  std::vector<int64_t> offsets;
  int64_t total = 0;
};
// Offsets such that intervals that overlap in time do not overlap in memory; largest first, best fit, deterministic.
Packing pack(const std::vector<Interval>& intervals);

// Fills alias_of, alias_offset, workspace_offset and workspace of a fragment. A value that is neither a port nor an alias
// gets workspace memory from its producer to its last use. Result 0 goes over the in-place operand (ops::OpDef) if
// that operand is workspace memory (or an in-place allowed saved port) of the same size and is not read later.
void plan_fragment(Fragment& fragment);

// Gives every kArena buffer of the rank an offset from its first to its last command, puts the workspace behind them and
// fills arena and workspace_offset. Slots and views follow from their channel and parent.
void plan_rank(Program& program, RankProgram& rank);

}  // namespace mw::pipeline
