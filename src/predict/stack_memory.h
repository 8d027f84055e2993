// What a software stack holds in memory, and how its program differs from the compiler's own.
#pragma once

#include <set>
#include <string>

#include "cluster/hardware.h"
#include "compile/plan.h"
#include "cost/op_time.h"
#include "models/model.h"

namespace mw::predict {

// What a software stack holds and the program does not.
struct StackMemory {
  // While it takes the gradient of the loss:
  // Eager PyTorch casts the logits to f32: log-probabilities, their gradient and the logits' are
  // there in f32; where the vocabulary is divided, also the probabilities [PyTorch
  // torch/distributed/tensor/parallel/loss.py, _nll_loss_and_log_softmax_backward].
  bool f32_loss = false;
  // The logits are cast to f32, become their softmax in place and then their gradient, which is
  // cast back: four bytes a logit in the place of its two [Megatron-LM
  // megatron/core/tensor_parallel/cross_entropy.py, models/common/language_module].
  bool f32_softmax = false;
  // With ZeRO 3 the weights outside blocks and those of the last block stay gathered from forward
  // to backward (FSDP2's root and torchtitan's last block). And all of the time two buffers into
  // which layers are gathered, as the one before lives until the next is there [PyTorch
  // torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, FSDPParamGroup.wait_for_unshard:
  // `all_gather_state`]: the stream that fills them is not the one that computes, and PyTorch's
  // allocator gives what one stream has freed to no other [c10/cuda/CUDACachingAllocator.cpp].
  bool gathered_ends = false;
  // The results that kSelectiveOp keeps (compile/plan.h), whether a gradient reads them or not: as
  // eager PyTorch, which cannot know.
  bool kept_products = false;

  // From forward to backward, in the place of statistics:
  // Of unfused attention not the rows' logarithms but softmax, its dropout and the mask of that for
  // every pair of a query and a key [Korthikanti et al. 2022, section 4.1].
  bool scores = false;
  // Softmax, which is then f32, and two gradients of the scores, where no kernel takes it
  // (cost::takes_softmax_kernel).
  bool blocked_softmax = false;
  // Of unfused attention also the keys and the values once more, while the queries, a view of the
  // product that made all three, keep that; and all of the time a buffer that the scores go
  // through. Megatron-LM of July to October 2023 repeated keys and values for grouped queries where
  // every query has its own, too [NVIDIA/Megatron-LM megatron/model/transformer.py; its pull
  // request 537 ended it; the buffer: CoreAttention, get_global_memory_buffer].
  bool attention_copies = false;
  // Of a layer norm also the mask of the dropout before it, a byte an element [there].
  bool masks = false;
  // Of an RMS norm of several kernels the operand in f32 and the result before the weight, in place
  // of the operand [pytorch/torchtitan torchtitan/models/norms.py, RMSNorm].
  bool wide_norms = false;
  // So of the norm before the loss, where only blocks are compiled: with an eager loss, which lies
  // outside of them as well [pytorch/torchtitan@582fe7d1
  // torchtitan/parallelisms/parallelize_llama.py, apply_compile].
  bool wide_last_norm = false;
  // Of attention whose keys and values have fewer heads than the queries what its kernel reads, one
  // for every query; of a mixture's rows also f32, which their gates multiply. In PyTorch's memory
  // alone (torch_memory.h) [pytorch/torchtitan torchtitan/models/llama/model.py, repeat_kv;
  // torchtitan/models/moe.py].
  bool copies = false;

  // What products of linear layers in fp8 read in the backward pass is saved cast, a byte an
  // element, and where other ops read it too in half precision besides [Transformer Engine
  // transformer_engine/pytorch/module/linear.py saves the quantized input]. kOff: nothing is.
  cost::Fp8 narrow = cost::Fp8::kOff;

  // Where weights are f16, gradients are summed in f16, too; in bf16 in f32 [Megatron-LM
  // arguments.py: accumulate_allreduce_grads_in_fp32, which bf16 alone switches on]. The f32 copy
  // that the update makes of them, when activations are gone, is left out.
  bool f16_gradients = false;

  bool beside_loss() const { return f32_loss || f32_softmax || gathered_ends || kept_products; }
  bool saved() const { return scores || masks || wide_norms || wide_last_norm; }
};

// `fp8`: as in simulate::Options.
StackMemory stack_memory(const cluster::Cluster& cluster, const compile::Plan& plan, cost::Fp8 fp8);

// The plan with no more gathered ahead than the stack does.
compile::Plan stack_plan(const cluster::Cluster& cluster, compile::Plan plan);

// The model in the ops that the stack has kernels for.
ir::Module stack_model(const cluster::Cluster& cluster, const models::ModelConfig& config,
                       const models::BatchShape& shape);

// The passes that a plan is compiled without: where the stack saves what the compiler would make
// again, or gathers weights only behind the layer before.
std::set<std::string> passes_left_out(const cluster::Cluster& cluster);

}  // namespace mw::predict
