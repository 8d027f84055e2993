// What GPT-2 and Llama share when they are written as a graph. Private to room models.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/model.h"
#include "models/net_builder.h"

namespace mw::models {

// The logical axes of activations.
inline const ir::LogicalAxes kResidual = {"batch", "seq", "embed"};
inline const ir::LogicalAxes kFfn = {"batch", "attn_seq", "ffn"};
inline const ir::LogicalAxes kHeads = {"batch", "attn_seq", "heads", ""};
inline const ir::LogicalAxes kKvHeads = {"batch", "attn_seq", "kv_heads", ""};

// "embed", the blocks "h.0", …, "head".
std::vector<ir::Layer> transformer_layers(const ModelConfig& config);

struct TransformerInputs {
  ValueId tokens_BS, targets_BS, positions_BS;
  std::optional<ops::Builder::Random> random;  // where the config has dropout
};
TransformerInputs add_inputs(NetBuilder& net, const ModelConfig& config, BatchShape shape);

// dropout(x) or with rate 0 x.
ValueId residual_dropout(NetBuilder& net, const TransformerInputs& inputs, ValueId x_BSD,
                         double rate, const std::string& site);
// The activation of x + bias, or of x.
ValueId activate(NetBuilder& net, Activation activation, ValueId x,
                 std::optional<ValueId> bias = {});

// Loss and logits of the normed hidden state; table_VD is the tied or the separate output
// embedding.
void write_loss(NetBuilder& net, const TransformerInputs& inputs, ValueId h_BSD, ValueId table_VD);

// Of a block of Llama's kind: what can differ from model to model (mixture.cc,
// latent_attention.cc). A parameter's values: weights are drawn with the config's deviation, biases
// and sinks are zeros, norms' gains ones.
ValueId add_weight(NetBuilder& net, const ModelConfig& config, const std::string& name,
                   const std::vector<int64_t>& sizes, ir::LogicalAxes logical);
ValueId add_bias(NetBuilder& net, const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical);
ValueId add_gain(NetBuilder& net, const std::string& name, int64_t size);

// SwiGLU's output of x_BSD, without biases: `ffn` wide.
ValueId gated_mlp(NetBuilder& net, const ModelConfig& config, const std::string& name,
                  const std::string& state, ValueId x_BSD, int64_t ffn);
// The routed experts' sum for every token, and the shared ones'.
ValueId mixture_of_experts(NetBuilder& net, const ModelConfig& config, const std::string& name,
                           const std::string& state, ValueId x_BSD);
// Multi-head latent attention of a normed x_BSD. `rope` is of latent.rope_dim.
ValueId latent_attention(NetBuilder& net, const ModelConfig& config, const std::string& name,
                         const std::string& state, ValueId x_BSD, const TransformerInputs& inputs,
                         const ops::Builder::RopeTable& rope);

ir::Module build_gpt2(const ModelConfig& config, BatchShape shape);
ir::Module build_llama(const ModelConfig& config, BatchShape shape);

}  // namespace mw::models
