// Softmax cross-entropy from logits, in pieces between which a tensor-parallel caller puts its
// collectives: (a) maximum, all-reduce max; (b) sum and target logit, all-reduce sum; (c) loss;
// (d) backward, which needs no collective. One rank alone calls cross_entropy_forward, with the
// same bits.
//
// R rows (tokens), V local columns of the vocabulary, of which the first `valid` are words and the
// rest is padding. Kernels take rows [begin, end). A row whose target is kIgnoreIndex has loss 0
// and gradient 0.
#pragma once

#include <cstdint>

namespace mw::kernels {

inline constexpr int64_t kIgnoreIndex = -100;

struct VocabShard {
  int64_t V = 0;      // columns of a row
  int64_t valid = 0;  // of them, words
  int64_t begin = 0;  // word of column 0
};

// (a) max over the valid columns; -inf where there is none.
void cross_entropy_max(const float* logits_RV, const VocabShard& shard, float* max_R, int64_t begin,
                       int64_t end);

// (b) sum of exp(logit - max) over the valid columns, and the target's logit where this shard holds
// it, else 0. max_R is the maximum over all shards.
void cross_entropy_sum(const float* logits_RV, const int64_t* target_R, const float* max_R,
                       const VocabShard& shard, float* sum_R, float* target_logit_R, int64_t begin,
                       int64_t end);

// (c) lse = max + log(sum), loss = lse - target logit.
void cross_entropy_loss(const int64_t* target_R, const float* max_R, const float* sum_R,
                        const float* target_logit_R, float* loss_R, float* lse_R, int64_t begin,
                        int64_t end);

// (a), (b) and (c) of an unsharded vocabulary, one row after the other.
void cross_entropy_forward(const float* logits_RV, const int64_t* target_R, const VocabShard& shard,
                           float* loss_R, float* lse_R, int64_t begin, int64_t end);

// (d) dlogits = (exp(logit - lse) - [column is the target]) * dloss, and 0 in the padding. dloss_R
// has one number a row with dloss_stride 1, one for all with dloss_stride 0. dlogits may be logits.
void cross_entropy_backward(const float* logits_RV, const int64_t* target_R, const float* lse_R,
                            const float* dloss_R, int64_t dloss_stride, const VocabShard& shard,
                            float* dlogits_RV, int64_t begin, int64_t end);

}  // namespace mw::kernels
