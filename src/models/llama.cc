// Llama [Touvron et al. 2023], with grouped-query attention [Ainslie et al. 2023] where kv_heads <
// heads, and the names and the initialization of transformers' LlamaForCausalLM.
//
// B batch, S sequence, D model, H heads, N kv heads, K head dim, F ffn, V vocab
//
// The models with experts (mixture.cc) and with latent attention (latent_attention.cc) have Llama's
// blocks otherwise.
#include <cmath>

#include <fmt/core.h>

#include "models/transformer.h"

namespace mw::models {
namespace {

using Decay = NetBuilder::Decay;
using Kind = ir::Init::Kind;

// x W^T (+ bias) in the MLP's width.
ValueId widen(NetBuilder& net, const ModelConfig& config, const std::string& name,
              const std::string& state, ValueId x_BSD, int64_t ffn) {
  const ValueId w_FD =
      add_weight(net, config, state + ".weight", {ffn, config.hidden_size}, {"ffn", "embed"});
  ValueId y_BSF = net.ops().dot(x_BSD, w_FD, "bsd,fd->bsf");
  if (config.mlp_bias)
    y_BSF = net.ops().bias_add(y_BSF, add_bias(net, state + ".bias", {ffn}, {"ffn"}));
  return net.annotate(y_BSF, name, kFfn);
}

class Llama {
 public:
  Llama(const ModelConfig& config, BatchShape shape)
      : config_(config),
        net_("llama", transformer_layers(config)),
        inputs_(add_inputs(net_, config, shape)) {}

  ir::Module build() {
    const bool latent = config_.latent.kv_rank > 0;
    const auto table = net_.ops().rope_table(
        inputs_.positions_BS,
        {config_.rope_theta, latent ? config_.latent.rope_dim : config_.head_dim,
         config_.rope_scaling});
    rope_.cos = net_.annotate(table.cos, "rope.cos", {"batch", "attn_seq", ""});
    rope_.sin = net_.annotate(table.sin, "rope.sin", {"batch", "attn_seq", ""});

    net_.enter("embed");
    const ValueId table_VD =
        weight("model.embed_tokens.weight", {config_.vocab_size, D()}, {"vocab", "embed"});
    ValueId h_BSD =
        net_.annotate(net_.ops().embedding(inputs_.tokens_BS, table_VD), "embed.token", kResidual);
    for (int64_t i = 0; i < config_.layers; ++i) h_BSD = block(i, h_BSD);
    net_.enter("head");
    h_BSD = rms_norm("model.norm.weight", "head.norm", h_BSD);
    const ValueId out_VD =
        config_.tie_word_embeddings
            ? table_VD
            : weight("lm_head.weight", {config_.vocab_size, D()}, {"vocab", "embed"});
    write_loss(net_, inputs_, h_BSD, out_VD);
    return net_.finish();
  }

 private:
  int64_t D() const { return config_.hidden_size; }
  int64_t K() const { return config_.head_dim; }

  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical) {
    return add_weight(net_, config_, name, sizes, std::move(logical));
  }
  ValueId rms_norm(const std::string& state, const std::string& name, ValueId x_BSD) {
    const ValueId gamma_D = net_.parameter(state, {D()}, {"embed"}, {Kind::kOnes, 0}, Decay::kNo);
    return net_.annotate(net_.ops().rms_norm(x_BSD, gamma_D, config_.norm_epsilon), name,
                         kResidual);
  }

  ValueId block(int64_t i, ValueId h_BSD) {
    const std::string name = fmt::format("h.{}", i);
    const std::string state = fmt::format("model.layers.{}", i);
    net_.enter(name);
    const ValueId x_BSD =
        rms_norm(state + ".input_layernorm.weight", name + ".input_layernorm", h_BSD);
    const ValueId a_BSD = config_.latent.kv_rank > 0
                              ? latent_attention(net_, config_, name + ".attn",
                                                 state + ".self_attn", x_BSD, inputs_, rope_)
                              : attention(i, name + ".attn", state + ".self_attn", x_BSD);
    h_BSD = net_.annotate(net_.ops().add(h_BSD, a_BSD), name + ".attn.residual", kResidual);
    const ValueId y_BSD = rms_norm(state + ".post_attention_layernorm.weight",
                                   name + ".post_attention_layernorm", h_BSD);
    const Mixture& mixture = config_.mixture;
    const ValueId m_BSD =
        mixture.experts > 0 && i >= mixture.dense_layers
            ? mixture_of_experts(net_, config_, name + ".moe", state + ".mlp", y_BSD)
            : gated_mlp(net_, config_, name + ".mlp", state + ".mlp", y_BSD, config_.ffn_size);
    return net_.annotate(net_.ops().add(h_BSD, m_BSD), name + ".mlp.residual", kResidual);
  }

  // x W^T (+ bias) in the query's or the keys' and values' heads.
  ValueId project(const std::string& name, const std::string& state, ValueId x_BSD, bool query) {
    const int64_t heads = query ? config_.heads : config_.kv_heads;
    const std::string axis = query ? "heads" : "kv_heads";
    const ValueId w_HKD = weight(state + ".weight", {heads, K(), D()}, {axis, "", "embed"});
    ValueId y_BSHK = net_.ops().dot(x_BSD, w_HKD, "bsd,hkd->bshk");
    if (config_.attention_bias || config_.qkv_bias) {
      y_BSHK =
          net_.ops().bias_add(y_BSHK, add_bias(net_, state + ".bias", {heads, K()}, {axis, ""}));
    }
    return net_.annotate(y_BSHK, name, query ? kHeads : kKvHeads);
  }

  // Queries and keys are normed by head where the model does so, then turned.
  ValueId turned(const std::string& name, const std::string& norm, ValueId x_BSHK,
                 const ir::LogicalAxes& axes) {
    if (config_.normed_heads) {
      x_BSHK = net_.annotate(
          net_.ops().rms_norm(x_BSHK, add_gain(net_, norm, K()), config_.norm_epsilon),
          name + "_norm", axes);
    }
    return net_.annotate(net_.ops().rope(x_BSHK, rope_), name + "_rope", axes);
  }

  ValueId attention(int64_t i, const std::string& name, const std::string& state, ValueId x_BSD) {
    ops::Builder& ops = net_.ops();
    ValueId q_BSHK = project(name + ".q", state + ".q_proj", x_BSD, true);
    ValueId k_BSNK = project(name + ".k", state + ".k_proj", x_BSD, false);
    const ValueId v_BSNK = project(name + ".v", state + ".v_proj", x_BSD, false);
    q_BSHK = turned(name + ".q", state + ".q_norm.weight", q_BSHK, kHeads);
    k_BSNK = turned(name + ".k", state + ".k_norm.weight", k_BSNK, kKvHeads);
    const bool dropout = config_.attention_dropout > 0;
    const ValueId a_BSHK = net_.annotate(
        ops.attention(q_BSHK, k_BSNK, v_BSNK, inputs_.positions_BS,
                      1 / std::sqrt(static_cast<double>(K())), true, config_.attention_dropout,
                      dropout ? name + ".attn_drop" : "", dropout ? inputs_.random : std::nullopt),
        name + ".out", kHeads);
    if (config_.window > 0 && i % 2 == 0) net_.set_window(a_BSHK, config_.window);
    const ValueId w_DHK =
        weight(state + ".o_proj.weight", {D(), config_.heads, K()}, {"embed", "heads", ""});
    const ValueId y_BSD =
        net_.annotate(ops.dot(a_BSHK, w_DHK, "bshk,dhk->bsd"), name + ".proj", kResidual);
    return config_.attention_bias
               ? ops.bias_add(y_BSD, add_bias(net_, state + ".o_proj.bias", {D()}, {"embed"}))
               : y_BSD;
  }

  const ModelConfig& config_;
  NetBuilder net_;
  TransformerInputs inputs_;
  ops::Builder::RopeTable rope_;
};

}  // namespace

ValueId add_weight(NetBuilder& net, const ModelConfig& config, const std::string& name,
                   const std::vector<int64_t>& sizes, ir::LogicalAxes logical) {
  return net.parameter(name, sizes, std::move(logical), {Kind::kNormal, config.initializer_range},
                       Decay::kYes);
}
ValueId add_bias(NetBuilder& net, const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical) {
  return net.parameter(name, sizes, std::move(logical), {Kind::kZeros, 0}, Decay::kNo);
}
ValueId add_gain(NetBuilder& net, const std::string& name, int64_t size) {
  return net.parameter(name, {size}, {""}, {Kind::kOnes, 0}, Decay::kNo);
}

ValueId gated_mlp(NetBuilder& net, const ModelConfig& config, const std::string& name,
                  const std::string& state, ValueId x_BSD, int64_t ffn) {
  ops::Builder& ops = net.ops();
  const ValueId gate_BSF = widen(net, config, name + ".gate", state + ".gate_proj", x_BSD, ffn);
  const ValueId up_BSF = widen(net, config, name + ".up", state + ".up_proj", x_BSD, ffn);
  const ValueId hidden_BSF = config.activation == Activation::kSilu
                                 ? ops.swiglu(gate_BSF, up_BSF)
                                 : ops.mul(activate(net, config.activation, gate_BSF), up_BSF);
  net.annotate(hidden_BSF, name + ".hidden", kFfn);
  const int64_t D = config.hidden_size;
  const ValueId w_DF =
      add_weight(net, config, state + ".down_proj.weight", {D, ffn}, {"embed", "ffn"});
  const ValueId y_BSD =
      net.annotate(ops.dot(hidden_BSF, w_DF, "bsf,df->bsd"), name + ".proj", kResidual);
  if (!config.mlp_bias) return y_BSD;
  return ops.bias_add(y_BSD, add_bias(net, state + ".down_proj.bias", {D}, {"embed"}));
}

ir::Module build_llama(const ModelConfig& config, BatchShape shape) {
  return Llama(config, shape).build();
}

}  // namespace mw::models
