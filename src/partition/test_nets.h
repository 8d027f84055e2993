// Small annotated nets for the tests of partitioning and compiling, with every size free: the ones
// that no axis divides are what the tests are about.
//
// B batch, S sequence, D model, H heads, K head dim, F ffn, V vocab
#pragma once

#include <cstdint>

#include "ir/graph.h"
#include "sharding/strategy.h"

namespace mw::partition::test {

struct NetSizes {
  int64_t B = 4, S = 8, D = 8, H = 4, K = 2, F = 16, V = 16;
  int64_t blocks = 2;
};

// Layers "embed", "h.0" …, "head" as a GPT-2 with a tied embedding, annotated as the models room
// does. Inputs: weights, tokens, targets, positions, loss_scale. Output loss_sum.
ir::Module gpt_net(const NetSizes& sizes);
// Layers "in", "block.0" …, "out"; "out" reads what "in" made, over all stages between. Input x f32
// [B, S].
ir::Module mlp_net(const NetSizes& sizes);

// Logical axes on {dp, tp} as a plan lays them out; with `sp` the sequence between tensor-parallel
// regions on tp.
sharding::Strategy strategy(bool sp);

}  // namespace mw::partition::test
