// The closed set of ops. What an op means (shapes, sharding rule, cost, gradient) is in room ops,
// one file a family.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace mw::ir {

// clang-format off
enum class OpKind : uint8_t {
  // Primitives, with HLO's semantics.
  kConstant, kAdd, kSub, kMul, kDiv, kMax, kMin, kNeg, kExp, kLog, kTanh, kSqrt, kRsqrt, kErf,
  kRelu, kScale, kCompare, kSelect, kConvert, kBroadcast, kReshape, kTranspose, kSlice, kPad,
  kConcat, kReduce, kDot, kConv, kConvInputGrad, kConvWeightGrad, kRandom,
  // Composites: a kernel runs them as one.
  kBiasAdd, kReluGrad, kGelu, kGeluGrad, kBiasGelu, kSilu, kSiluGrad, kSwiglu, kSwigluGrad,
  kSoftmax, kSoftmaxGrad, kLayerNorm, kLayerNormInputGrad, kLayerNormWeightGrad, kRmsNorm,
  kRmsNormInputGrad, kRmsNormWeightGrad, kRopeTable, kRope, kRopeGrad, kAttention, kAttentionGrad,
  kEmbedding, kEmbeddingGrad, kCrossEntropyMax, kCrossEntropySum, kCrossEntropyLoss,
  kCrossEntropyGrad, kDropout, kMoeTopK, kMoeTopKGrad, kMoeDispatch, kMoeCombine, kMoeGateGrad,
  // State and the update.
  kAccumulate, kView, kAssemble, kNormBlocks, kNormParameters, kClip, kValidate, kAdamW,
  kZero,
  // Collectives and the local ops that go with them; only the partitioner and the lowering make
  // them.
  kAllReduce, kAllGather, kReduceScatter, kAllToAll, kPermute, kShardSlice, kPadMask, kTrim, kCopy,
};
// clang-format on
inline constexpr int kOpKinds = static_cast<int>(OpKind::kCopy) + 1;

// "dot", "layer_norm_input_grad", …
std::string_view op_name(OpKind kind);
std::optional<OpKind> parse_op(std::string_view name);
// All of a group take part: all_reduce, all_gather, reduce_scatter, all_to_all, permute.
bool is_collective(OpKind kind);

}  // namespace mw::ir
