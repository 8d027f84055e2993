// A small model on a box of sixteen chips, for tests.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "models/model.h"
#include "predict/predict.h"

namespace mw::predict::test {

inline Request small() {
  Request request;
  request.model = models::parse_config(
      R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 4,
          "n_head": 4, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0})",
      "small.json");
  cluster::Cluster& c = request.cluster;
  c.name = "box";
  c.file = "box.toml";
  c.devices = 16;
  c.device.name = "chip";
  c.device.memory = Bytes(1'000'000'000);
  c.device.peaks = {{"f32", cluster::FlopsPerSecond(10e12)},
                    {"bf16", cluster::FlopsPerSecond(100e12)}};
  c.device.memory_bandwidth = cluster::BytesPerSecond(1e12);
  c.device.multiprocessors = 10;
  c.device.attained.launch = Seconds(1e-6);
  c.links.resize(1);
  c.links[0].kind = cluster::LinkKind::kNvlink;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(100e9);
  c.links[0].latency = Seconds(1e-6);
  request.global_batch = 16;
  request.seq_len = 64;
  return request;
}

inline Request mixture() {
  Request request = small();
  request.model = models::parse_config(
      R"({"model_type": "deepseek_v3", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
          "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
          "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
          "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
          "first_k_dense_replace": 1})",
      "mixture.json");
  return request;
}

// Four experts, two a token, in each of two blocks.
inline models::ModelConfig small_mixture() {
  return models::parse_config(
      R"({"model_type": "mixtral", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4,
          "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
          "tie_word_embeddings": false})",
      "mixture.json");
}

// The step as the compiler makes it, in f32.
inline pipeline::Program train_of(const Request& request,
                                  const std::set<std::string>& without = {}) {
  const ir::Module model = models::build_model(
      request.model, {request.global_batch / request.plan.units(), request.seq_len});
  compile::ModelShape shape;
  shape.global_batch = request.global_batch;
  shape.seq_len = request.seq_len;
  return compile::compile({model, nullptr, request.plan, shape, {}, nullptr, without}).train;
}

inline const std::vector<const char*> kPlans = {
    "microbatches=2",
    "dp=2,tp=2,pp=2,microbatches=4,sp,zero=1",
    "tp=4,microbatches=2",
    "dp=4,zero=1,microbatches=2",
    "pp=4,microbatches=4",
    "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,recompute=full",
    "dp=2,pp=2,microbatches=2,recompute=selective"};

}  // namespace mw::predict::test
