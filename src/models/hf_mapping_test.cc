#include "models/hf_mapping.h"

#include <doctest/doctest.h>

#include <numeric>

#include "base/error.h"
#include "models/model.h"
#include "models/test_configs.h"

using namespace mw;
using namespace mw::models;

namespace {

std::string listing(const ModelConfig& config) {
  std::string text;
  for (const TensorMapping& mapping : hf_mapping(config, build_model(config, {1, 8}))) {
    text += mapping.hf_name + " [";
    for (size_t i = 0; i < mapping.hf_shape.size(); ++i) {
      text += fmt::format("{}{}", i > 0 ? ", " : "", mapping.hf_shape[i]);
    }
    text += "]\n";
  }
  return text;
}

const TensorMapping& find(const std::vector<TensorMapping>& mappings, const std::string& name) {
  for (const TensorMapping& mapping : mappings) {
    if (mapping.hf_name == name) return mapping;
  }
  MW_CHECK(false, "no tensor '{}'", name);
}

std::vector<int32_t> numbered(int64_t elements) {
  std::vector<int32_t> numbers(static_cast<size_t>(elements));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

// The state_dict of transformers' models, without the tied lm_head.weight.
TEST_CASE("names and shapes are those of transformers' state_dict") {
  ModelConfig gpt = model_config("gpt-micro");
  gpt.layers = 1;
  CHECK(listing(gpt) ==
        "transformer.wte.weight [256, 64]\n"
        "transformer.wpe.weight [64, 64]\n"
        "transformer.h.0.ln_1.weight [64]\n"
        "transformer.h.0.ln_1.bias [64]\n"
        "transformer.h.0.attn.c_attn.weight [64, 192]\n"
        "transformer.h.0.attn.c_attn.bias [192]\n"
        "transformer.h.0.attn.c_proj.weight [64, 64]\n"
        "transformer.h.0.attn.c_proj.bias [64]\n"
        "transformer.h.0.ln_2.weight [64]\n"
        "transformer.h.0.ln_2.bias [64]\n"
        "transformer.h.0.mlp.c_fc.weight [64, 256]\n"
        "transformer.h.0.mlp.c_fc.bias [256]\n"
        "transformer.h.0.mlp.c_proj.weight [256, 64]\n"
        "transformer.h.0.mlp.c_proj.bias [64]\n"
        "transformer.ln_f.weight [64]\n"
        "transformer.ln_f.bias [64]\n");
  ModelConfig llama = model_config("llama-micro");
  llama.layers = 1;
  llama.attention_bias = llama.mlp_bias = true;
  llama.head_dim = 24;
  CHECK(listing(llama) ==
        "model.embed_tokens.weight [256, 64]\n"
        "model.layers.0.input_layernorm.weight [64]\n"
        "model.layers.0.self_attn.q_proj.weight [96, 64]\n"
        "model.layers.0.self_attn.q_proj.bias [96]\n"
        "model.layers.0.self_attn.k_proj.weight [48, 64]\n"
        "model.layers.0.self_attn.k_proj.bias [48]\n"
        "model.layers.0.self_attn.v_proj.weight [48, 64]\n"
        "model.layers.0.self_attn.v_proj.bias [48]\n"
        "model.layers.0.self_attn.o_proj.weight [64, 96]\n"
        "model.layers.0.self_attn.o_proj.bias [64]\n"
        "model.layers.0.post_attention_layernorm.weight [64]\n"
        "model.layers.0.mlp.gate_proj.weight [160, 64]\n"
        "model.layers.0.mlp.gate_proj.bias [160]\n"
        "model.layers.0.mlp.up_proj.weight [160, 64]\n"
        "model.layers.0.mlp.up_proj.bias [160]\n"
        "model.layers.0.mlp.down_proj.weight [64, 160]\n"
        "model.layers.0.mlp.down_proj.bias [64]\n"
        "model.norm.weight [64]\n"
        "lm_head.weight [256, 64]\n");
}

TEST_CASE("files may hold a tensor without the base model's prefix, and a tied head") {
  const ModelConfig gpt = model_config("gpt-micro");
  const auto mappings = hf_mapping(gpt, build_model(gpt, {1, 8}));
  CHECK(find(mappings, "transformer.wte.weight").aliases ==
        std::vector<std::string>{"wte.weight", "lm_head.weight"});
  CHECK(find(mappings, "transformer.h.0.ln_1.bias").aliases ==
        std::vector<std::string>{"h.0.ln_1.bias"});
  const ModelConfig llama = model_config("llama-micro");
  const auto untied = hf_mapping(llama, build_model(llama, {1, 8}));
  CHECK(find(untied, "model.embed_tokens.weight").aliases ==
        std::vector<std::string>{"embed_tokens.weight"});
  CHECK(find(untied, "lm_head.weight").aliases.empty());
}

TEST_CASE("buffers that transformers may write are told from weights") {
  for (const char* name :
       {"h.0.attn.bias", "h.0.attn.masked_bias", "layers.0.self_attn.rotary_emb.inv_freq"})
    CHECK(is_hf_buffer(name));
  for (const char* name : {"h.0.attn.c_attn.bias", "h.0.ln_1.bias"})
    CHECK_FALSE(is_hf_buffer(name));
}

TEST_CASE("every tensor comes back from Hugging Face's order as it was") {
  for (const std::string name : {"gpt-micro", "llama-micro"}) {
    ModelConfig config = model_config(name);
    config.attention_bias = config.mlp_bias = true;
    const ir::Module module = build_model(config, {1, 8});
    const auto mappings = hf_mapping(config, module);
    REQUIRE(mappings.size() == module.parameters().size());
    for (size_t i = 0; i < mappings.size(); ++i) {
      CAPTURE(mappings[i].hf_name);
      CHECK(mappings[i].state == module.parameters()[i]);
      const int64_t elements = module.state(mappings[i].state).type.elements();
      const std::vector<int32_t> state = numbered(elements);
      std::vector<int32_t> hf(state.size()), again(state.size());
      to_hf(mappings[i], std::as_bytes(std::span(state)), std::as_writable_bytes(std::span(hf)));
      from_hf(mappings[i], std::as_bytes(std::span(hf)), std::as_writable_bytes(std::span(again)));
      CHECK(again == state);
    }
  }
}

TEST_CASE("GPT-2's Conv1D weights are transposed and split into heads") {
  ModelConfig config = model_config("gpt-micro");
  config.hidden_size = 6, config.heads = config.kv_heads = 3, config.head_dim = 2,
  config.ffn_size = 5;
  const auto mappings = hf_mapping(config, build_model(config, {1, 8}));
  const int64_t D = 6, H = 3, K = 2, F = 5;
  const auto state_of = [&](const std::string& name, int64_t elements) {
    const std::vector<int32_t> hf = numbered(elements);
    std::vector<int32_t> state(hf.size());
    from_hf(find(mappings, name), std::as_bytes(std::span(hf)),
            std::as_writable_bytes(std::span(state)));
    return state;
  };
  // query, key, value = (x @ weight).split(D, dim=-1), each viewed as [H, K].
  const auto qkv_3HKD = state_of("transformer.h.0.attn.c_attn.weight", 3 * D * D);
  const auto proj_DHK = state_of("transformer.h.0.attn.c_proj.weight", D * D);
  const auto up_FD = state_of("transformer.h.0.mlp.c_fc.weight", D * F);
  const auto down_DF = state_of("transformer.h.0.mlp.c_proj.weight", D * F);
  size_t at = 0;
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t d = 0; d < D; ++d) CHECK(qkv_3HKD[at++] == d * 3 * D + c * D + h * K + k);
      }
    }
  }
  for (int64_t d = 0; d < D; ++d) {
    for (int64_t hk = 0; hk < H * K; ++hk)
      CHECK(proj_DHK[static_cast<size_t>(d * H * K + hk)] == hk * D + d);
    for (int64_t f = 0; f < F; ++f) {
      CHECK(up_FD[static_cast<size_t>(f * D + d)] == d * F + f);
      CHECK(down_DF[static_cast<size_t>(d * F + f)] == f * D + d);
    }
  }
}

TEST_CASE("elements of two and eight bytes are moved whole and wrong sizes are refused") {
  TensorMapping mapping;
  mapping.hf_name = "t";
  mapping.hf_shape = mapping.view = {2, 3};
  mapping.permutation = {1, 0};
  const std::vector<int16_t> hf = {0, 1, 2, 3, 4, 5};
  std::vector<int16_t> state(6);
  from_hf(mapping, std::as_bytes(std::span(hf)), std::as_writable_bytes(std::span(state)));
  CHECK(state == std::vector<int16_t>{0, 3, 1, 4, 2, 5});
  const std::vector<double> wide = {0, 1, 2, 3, 4, 5};
  std::vector<double> wide_state(6);
  from_hf(mapping, std::as_bytes(std::span(wide)), std::as_writable_bytes(std::span(wide_state)));
  CHECK(wide_state == std::vector<double>{0, 3, 1, 4, 2, 5});
  CHECK_THROWS_AS(
      from_hf(mapping, std::as_bytes(std::span(hf)), std::as_writable_bytes(std::span(wide_state))),
      CheckFailure);
}
