// Llama [Touvron et al. 2023], with grouped-query attention [Ainslie et al. 2023] where kv_heads <
// heads, and the names and the initialization of transformers' LlamaForCausalLM.
//
// B batch, S sequence, D model, H heads, N kv heads, K head dim, F ffn, V vocab
#include <cmath>

#include <fmt/core.h>

#include "models/transformer.h"

namespace mw::models {
namespace {

using Decay = NetBuilder::Decay;
using Kind = ir::Init::Kind;

class Llama {
 public:
  Llama(const ModelConfig& config, BatchShape shape)
      : config_(config),
        net_("llama", transformer_layers(config)),
        inputs_(add_inputs(net_, config, shape)) {}

  ir::Module build() {
    const auto table =
        net_.ops().rope_table(inputs_.positions_BS, config_.rope_theta, config_.head_dim);
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
  int64_t F() const { return config_.ffn_size; }
  int64_t K() const { return config_.head_dim; }

  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical) {
    return net_.parameter(name, sizes, std::move(logical),
                          {Kind::kNormal, config_.initializer_range}, Decay::kYes);
  }
  ValueId bias(const std::string& name, const std::vector<int64_t>& sizes,
               ir::LogicalAxes logical) {
    return net_.parameter(name, sizes, std::move(logical), {Kind::kZeros, 0}, Decay::kNo);
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
    h_BSD =
        net_.annotate(net_.ops().add(h_BSD, attention(name + ".attn", state + ".self_attn", x_BSD)),
                      name + ".attn.residual", kResidual);
    const ValueId y_BSD = rms_norm(state + ".post_attention_layernorm.weight",
                                   name + ".post_attention_layernorm", h_BSD);
    return net_.annotate(net_.ops().add(h_BSD, mlp(name + ".mlp", state + ".mlp", y_BSD)),
                         name + ".mlp.residual", kResidual);
  }

  // x W^T (+ bias) in the query's or the keys' and values' heads.
  ValueId project(const std::string& name, const std::string& state, ValueId x_BSD, bool query) {
    const int64_t heads = query ? config_.heads : config_.kv_heads;
    const std::string axis = query ? "heads" : "kv_heads";
    const ValueId w_HKD = weight(state + ".weight", {heads, K(), D()}, {axis, "", "embed"});
    ValueId y_BSHK = net_.ops().dot(x_BSD, w_HKD, "bsd,hkd->bshk");
    if (config_.attention_bias) {
      y_BSHK = net_.ops().bias_add(y_BSHK, bias(state + ".bias", {heads, K()}, {axis, ""}));
    }
    return net_.annotate(y_BSHK, name, query ? kHeads : kKvHeads);
  }

  ValueId attention(const std::string& name, const std::string& state, ValueId x_BSD) {
    ops::Builder& ops = net_.ops();
    ValueId q_BSHK = project(name + ".q", state + ".q_proj", x_BSD, true);
    ValueId k_BSNK = project(name + ".k", state + ".k_proj", x_BSD, false);
    const ValueId v_BSNK = project(name + ".v", state + ".v_proj", x_BSD, false);
    q_BSHK = net_.annotate(ops.rope(q_BSHK, rope_), name + ".q_rope", kHeads);
    k_BSNK = net_.annotate(ops.rope(k_BSNK, rope_), name + ".k_rope", kKvHeads);
    const bool dropout = config_.attention_dropout > 0;
    const ValueId a_BSHK = net_.annotate(
        ops.attention(q_BSHK, k_BSNK, v_BSNK, inputs_.positions_BS,
                      1 / std::sqrt(static_cast<double>(K())), true, config_.attention_dropout,
                      dropout ? name + ".attn_drop" : "", dropout ? inputs_.random : std::nullopt),
        name + ".out", kHeads);
    const ValueId w_DHK =
        weight(state + ".o_proj.weight", {D(), config_.heads, K()}, {"embed", "heads", ""});
    const ValueId y_BSD =
        net_.annotate(ops.dot(a_BSHK, w_DHK, "bshk,dhk->bsd"), name + ".proj", kResidual);
    return config_.attention_bias
               ? ops.bias_add(y_BSD, bias(state + ".o_proj.bias", {D()}, {"embed"}))
               : y_BSD;
  }

  // x W^T (+ bias) in F.
  ValueId widen(const std::string& name, const std::string& state, ValueId x_BSD) {
    ValueId y_BSF = net_.ops().dot(x_BSD, weight(state + ".weight", {F(), D()}, {"ffn", "embed"}),
                                   "bsd,fd->bsf");
    if (config_.mlp_bias) y_BSF = net_.ops().bias_add(y_BSF, bias(state + ".bias", {F()}, {"ffn"}));
    return net_.annotate(y_BSF, name, kFfn);
  }

  ValueId mlp(const std::string& name, const std::string& state, ValueId x_BSD) {
    ops::Builder& ops = net_.ops();
    const ValueId gate_BSF = widen(name + ".gate", state + ".gate_proj", x_BSD);
    const ValueId up_BSF = widen(name + ".up", state + ".up_proj", x_BSD);
    const ValueId hidden_BSF = config_.activation == Activation::kSilu
                                   ? ops.swiglu(gate_BSF, up_BSF)
                                   : ops.mul(activate(net_, config_.activation, gate_BSF), up_BSF);
    net_.annotate(hidden_BSF, name + ".hidden", kFfn);
    const ValueId w_DF = weight(state + ".down_proj.weight", {D(), F()}, {"embed", "ffn"});
    const ValueId y_BSD =
        net_.annotate(ops.dot(hidden_BSF, w_DF, "bsf,df->bsd"), name + ".proj", kResidual);
    return config_.mlp_bias ? ops.bias_add(y_BSD, bias(state + ".down_proj.bias", {D()}, {"embed"}))
                            : y_BSD;
  }

  const ModelConfig& config_;
  NetBuilder net_;
  TransformerInputs inputs_;
  ops::Builder::RopeTable rope_;
};

}  // namespace

ir::Module build_llama(const ModelConfig& config, BatchShape shape) {
  return Llama(config, shape).build();
}

}  // namespace mw::models
