#include "kernels/loss.h"

#include <algorithm>

#include "kernels/row_sum.h"
#include "kernels/vec_math.h"

namespace mw::kernels {
namespace {

float exp_sum(const float* x, int64_t n, float top) {
  const vf shift = splat(top == -kInfinity ? 0.0f : top);
  RowSum sum;
  for_each_sum_vec(n, [&](auto span, int64_t i, int slot) {
    sum.add(span.keep(exp_of(span.load(x + i) - shift), 0.0f), slot);
  });
  return static_cast<float>(sum.total());
}

bool holds(const VocabShard& shard, int64_t target) {
  return target >= shard.begin && target < shard.begin + shard.valid;
}

float target_logit(const float* x, const VocabShard& shard, int64_t target) {
  return holds(shard, target) ? x[target - shard.begin] : 0.0f;
}

}  // namespace

void cross_entropy_max(const float* logits_RV, const VocabShard& shard, float* max_R, int64_t begin,
                       int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    max_R[r] = row_max_of(logits_RV + r * shard.V, shard.valid);
  }
}

void cross_entropy_sum(const float* logits_RV, const int64_t* target_R, const float* max_R,
                       const VocabShard& shard, float* sum_R, float* target_logit_R, int64_t begin,
                       int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = logits_RV + r * shard.V;
    sum_R[r] = exp_sum(x, shard.valid, max_R[r]);
    target_logit_R[r] = target_logit(x, shard, target_R[r]);
  }
}

void cross_entropy_loss(const int64_t* target_R, const float* max_R, const float* sum_R,
                        const float* target_logit_R, float* loss_R, float* lse_R, int64_t begin,
                        int64_t end) {
  for_each_vec(begin, end, [&](auto span, int64_t r) {
    const vf log_sum = log_of(span.load(sum_R + r));
    const vf top = span.load(max_R + r);
    span.store(lse_R + r, log_sum + top);
    // Not lse - logit: max and logit may be large and near each other.
    span.store(loss_R + r, log_sum + (top - span.load(target_logit_R + r)));
  });
  for (int64_t r = begin; r < end; ++r) {
    if (target_R[r] == kIgnoreIndex) loss_R[r] = 0.0f;
  }
}

void cross_entropy_forward(const float* logits_RV, const int64_t* target_R, const VocabShard& shard,
                           float* loss_R, float* lse_R, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = logits_RV + r * shard.V;
    const float top = row_max_of(x, shard.valid);
    const float sum = exp_sum(x, shard.valid, top);
    const float logit = target_logit(x, shard, target_R[r]);
    cross_entropy_loss(target_R + r, &top, &sum, &logit, loss_R + r, lse_R + r, 0, 1);
  }
}

void cross_entropy_backward(const float* logits_RV, const int64_t* target_R, const float* lse_R,
                            const float* dloss_R, int64_t dloss_stride, const VocabShard& shard,
                            float* dlogits_RV, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = logits_RV + r * shard.V;
    float* dx = dlogits_RV + r * shard.V;
    const int64_t target = target_R[r];
    if (target == kIgnoreIndex) {
      std::fill(dx, dx + shard.V, 0.0f);
      continue;
    }
    const float dloss = dloss_R[r * dloss_stride];
    const int64_t column = holds(shard, target) ? target - shard.begin : -1;
    const float logit = column >= 0 ? x[column] : 0.0f;
    const vf lse = splat(lse_R[r]);
    for_each_vec(0, shard.valid, [&](auto span, int64_t i) {
      span.store(dx + i, exp_of(span.load(x + i) - lse) * dloss);
    });
    if (column >= 0) dx[column] = (exp_of(splat(logit) - lse)[0] - 1.0f) * dloss;
    std::fill(dx + shard.valid, dx + shard.V, 0.0f);
  }
}

}  // namespace mw::kernels
