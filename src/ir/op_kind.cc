#include "ir/op_kind.h"

#include <array>

namespace mw::ir {
namespace {

// In the order of the enum.
// clang-format off
constexpr std::array kNames = {
    "constant", "add", "sub", "mul", "div", "max", "min", "neg", "exp", "log", "tanh", "sqrt",
    "rsqrt", "erf", "relu", "scale", "compare", "select", "convert", "broadcast", "reshape",
    "transpose", "slice", "pad", "concat", "reduce", "dot", "conv", "conv_input_grad",
    "conv_weight_grad", "random",
    "bias_add", "relu_grad", "gelu", "gelu_grad", "bias_gelu", "silu", "silu_grad", "swiglu",
    "swiglu_grad", "softmax", "softmax_grad", "layer_norm", "layer_norm_input_grad",
    "layer_norm_weight_grad", "rms_norm", "rms_norm_input_grad", "rms_norm_weight_grad",
    "rope_table", "rope", "rope_grad", "attention", "attention_grad", "embedding",
    "embedding_grad", "cross_entropy_max", "cross_entropy_sum", "cross_entropy_loss",
    "cross_entropy_grad", "dropout", "moe_top_k", "moe_top_k_grad", "moe_dispatch", "moe_combine",
    "moe_gate_grad",
    "accumulate", "view", "assemble", "norm_blocks", "norm_parameters", "clip", "validate", "adamw", "zero",
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "shard_slice", "pad_mask",
    "trim", "copy"};
// clang-format on
static_assert(kNames.size() == kOpKinds);

}  // namespace

std::string_view op_name(OpKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<OpKind> parse_op(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<OpKind>(i);
  }
  return std::nullopt;
}

bool is_collective(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kAllGather ||
         kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll || kind == OpKind::kPermute;
}

}  // namespace mw::ir
