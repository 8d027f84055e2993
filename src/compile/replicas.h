// Replicas of stages (Chimera, DualPipe) and slices of sequences (Seq1F1B) as the lowering takes
// them: stages of their own.
#pragma once

#include <cstdint>
#include <string>

#include "pipeline/program.h"
#include "pipeline/schedule.h"

namespace mw::compile {

// The same work in the same order, where slice i on replica j of stage s is stage
// (j * slices + i) * stages + s, and an action of several microbatches is one action a microbatch.
pipeline::Schedule unfold(const pipeline::Schedule& schedule);

// "3", of a replica "3^1", of a slice "3/1": what stage `unfolded` of an unfolded schedule is
// called. `stages`, `slices`: of the schedule itself.
std::string unfolded_name(int32_t unfolded, int32_t stages, int32_t slices);

// Gives the commands of a program of an unfolded schedule the stages and replicas of the schedule
// itself; the slices they have.
void fold(pipeline::Program& program, int32_t stages, int32_t slices);

}  // namespace mw::compile
