// Ops on tokens: embedding and cross-entropy, with their gradients, on f32. A shard of the
// vocabulary begins at the device's index times its size.
//
// T tokens, V local words, D model
#include <algorithm>

#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

Prepared prepare_embedding(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t T = c.operand(0).elements(), V = c.operand(1).dim(0), D = c.operand(1).dim(1);
  const int64_t begin_word = c.offset(c.op.as<ir::EmbeddingAttrs>().rows, V);
  return make_kernel([T, V, D, begin_word, threads = c.threads()](const Args& a) {
    parallel_for(threads, T, row_grain(D), [&](int64_t begin, int64_t end) {
      kernels::embedding(a.in<int32_t>(0), a.in(1), begin_word, V, D, a.out(), begin, end);
    });
  });
}

Prepared prepare_embedding_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t T = c.operand(0).elements(), V = c.result().dim(0), D = c.result().dim(1);
  const int64_t begin_word = c.offset(c.op.as<ir::EmbeddingAttrs>().rows, V);
  return make_kernel(
      [T, V, D, begin_word, accumulate = c.op.accumulates, bytes = c.result().bytes().value,
       threads = c.threads()](const Args& a) {
        if (accumulate) bring(a.out(), a.in(2), bytes);
        auto* places = static_cast<kernels::TokenPlace*>(a.scratch);
        const int64_t count = kernels::sort_tokens(a.in<int32_t>(0), T, begin_word, V, places);
        // Each thread owns columns: every element adds its tokens in ascending order, whatever the
        // threads.
        parallel_for(
            threads, D, std::max<int64_t>(16, row_grain(V + T)), [&](int64_t begin, int64_t end) {
              const kernels::TablePart part{
                  .row_begin = 0, .row_end = V, .column_begin = begin, .column_end = end};
              kernels::embedding_backward(places, count, a.in(1), D, accumulate, a.out(), part);
            });
      },
      T * static_cast<int64_t>(sizeof(kernels::TokenPlace)));
}

kernels::VocabShard vocab_shard(const OpContext& c, const ir::TensorType& logits) {
  const auto& attrs = c.op.as<ir::CrossEntropyAttrs>();
  kernels::VocabShard shard;
  shard.V = last(logits);
  shard.begin = c.offset(attrs.columns, shard.V);
  shard.valid = std::clamp<int64_t>(attrs.vocab - shard.begin, 0, shard.V);
  return shard;
}

// The loss kernels read 64-bit targets.
const int64_t* widened(const Args& a, size_t operand, int64_t T) {
  auto* wide = static_cast<int64_t*>(a.scratch);
  std::copy_n(a.in<int32_t>(operand), T, wide);
  return wide;
}
int64_t target_bytes(int64_t T) { return T * static_cast<int64_t>(sizeof(int64_t)); }

Prepared prepare_cross_entropy_max(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  return make_kernel([shard = vocab_shard(c, c.operand(0)), T = c.result().elements(),
                      threads = c.threads()](const Args& a) {
    parallel_for(threads, T, row_grain(shard.V), [&](int64_t begin, int64_t end) {
      kernels::cross_entropy_max(a.in(0), shard, a.out(), begin, end);
    });
  });
}

Prepared prepare_cross_entropy_sum(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t T = c.result().elements();
  return make_kernel(
      [shard = vocab_shard(c, c.operand(0)), T, threads = c.threads()](const Args& a) {
        const int64_t* targets = widened(a, 2, T);
        parallel_for(threads, T, row_grain(4 * shard.V), [&](int64_t begin, int64_t end) {
          kernels::cross_entropy_sum(a.in(0), targets, a.in(1), shard, a.out(0), a.out(1), begin,
                                     end);
        });
      },
      target_bytes(T));
}

Prepared prepare_cross_entropy_loss(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t T = c.result().elements();
  return make_kernel(
      [T, threads = c.threads()](const Args& a) {
        // max, sum, target_logit, targets [, logits, which are not read]
        const int64_t* targets = widened(a, 3, T);
        parallel_for(threads, T, kGrain, [&](int64_t begin, int64_t end) {
          kernels::cross_entropy_loss(targets, a.in(0), a.in(1), a.in(2), a.out(0), a.out(1), begin,
                                      end);
        });
      },
      target_bytes(T));
}

Prepared prepare_cross_entropy_grad(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const int64_t T = c.operand(1).elements();
  return make_kernel(
      [shard = vocab_shard(c, c.operand(0)), T, threads = c.threads()](const Args& a) {
        // logits, lse, targets, dloss
        const int64_t* targets = widened(a, 2, T);
        parallel_for(threads, T, row_grain(4 * shard.V), [&](int64_t begin, int64_t end) {
          kernels::cross_entropy_backward(a.in(0), targets, a.in(1), a.in(3), 1, shard, a.out(),
                                          begin, end);
        });
      },
      target_bytes(T));
}

}  // namespace

void register_tokens(KernelTable& table) {
  table.add(OpKind::kEmbedding, prepare_embedding);
  table.add(OpKind::kEmbeddingGrad, prepare_embedding_grad);
  table.add(OpKind::kCrossEntropyMax, prepare_cross_entropy_max);
  table.add(OpKind::kCrossEntropySum, prepare_cross_entropy_sum);
  table.add(OpKind::kCrossEntropyLoss, prepare_cross_entropy_loss);
  table.add(OpKind::kCrossEntropyGrad, prepare_cross_entropy_grad);
}

}  // namespace mw::runtime
