// A mixture of experts in place of a block's MLP [Shazeer 2017]: the router's logits choose the
// experts of a token, whose rows are dealt out, go through the experts' MLPs in grouped products,
// and are put together with the gates as weights. Names of transformers' Qwen3-MoE, experts
// stacked.
//
// B batch, S sequence, D model, E experts, C rows of an expert and sample, F an expert's ffn
#include "base/error.h"
#include "models/transformer.h"

namespace mw::models {
namespace {

// Tokens lie as between blocks; what an expert has lies where the expert does, whole in D and F.
const ir::LogicalAxes kLogits = {"batch", "seq", ""};
const ir::LogicalAxes kRows = {"expert", "expert_batch", "seq", ""};

class Experts {
 public:
  Experts(NetBuilder& net, const ModelConfig& config, std::string name, std::string state)
      : net_(net), config_(config), name_(std::move(name)), state_(std::move(state)) {}

  ValueId routed(ValueId x_BSD) {
    const Mixture& m = config_.mixture;
    ops::Builder& ops = net_.ops();
    const ValueId w_ED =
        add_weight(net_, config_, state_ + ".gate.weight", {m.experts, D()}, {"", "embed"});
    ValueId logits_BSE = ops.dot(x_BSD, w_ED, "bsd,ed->bse");
    if (m.bias)
      logits_BSE =
          ops.bias_add(logits_BSE, add_bias(net_, state_ + ".gate.bias", {m.experts}, {""}));
    net_.annotate(logits_BSE, name_ + ".router", kLogits);
    const ir::MoeAttrs attrs{m.experts, m.top_k, m.sigmoid, m.scale};
    const ValueIds chosen = ops.emit(ir::OpKind::kMoeTopK, attrs, {logits_BSE});
    const ValueId gates = net_.annotate(chosen[0], name_ + ".gates", kLogits);
    const ValueId experts = net_.annotate(chosen[1], name_ + ".experts", kLogits);
    const ValueId rows_EBCD = net_.annotate(
        ops.emit1(ir::OpKind::kMoeDispatch, attrs, {x_BSD, experts}), name_ + ".rows", kRows);
    const ValueId made_EBCD = mlp(rows_EBCD);
    return net_.annotate(ops.emit1(ir::OpKind::kMoeCombine, attrs, {made_EBCD, experts, gates}),
                         name_ + ".sum", kResidual);
  }

 private:
  int64_t D() const { return config_.hidden_size; }

  ValueId mlp(ValueId rows_EBCD) {
    ops::Builder& ops = net_.ops();
    const int64_t F = config_.mixture.ffn_size;
    const ValueId gate = product(rows_EBCD, "gate_proj", F, D());
    const ValueId up = product(rows_EBCD, "up_proj", F, D());
    const ValueId hidden = net_.annotate(ops.swiglu(gate, up), name_ + ".hidden", kRows);
    return product(hidden, "down_proj", D(), F);
  }

  // Of every expert with its rows, plus its bias.
  ValueId product(ValueId x, const std::string& matrix, int64_t out, int64_t in) {
    ops::Builder& ops = net_.ops();
    const std::string state = state_ + ".experts." + matrix;
    const int64_t E = config_.mixture.experts;
    const ValueId w = add_weight(net_, config_, state, {E, out, in}, {"expert", "", ""});
    ValueId y = ops.dot(x, w, "ebci,eoi->ebco");
    if (config_.mixture.bias) {
      const ir::TensorType type = ops.type(y);
      const ValueId b = add_bias(net_, state + "_bias", {E, out}, {"expert", ""});
      y = ops.add(y, ops.broadcast(b, {E, type.dim(1), type.dim(2), out}, {0, 3}));
    }
    return net_.annotate(y, name_ + "." + matrix, kRows);
  }

  NetBuilder& net_;
  const ModelConfig& config_;
  std::string name_, state_;
};

}  // namespace

ValueId mixture_of_experts(NetBuilder& net, const ModelConfig& config, const std::string& name,
                           const std::string& state, ValueId x_BSD) {
  const ValueId routed_BSD = Experts(net, config, name, state).routed(x_BSD);
  const int64_t shared = config.mixture.shared_ffn_size;
  if (shared == 0) return routed_BSD;
  const ValueId shared_BSD =
      gated_mlp(net, config, name + ".shared", state + ".shared_experts", x_BSD, shared);
  return net.annotate(net.ops().add(routed_BSD, shared_BSD), name + ".all", kResidual);
}

}  // namespace mw::models
