// Scaled dot-product attention, multi-head and grouped-query, forward and backward, in blocks that
// never hold a whole [Sq, Sk] matrix [FlashAttention-2, Dao 2023]. Blocks that no query sees are
// skipped, and the triangle of a causal mask is followed to within a few rows.
//
// B batch, Sq and Sk local query and key sequence, H local query heads, Hkv local key-value heads,
// D elements of a head. Head h reads key-value head h / (H / Hkv).
//
// A query row that sees no key has output 0 and lse -inf, and its gradients are 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rng.h"

namespace mw::kernels {

// [B, S, heads, D] in memory, strides in elements; the D elements of a head are contiguous. So q, k
// and v may be parts of one fused array.
template <typename T>
struct Heads {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  T* row(int64_t b, int64_t s, int64_t h) const {
    return data + b * batch_stride + s * row_stride + h * head_stride;
  }
};

// Dropout on the probabilities. The mask is a function of (sample, global head, query position, key
// position): index = ((sample * H_total + head) * S_total + query) * S_total + key.
struct AttentionDropout {
  RngKey key;
  double rate = 0.0;  // REQUIRES: 0 <= rate < 1; with 0 nothing below is read
  const int64_t* sample_id_B = nullptr;
  int64_t head_offset = 0;  // global head of local head 0
  int64_t H_total = 0;
  int64_t S_total = 0;  // more than any position
};

struct Attention {
  int64_t B = 0, Sq = 0, Sk = 0, H = 0, Hkv = 0, D = 0;
  float scale = 1.0f;  // of the scores, usually 1 / sqrt(D)
  bool causal = true;  // a query sees the keys with position_k <= position_q
  // Positions are needed for causal masks and for dropout. REQUIRES: below 2^31 - 1.
  const int32_t* position_q = nullptr;  // [B, Sq], a sample's from b * position_q_stride on
  int64_t position_q_stride = 0;        // 0: Sq
  const int32_t* position_k = nullptr;  // [B, Sk]
  // Where given, both: a query sees the keys of its own segment.
  const int32_t* segment_q = nullptr;  // [B, Sq]
  const int32_t* segment_k = nullptr;  // [B, Sk]
  AttentionDropout dropout = {};
};

// Scratch of one call, that is of one thread. Any alignment.
size_t attention_forward_scratch_bytes(const Attention& attention);
size_t attention_backward_scratch_bytes(const Attention& attention);

// out = softmax(scale * q k^T, masked) v and lse = log of the softmax's denominator, for the pairs
// b * H + h of [begin, end). REQUIRES: H is a multiple of Hkv.
void attention_forward(const Attention& attention, const Heads<const float>& q,
                       const Heads<const float>& k, const Heads<const float>& v,
                       const Heads<float>& out, float* lse_BHS, void* scratch, int64_t begin,
                       int64_t end);

// Overwrites dq, dk and dv for the pairs b * Hkv + key-value head of [begin, end). A pair's query
// heads are added to dk and dv in ascending order.
void attention_backward(const Attention& attention, const Heads<const float>& q,
                        const Heads<const float>& k, const Heads<const float>& v,
                        const Heads<const float>& out, const float* lse_BHS,
                        const Heads<const float>& dout, const Heads<float>& dq,
                        const Heads<float>& dk, const Heads<float>& dv, void* scratch,
                        int64_t begin, int64_t end);

}  // namespace mw::kernels
