// What a rank of torchtitan holds: a program's step replayed as FSDP2, autograd and PyTorch's
// pipelines would allocate it, on PyTorch's caching allocator.
#pragma once

#include <optional>
#include <vector>

#include "cluster/hardware.h"
#include "compile/plan.h"
#include "pipeline/program.h"
#include "predict/precision.h"
#include "simulate/simulate.h"

namespace mw::predict {

// In the first step AdamW's moments are not there yet, and come to lie where they fit; until a few
// steps later what the allocator keeps can grow. In published runs it was read when it had settled
// (torchtitan's at the 90th step: 31a17bfd benchmarks/llama3_h100_202412_torchtitan.md).
inline constexpr int kSettled = 10;

// Whether a plan's ranks hold what this says: a stack with an allocator of its own. PyTorch's
// pipelines have no slices of sequences: with them it is the program's plan of memory.
bool has_processes(const cluster::Stack& stack, const compile::Plan& plan);

// Of every pipeline rank, in the last of so many steps. `program` is in_precision of `dtype`.
// REQUIRES: the cluster's stack has an allocator other than kPlan; steps >= 2.
//
// - Weights are divided in f32, and gathered by layer, the layers outside blocks together with the
//   last norm (FSDP2's root): a flat buffer in the stream that gathers, alive until the next
//   layer's is there, and every weight by itself [PyTorch
//   torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather;
//   _fsdp_param_group.py]. With ZeRO 3 a block's go behind its forward pass, but for the last
//   block's, and the backward pass gathers the next block's ahead. Else they stay until the update.
// - Every weight and moment is a tensor of its own, made in the order of the weights; the update
//   makes the roots of all of a stage's second moments at a time [torch/optim/adamw.py,
//   _init_group, _multi_tensor_adamw: `foreach`, torchtitan's way unless optimizer.fused;
//   pytorch/torchtitan@04a22a00 torchtitan/optimizer.py, build_optimizers].
// - Gradients are made in the weights' type. A layer's are copied into one f32 buffer, whose parts
//   come out in the stream that scatters and stay there until the next step. Where the program sums
//   microbatches first, they are summed in f32, undivided; a pipeline's stage scatters them, and
//   releases its weights, behind its last backward pass, and, in 2.6, its last layer's buffer stays
//   until it does so again [torch/distributed/pipelining/stage.py, backward_maybe_with_nosync,
//   which leaves FSDP2's final callback out].
// - What forward saves goes as the backward pass has read it; where inputs' and weights' gradients
//   have passes of their own, it stays until the second one [torch/distributed/pipelining/
//   _backward.py, stage_backward_input, retain_graph]; logits go once they are cast for the
//   loss [pytorch/torchtitan train.py].
// - Keys and values of grouped queries are repeated for every head before context parallelism
//   gathers them and attention reads them [torchtitan/models/llama/model.py, repeat_kv;
//   torch/distributed/tensor/experimental/_attention.py, _AllGatherRotater].
// - A collective of tensor parallelism over another dimension than the first works on a copy
//   [torch/distributed/_functional_collectives.py].
// - A pipeline has a buffer for every microbatch that it receives. In 2.6 it keeps all outputs and
//   the gradients of what it received until the next step begins
//   [torch/distributed/pipelining/stage.py, clear_runtime_states]; later ones keep an output until
//   its gradient has been taken, and the gradient of an input until it is sent, or until the
//   weights' gradients where those have a pass of their own [2.13, backward_one_chunk]. In 2.6 the
//   last stage keeps its logits and puts them together behind all microbatches [schedules.py,
//   _merge_outputs; microbatch.py, merge_chunks]; torchtitan asks for no outputs since 0.2.1
//   [torchtitan/train.py, return_outputs=False].
// All of PyTorch 2.6.0 (2236df17) and, where nothing else is said, later ones.
std::vector<simulate::Held> torch_memory(const pipeline::Program& program, DType dtype,
                                         const StackMemory& memory, const cluster::Cluster& cluster,
                                         int steps = kSettled);
// Empty: some rank finds no room on its device; told as soon as one does.
std::optional<std::vector<simulate::Held>> torch_memory_if_fits(const pipeline::Program& program,
                                                                DType dtype,
                                                                const StackMemory& memory,
                                                                const cluster::Cluster& cluster);

}  // namespace mw::predict
