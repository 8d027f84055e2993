#include "models/config.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include "base/error.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/test_thrown_by.h"

using namespace mw;
using namespace mw::models;

namespace {

std::string message_of(std::string_view json) {
  return mw::test::thrown_by([&] { parse_config(json, "models/x.json"); });
}

constexpr std::string_view kGpt2 =
    R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4})";
constexpr std::string_view kLlama =
    R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64, "hidden_size": 64,
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4})";

// The config with one more entry.
std::string with(std::string_view json, std::string_view entry) {
  return std::string(json.substr(0, json.rfind('}'))) + ", " + std::string(entry) + "}";
}

}  // namespace

TEST_CASE("keys that a GPT-2 config does not give have transformers' defaults") {
  const ModelConfig config = parse_config(kGpt2, "models/x.json");
  CHECK(config.family == Family::kGpt2);
  CHECK(config.head_dim == 16);
  CHECK(config.kv_heads == 4);
  CHECK(config.ffn_size == 256);
  CHECK(config.activation == Activation::kGeluTanh);
  CHECK(config.norm_epsilon == 1e-5);
  CHECK(config.tie_word_embeddings);
  CHECK(config.embedding_dropout == 0.1);
  CHECK(config.residual_dropout == 0.1);
  CHECK(config.attention_dropout == 0.1);
  CHECK(config.has_dropout());
  CHECK(parse_config(with(kGpt2, R"("n_inner": null)"), "").ffn_size == 256);
  CHECK(parse_config(with(kGpt2, R"("n_inner": 100)"), "").ffn_size == 100);
  CHECK(parse_config(with(kGpt2, R"("activation_function": "gelu")"), "").activation ==
        Activation::kGelu);
}

TEST_CASE("keys that a Llama config does not give have transformers' defaults") {
  const ModelConfig config = parse_config(kLlama, "models/x.json");
  CHECK(config.family == Family::kLlama);
  CHECK(config.head_dim == 16);
  CHECK(config.kv_heads == 4);
  CHECK(config.activation == Activation::kSilu);
  CHECK(config.norm_epsilon == 1e-6);
  CHECK(config.rope_theta == 10000);
  CHECK(!config.tie_word_embeddings);
  CHECK(!config.has_dropout());
  CHECK(!config.attention_bias);
}

TEST_CASE("rope_theta is read from where transformers 4 and 5 write it") {
  CHECK(parse_config(with(kLlama, R"("rope_theta": 500000)"), "").rope_theta == 500000);
  CHECK(parse_config(with(kLlama, R"("rope_theta": 500000.0, "rope_scaling": null)"), "")
            .rope_theta == 500000);
  CHECK(parse_config(
            with(kLlama, R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"})"),
            "")
            .rope_theta == 500000);
  CHECK(parse_config(with(kLlama, R"("rope_theta": 500000,
                                    "rope_parameters": {"rope_type": "default"})"),
                     "")
            .rope_theta == 500000);
}

TEST_CASE("scaling of rotary positions is read, or named where nothing is computed of it") {
  const auto scaling = [](const char* text) { return parse_config(with(kLlama, text), ""); };
  const ModelConfig llama3 = scaling(
      R"("rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192, "rope_type": "llama3"})");
  CHECK(llama3.rope_scaling == ir::RopeScaling{8, 1, 4, 8192});
  CHECK(llama3.only_simulated() == "");
  const ModelConfig linear =
      scaling(R"("rope_parameters": {"rope_theta": 5000, "rope_type": "linear", "factor": 2.0})");
  CHECK(linear.rope_scaling == ir::RopeScaling{2, 0, 0, 0});
  CHECK(linear.rope_theta == 5000);
  const ModelConfig yarn = scaling(R"("rope_scaling": {"type": "yarn", "factor": 4.0})");
  CHECK(yarn.rope_scaling == ir::RopeScaling());
  CHECK(yarn.only_simulated() == "rope_type \"yarn\"");
  CHECK(message_of(with(kLlama, R"("rope_scaling": {"rope_type": "llama3", "factor": 0.5,
                                    "low_freq_factor": 4, "high_freq_factor": 1})")) ==
        "models/x.json: rope_scaling.factor: must be a number of at least 1, is 0.5\n"
        "models/x.json: rope_scaling.original_max_position_embeddings: is missing; must be an "
        "integer of at least 1\n"
        "models/x.json: rope_scaling.low_freq_factor: must be below high_freq_factor=1, is 4");
  CHECK(message_of(with(kLlama, R"("rope_scaling": {"rope_type": "llama3", "factor": 2,
                                    "low_freq_factor": 4, "high_freq_factor": 4,
                                    "original_max_position_embeddings": 64})")) ==
        "models/x.json: rope_scaling.low_freq_factor: must be below high_freq_factor=4, is 4");
  CHECK(
      message_of(with(kLlama, R"("rope_parameters": {"rope_type": "lama3"})")) ==
      R"(models/x.json: rope_parameters.rope_type: must be "default", "linear", "llama3", "dynamic", "yarn" or "longrope", is "lama3", did you mean 'llama3'?)");
}

TEST_CASE("keys that do not concern training are ignored") {
  CHECK(message_of(
            with(kGpt2, R"("architectures": ["GPT2LMHeadModel"], "use_cache": true, "n_ctx": 64,
        "task_specific_params": {"text-generation": {"do_sample": true}}, "transformers_version": "5.0")")) ==
        "no error");
}

TEST_CASE("an unsupported model type is answered with those that are supported") {
  CHECK(
      message_of(R"({"model_type": "bert", "n_head": "x"})") ==
      R"(models/x.json: model_type: must be "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3" or "gpt_oss", is "bert")");
  CHECK(
      message_of(R"({"model_type": "lama"})") ==
      R"(models/x.json: model_type: must be "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3" or "gpt_oss", is "lama", did you mean 'llama'?)");
  CHECK(
      message_of("{}") ==
      R"(models/x.json: model_type: is missing; must be "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3" or "gpt_oss")");
}

TEST_CASE("missing keys are reported together") {
  CHECK(message_of(R"({"model_type": "gpt2", "n_embd": 64})") ==
        "models/x.json: vocab_size: is missing; must be an integer of at least 1\n"
        "models/x.json: n_positions: is missing; must be an integer of at least 1\n"
        "models/x.json: n_layer: is missing; must be an integer of at least 1\n"
        "models/x.json: n_head: is missing; must be an integer of at least 1");
  CHECK(
      message_of(
          R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "max_position_embeddings": 8})") ==
      "models/x.json: num_hidden_layers: is missing; must be an integer of at least 1\n"
      "models/x.json: num_attention_heads: is missing; must be an integer of at least 1\n"
      "models/x.json: intermediate_size: is missing; must be an integer of at least 1");
}

TEST_CASE("sizes whose products would overflow are said to be too large") {
  CHECK(
      message_of(
          R"({"model_type": "gpt2", "vocab_size": 4294967296, "n_positions": 64, "n_embd": 4294967296,
        "n_layer": 9223372036854775807, "n_head": 4294967296})") ==
      R"(models/x.json: vocab_size: must be at most 67108864, is 4294967296
models/x.json: n_embd: must be at most 1048576, is 4294967296
models/x.json: n_layer: must be at most 16384, is 9223372036854775807
models/x.json: n_head: must be at most 16384, is 4294967296)");
  // Nothing is held against a size that is none.
  CHECK(
      message_of(
          R"({"model_type": "mixtral", "vocab_size": 256, "hidden_size": 1099511627776, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 8,
        "num_local_experts": 0, "num_experts_per_tok": 2})") ==
      "models/x.json: hidden_size: must be at most 1048576, is 1099511627776\n"
      "models/x.json: num_local_experts: must be an integer of at least 1, is 0");
}

TEST_CASE("everything wrong with a GPT-2 config is reported at once") {
  CHECK(
      message_of(
          R"({"model_type": "gpt2", "vocab_size": 0, "n_positions": "64", "n_embd": 64, "n_layer": 2,
        "n_head": 5, "activation_function": "gelu_nw", "resid_pdrop": 1.0, "attn_pdrop": -0.5,
        "layer_norm_epsilon": "small", "tie_word_embedding": false, "add_cross_attention": true})") ==
      R"(models/x.json: vocab_size: must be an integer of at least 1, is 0
models/x.json: n_positions: must be an integer of at least 1, is "64"
models/x.json: activation_function: must be "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu" or "swish", is "gelu_nw", did you mean 'gelu_new'?
models/x.json: layer_norm_epsilon: must be a number of at least 0, is "small"
models/x.json: resid_pdrop: must be below 1, is 1.0; dropout 1 leaves nothing
models/x.json: attn_pdrop: must be a number from 0 to 1, is -0.5
models/x.json: add_cross_attention: must be false, is true; there is no encoder to attend to
models/x.json: n_head: must divide n_embd=64, is 5; use 1, 2, 4, 8, 16, 32 or 64
models/x.json: tie_word_embedding: is no key of a gpt2 config, did you mean 'tie_word_embeddings'?)");
}

TEST_CASE("models with a Llama's blocks differ in biases, norms and heads") {
  const auto of = [](const char* type, const char* entry) {
    std::string json = with(kLlama, entry);
    json.replace(json.find("\"llama\""), 7, type);
    return json;
  };
  const ModelConfig llama = parse_config(kLlama, "");
  CHECK(parse_config(of("\"mistral\"", "\"sliding_window\": null"), "") == llama);
  CHECK(message_of(of("\"mistral\"", "\"sliding_window\": 8"))
            .find("sliding_window: must be null or all ") != std::string::npos);
  ModelConfig qwen2 = llama;
  qwen2.qkv_bias = true;
  CHECK(parse_config(of("\"qwen2\"", "\"use_sliding_window\": false, \"sliding_window\": 8"), "") ==
        qwen2);
  CHECK(message_of(of("\"qwen2\"", "\"use_sliding_window\": true, \"sliding_window\": 8"))
            .find("sliding_window: must be null or all ") != std::string::npos);
  ModelConfig qwen3 = llama;
  qwen3.normed_heads = true;
  qwen3.head_dim = 128;
  CHECK(parse_config(of("\"qwen3\"", "\"attention_bias\": false"), "") == qwen3);
  qwen3.head_dim = 32;
  CHECK(parse_config(of("\"qwen3\"", "\"head_dim\": 32"), "") == qwen3);
}

// transformers 5.23, MistralConfig() and so on.
TEST_CASE("a key that a config leaves out is transformers' of its type") {
  const auto text = [](const char* type, const char* more) {
    return fmt::format(
        R"({{"model_type": "{}", "vocab_size": 256, "max_position_embeddings": 8192, "hidden_size": 256,
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 64, "head_dim": 4,
        "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64{}}})",
        type, more);
  };
  struct Case {
    const char* type;
    int64_t kv_heads;
  };
  for (const Case& c :
       {Case{"llama", 64}, Case{"mistral", 8}, Case{"mixtral", 8}, Case{"qwen2", 32},
        Case{"qwen3", 32}, Case{"qwen3_moe", 4}, Case{"gpt_oss", 8}}) {
    CAPTURE(c.type);
    CHECK(parse_config(text(c.type, R"(, "sliding_window": null)"), "").kv_heads == c.kv_heads);
    CHECK(parse_config(text(c.type, R"(, "sliding_window": null, "num_key_value_heads": null)"), "")
              .kv_heads == 64);
  }
  CHECK(message_of(text("mistral", "")) ==
        "models/x.json: sliding_window: must be null or all 8192 positions, is missing, which is "
        "4096");
  CHECK(message_of(text("mixtral", "")) == "no error");
}

TEST_CASE("of heads that divide, those nearest to the number are told, of an even size") {
  const auto said = [](int width, int heads) {
    return message_of(fmt::format(
        R"({{"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64, "hidden_size": {},
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": {}}})",
        width, heads));
  };
  const std::string begin = "models/x.json: num_attention_heads: must divide hidden_size=";
  const std::string middle = " into heads of an even size for rotary embedding, is ";
  CHECK(said(24, 5) == begin + "24" + middle + "5; use 1, 2, 3, 4, 6 or 12");
  CHECK(said(24, 8) == begin + "24" + middle + "8; use 1, 2, 3, 4, 6 or 12");
  CHECK(said(4096, 31) == begin + "4096" + middle + "31; use 2, 4, 8, 16, 32, 64, 128 or 256");
  for (const int heads : {2, 4, 8, 16, 32, 64, 128, 256}) CHECK(said(4096, heads) == "no error");
}

TEST_CASE("heads that do not fit a Llama config are reported with those that do") {
  CHECK(
      message_of(with(kLlama, R"("num_key_value_heads": 3)")) ==
      "models/x.json: num_key_value_heads: must divide num_attention_heads=4, is 3; use 1, 2 or 4");
  CHECK(message_of(with(kLlama, R"("head_dim": 7)")) ==
        "models/x.json: head_dim: must be even for rotary embedding, is 7");
  CHECK(message_of(with(kLlama, R"("head_dim": 24)")) == "no error");
  CHECK(
      message_of(
          R"({"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64, "hidden_size": 63,
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_head": 2})") ==
      "models/x.json: hidden_size: must be even for rotary embedding, is 63\n"
      "models/x.json: num_key_value_head: is no key of a llama config, did you mean "
      "'num_key_value_heads'?");
}

TEST_CASE("keys of mixtures that would change the model are refused, not left out") {
  const auto finding = [](const char* model, const char* key, const Json& value) {
    const std::string path = fmt::format("{}/models/{}", MW_SOURCE_DIR, model);
    Json config = parse_json(posix_fs().read_file(path), "x.json");
    config[key] = value;
    return mw::test::thrown_by([&] { parse_config(config.dump(), "x.json"); });
  };
  CHECK(finding("qwen3-30b-a3b.json", "mlp_only_layers", Json::list(std::vector<int64_t>{0, 1})) ==
        "x.json: mlp_only_layers: must be empty: every layer has experts");
  CHECK(finding("qwen3-30b-a3b.json", "mlp_only_layers", Json(JsonArray{})) == "no error");
  CHECK(finding("qwen3-30b-a3b.json", "use_sliding_window", Json(true)) ==
        "x.json: use_sliding_window: must be false: attention is over all positions");
  CHECK(finding("mixtral-8x7b.json", "sliding_window", Json(int64_t{128}))
            .starts_with("x.json: sliding_window: must be null or all "));
  CHECK(finding("mixtral-8x7b.json", "sliding_window", Json()) == "no error");
  CHECK(finding("deepseek-v3.json", "moe_layer_freq", Json(int64_t{2})) ==
        "x.json: moe_layer_freq: must be 1: every layer behind the dense ones has experts");
  CHECK(finding("deepseek-v3.json", "first_k_dense_replace", Json(int64_t{100})) ==
        "x.json: first_k_dense_replace: must be at most the 61 layers, is 100");
}

TEST_CASE("a file that is no JSON is reported with its name") {
  CHECK(message_of("{\"model_type\": ").substr(0, 15) == "models/x.json:1");
}
