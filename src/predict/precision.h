// A program as it would be in mixed precision: what the compiler makes in f32, with activations and
// weights in half the bytes.
#pragma once

#include "pipeline/program.h"

namespace mw::predict {

// Values of forward and backward fragments, weights, messages and the weights' all-gathers become
// `dtype`; gradient accumulators, optimizer state, scalars, losses and the statistics of norms and
// softmaxes stay f32; every pipeline rank gets an f32 master copy of the weights it updates. 2 + 4
// + 12 bytes a parameter, as Megatron-LM's with f32 gradients. The memory plan is made anew. f32:
// the program as it is.
pipeline::Program in_precision(pipeline::Program program, DType dtype);

}  // namespace mw::predict
