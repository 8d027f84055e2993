#include "models/config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <fmt/core.h>

#include "base/divisors.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_reader.h"
#include "base/text.h"

namespace mw::models {
namespace {

constexpr std::array<std::string_view, 9> kModelTypes = {
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"};
// transformers' names; several are one function.
constexpr std::array<std::string_view, 7> kActivations = {
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu", "swish"};
constexpr std::array kActivationOf = {
    Activation::kGelu, Activation::kGeluTanh, Activation::kGeluTanh, Activation::kGeluTanh,
    Activation::kRelu, Activation::kSilu,     Activation::kSilu};

Activation activation(JsonReader& reader, std::string_view key, std::string_view fallback) {
  const std::string name = reader.choice_or(key, fallback, kActivations);
  return kActivationOf[static_cast<size_t>(
      std::find(kActivations.begin(), kActivations.end(), name) - kActivations.begin())];
}

// Bounds far beyond any model, so that no product of sizes overflows.
constexpr int64_t kMostLayers = int64_t{1} << 14;
constexpr int64_t kMostHeads = int64_t{1} << 14;
constexpr int64_t kMostWidth = int64_t{1} << 20;
constexpr int64_t kMostWords = int64_t{1} << 26;
constexpr int64_t kMostPositions = int64_t{1} << 26;

// 0 where it is too large, as of a key that is no number: what is held against it says nothing.
int64_t bounded(JsonReader& reader, std::string_view key, int64_t size, int64_t most) {
  if (size <= most) return size;
  reader.fail(key, "must be at most {}, is {}", most, size);
  return 0;
}
int64_t read_size(JsonReader& reader, std::string_view key, int64_t most) {
  return bounded(reader, key, reader.integer(key, {.min = 1}), most);
}
int64_t read_size_or(JsonReader& reader, std::string_view key, int64_t fallback, int64_t most) {
  return bounded(reader, key, reader.integer_or(key, fallback, {.min = 1}), most);
}

double dropout(JsonReader& reader, std::string_view key, double fallback) {
  const double rate = reader.number_or(key, fallback, {.min = 0, .max = 1});
  if (rate == 1) reader.fail(key, "must be below 1, is 1.0; dropout 1 leaves nothing");
  return rate;
}

// "1, 2, 4 or 8": all, or the eight that are nearest to `near` in their order. REQUIRES: they rise.
std::string nearest_text(const std::vector<int64_t>& all, int64_t near) {
  constexpr size_t kMost = 8;
  const auto above =
      static_cast<size_t>(std::upper_bound(all.begin(), all.end(), near) - all.begin());
  const size_t most = std::min(all.size(), kMost);
  const size_t begin = std::min(above - std::min(above, most / 2), all.size() - most);
  std::vector<std::string> found;
  for (size_t i = begin; i < begin + most; ++i) found.push_back(std::to_string(all[i]));
  if (found.size() == 1) return found[0];
  const std::string last = found.back();
  found.pop_back();
  return fmt::format("{} or {}", join(found, ", "), last);
}

// A key with a value, "n_embd=64", that has to be divided by another.
void must_divide(JsonReader& reader, std::string_view divisor_key, int64_t divisor,
                 std::string_view key, int64_t value) {
  if (divisor < 1 || value < 1 || value % divisor == 0) return;
  reader.fail(divisor_key, "must divide {}={}, is {}; use {}", key, value, divisor,
              nearest_text(divisors(value), divisor));
}

// Keys that nobody asked for are usual in these files (a tokenizer's, a trainer's); one that is
// nearly a key that is missing is a slip.
void report_slips(JsonReader& reader, const std::vector<std::string>& known) {
  std::vector<std::string> missing;
  for (const std::string& key : known) {
    if (!reader.has(key)) missing.push_back(key);
  }
  for (const std::string& key : reader.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string hint = did_you_mean(key, missing);
    if (!hint.empty())
      reader.fail(key, "is no key of a {} config{}", reader.string_or("model_type", ""), hint);
  }
}

void read_gpt2(JsonReader& reader, ModelConfig& config) {
  config.family = Family::kGpt2;
  config.vocab_size = read_size(reader, "vocab_size", kMostWords);
  config.max_positions = read_size(reader, "n_positions", kMostPositions);
  config.hidden_size = read_size(reader, "n_embd", kMostWidth);
  config.layers = read_size(reader, "n_layer", kMostLayers);
  config.heads = read_size(reader, "n_head", kMostHeads);
  config.kv_heads = config.heads;
  config.ffn_size = read_size_or(reader, "n_inner", 4 * config.hidden_size, 4 * kMostWidth);
  config.activation = activation(reader, "activation_function", "gelu_new");
  config.norm_epsilon = reader.number_or("layer_norm_epsilon", 1e-5, {.min = 0});
  config.initializer_range = reader.number_or("initializer_range", 0.02, {.min = 0});
  config.tie_word_embeddings = reader.boolean_or("tie_word_embeddings", true);
  config.embedding_dropout = dropout(reader, "embd_pdrop", 0.1);
  config.residual_dropout = dropout(reader, "resid_pdrop", 0.1);
  config.attention_dropout = dropout(reader, "attn_pdrop", 0.1);
  config.scale_attention = reader.boolean_or("scale_attn_weights", true);
  config.scale_attention_by_layer = reader.boolean_or("scale_attn_by_inverse_layer_idx", false);
  if (reader.boolean_or("add_cross_attention", false)) {
    reader.fail("add_cross_attention", "must be false, is true; there is no encoder to attend to");
  }
  must_divide(reader, "n_head", config.heads, "n_embd", config.hidden_size);
  config.head_dim = config.heads > 0 ? config.hidden_size / config.heads : 0;
  report_slips(reader,
               {"model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner",
                "activation_function", "layer_norm_epsilon", "initializer_range",
                "tie_word_embeddings", "embd_pdrop", "resid_pdrop", "attn_pdrop",
                "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention"});
}

// Types that are computed are read in full, of others the name: time and memory are the same.
void read_rope_scaling(JsonReader& reader, ModelConfig& config) {
  constexpr std::array<std::string_view, 6> kTypes = {"default", "linear", "llama3",
                                                      "dynamic", "yarn",   "longrope"};
  const std::string type =
      reader.choice_or(reader.has("type") ? "type" : "rope_type", "default", kTypes);
  ir::RopeScaling& scaling = config.rope_scaling;
  if (type == "linear" || type == "llama3") {
    scaling.factor = reader.number("factor", {.min = 1});
  } else if (type != "default") {
    config.rope_type = type;
  }
  if (type != "llama3") return;
  scaling.low_turns = reader.number("low_freq_factor", {.min = 0});
  scaling.high_turns = reader.number("high_freq_factor", {.min = 0});
  scaling.positions = reader.integer("original_max_position_embeddings", {.min = 1});
  if (scaling.low_turns >= scaling.high_turns) {
    reader.fail("low_freq_factor", "must be below high_freq_factor={:g}, is {:g}",
                scaling.high_turns, scaling.low_turns);
  }
}

// Either rope_theta and rope_scaling (transformers 4) or rope_parameters (5).
void read_rope(JsonReader& reader, ModelConfig& config) {
  const JsonReader::NumberRange range{.min = 1};
  config.rope_theta = reader.number_or("rope_theta", 10000, range);
  if (reader.has("rope_parameters")) {
    JsonReader parameters = reader.object("rope_parameters");
    config.rope_theta = parameters.number_or("rope_theta", config.rope_theta, range);
    read_rope_scaling(parameters, config);
  }
  if (reader.has("rope_scaling")) {
    JsonReader scaling = reader.object("rope_scaling");
    read_rope_scaling(scaling, config);
  }
}

// What the configs of all models with Llama's blocks say. `usual_kv_heads`: transformers' where the
// key is missing; 0: as many as there are heads, as null is.
void read_blocks(JsonReader& reader, ModelConfig& config, int64_t usual_kv_heads = 0) {
  config.family = Family::kLlama;
  config.vocab_size = read_size(reader, "vocab_size", kMostWords);
  config.max_positions = read_size(reader, "max_position_embeddings", kMostPositions);
  config.hidden_size = read_size(reader, "hidden_size", kMostWidth);
  config.layers = read_size(reader, "num_hidden_layers", kMostLayers);
  config.heads = read_size(reader, "num_attention_heads", kMostHeads);
  // transformers refuses its own default where it does not divide the heads.
  const bool is_usual = reader.raw("num_key_value_heads") == nullptr && usual_kv_heads > 0 &&
                        config.heads % usual_kv_heads == 0;
  config.kv_heads = read_size_or(reader, "num_key_value_heads",
                                 is_usual ? usual_kv_heads : config.heads, kMostHeads);
  config.ffn_size = read_size(reader, "intermediate_size", 4 * kMostWidth);
  config.activation = activation(reader, "hidden_act", "silu");
  config.norm_epsilon = reader.number_or("rms_norm_eps", 1e-6, {.min = 0});
  config.initializer_range = reader.number_or("initializer_range", 0.02, {.min = 0});
  config.tie_word_embeddings = reader.boolean_or("tie_word_embeddings", false);
  config.attention_dropout = dropout(reader, "attention_dropout", 0);
  config.attention_bias = reader.boolean_or("attention_bias", false);
}

// A head's share of the width, which rotary embedding turns by halves.
void divide_into_heads(JsonReader& reader, ModelConfig& config) {
  const int64_t width = config.hidden_size;
  if (config.heads < 1 || width < 1) return;
  config.head_dim = width / config.heads;
  if (width % config.heads == 0 && config.head_dim % 2 == 0) return;
  if (width % 2 != 0) {
    reader.fail("hidden_size", "must be even for rotary embedding, is {}", width);
    return;
  }
  reader.fail("num_attention_heads",
              "must divide hidden_size={} into heads of an even size for rotary embedding, is {}; "
              "use {}",
              width, config.heads, nearest_text(divisors(width / 2), config.heads));
}

// `usual`: of a head where the config does not say it; 0: its share of the width.
void read_head_dim(JsonReader& reader, ModelConfig& config, int64_t usual = 0) {
  if (reader.has("head_dim")) {
    config.head_dim =
        bounded(reader, "head_dim", reader.integer("head_dim", {.min = 2}), kMostHeads);
    if (config.head_dim % 2 != 0)
      reader.fail("head_dim", "must be even for rotary embedding, is {}", config.head_dim);
  } else if (usual > 0) {
    config.head_dim = usual;
  } else {
    divide_into_heads(reader, config);
  }
  must_divide(reader, "num_key_value_heads", config.kv_heads, "num_attention_heads", config.heads);
}

// Keys of a dense Llama's config, and of those with its blocks.
const std::vector<std::string>& llama_keys() {
  static const std::vector<std::string> kKeys = {
      "model_type",          "vocab_size",        "max_position_embeddings",
      "hidden_size",         "num_hidden_layers", "num_attention_heads",
      "num_key_value_heads", "intermediate_size", "hidden_act",
      "rms_norm_eps",        "initializer_range", "tie_word_embeddings",
      "attention_dropout",   "attention_bias",    "rope_theta",
      "rope_parameters",     "rope_scaling",      "head_dim"};
  return kKeys;
}

// Attention to the last positions alone is not there: a window has to hold them all. `usual`:
// transformers' where the key is missing; 0: none, as null is.
void check_window(JsonReader& reader, const ModelConfig& config, int64_t usual = 0) {
  if (reader.raw("sliding_window") == nullptr && usual > 0 && usual < config.max_positions) {
    reader.fail("sliding_window", "must be null or all {} positions, is missing, which is {}",
                config.max_positions, usual);
  }
  if (reader.has("sliding_window")) {
    const int64_t positions = reader.integer_or("sliding_window", 0, {.min = 1});
    if (positions < config.max_positions)
      reader.fail("sliding_window", "must be null or all {} positions, is {}", config.max_positions,
                  positions);
  }
  reader.ignore("sliding_window");
}

void read_llama(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config);
  config.mlp_bias = reader.boolean_or("mlp_bias", false);
  read_rope(reader, config);
  read_head_dim(reader, config);
  std::vector<std::string> keys = llama_keys();
  keys.emplace_back("mlp_bias");
  report_slips(reader, keys);
}

void read_mistral(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config, /*usual_kv_heads=*/8);
  read_rope(reader, config);
  read_head_dim(reader, config);
  check_window(reader, config, /*usual=*/4096);
  report_slips(reader, llama_keys());
}

// Qwen2 has biases of queries, keys and values, Qwen3 norms of queries and keys.
void read_qwen(JsonReader& reader, bool second, ModelConfig& config) {
  read_blocks(reader, config, /*usual_kv_heads=*/32);
  read_rope(reader, config);
  config.qkv_bias = second;
  config.normed_heads = !second;
  constexpr int64_t kQwen3Head = 128;  // transformers' default
  read_head_dim(reader, config, second ? 0 : kQwen3Head);
  if (reader.boolean_or("use_sliding_window", false)) check_window(reader, config);
  report_slips(reader, llama_keys());
}

void read_experts(JsonReader& reader, ModelConfig& config, std::string_view experts_key) {
  Mixture& mixture = config.mixture;
  mixture.experts = read_size(reader, experts_key, kMostHeads);
  mixture.top_k = read_size(reader, "num_experts_per_tok", kMostHeads);
  if (mixture.experts > 0 && mixture.experts < mixture.top_k) {
    reader.fail("num_experts_per_tok", "must be 1 to {}={}, is {}", experts_key, mixture.experts,
                mixture.top_k);
  }
  config.rope_theta = reader.number_or("rope_theta", 10000, {.min = 1});
}

void read_mixtral(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config, /*usual_kv_heads=*/8);
  read_head_dim(reader, config);
  read_experts(reader, config, "num_local_experts");
  config.mixture.ffn_size = config.ffn_size;
  check_window(reader, config);
}

void read_qwen3_moe(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config, /*usual_kv_heads=*/4);
  read_head_dim(reader, config);
  read_experts(reader, config, "num_experts");
  config.mixture.ffn_size = read_size(reader, "moe_intermediate_size", 4 * kMostWidth);
  config.normed_heads = true;
  if (reader.integer_or("decoder_sparse_step", 1, {.min = 1}) != 1)
    reader.fail("decoder_sparse_step", "must be 1: every layer has experts");
  if (reader.has("mlp_only_layers") && !reader.integers("mlp_only_layers").empty())
    reader.fail("mlp_only_layers", "must be empty: every layer has experts");
  reader.ignore("mlp_only_layers");
  if (reader.boolean_or("use_sliding_window", false))
    reader.fail("use_sliding_window", "must be false: attention is over all positions");
}

void read_gpt_oss(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config, /*usual_kv_heads=*/8);
  read_head_dim(reader, config);
  read_experts(reader, config, "num_local_experts");
  config.attention_bias = reader.boolean_or("attention_bias", true);
  config.mixture.ffn_size = config.ffn_size;
  config.mixture.bias = true;
  config.window = reader.integer_or("sliding_window", 128, {.min = 1});
}

void read_deepseek_v3(JsonReader& reader, ModelConfig& config) {
  read_blocks(reader, config);
  read_experts(reader, config, "n_routed_experts");
  Mixture& mixture = config.mixture;
  mixture.ffn_size = read_size(reader, "moe_intermediate_size", 4 * kMostWidth);
  mixture.shared_ffn_size =
      mixture.ffn_size * reader.integer_or("n_shared_experts", 1, {.min = 0, .max = kMostHeads});
  mixture.dense_layers = reader.integer_or("first_k_dense_replace", 3, {.min = 0});
  if (config.layers > 0 && mixture.dense_layers > config.layers)
    reader.fail("first_k_dense_replace", "must be at most the {} layers, is {}", config.layers,
                mixture.dense_layers);
  if (reader.integer_or("moe_layer_freq", 1, {.min = 1}) != 1)
    reader.fail("moe_layer_freq", "must be 1: every layer behind the dense ones has experts");
  mixture.sigmoid = true;
  mixture.scale = reader.number_or("routed_scaling_factor", 2.5, {.min = 0});
  LatentAttention& latent = config.latent;
  latent.query_rank = reader.integer_or("q_lora_rank", 0, {.min = 1, .max = kMostWidth});
  latent.kv_rank = read_size(reader, "kv_lora_rank", kMostWidth);
  latent.rope_dim = read_size(reader, "qk_rope_head_dim", kMostHeads);
  latent.value_dim = read_size(reader, "v_head_dim", kMostHeads);
  config.head_dim = read_size(reader, "qk_nope_head_dim", kMostHeads) + latent.rope_dim;
  if (latent.rope_dim % 2 != 0)
    reader.fail("qk_rope_head_dim", "must be even for rotary embedding, is {}", latent.rope_dim);
  config.kv_heads = config.heads;
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  Diagnostics diagnostics;
  JsonReader reader(json, file, &diagnostics);
  ModelConfig config;
  config.source = file;
  const std::string type = reader.choice("model_type", kModelTypes);
  diagnostics.throw_if_any();
  if (type == "gpt2") {
    read_gpt2(reader, config);
  } else if (type == "llama") {
    read_llama(reader, config);
  } else if (type == "mistral") {
    read_mistral(reader, config);
  } else if (type == "qwen2" || type == "qwen3") {
    read_qwen(reader, type == "qwen2", config);
  } else if (type == "mixtral") {
    read_mixtral(reader, config);
  } else if (type == "qwen3_moe") {
    read_qwen3_moe(reader, config);
  } else if (type == "gpt_oss") {
    read_gpt_oss(reader, config);
  } else {
    read_deepseek_v3(reader, config);
  }
  diagnostics.throw_if_any();
  return config;
}

std::vector<DividedSize> ModelConfig::divided_sizes() const {
  std::vector<DividedSize> sizes = {
      {"heads", heads, family == Family::kGpt2 ? "n_head" : "num_attention_heads"}};
  if (kv_heads != heads) sizes.push_back({"kv_heads", kv_heads, "num_key_value_heads"});
  return sizes;
}

std::string ModelConfig::only_simulated() const {
  if (mixture.experts > 0) return "a mixture of experts";
  if (latent.kv_rank > 0) return "latent attention";
  if (window > 0) return "attention with a window";
  if (!rope_type.empty()) return fmt::format("rope_type \"{}\"", rope_type);
  return "";
}

}  // namespace mw::models
