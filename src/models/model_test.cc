#include "models/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/fs.h"
#include "base/test_close_to.h"
#include "models/test_configs.h"
#include "ops/op_def.h"

using namespace mw;
using namespace mw::models;

namespace {

int64_t parameters(const ModelConfig& config) {
  return parameter_count(build_model(config, {1, 8}));
}

ModelConfig gpt2(int64_t layers, int64_t hidden, int64_t heads) {
  ModelConfig config;
  config.vocab_size = 50257;
  config.max_positions = 1024;
  config.hidden_size = hidden;
  config.layers = layers;
  config.heads = config.kv_heads = heads;
  config.head_dim = hidden / heads;
  config.ffn_size = 4 * hidden;
  return config;
}

ModelConfig llama(int64_t vocab, int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads,
                  int64_t ffn) {
  ModelConfig config = gpt2(layers, hidden, heads);
  config.family = Family::kLlama;
  config.vocab_size = vocab;
  config.kv_heads = kv_heads;
  config.ffn_size = ffn;
  config.activation = Activation::kSilu;
  config.tie_word_embeddings = false;
  return config;
}

const ir::Value& find_value(const ir::Graph& graph, const std::string& name) {
  for (const ir::Value& value : graph.values) {
    if (value.name == name) return value;
  }
  MW_CHECK(false, "no value '{}'", name);
}

std::vector<std::string> data_inputs(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Input& input : graph.inputs) {
    if (!input.state.valid()) names.push_back(graph.value(input.value).name);
  }
  return names;
}

}  // namespace

TEST_CASE("parameters of mixtures of experts are the published ones, and so are the active ones") {
  struct Row {
    const char* file;
    double billions, active_billions;  // the latter with the embedding that a token reads
  };
  // Mixtral: arXiv 2401.04088; Qwen3: arXiv 2505.09388; DeepSeek-V3: arXiv 2412.19437; GPT-OSS:
  // arXiv 2508.10925, table 1, which leaves the embedding out of the active ones; Moonlight: arXiv
  // 2502.16982, 15.29 and 2.24 without embedding and head.
  for (const Row& row : {Row{"mixtral-8x7b", 46.7, 12.9}, Row{"qwen3-30b-a3b", 30.5, 3.3},
                         Row{"qwen3-235b-a22b", 235, 22}, Row{"deepseek-v3", 671, 37},
                         Row{"gpt-oss-120b", 116.8, 5.1}, Row{"moonlight-16b-a3b", 15.96, 2.91}}) {
    CAPTURE(row.file);
    const std::string file = std::string(MW_SOURCE_DIR) + "/models/" + row.file + ".json";
    const ModelConfig config = parse_config(posix_fs().read_file(file), file);
    const ir::Module module = build_model(config, {1, 64});
    CHECK(static_cast<double>(parameter_count(module)) / 1e9 ==
          mw::test::close_to(row.billions).epsilon(0.003));
    // A token's products without those of attention's scores.
    const double at_1 = model_flops_per_token(config, 1).forward.value,
                 at_2 = model_flops_per_token(config, 2).forward.value;
    double active = (2 * at_1 - at_2) / 2;
    if (config.source.find("gpt-oss") == std::string::npos)
      active += static_cast<double>(config.vocab_size * config.hidden_size);
    CHECK(active / 1e9 == mw::test::close_to(row.active_billions).epsilon(0.03));
  }
}

TEST_CASE("every model of models/ builds a sound graph with transformers' number of parameters") {
  // sum(p.numel() for p in AutoModelForCausalLM.from_config(…).parameters()), transformers 5.23.
  const std::vector<std::pair<std::string, int64_t>> counts = {
      {"gpt-micro", 220544},       {"gpt-tiny", 10028160},  {"gpt-bench", 19308544},
      {"gpt-bench-32k", 35823616}, {"llama-micro", 205376}, {"llama-tiny", 9508160}};
  for (const auto& [name, count] : counts) {
    CAPTURE(name);
    const ModelConfig config = model_config(name);
    const ir::Module module = build_model(config, {2, 32});
    CHECK(parameter_count(module) == count);
    REQUIRE(module.graphs.size() == 1);
    ir::verify(module.graphs[0], &module);
    ops::verify_types(module.graphs[0]);
    CHECK(to_text(ir::parse_module(to_text(module))) == to_text(module));
  }
}

TEST_CASE(
    "a GPT whose queries share keys has the parameters of Megatron-LM's, and a Llama's heads") {
  ModelConfig config = gpt2(32, 4096, 32);
  config.kv_heads = 8;
  config.vocab_size = 131584;  // padded to 128 for each of four tensor-parallel ranks
  config.max_positions = 8192;
  config.tie_word_embeddings = false;
  const ir::Module module = build_model(config, {1, 8});
  ir::verify(module.graphs[0], &module);
  ops::verify_types(module.graphs[0]);
  CHECK(parameter_count(module) == 6750150656);
  // Its states appear with the first step: 6,854,303,744 bytes, 8 of a parameter on half of what a
  // rank of tp=4 holds, in padded buckets [NVIDIA/Megatron-LM
  // tests/functional_tests/test_cases/gpt/ gpt3_7b_tp4_pp1_memory_speed,
  // golden_values_dev_dgx_h100.json, mem-max-allocated-bytes].
  const double shared = 8192 * 4096 + 32 * 6 * 4096 + 2 * 4096;  // that tensor parallelism repeats
  CHECK((6750150656 - shared) / 4 + shared == mw::test::close_to(6854303744.0 / 4).epsilon(2e-4));

  const ir::Graph& graph = module.graphs[0];
  CHECK(find_value(graph, "h.0.attn.q").type.dims[2].size == 32);
  CHECK(find_value(graph, "h.0.attn.k").type.dims[2].size == 8);
  // The products of a token but for attention's scores: two a parameter, positions and biases left
  // out, and embeddings once.
  const double at_1 = model_flops_per_token(config, 1).forward.value,
               at_2 = model_flops_per_token(config, 2).forward.value;
  CHECK((2 * at_1 - at_2) / 2 == 32 * 176160768.0 + 131584 * 4096.0);
}

TEST_CASE("published sizes of GPT-2 and Llama come out to the parameter") {
  CHECK(parameters(gpt2(12, 768, 12)) == 124439808);
  CHECK(parameters(gpt2(24, 1024, 16)) == 354823168);
  CHECK(parameters(gpt2(36, 1280, 20)) == 774030080);
  CHECK(parameters(gpt2(48, 1600, 25)) == 1557611200);
  CHECK(parameters(llama(32000, 32, 4096, 32, 32, 11008)) == 6738415616);  // Llama 2 7B
  CHECK(parameters(llama(128256, 32, 4096, 32, 8, 14336)) == 8030261248);  // Llama 3 8B
  ModelConfig small = llama(128256, 16, 2048, 32, 8, 8192);                // Llama 3.2 1B
  small.tie_word_embeddings = true;
  CHECK(parameters(small) == 1235814400);
}

TEST_CASE("rare options change the parameters as in transformers") {
  ModelConfig gpt = gpt2(2, 64, 4);
  gpt.vocab_size = 100;
  gpt.max_positions = 32;
  gpt.ffn_size = 96;
  gpt.tie_word_embeddings = false;
  CHECK(parameters(gpt) == 73664);
  ModelConfig biased = llama(100, 2, 64, 4, 2, 96);
  biased.head_dim = 24;
  biased.attention_bias = biased.mlp_bias = true;
  CHECK(parameters(biased) == 87872);
  for (const Activation activation :
       {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu}) {
    gpt.activation = biased.activation = activation;
    ops::verify_types(build_model(gpt, {1, 8}).graphs[0]);
    ops::verify_types(build_model(biased, {1, 8}).graphs[0]);
  }
}

TEST_CASE("the graph has the inputs that it needs and no others") {
  ModelConfig config = model_config("gpt-micro");
  CHECK(data_inputs(build_model(config, {2, 32}).graphs[0]) ==
        std::vector<std::string>{"tokens", "targets", "positions", "loss_scale"});
  config.attention_dropout = 0.1;
  const ir::Module module = build_model(config, {2, 32});
  ops::verify_types(module.graphs[0]);
  CHECK(data_inputs(module.graphs[0]) == std::vector<std::string>{"tokens", "targets", "positions",
                                                                  "loss_scale", "sample_ids",
                                                                  "seed", "step"});
  const ir::Graph& graph = module.graphs[0];
  CHECK(graph.name == "microbatch");
  REQUIRE(graph.outputs.size() == 2);
  CHECK(graph.label(graph.outputs[0]) == "loss_sum");
  CHECK(graph.type(graph.outputs[0]) == ir::TensorType(DType::kF32, {}));
  CHECK(graph.label(graph.outputs[1]) == "logits");
  CHECK(graph.type(graph.outputs[1]) == ir::make_type(DType::kF32, {2, 32, 256}));
}

TEST_CASE("dropout sites carry the name of their layer and exist only with a rate") {
  ModelConfig config = model_config("gpt-micro");
  const auto sites = [&] {
    std::vector<std::string> sites;
    const ir::Module module = build_model(config, {1, 8});
    for (const ir::Op& op : module.graphs[0].ops) {
      if (op.kind == ir::OpKind::kDropout) sites.push_back(op.as<ir::DropoutAttrs>().site);
      if (op.kind == ir::OpKind::kAttention && op.as<ir::AttentionAttrs>().dropout > 0) {
        sites.push_back(op.as<ir::AttentionAttrs>().site);
      }
    }
    return sites;
  };
  config.layers = 1;
  CHECK(sites().empty());
  config.embedding_dropout = config.residual_dropout = config.attention_dropout = 0.1;
  CHECK(sites() == std::vector<std::string>{"embed.drop", "h.0.attn.attn_drop",
                                            "h.0.attn.resid_drop", "h.0.mlp.resid_drop"});
}

TEST_CASE("layers run from embed to head and every op but the rope table has one") {
  for (const std::string name : {"gpt-micro", "llama-micro"}) {
    const ir::Module module = build_model(model_config(name), {1, 8});
    REQUIRE(module.layers.size() == 6);
    CHECK(module.layers.front().name == "embed");
    CHECK(module.layers[1].name == "h.0");
    CHECK(module.layers.back().name == "head");
    CHECK(!module.layers.front().block);
    CHECK(module.layers[1].block);
    CHECK(!module.layers.back().block);
    for (const ir::Op& op : module.graphs[0].ops)
      CHECK(op.layer.valid() == (op.kind != ir::OpKind::kRopeTable));
  }
}

TEST_CASE("tied embeddings are one parameter that two layers read") {
  ModelConfig config = model_config("gpt-micro");
  const auto readers = [](const ir::Module& module, const std::string& name) {
    const ir::Graph& graph = module.graphs[0];
    const auto users = graph.users();
    std::vector<std::string> layers;
    for (const ir::Input& input : graph.inputs) {
      if (!input.state.valid() || module.state(input.state).name != name) continue;
      for (const OpId op : users[input.value.index()]) {
        layers.push_back(module.layers[graph.op(op).layer.index()].name);
      }
    }
    return layers;
  };
  const ir::Module tied = build_model(config, {1, 8});
  CHECK(!tied.find_state("lm_head.weight"));
  CHECK(readers(tied, "transformer.wte.weight") == std::vector<std::string>{"embed", "head"});
  config.tie_word_embeddings = false;
  const ir::Module untied = build_model(config, {1, 8});
  CHECK(readers(untied, "transformer.wte.weight") == std::vector<std::string>{"embed"});
  CHECK(readers(untied, "lm_head.weight") == std::vector<std::string>{"head"});
}

TEST_CASE("parameters have the initial values, decay and layers of GPT-2") {
  const ir::Module module = build_model(model_config("gpt-micro"), {1, 8});
  const auto state = [&](const std::string& name) {
    return module.state(*module.find_state(name));
  };
  using Kind = ir::Init::Kind;
  CHECK(state("transformer.wte.weight").init == ir::Init{Kind::kNormal, 0.02});
  CHECK(state("transformer.wte.weight").decay);
  CHECK(state("transformer.h.2.attn.c_proj.weight").init.scale ==
        mw::test::close_to(0.02 / std::sqrt(8.0)));
  CHECK(state("transformer.h.2.mlp.c_proj.weight").init.scale ==
        mw::test::close_to(0.02 / std::sqrt(8.0)));
  CHECK(state("transformer.h.2.mlp.c_fc.weight").init.scale == 0.02);
  CHECK(state("transformer.h.2.attn.c_attn.bias").init == ir::Init{Kind::kZeros, 0});
  CHECK(!state("transformer.h.2.attn.c_attn.bias").decay);
  CHECK(state("transformer.ln_f.weight").init == ir::Init{Kind::kOnes, 0});
  CHECK(!state("transformer.ln_f.weight").decay);
  CHECK(state("transformer.h.2.ln_1.weight").layer == LayerId(3));
  CHECK(state("transformer.h.2.attn.c_attn.weight").logical ==
        ir::LogicalAxes{"", "heads", "", "embed"});
}

TEST_CASE("the residual stream, the heads, the MLP and the logits have their logical axes") {
  const ir::LogicalAxes residual = {"batch", "seq", "embed"};
  const ir::Module gpt = build_model(model_config("gpt-micro"), {1, 8});
  for (const std::string name :
       {"embed.token", "embed.sum", "h.1.ln_1", "h.1.attn.proj", "h.1.attn.residual", "h.1.ln_2",
        "h.1.mlp.proj", "h.1.mlp.residual", "head.ln_f"}) {
    CAPTURE(name);
    CHECK(find_value(gpt.graphs[0], name).logical == residual);
  }
  CHECK(find_value(gpt.graphs[0], "h.1.attn.qkv").logical ==
        ir::LogicalAxes{"batch", "attn_seq", "", "heads", ""});
  CHECK(find_value(gpt.graphs[0], "h.1.attn.out").logical ==
        ir::LogicalAxes{"batch", "attn_seq", "heads", ""});
  CHECK(find_value(gpt.graphs[0], "h.1.mlp.hidden").logical ==
        ir::LogicalAxes{"batch", "attn_seq", "ffn"});
  CHECK(find_value(gpt.graphs[0], "logits").logical ==
        ir::LogicalAxes{"batch", "attn_seq", "vocab"});
  CHECK(find_value(gpt.graphs[0], "loss").logical == ir::LogicalAxes{"batch", "attn_seq"});
  CHECK(find_value(gpt.graphs[0], "tokens").logical == ir::LogicalAxes{"batch", "attn_seq"});
  const ir::Module llama = build_model(model_config("llama-micro"), {1, 8});
  CHECK(find_value(llama.graphs[0], "h.1.attn.k_rope").logical ==
        ir::LogicalAxes{"batch", "attn_seq", "kv_heads", ""});
  CHECK(find_value(llama.graphs[0], "h.1.attn.proj").logical == residual);
  CHECK(find_value(llama.graphs[0], "rope.cos").logical ==
        ir::LogicalAxes{"batch", "attn_seq", ""});
}

TEST_CASE("a sequence that is longer than the model's positions is refused") {
  const ModelConfig config = model_config("gpt-micro");
  CHECK_THROWS_WITH_AS(build_model(config, {0, 65}),
                       "models/gpt-micro.json: the batch must have at least 1 sample, has 0\n"
                       "the sequence length is 65, but models/gpt-micro.json has 64 positions; use "
                       "at most 64",
                       Error);
  CHECK_THROWS_WITH_AS(build_model(config, {1, 0}),
                       "models/gpt-micro.json: the sequence must have at least 1 token, has 0",
                       Error);
  CHECK(positions_finding(config, 64).empty());
  CHECK(positions_finding(model_config("llama-micro"), 65) ==
        "is 65, but models/llama-micro.json has 64 positions; use at most 64, or a copy of the "
        "file with a larger max_position_embeddings");
}

TEST_CASE("FLOPs per token are those of Megatron's formula") {
  // Without recomputation 72 l h^2 (1 + s/6h + V/12lh) per token [Narayanan et al. 2021,
  // section 3.2 has 96 B s l h^2 (1 + s/6h + V/16lh) with it]; GPT-3's 175 billion parameters.
  const ModelConfig config = gpt2(96, 12288, 96);
  const double l = 96, h = 12288, s = 2048, v = 50257;
  const ModelFlops flops = model_flops_per_token(config, 2048);
  CHECK(flops.training.value ==
        mw::test::close_to(72 * l * h * h * (1 + s / (6 * h) + v / (12 * l * h))).epsilon(1e-12));
  CHECK(flops.training.value == 3 * flops.forward.value);
  CHECK(flops.masked.value == mw::test::close_to(6 * l * h * s));  // half of 12 L H Q T
}

TEST_CASE("FLOPs per token are those of the graph's products and attention") {
  struct Case {
    const char* model;
    int64_t S;  // the rows of every expert come out even
  };
  for (const auto& [model, S] :
       {Case{"gpt-micro", 32}, Case{"llama-micro", 32}, Case{"mixtral-8x7b", 32},
        Case{"qwen3-30b-a3b", 32}, Case{"moonlight-16b-a3b", 32}, Case{"deepseek-v3", 32},
        Case{"gpt-oss-120b", 512}}) {
    CAPTURE(model);
    ModelConfig config = model_config(model);
    if (config.window > 0) config.layers = 5;  // of which three have the window
    const ir::Module module = build_model(config, {1, S});
    const ir::Graph& graph = module.graphs[0];
    double flops = 0;
    for (const ir::Op& op : graph.ops) {
      if (op.kind == ir::OpKind::kDot) flops += ops::cost_of(graph, op).flops;
      if (op.kind != ir::OpKind::kAttention) continue;
      const ir::TensorType& out = graph.type(op.results[0]);
      const int64_t window = op.as<ir::AttentionAttrs>().window;
      const int64_t keys = window > 0 ? std::min(S, 2 * window) : S;
      const int64_t sizes = graph.type(op.operands[0]).dims.back().size + out.dim(3);
      flops += static_cast<double>(2 * S * keys * out.dim(2) * sizes);
    }
    CHECK(flops / static_cast<double>(S) ==
          mw::test::close_to(model_flops_per_token(config, S).forward.value).epsilon(1e-12));
  }
}

TEST_CASE("recomputing attention is never counted as more than recomputing everything") {
  const ModelConfig config = gpt2(2, 64, 4);
  const ModelFlops few = model_flops_per_token(config, 128);
  CHECK(few.selective_recompute < few.full_recompute);
  const ModelFlops many = model_flops_per_token(config, int64_t{1} << 24);
  CHECK(many.selective_recompute == many.full_recompute);
}
