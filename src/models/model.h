// The transformers of the zoo: a config becomes a Module with the forward graph "microbatch".
//
// B batch, S sequence, D model, H heads, N kv heads, K head dim, F ffn, V vocab, P positions
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "ir/graph.h"
#include "models/config.h"

namespace mw::models {

struct BatchShape {
  int64_t batch = 1;  // samples of one microbatch, all data-parallel ranks together
  int64_t seq_len = 1;
  int64_t slices = 1;  // of a sequence; the graph is that of one (transform/slices.h)
  // Queries, keys and values are values of their own everywhere: what divides the queries along the
  // sequence (context parallelism) needs them so.
  bool apart = false;
};

// Layers "embed", the blocks "h.0" … "h.(n-1)", "head". Inputs of "microbatch": the parameters,
// tokens and targets and positions i32 [B, S] (a target of -100 does not count), loss_scale f32,
// and only where the config has dropout sample_ids i64 [B], seed i64, step i64. Outputs: loss_sum
// f32, the sum of the tokens' losses, and logits f32 [B, S, V]. Nothing in this graph reads
// loss_scale: it is the gradient of loss_sum that differentiation starts from. Parameters are named
// as in Hugging Face's state_dict, with shapes that show their heads (see hf_mapping.h); tied
// embeddings are one parameter that the layers "embed" and "head" both read. Logical axes: batch;
// seq (the sequence between blocks: Megatron's sequence parallelism shards it over tp) and attn_seq
// (the sequence inside attention and MLP: only context parallelism shards it); embed, heads,
// kv_heads, ffn, vocab. Throws Error where the sequence is longer than the config's positions.
ir::Module build_model(const ModelConfig& config, BatchShape shape);
// "is 65, but x.json has 64 positions; use at most 64 …", where the sequence is longer than that;
// else "". Rotary positions are no weights, so a model with them is told how to get more.
std::string positions_finding(const ModelConfig& config, int64_t seq_len);

// Elements of all weights; tied embeddings count once.
int64_t parameter_count(const ir::Module& module);

struct ModelFlops {
  Flops forward, training;
  Flops masked;  // of training, what lies behind the causal mask: half of attention
  // Hardware FLOPs, which count recomputation: of whole layers once more forward [Narayanan et al.
  // 2021, section 5.1, 96 B s l h^2 (1 + s/6h + V/16lh)]; of attention's core, as published HFU
  // counts it, with its products twice [Korthikanti et al. 2022, appendix A, 72 B s l h^2 (1 + s/3h
  // + V/12lh)].
  Flops full_recompute, selective_recompute;
};
// FLOPs of the model's matrix products per token of a sequence of this length; multiply and add
// count two, training is three times forward, recomputation does not count, and attention counts
// the whole S x S square though it is causal (a window of W keys 2 W of them); of routed experts
// those that a token goes to [Narayanan et al. 2021, "Efficient large-scale language model training
// on GPU clusters using Megatron-LM", appendix; Chowdhery et al. 2022, "PaLM", appendix B: 6N +
// 12LHQT, there with N less the embedding tables].
ModelFlops model_flops_per_token(const ModelConfig& config, int64_t seq_len);

}  // namespace mw::models
