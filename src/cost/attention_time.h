// Time of attention on one device, fused or as PyTorch's kernels make it.
#pragma once

#include "cost/op_time.h"

namespace mw::cost {

// The unfused softmax kernels take at most as many keys [Megatron-LM,
// megatron/fused_kernels/scaled_upper_triang_masked_softmax.h]; longer sequences have fused ones.
inline constexpr int64_t kUnfusedKeys = 4096;
// Whether Megatron-LM's kernel takes the softmax of these scores, [queries, keys] for each head of
// each sample: half precision, and whole blocks of heads, 4 of them or 8 of at most 128 keys
// [there, and megatron/model/fused_softmax.py, is_kernel_available].
bool takes_softmax_kernel(const ProductShape& scores, DType dtype);

// Fused attention's share of the largest products' rate. What it does once a query, whatever the
// keys, are softmax's rescaling, reading and writing the query's rows, and the half of a causal
// tile that is thrown away.
// REQUIRES: the op is attention or its gradient, as in all below.
double attention_efficiency(const cluster::Attained& attained, const OpWork& work);

struct UnfusedTime {
  double seconds = 0, kernels = 0;  // without the gaps between them; how many they are
};
// Every score and its gradient in memory, the whole square of them.
// `peak`: of matrix products in the op's type, FLOP/s.
UnfusedTime unfused_attention(const cluster::Device& device, const OpWork& work, double peak);

}  // namespace mw::cost
