// Multi-head latent attention as it is trained [DeepSeek-AI 2024, DeepSeek-V2, section 2.1]:
// queries from a normed vector of query_rank (or, without, from the block's input), keys and values
// from one of kv_rank; a part of every head, of keys one part for all heads, has rotary positions.
//
// B batch, S sequence, D model, H heads, K head dim = N + R: N without, R with positions, V value
// dim
#include <cmath>

#include "models/transformer.h"

namespace mw::models {
namespace {

const ir::LogicalAxes kNarrow = {"batch", "seq", ""};

class Latent {
 public:
  Latent(NetBuilder& net, const ModelConfig& config, std::string name, std::string state)
      : net_(net),
        ops_(net.ops()),
        config_(config),
        name_(std::move(name)),
        state_(std::move(state)) {}

  ValueId operator()(ValueId x_BSD, const TransformerInputs& inputs,
                     const ops::Builder::RopeTable& rope) {
    const LatentAttention& latent = config_.latent;
    const int64_t H = config_.heads, K = config_.head_dim, R = latent.rope_dim, N = K - R,
                  V = latent.value_dim;
    const ValueId q_BSHK = latent.query_rank > 0
                               ? widen(narrow(x_BSD, "q_a", latent.query_rank), "q_b_proj", "", K)
                               : widen(x_BSD, "q_proj", "embed", K);
    const ValueId q =
        heads(ops_.concat({part(q_BSHK, 0, N), ops_.rope(part(q_BSHK, N, K), rope)}, 3), "q");
    const ValueId kv_narrow = narrow(x_BSD, "kv_a", latent.kv_rank);
    const ValueId kv_BSHX = widen(kv_narrow, "kv_b_proj", "", N + V);
    // The keys' part with positions: one head, for all.
    const ValueId w_1RD = add_weight(net_, config_, state_ + ".k_rope_proj.weight",
                                     {1, R, config_.hidden_size}, {"", "", "embed"});
    const ValueId k_BS1R = net_.annotate(ops_.rope(ops_.dot(x_BSD, w_1RD, "bsd,hrd->bshr"), rope),
                                         name_ + ".k_rope", {"batch", "attn_seq", "", ""});
    const ir::TensorType type = ops_.type(q_BSHK);
    const ValueId k_BSR = net_.annotate(ops_.reshape(k_BS1R, {type.dim(0), type.dim(1), R}),
                                        name_ + ".k_turned", {"batch", "attn_seq", ""});
    const ValueId turned =
        heads(ops_.broadcast(k_BSR, {type.dim(0), type.dim(1), H, R}, {0, 1, 3}), "k_of_heads");
    const ValueId k = heads(ops_.concat({part(kv_BSHX, 0, N), turned}, 3), "k");
    const ValueId v = heads(part(kv_BSHX, N, N + V), "v");
    const ValueId a_BSHV = heads(
        ops_.attention(q, k, v, inputs.positions_BS, 1 / std::sqrt(static_cast<double>(K)), true),
        "out");
    const ValueId w_DHV = add_weight(net_, config_, state_ + ".o_proj.weight",
                                     {config_.hidden_size, H, V}, {"embed", "heads", ""});
    return net_.annotate(ops_.dot(a_BSHV, w_DHV, "bshv,dhv->bsd"), name_ + ".proj", kResidual);
  }

 private:
  // Computed where the sequence is divided as between blocks; its gain's name ends in _layernorm.
  ValueId narrow(ValueId x_BSD, const std::string& matrix, int64_t rank) {
    const ValueId w_RD = add_weight(net_, config_, state_ + "." + matrix + "_proj.weight",
                                    {rank, config_.hidden_size}, {"", "embed"});
    const ValueId x_BSR =
        net_.annotate(ops_.dot(x_BSD, w_RD, "bsd,rd->bsr"), name_ + "." + matrix, kNarrow);
    const ValueId gain = add_gain(net_, state_ + "." + matrix + "_layernorm.weight", rank);
    return net_.annotate(ops_.rms_norm(x_BSR, gain, config_.norm_epsilon),
                         name_ + "." + matrix + "_norm", kNarrow);
  }
  // `axis`: of what is made wide.
  ValueId widen(ValueId x_BSR, const std::string& matrix, const std::string& axis, int64_t dim) {
    const int64_t rank = ops_.type(x_BSR).dim(2);
    const ValueId w_HXR = add_weight(net_, config_, state_ + "." + matrix + ".weight",
                                     {config_.heads, dim, rank}, {"heads", "", axis});
    return heads(ops_.dot(x_BSR, w_HXR, "bsr,hxr->bshx"), matrix);
  }
  ValueId heads(ValueId x_BSHX, const std::string& what) {
    return net_.annotate(x_BSHX, name_ + "." + what, kHeads);
  }
  ValueId part(ValueId x_BSHX, int64_t begin, int64_t end) {
    const ir::TensorType type = ops_.type(x_BSHX);
    return ops_.slice(x_BSHX, {0, 0, 0, begin}, {type.dim(0), type.dim(1), type.dim(2), end});
  }

  NetBuilder& net_;
  ops::Builder& ops_;
  const ModelConfig& config_;
  std::string name_, state_;
};

}  // namespace

ValueId latent_attention(NetBuilder& net, const ModelConfig& config, const std::string& name,
                         const std::string& state, ValueId x_BSD, const TransformerInputs& inputs,
                         const ops::Builder::RopeTable& rope) {
  return Latent(net, config, name, state)(x_BSD, inputs, rope);
}

}  // namespace mw::models
