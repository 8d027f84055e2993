// ModelConfig: what a Hugging Face config.json says about a decoder-only transformer, in one form
// for all families.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/attributes.h"

namespace mw::models {

enum class Family : uint8_t { kGpt2, kLlama };
enum class Activation : uint8_t { kGelu, kGeluTanh, kRelu, kSilu };

// The routed experts of a layer.
struct Mixture {
  int64_t experts = 0;  // 0: every layer has one MLP
  int64_t top_k = 0;    // experts that a token goes to
  int64_t ffn_size = 0;
  int64_t shared_ffn_size = 0;  // of the experts that every token goes to, together; 0: none
  int64_t dense_layers = 0;     // leading layers with one MLP, of the config's ffn_size
  bool sigmoid = false;         // DeepSeek-V3's scores; else a softmax over the chosen experts
  double scale = 1;             // what a token's gates add up to
  bool bias = false;            // router and experts have biases
  friend bool operator==(const Mixture&, const Mixture&) = default;
};

// DeepSeek's multi-head latent attention: queries, unless query_rank is 0, and keys with values go
// through a narrow normed vector; a part of every head has rotary positions, of keys one for all
// heads.
struct LatentAttention {
  int64_t query_rank = 0, kv_rank = 0;  // 0: plain heads
  int64_t rope_dim = 0;                 // of head_dim; the rest has no positions
  int64_t value_dim = 0;                // of a head's values
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

struct DividedSize {
  std::string axis;  // logical, "heads"
  int64_t size = 0;
  std::string key;  // of the config, "n_head"
};

struct ModelConfig {
  std::string source;  // the file, for messages
  Family family = Family::kGpt2;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t ffn_size = 0;
  Activation activation = Activation::kGeluTanh;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  double embedding_dropout = 0, residual_dropout = 0, attention_dropout = 0;

  bool scale_attention = true;            // GPT-2: by 1/sqrt(head_dim)
  bool scale_attention_by_layer = false;  // GPT-2: and by 1/(layer + 1)
  double rope_theta = 10000;              // Llama
  ir::RopeScaling rope_scaling;
  std::string rope_type;  // one that nothing is computed of: "yarn"; "" for those of rope_scaling
  bool attention_bias = false, mlp_bias = false;  // Llama; GPT-2 always has biases
  bool qkv_bias = false;                          // of queries, keys and values alone (Qwen2)
  bool normed_heads = false;                      // queries and keys are normed by head (Qwen3)
  int64_t window = 0;  // every other layer from the first attends to so many keys; 0: none does
  Mixture mixture;     // of a Llama
  LatentAttention latent;

  bool has_dropout() const {
    return embedding_dropout > 0 || residual_dropout > 0 || attention_dropout > 0;
  }
  // What tensor parallelism divides as it is: heads, and of fewer keys and values theirs.
  std::vector<DividedSize> divided_sizes() const;
  // What no kernel exists for yet: "a mixture of experts"; "" for a model that can run.
  std::string only_simulated() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Reads a config.json with model_type "gpt2", "llama", "mistral", "qwen2", "qwen3", or of a mixture
// "mixtral", "qwen3_moe", "deepseek_v3" or "gpt_oss" (of these without multi-token prediction,
// scaling of rotary positions and attention sinks); keys that are not given have transformers'
// defaults, keys that do not concern training are ignored. Throws Error with every finding, each
// "file: key: what must be, what is".
ModelConfig parse_config(std::string_view json, const std::string& file);

}  // namespace mw::models
