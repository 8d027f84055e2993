// ModelConfig: what a Hugging Face config.json says about a decoder-only transformer, in one form
// for all families.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mw::models {

enum class Family : uint8_t { kGpt2, kLlama };
enum class Activation : uint8_t { kGelu, kGeluTanh, kRelu, kSilu };

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

  bool scale_attention = true;                    // GPT-2: by 1/sqrt(head_dim)
  bool scale_attention_by_layer = false;          // GPT-2: and by 1/(layer + 1)
  double rope_theta = 10000;                      // Llama
  bool attention_bias = false, mlp_bias = false;  // Llama; GPT-2 always has biases

  bool has_dropout() const {
    return embedding_dropout > 0 || residual_dropout > 0 || attention_dropout > 0;
  }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Reads a config.json with model_type "gpt2" or "llama"; keys that are not given have transformers'
// defaults, keys that do not concern training are ignored. Throws Error with every finding, each
// "file: key: what must be, what is".
ModelConfig parse_config(std::string_view json, const std::string& file);

}  // namespace mw::models
