// A program as it would be in mixed precision: what the compiler makes in f32, with activations and
// weights in half the bytes.
#pragma once

#include "pipeline/program.h"
#include "predict/stack_memory.h"

namespace mw::predict {

// Values of forward and backward fragments, weights, messages and the weights' all-gathers become
// `dtype`; gradient accumulators, optimizer state, scalars, losses and the statistics of norms and
// softmaxes stay f32; every pipeline rank gets an f32 master copy of the weights it updates. 2 + 4
// + 12 bytes a parameter, as Megatron-LM's with f32 gradients; with f16 ones 2 + 2 + 12, while
// ops compute as before. The memory plan is made anew. f32, and nothing held: the program as it is.
// `arenas` false: ranks get none.
pipeline::Program in_precision(pipeline::Program program, DType dtype,
                               const StackMemory& memory = {}, bool arenas = true);
// Of the rank's states the optimizer's moments, f32 bytes: what the update reads. What
// post-validation keeps of a step it only writes.
int64_t moment_bytes(const pipeline::Program& program, const pipeline::RankProgram& rank);

// Whether that plans memory, so that the program needs no offsets before.
bool plans_memory(DType dtype, const StackMemory& memory);

}  // namespace mw::predict
