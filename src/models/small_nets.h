// Small nets that are no transformers, for tests and demos: each has something that a chain of
// equal layers has not. The graph "microbatch" has float inputs, targets, loss_scale (as in
// model.h) and the output loss_sum.
//
// B batch, I inputs, D model, F ffn, O outputs, C channels
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace mw::models {

// kRegression: targets f32 [B, O], loss (y - t)^2 / 2 of every output.
// kClassification: targets i32 [B, 1], cross-entropy of every sample.
enum class Loss : uint8_t { kRegression, kClassification };

// A value that skips stages: layers "in", "block.0" …, "out"; "out" reads what "in" made and what
// the last block made. Input x f32 [B, I].
struct MlpSpec {
  int64_t batch = 8, inputs = 16, hidden = 32, ffn = 64, outputs = 8, blocks = 2;
  Loss loss = Loss::kRegression;
};
ir::Module build_mlp(const MlpSpec& spec);

// A weight that two layers share and a graph that is no chain: layers "left", "right", "join"; the
// towers read the same projection. Inputs left and right f32 [B, I].
struct TwoTowerSpec {
  int64_t batch = 8, inputs = 16, hidden = 32, outputs = 8;
  Loss loss = Loss::kRegression;
};
ir::Module build_two_tower(const TwoTowerSpec& spec);

// Convolutions: layers "conv.0" …, "head"; every convolution is 3x3 with stride 2 and doubles the
// channels, then comes the mean over the image. Input x f32 [B, C, size, size].
struct ConvNetSpec {
  int64_t batch = 8, channels = 3, size = 16, width = 8, convolutions = 2, outputs = 8;
  Loss loss = Loss::kClassification;
};
ir::Module build_conv_net(const ConvNetSpec& spec);

}  // namespace mw::models
