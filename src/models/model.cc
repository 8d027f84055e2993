#include "models/model.h"

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "models/transformer.h"

namespace mw::models {

std::vector<ir::Layer> transformer_layers(const ModelConfig& config) {
  std::vector<ir::Layer> layers = {{"embed", false}};
  for (int64_t i = 0; i < config.layers; ++i) layers.push_back({fmt::format("h.{}", i), true});
  layers.push_back({"head", false});
  return layers;
}

TransformerInputs add_inputs(NetBuilder& net, const ModelConfig& config, BatchShape shape) {
  const std::vector<int64_t> sizes = {shape.batch, shape.seq_len / shape.slices};
  const ir::LogicalAxes axes = {"batch", "attn_seq"};
  TransformerInputs inputs;
  inputs.tokens_BS = net.input("tokens", DType::kI32, sizes, axes);
  inputs.targets_BS = net.input("targets", DType::kI32, sizes, axes);
  inputs.positions_BS = net.input("positions", DType::kI32, sizes, axes);
  net.input("loss_scale", DType::kF32, {});
  if (!config.has_dropout()) return inputs;
  const ValueId sample_ids_B = net.input("sample_ids", DType::kI64, {shape.batch}, {"batch"});
  const ValueId seed = net.input("seed", DType::kI64, {});
  const ValueId step = net.input("step", DType::kI64, {});
  inputs.random = ops::Builder::Random{seed, step, sample_ids_B, inputs.positions_BS};
  return inputs;
}

ValueId residual_dropout(NetBuilder& net, const TransformerInputs& inputs, ValueId x_BSD,
                         double rate, const std::string& site) {
  if (rate == 0) return x_BSD;
  return net.annotate(net.ops().dropout(x_BSD, rate, site, *inputs.random), site, kResidual);
}

ValueId activate(NetBuilder& net, Activation activation, ValueId x, std::optional<ValueId> bias) {
  ops::Builder& ops = net.ops();
  const bool gelu = activation == Activation::kGelu || activation == Activation::kGeluTanh;
  const bool tanh = activation == Activation::kGeluTanh;
  if (gelu) return bias ? ops.bias_gelu(x, *bias, tanh) : ops.gelu(x, tanh);
  if (bias) x = ops.bias_add(x, *bias);
  return activation == Activation::kRelu ? ops.relu(x) : ops.silu(x);
}

void write_loss(NetBuilder& net, const TransformerInputs& inputs, ValueId h_BSD, ValueId table_VD) {
  const ValueId logits_BSV = net.annotate(net.ops().dot(h_BSD, table_VD, "bsd,vd->bsv"), "logits",
                                          {"batch", "attn_seq", "vocab"});
  const ValueId loss_BS = net.annotate(net.ops().cross_entropy(logits_BSV, inputs.targets_BS),
                                       "loss", {"batch", "attn_seq"});
  net.output_loss(loss_BS);
  net.output(logits_BSV);
}

std::string positions_finding(const ModelConfig& config, int64_t seq_len) {
  if (seq_len <= config.max_positions) return "";
  const bool rotary = config.family == Family::kLlama;
  return fmt::format("is {}, but {} has {} positions; use at most {}{}", seq_len, config.source,
                     config.max_positions, config.max_positions,
                     rotary ? ", or a copy of the file with a larger max_position_embeddings" : "");
}

ir::Module build_model(const ModelConfig& config, BatchShape shape) {
  Diagnostics diagnostics;
  if (shape.batch < 1)
    diagnostics.add("{}: the batch must have at least 1 sample, has {}", config.source,
                    shape.batch);
  if (shape.seq_len < 1)
    diagnostics.add("{}: the sequence must have at least 1 token, has {}", config.source,
                    shape.seq_len);
  if (const std::string wrong = positions_finding(config, shape.seq_len); !wrong.empty())
    diagnostics.add("the sequence length {}", wrong);
  diagnostics.throw_if_any();
  return config.family == Family::kGpt2 ? build_gpt2(config, shape) : build_llama(config, shape);
}

int64_t parameter_count(const ir::Module& module) {
  int64_t count = 0;
  for (const StateId id : module.parameters()) count += module.state(id).type.elements();
  return count;
}

namespace {

// Of one layer's products for the projections of attention.
double projection_flops(const ModelConfig& config) {
  const auto d = static_cast<double>(config.hidden_size), h = static_cast<double>(config.heads),
             k = static_cast<double>(config.head_dim);
  const LatentAttention& latent = config.latent;
  if (latent.kv_rank == 0)
    return 2 * (d * (h * k + 2 * static_cast<double>(config.kv_heads) * k) + h * k * d);
  const auto q = static_cast<double>(latent.query_rank), kv = static_cast<double>(latent.kv_rank),
             r = static_cast<double>(latent.rope_dim), v = static_cast<double>(latent.value_dim);
  const double queries = q > 0 ? d * q + q * h * k : d * h * k;
  return 2 * (queries + d * (kv + r) + kv * h * (k - r + v) + h * v * d);
}

// Of one layer's MLP, or of what a token meets of its experts.
double ffn_flops(const ModelConfig& config, bool mixture) {
  const auto d = static_cast<double>(config.hidden_size);
  const double matrices = config.family == Family::kLlama ? 3 : 2;
  if (!mixture) return 2 * matrices * d * static_cast<double>(config.ffn_size);
  const Mixture& m = config.mixture;
  const auto width = static_cast<double>(m.top_k * m.ffn_size + m.shared_ffn_size);
  return 2 * matrices * d * width + 2 * d * static_cast<double>(m.experts);
}

}  // namespace

ModelFlops model_flops_per_token(const ModelConfig& config, int64_t seq_len) {
  const auto d = static_cast<double>(config.hidden_size), s = static_cast<double>(seq_len),
             layers = static_cast<double>(config.layers);
  const int64_t value_dim = config.latent.kv_rank > 0 ? config.latent.value_dim : config.head_dim;
  // Scores and their product with the values.
  const double of_key =
      2 * static_cast<double>(config.heads) * static_cast<double>(config.head_dim + value_dim);
  const double windowed = config.window > 0 ? static_cast<double>((config.layers + 1) / 2) : 0;
  const double keys =
      (layers - windowed) * s + windowed * std::min(s, 2 * static_cast<double>(config.window));
  const Mixture& mixture = config.mixture;
  const double dense = mixture.experts > 0
                           ? static_cast<double>(std::min(mixture.dense_layers, config.layers))
                           : layers;
  const double head = 2 * d * static_cast<double>(config.vocab_size);
  const double forward = layers * projection_flops(config) + keys * of_key +
                         dense * ffn_flops(config, false) +
                         (layers - dense) * ffn_flops(config, true) + head;
  // Recomputing attention is counted as the paper does, a whole pass of it [Korthikanti 2022,
  // appendix A]; never as more than everything again, which it would be of very long sequences.
  const double everything = 4 * forward - head;
  return {.forward = Flops(forward),
          .training = Flops(3 * forward),
          .masked = Flops(1.5 * keys * of_key),
          .full_recompute = Flops(everything),
          .selective_recompute = Flops(std::min(3 * (forward + keys * of_key), everything))};
}

}  // namespace mw::models
