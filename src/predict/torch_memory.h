// What a rank of torchtitan holds: a program's step replayed as FSDP2, autograd and PyTorch's
// pipelines would allocate it, on PyTorch's caching allocator.
#pragma once

#include <vector>

#include "cluster/hardware.h"
#include "pipeline/program.h"
#include "predict/precision.h"
#include "simulate/simulate.h"

namespace mw::predict {

// Of every pipeline rank, in the second of two steps (in the first one AdamW's moments are not
// there yet, and come to lie where they fit). `program` is in_precision of `dtype`. REQUIRES: the
// cluster's stack has an allocator other than kPlan.
//
// - Weights are divided in f32, and gathered by layer, the layers outside blocks together with the
//   last norm (FSDP2's root): a flat buffer in the stream that gathers, alive until the next
//   layer's is there, and every weight by itself [PyTorch
//   torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather;
//   _fsdp_param_group.py]. With ZeRO 3 a block's go behind its forward pass, but for the last
//   block's, and the backward pass gathers the next block's ahead. Else they stay until the update.
// - Gradients are made in the weights' type. A layer's are copied into one f32 buffer, whose parts
//   come out in the stream that scatters and stay there until the next step. Where the program sums
//   microbatches first, they are summed in f32, undivided; a pipeline's stage scatters them, and
//   releases its weights, behind its last backward pass, and its last layer's buffer stays until
//   it does so again [torch/distributed/pipelining/stage.py, backward_maybe_with_nosync, which
//   leaves FSDP2's final callback out].
// - What forward saves goes as the backward pass has read it; logits go once they are cast for the
//   loss [pytorch/torchtitan train.py].
// - Keys and values of grouped queries are repeated for every head before context parallelism
//   gathers them and attention reads them [torchtitan/models/llama/model.py, repeat_kv;
//   torch/distributed/tensor/experimental/_attention.py, _AllGatherRotater].
// - A collective of tensor parallelism over another dimension than the first works on a copy
//   [torch/distributed/_functional_collectives.py].
// - A pipeline has a buffer for every microbatch that it receives, and keeps all outputs and the
//   gradients of what it received until the step ends [torch/distributed/pipelining/stage.py,
//   clear_runtime_states].
// All of PyTorch 2.6.
std::vector<simulate::Held> torch_memory(const pipeline::Program& program, DType dtype,
                                         const StackMemory& memory,
                                         const cluster::Cluster& cluster);

}  // namespace mw::predict
