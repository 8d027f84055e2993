// Embedding, cross-entropy and dropout.
#include <cmath>

#include "base/rng.h"
#include "ops/random_index.h"
#include "runtime/test_op_case.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

constexpr int64_t kSeed = (int64_t{5} << 32) + 3;

void add_embedding(std::vector<OpCase>& cases) {
  // Whole, and the second of two shards of 6 rows each of a vocabulary of 11. Of many tokens
  // threads have parts.
  for (const bool sharded : {false, true}) {
    for (const int64_t D : {5, 48}) {
      const int64_t S = D == 48 ? 900 : 9;
      const int64_t V = 11, rows = sharded ? 6 : V, first = sharded ? 6 : 0;
      const cluster::Mesh mesh({{"tp", 2}});
      ir::EmbeddingAttrs attrs{V, {}};
      if (sharded) attrs.rows = {{"tp"}, V};
      const at::Tensor tokens = random_ints({3, S}, V), table = random_tensor({rows, D}),
                       dy = random_tensor({3, S, D}, 2);
      const at::Tensor own = tokens.ge(first).logical_and(tokens.lt(first + rows)).unsqueeze(-1);
      const at::Tensor local = (tokens - first).clamp(0, rows - 1);
      cases.push_back(
          {.kind = OpKind::kEmbedding,
           .attrs = attrs,
           .operands = {tokens, table},
           .expected = [=](const Tensors& x) { return Tensors{at::embedding(x[1], local) * own}; },
           .mesh = mesh,
           .rank = sharded ? 1 : 0});
      for (const bool accumulates : {false, true}) {
        Tensors operands = {tokens, dy};
        if (accumulates) operands.push_back(random_tensor({rows, D}, 3));
        cases.push_back({.kind = OpKind::kEmbeddingGrad,
                         .attrs = attrs,
                         .operands = operands,
                         .expected =
                             [=](const Tensors& x) {
                               at::Tensor g = at::zeros({rows, D});
                               return Tensors{g.index_add(0, local.flatten().to(at::kLong),
                                                          (x[1] * own).reshape({-1, D}))};
                             },
                         .declared = {ir::make_type(DType::kF32, {rows, D})},
                         .accumulates = accumulates,
                         .mesh = mesh,
                         .rank = sharded ? 1 : 0});
      }
    }
  }
}

// A shard of the vocabulary: columns [begin, begin + V), of which those from `vocab` on are
// padding.
void add_cross_entropy(std::vector<OpCase>& cases, int64_t vocab, int64_t V, int shards, int rank,
                       int64_t S = 7) {
  const int64_t begin = rank * V, valid = std::min(V, vocab - begin);
  const cluster::Mesh mesh({{"tp", shards}});
  ir::CrossEntropyAttrs attrs{vocab, {}};
  if (shards > 1) attrs.columns = {{"tp"}, vocab};
  at::Tensor targets = random_ints({2, S}, vocab);
  targets[1][2] = -100;
  const at::Tensor logits = 4 * random_tensor({2, S, V}), words = logits.narrow(2, 0, valid);
  const at::Tensor largest = words.amax({2}) + (shards > 1 ? 0.5 : 0.0);  // of all shards
  const at::Tensor ignored = targets.eq(-100);
  const at::Tensor own = targets.ge(begin).logical_and(targets.lt(begin + valid));
  const at::Tensor column = (targets - begin).clamp(0, valid - 1).to(at::kLong).unsqueeze(-1);
  const at::Tensor picked = words.gather(2, column).squeeze(-1) * own;
  const at::Tensor sum = (words - largest.unsqueeze(-1)).exp().sum({2});
  const at::Tensor lse = largest + sum.log(), dloss = random_tensor({2, S}, 5);
  const auto add = [&](OpKind kind, Tensors operands, Tensors expected) {
    cases.push_back({.kind = kind,
                     .attrs = attrs,
                     .operands = std::move(operands),
                     .expected = [expected](const Tensors&) { return expected; },
                     .mesh = mesh,
                     .rank = rank});
  };
  add(OpKind::kCrossEntropyMax, {logits}, {words.amax({2})});
  add(OpKind::kCrossEntropySum, {logits, largest, targets}, {sum, picked});
  add(OpKind::kCrossEntropyLoss, {largest, sum, picked, targets, logits},
      {(lse - picked) * ignored.logical_not(), lse});
  const at::Tensor hot = at::zeros({2, S, V}).scatter(2, column, own.to(at::kFloat).unsqueeze(-1));
  at::Tensor dlogits =
      ((logits - lse.unsqueeze(-1)).exp() - hot) * (dloss * ignored.logical_not()).unsqueeze(-1);
  dlogits.narrow(2, valid, V - valid).zero_();
  add(OpKind::kCrossEntropyGrad, {logits, lse, targets, dloss}, {dlogits});
  if (shards == 1) {  // The chain is ATen's loss.
    const at::Tensor loss = at::cross_entropy_loss(words.reshape({-1, vocab}),
                                                   targets.flatten().to(at::kLong), {}, 0, -100);
    add(OpKind::kCrossEntropyLoss, {largest, sum, picked, targets, logits},
        {loss.view({2, S}), lse});
  }
}

void add_dropout(std::vector<OpCase>& cases) {
  // Whole, and the second of two shards of the features.
  for (const int rank : {0, 1}) {
    for (const double rate : {0.0, 0.1, 0.5}) {
      const cluster::Mesh mesh({{"tp", 2}});
      const int64_t S = rate == 0.1 ? 200 : 5, D = 21, total = D * (rank + 1);
      ir::DropoutAttrs attrs{rate, "h.1.mlp", total, {}};
      if (rank == 1) attrs.feature = {{"tp"}, total};
      const at::Tensor samples = at::arange(40, 42, at::kLong),
                       positions = random_ints({2, S}, 1000);
      cases.push_back(
          {.kind = OpKind::kDropout,
           .attrs = attrs,
           .operands = {random_tensor({2, S, D}), scalar(kSeed), scalar(4), samples, positions},
           .expected =
               [=](const Tensors& x) {
                 at::Tensor y = x[0].clone();
                 auto* element = y.data_ptr<float>();
                 const RngKey key{.seed = kSeed, .step = 4, .site = rng_site("h.1.mlp")};
                 const auto threshold = static_cast<uint32_t>(std::ceil(rate * 0x1p32));
                 for (int64_t b = 0; b < 2; ++b) {
                   for (int64_t s = 0; s < S; ++s) {
                     const int position = positions[b][s].item<int>();
                     for (int64_t d = 0; d < D; ++d, ++element) {
                       const uint64_t index =
                           ops::dropout_index(40 + b, position, rank * D + d, total);
                       const bool kept = random_u32(key, index) >= threshold;
                       *element = kept ? static_cast<float>(*element / (1 - rate)) : 0.0f;
                     }
                   }
                 }
                 return Tensors{y};
               },
           .mesh = mesh,
           .rank = rank});
    }
  }
}

}  // namespace

std::vector<OpCase> token_cases() {
  std::vector<OpCase> cases;
  add_embedding(cases);
  add_cross_entropy(cases, 37, 37, 1, 0);
  add_cross_entropy(cases, 1001, 1024, 1, 0, 33);
  add_cross_entropy(cases, 5, 6, 1, 0, 20000);
  add_cross_entropy(cases, 37, 19, 2, 0);
  add_cross_entropy(cases, 37, 19, 2, 1);
  add_dropout(cases);
  return cases;
}

}  // namespace mw::runtime
