// Static memory plan: byte offsets for the values inside a fragment and for the step buffers of a
// rank.
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
// Offsets such that intervals that overlap in time do not overlap in memory; deterministic.
// Intervals of the same life are placed side by side. Many are put in columns of like sizes; where
// that takes more than is alive at one time, lives are cut into pages, which are alike, or placed
// in several orders by best fit.
Packing pack(const std::vector<Interval>& intervals);

// Fills alias_of, alias_offset, workspace_offset and workspace of a fragment whose graph, ports and
// launches are complete.
//
// A view or reshape shares its operand's memory; results that an op writes over an operand
// (accumulate, zero, assemble, adamw, accumulating ops) share that operand's. A part of an assemble
// and a value that a state takes is made right in the flat buffer or the state, if nothing reads
// the old bytes there afterwards. Result 0 goes over the in-place operand (ops::OpDef; all_reduce:
// each result over its operand) if that operand is workspace memory, a consumed port or a state
// that this fragment updates, of the same size and not read later. Everything else has workspace
// memory from its producer to its last use, on all streams. An output never shares an input's
// memory, unless it is a state. What a reduce-scatter leaves of a state lies in the rank's own part
// of it, if only zeros are written there afterwards, behind its last use. CheckFailure where an op
// must write over what it may not, or a state's value cannot be made in place.
void plan_fragment(Fragment& fragment);
// Of this alias_of and alias_offset alone: no value has workspace memory.
void plan_sharing(Fragment& fragment);
// Whether a value lies in the rank's own part of what was scattered: its alias_offset is where the
// first member of the group has it, and each next member has it as many bytes further as it has.
bool lies_in_own_part(const Fragment& fragment, ValueId v);

// Gives every kArena buffer of the rank an offset from its first to its last command and puts the
// workspace of each call behind those that are alive then; scalars, which may live long, lie in
// front. Fills arena, which ends with the last
// byte that is ever used. Slots and views follow from their channel and parent. Buffers that no
// command names take no memory. REQUIRES: the fragments are planned.
void plan_rank(const Program& program, RankProgram& rank);

}  // namespace mw::pipeline
