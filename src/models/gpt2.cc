// GPT-2 [Radford et al. 2019] with the names and the initialization of transformers'
// GPT2LMHeadModel, or with fewer heads of keys and values than of queries (Megatron-LM's
// --group-query-attention; no model of transformers).
//
// B batch, S sequence, D model, H heads, N heads of keys and values, K head dim, F ffn, V vocab, P
// positions
#include <cmath>

#include <fmt/core.h>

#include "models/transformer.h"

namespace mw::models {
namespace {

using Decay = NetBuilder::Decay;
using Kind = ir::Init::Kind;

class Gpt2 {
 public:
  Gpt2(const ModelConfig& config, BatchShape shape)
      : config_(config),
        net_("gpt2", transformer_layers(config)),
        inputs_(add_inputs(net_, config, shape)),
        apart_(shape.apart) {}

  ir::Module build() {
    net_.enter("embed");
    const ValueId table_VD =
        weight("transformer.wte.weight", {config_.vocab_size, D()}, {"vocab", "embed"});
    ValueId h_BSD = embed(table_VD);
    for (int64_t i = 0; i < config_.layers; ++i) h_BSD = block(i, h_BSD);
    net_.enter("head");
    h_BSD = layer_norm("transformer.ln_f", "head.ln_f", h_BSD);
    const ValueId out_VD =
        config_.tie_word_embeddings
            ? table_VD
            : weight("lm_head.weight", {config_.vocab_size, D()}, {"vocab", "embed"});
    write_loss(net_, inputs_, h_BSD, out_VD);
    return net_.finish();
  }

 private:
  int64_t D() const { return config_.hidden_size; }
  int64_t H() const { return config_.heads; }
  int64_t N() const { return config_.kv_heads; }
  int64_t K() const { return config_.head_dim; }
  int64_t F() const { return config_.ffn_size; }

  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical, double scale = 1) {
    return net_.parameter(name, sizes, std::move(logical),
                          {Kind::kNormal, config_.initializer_range * scale}, Decay::kYes);
  }
  ValueId bias(const std::string& name, const std::vector<int64_t>& sizes,
               ir::LogicalAxes logical) {
    return net_.parameter(name, sizes, std::move(logical), {Kind::kZeros, 0}, Decay::kNo);
  }
  ValueId layer_norm(const std::string& state, const std::string& name, ValueId x_BSD) {
    const ValueId gamma_D =
        net_.parameter(state + ".weight", {D()}, {"embed"}, {Kind::kOnes, 0}, Decay::kNo);
    const ValueId beta_D = bias(state + ".bias", {D()}, {"embed"});
    return net_.annotate(net_.ops().layer_norm(x_BSD, gamma_D, beta_D, config_.norm_epsilon), name,
                         kResidual);
  }
  // Projections back into the residual stream start smaller, by the number of them: "we scale the
  // weights of residual layers at initialization by a factor of 1/sqrt(N)".
  double residual_scale() const { return 1 / std::sqrt(2.0 * static_cast<double>(config_.layers)); }

  ValueId embed(ValueId table_VD) {
    ops::Builder& ops = net_.ops();
    const ValueId positions_PD =
        weight("transformer.wpe.weight", {config_.max_positions, D()}, {"", "embed"});
    const ValueId token_BSD =
        net_.annotate(ops.embedding(inputs_.tokens_BS, table_VD), "embed.token", kResidual);
    const ValueId position_BSD = net_.annotate(ops.embedding(inputs_.positions_BS, positions_PD),
                                               "embed.position", kResidual);
    const ValueId h_BSD = net_.annotate(ops.add(token_BSD, position_BSD), "embed.sum", kResidual);
    return residual_dropout(net_, inputs_, h_BSD, config_.embedding_dropout, "embed.drop");
  }

  ValueId block(int64_t i, ValueId h_BSD) {
    const std::string name = fmt::format("h.{}", i);
    net_.enter(name);
    h_BSD = net_.annotate(net_.ops().add(h_BSD, attention(i, name, h_BSD)), name + ".attn.residual",
                          kResidual);
    return net_.annotate(net_.ops().add(h_BSD, mlp(name, h_BSD)), name + ".mlp.residual",
                         kResidual);
  }

  ValueId attention(int64_t i, const std::string& name, ValueId h_BSD) {
    ops::Builder& ops = net_.ops();
    const std::string state = "transformer." + name;
    const ValueId x_BSD = layer_norm(state + ".ln_1", name + ".ln_1", h_BSD);
    double scale = config_.scale_attention ? 1 / std::sqrt(static_cast<double>(K())) : 1;
    if (config_.scale_attention_by_layer) scale /= static_cast<double>(i + 1);
    const bool drops = config_.attention_dropout > 0;
    const std::string site = drops ? name + ".attn.attn_drop" : "";
    const auto random = drops ? inputs_.random : std::nullopt;
    const auto attend = [&](ValueId q_BSHK, ValueId k_BSNK, ValueId v_BSNK) {
      return ops.attention(q_BSHK, k_BSNK, v_BSNK, inputs_.positions_BS, scale, true,
                           config_.attention_dropout, site, random);
    };
    const std::string c_attn = state + ".attn.c_attn", at = name + ".attn.";
    ValueId made_BSHK;
    if (N() < H()) {
      const ValueId w_HKD =
          weight(c_attn + ".query.weight", {H(), K(), D()}, {"heads", "", "embed"});
      const ValueId b_HK = bias(c_attn + ".query.bias", {H(), K()}, {"heads", ""});
      const ValueId q_BSHK = net_.annotate(
          ops.bias_add(ops.dot(x_BSD, w_HKD, "bsd,hkd->bshk"), b_HK), at + "q", kHeads);
      const ValueId kv_BS2NK = projections(c_attn + ".key_value", at + "kv", x_BSD, 2, "kv_heads");
      made_BSHK = attend(q_BSHK, part(kv_BS2NK, 0, at + "k", kKvHeads),
                         part(kv_BS2NK, 1, at + "v", kKvHeads));
    } else {
      const ValueId qkv_BS3HK = projections(c_attn, at + "qkv", x_BSD, 3, "heads");
      made_BSHK = apart_ ? attend(part(qkv_BS3HK, 0, at + "q", kHeads),
                                  part(qkv_BS3HK, 1, at + "k", kHeads),
                                  part(qkv_BS3HK, 2, at + "v", kHeads))
                         : ops.attention_packed(qkv_BS3HK, inputs_.positions_BS, scale, true,
                                                config_.attention_dropout, site, random);
    }
    const ValueId a_BSHK = net_.annotate(made_BSHK, name + ".attn.out", kHeads);
    const ValueId w_DHK = weight(state + ".attn.c_proj.weight", {D(), H(), K()},
                                 {"embed", "heads", ""}, residual_scale());
    const ValueId b_D = bias(state + ".attn.c_proj.bias", {D()}, {"embed"});
    const ValueId y_BSD =
        net_.annotate(ops.dot(a_BSHK, w_DHK, "bshk,dhk->bsd"), name + ".attn.proj", kResidual);
    return residual_dropout(net_, inputs_, ops.bias_add(y_BSD, b_D), config_.residual_dropout,
                            name + ".attn.resid_drop");
  }

  // x W^T + b for `count` projections in one product: [B, S, count, heads, K].
  ValueId projections(const std::string& state, const std::string& name, ValueId x_BSD,
                      int64_t count, const std::string& axis) {
    ops::Builder& ops = net_.ops();
    const int64_t heads = axis == "heads" ? H() : N();
    const ValueId w_CHKD =
        weight(state + ".weight", {count, heads, K(), D()}, {"", axis, "", "embed"});
    const ValueId b_CHK = bias(state + ".bias", {count, heads, K()}, {"", axis, ""});
    return net_.annotate(ops.bias_add(ops.dot(x_BSD, w_CHKD, "bsd,chkd->bschk"), b_CHK), name,
                         {"batch", "attn_seq", "", axis, ""});
  }

  // [B, S, count, heads, K] -> [B, S, heads, K]
  ValueId part(ValueId x_BSCHK, int64_t i, const std::string& name, const ir::LogicalAxes& axes) {
    ops::Builder& ops = net_.ops();
    const ir::TensorType type = ops.type(x_BSCHK);
    const ValueId slice = ops.slice(x_BSCHK, {0, 0, i, 0, 0},
                                    {type.dim(0), type.dim(1), i + 1, type.dim(3), type.dim(4)});
    return net_.annotate(ops.reshape(slice, {type.dim(0), type.dim(1), type.dim(3), type.dim(4)}),
                         name, axes);
  }

  ValueId mlp(const std::string& name, ValueId h_BSD) {
    ops::Builder& ops = net_.ops();
    const std::string state = "transformer." + name;
    const ValueId x_BSD = layer_norm(state + ".ln_2", name + ".ln_2", h_BSD);
    const ValueId w_FD = weight(state + ".mlp.c_fc.weight", {F(), D()}, {"ffn", "embed"});
    const ValueId b_F = bias(state + ".mlp.c_fc.bias", {F()}, {"ffn"});
    const ValueId up_BSF =
        net_.annotate(ops.dot(x_BSD, w_FD, "bsd,fd->bsf"), name + ".mlp.up", kFfn);
    const ValueId hidden_BSF =
        net_.annotate(activate(net_, config_.activation, up_BSF, b_F), name + ".mlp.hidden", kFfn);
    const ValueId w_DF =
        weight(state + ".mlp.c_proj.weight", {D(), F()}, {"embed", "ffn"}, residual_scale());
    const ValueId b_D = bias(state + ".mlp.c_proj.bias", {D()}, {"embed"});
    const ValueId y_BSD =
        net_.annotate(ops.dot(hidden_BSF, w_DF, "bsf,df->bsd"), name + ".mlp.proj", kResidual);
    return residual_dropout(net_, inputs_, ops.bias_add(y_BSD, b_D), config_.residual_dropout,
                            name + ".mlp.resid_drop");
  }

  const ModelConfig& config_;
  NetBuilder net_;
  TransformerInputs inputs_;
  bool apart_;
};

}  // namespace

ir::Module build_gpt2(const ModelConfig& config, BatchShape shape) {
  return Gpt2(config, shape).build();
}

}  // namespace mw::models
