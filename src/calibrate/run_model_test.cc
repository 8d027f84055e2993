#include "calibrate/run_model.h"

#include <doctest/doctest.h>

#include "calibrate/test_runs.h"
#include "calibrate/validate.h"

using namespace mw;
using namespace mw::calibrate;
using models::Family;

namespace {

// Llama 3.1 8B's sizes.
Run llama_8b(const std::string& name) {
  Run run = gpt(32, 4096, 32, 8192, 128256, 8);
  name_model(run, name);
  run.kv_heads = 8;
  run.ffn = 14336;
  return run;
}

}  // namespace

TEST_CASE("a family anywhere in the model's name, in whatever case, says whose blocks it has") {
  for (const char* name :
       {"Llama3.1-8B", "llama3-8b", "LLaMA-7B", "Meta-Llama-3.1-8B", "TinyLlama-1.1B", "Mistral-7B",
        "mistralai/Mixtral", "Qwen3-8B", "Qwen2.5-7B", "Yi-34B", "01-ai/yi1.5-9b", "DeepSeek-67B",
        "Moonlight", "InternLM2-7B", "vicuna-13b", "gpt-oss-20b", "Megatron-LLaMA"}) {
    CAPTURE(name);
    Run run = gpt(2, 64, 4, 64, 128, 4);  // a GPT's sizes
    name_model(run, name);
    CHECK(blocks_of(run).family == Family::kLlama);
    CHECK(blocks_of(run).assumed.empty());
    const models::ModelConfig model = model_of(run);
    CHECK(model.activation == models::Activation::kSilu);
    CHECK(!model.tie_word_embeddings);
  }
  for (const char* name : {"GPT-7B-GQA", "gpt2-xl", "MT-NLG-530B", "BLOOM-176B", "bloomz", "MPT-7b",
                           "OPT-13B", "opt13b", "Bert-48", "Pythia-12B"}) {
    CAPTURE(name);
    const Run run = llama_8b(name);
    CHECK(blocks_of(run).family == Family::kGpt2);
    CHECK(blocks_of(run).assumed.empty());
  }
}

TEST_CASE("where the name says nothing the blocks are those that the row's sizes are of") {
  struct Case {
    const char* name;
    int64_t kv_heads, ffn;
    double params_b;
    Family family;
    const char* assumed;
  };
  for (const Case& c : std::vector<Case>{
           {"", 8, 14336, 8, Family::kLlama,
            "Llama blocks (params_b 8: a Llama has 8.03, a GPT 6.18)"},
           {"Tianyi-8B", 8, 14336, 6.2, Family::kGpt2,
            "GPT blocks (params_b 6.2: a GPT has 6.18, a Llama 8.03)"},
           {"model-a", 32, 16384, 7, Family::kGpt2,
            "GPT blocks (params_b 7: a GPT has 7, a Llama 9.64)"},
           {"adopted", 32, 16384, 9.6, Family::kLlama,
            "Llama blocks (params_b 9.6: a Llama has 9.64, a GPT 7)"},
           {"model-a", 8, 16384, 0, Family::kLlama, "Llama blocks (kv_heads 8 of 32 heads)"},
           {"model-a", 32, 11008, 0, Family::kLlama, "Llama blocks (ffn 11008 is not 4*hidden)"},
           {"model-a", 32, 16384, 0, Family::kGpt2,
            "GPT blocks (kv_heads = heads, ffn = 4*hidden)"},
           // So many parameters neither has.
           {"model-a", 32, 16384, 70, Family::kGpt2,
            "GPT blocks (kv_heads = heads, ffn = 4*hidden)"},
           {"model-a", 8, 14336, 0.8, Family::kLlama, "Llama blocks (kv_heads 8 of 32 heads)"}}) {
    CAPTURE(c.name);
    CAPTURE(c.params_b);
    Run run = llama_8b(c.name);
    run.kv_heads = c.kv_heads;
    run.ffn = c.ffn;
    run.params_b = c.params_b;
    CHECK(blocks_of(run).family == c.family);
    CHECK(blocks_of(run).assumed == c.assumed);
    CHECK(model_of(run).family == c.family);
  }
}

TEST_CASE("a mixture's blocks are a Llama's, whatever its name and sizes say") {
  for (const char* name : {"GPT-MoE", "Mixtral", "", "model-a"}) {
    CAPTURE(name);
    Run run = gpt(4, 64, 4, 64, 128, 4);
    name_model(run, name, "E8k2s0f96");
    CHECK(blocks_of(run).family == Family::kLlama);
    CHECK(blocks_of(run).assumed.empty());
    CHECK(model_of(run).mixture.experts == 8);
  }
}

TEST_CASE("what a row says of its experts") {
  const std::optional<Experts> experts = experts_of("E256k8s1f2048;3 dense;MLA");
  REQUIRE(experts.has_value());
  CHECK(experts->experts == 256);
  CHECK(experts->top_k == 8);
  CHECK(experts->shared == 1);
  CHECK(experts->ffn == 2048);
  CHECK(experts->dense == 3);
  CHECK(experts->latent);
  for (const char* text :
       {"E +8k2s0f96", " E8k2s0f96", "E8k2s0", "E8k2s0f", "E8k2s0f96x", "Ek2s0f96", "E8 k2s0f96",
        "E99999999999999999999k2s0f96", "E8k9s0f96", "E-8k2s0f96", "E0k0s0f96", "E8k0s0f96",
        "E16385k2s0f96", "E8k2s16385f96", "E8k2s0f0", "E8k2s0f4194305", "E8k2s0f96;-1 dense"}) {
    CAPTURE(text);
    CHECK(!experts_of(text).has_value());
  }
  for (const char* text : {"E1k1s0f1", "E16384k16384s16384f4194304", "E8k2s0f96;0 dense"}) {
    CAPTURE(text);
    CHECK(experts_of(text).has_value());
  }
  Run run = gpt(4, 64, 4, 64, 128, 4);
  name_model(run, "DeepSeek-V3", "E8k2s0f96;MLA");
  CHECK(blocks_of(run).assumed.empty());
  name_model(run, "Kimi-K2", "E8k2s0f96;MLA");
  CHECK(blocks_of(run).assumed == "latent attention of DeepSeek-V3's sizes");
}

TEST_CASE("a row's own word on tied embeddings goes before what its blocks usually have") {
  Run run = gpt(2, 64, 4, 64, 128, 4);
  for (const char* name : {"GPT", "Llama"}) {
    CAPTURE(name);
    name_model(run, name);
    run.tied.reset();
    CHECK(model_of(run).tie_word_embeddings == (name == std::string("GPT")));
    for (const bool tied : {false, true}) {
      run.tied = tied;
      CHECK(model_of(run).tie_word_embeddings == tied);
    }
  }
}

TEST_CASE("what a family has beside its sizes its models have under every spelling") {
  struct Case {
    const char *name, *moe;
    int64_t head_dim, window;
    bool normed_heads, attention_bias, expert_bias;
  };
  for (const Case& c : std::vector<Case>{{"Qwen3-8B", "", 128, 0, true, false, false},
                                         {"qwen3-30b-a3b", "E8k2s0f96", 128, 0, true, false, false},
                                         {"Qwen/Qwen2.5-7B", "", 16, 0, false, true, false},
                                         {"gpt-oss-120b", "E8k2s0f96", 64, 128, false, true, true},
                                         {"Llama", "", 16, 0, false, false, false}}) {
    CAPTURE(c.name);
    Run run = gpt(4, 64, 4, 64, 128, 4);
    name_model(run, c.name, c.moe);
    const models::ModelConfig model = model_of(run);
    CHECK(model.head_dim == c.head_dim);
    CHECK(model.window == c.window);
    CHECK(model.normed_heads == c.normed_heads);
    CHECK(model.attention_bias == c.attention_bias);
    CHECK(model.mixture.bias == c.expert_bias);
  }
}

TEST_CASE(
    "a row of another spelling has the same step; one without a name says what it is taken for") {
  const auto compared = [](const char* name, double params_b) {
    Run run = gpt(2, 64, 4, 64, 128, 4);
    run.kv_heads = 2;
    run.ffn = 224;
    name_model(run, name);
    run.params_b = params_b;
    return validate({run}, a100(), 1)[0];
  };
  const Comparison llama = compared("Llama3.1-8B", 0), named = compared("llama3-8b", 0),
                   unnamed = compared("", 0), other = compared("GPT", 0);
  CHECK(llama.assumed.empty());
  CHECK(named.assumed.empty());
  CHECK(named.predicted == llama.predicted);
  CHECK(unnamed.predicted == llama.predicted);
  CHECK(unnamed.assumed == "Llama blocks (kv_heads 2 of 4 heads)");
  CHECK(other.predicted != llama.predicted);
}

TEST_CASE("params_b of other sizes is told beside what a row leaves open") {
  Run run = gpt(96, 12288, 96, 2048, 51200, 8);
  for (const double near : {0.0, 145.0, 175.0, 215.0}) {
    run.params_b = near;
    CHECK(odd_sizes(run).empty());
  }
  run.params_b = 17.5;
  CHECK(odd_sizes(run) == "sizes of 175 billion parameters, not 17.5");
  run.params_b = 250;
  CHECK(odd_sizes(run) == "sizes of 175 billion parameters, not 250");
  run.moe = "E8k2s0f14336";
  CHECK(odd_sizes(run).empty());
  Run small = gpt(2, 64, 4, 64, 128, 4);
  small.params_b = 1;
  CHECK(validate({small}, a100(), 1)[0].assumed == "sizes of 0.000111 billion parameters, not 1");
}
