// A program as it would be in mixed precision: what the compiler makes in f32, with activations and
// weights in half the bytes.
#pragma once

#include "cluster/hardware.h"
#include "compile/plan.h"
#include "pipeline/program.h"

namespace mw::predict {

// What a software stack holds while it takes the gradient of the loss, and the program does not.
struct LossMemory {
  // Eager PyTorch casts the logits to f32: log-probabilities, their gradient and the logits' are
  // there in f32.
  bool f32 = false;
  // With ZeRO 3 the weights outside blocks and those of the last block stay gathered from forward
  // to backward (FSDP2's root and torchtitan's last block).
  bool gathered_ends = false;
  // The results that kSelectiveOp keeps (compile/plan.h), whether a gradient reads them or not: as
  // eager PyTorch, which cannot know.
  bool kept_products = false;
};

LossMemory loss_memory(const cluster::Cluster& cluster, const compile::Plan& plan);

// Values of forward and backward fragments, weights, messages and the weights' all-gathers become
// `dtype`; gradient accumulators, optimizer state, scalars, losses and the statistics of norms and
// softmaxes stay f32; every pipeline rank gets an f32 master copy of the weights it updates. 2 + 4
// + 12 bytes a parameter, as Megatron-LM's with f32 gradients. The memory plan is made anew. f32:
// the program as it is.
pipeline::Program in_precision(pipeline::Program program, DType dtype, const LossMemory& loss = {});

}  // namespace mw::predict
