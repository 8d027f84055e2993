#include "partition/test_nets.h"

#include <cmath>

#include <fmt/core.h>

#include "ops/builder.h"

namespace mw::partition::test {
namespace {

const ir::LogicalAxes kResidual = {"batch", "seq", "embed"};

class Writer {
 public:
  Writer(const std::string& name, const std::vector<ir::Layer>& layers) : builder_(graph_) {
    module_.name = name;
    module_.layers = layers;
    graph_.name = "microbatch";
  }
  ops::Builder& b() { return builder_; }
  void enter(int64_t layer) { builder_.layer = LayerId(layer); }
  ValueId input(const std::string& name, DType dtype, const std::vector<int64_t>& sizes,
                ir::LogicalAxes logical) {
    const ValueId v = graph_.add_input(ir::make_type(dtype, sizes), name);
    graph_.value(v).logical = std::move(logical);
    return v;
  }
  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes,
                 ir::LogicalAxes logical) {
    ir::State state;
    state.name = name;
    state.type = ir::make_type(DType::kF32, sizes);
    state.logical = logical;
    state.layer = builder_.layer;
    state.init = {ir::Init::Kind::kNormal, 0.1};
    const ValueId v = graph_.add_input(state.type, name, module_.add_state(state));
    graph_.value(v).logical = std::move(logical);
    return v;
  }
  ir::Module finish(ValueId loss) {
    std::vector<int> dims;
    for (int d = 0; d < graph_.type(loss).rank(); ++d) dims.push_back(d);
    graph_.outputs.push_back(
        builder_.annotate(builder_.reduce(loss, ir::Reduction::kSum, dims), "loss_sum", {}));
    module_.graphs.push_back(std::move(graph_));
    ir::verify(module_.graphs[0], &module_);
    return std::move(module_);
  }

 private:
  ir::Module module_;
  ir::Graph graph_;
  ops::Builder builder_;
};

class Gpt {
 public:
  explicit Gpt(const NetSizes& sizes) : n_(sizes), w_("gpt", layers(sizes)), b_(w_.b()) {}

  ir::Module build() {
    const ValueId tokens_BS = w_.input("tokens", DType::kI32, {n_.B, n_.S}, {"batch", ""});
    const ValueId targets_BS = w_.input("targets", DType::kI32, {n_.B, n_.S}, {"batch", ""});
    positions_BS_ = w_.input("positions", DType::kI32, {n_.B, n_.S}, {"batch", ""});
    w_.input("loss_scale", DType::kF32, {}, {});
    w_.enter(0);
    const ValueId table_VD = w_.weight("words", {n_.V, n_.D}, {"vocab", "embed"});
    const ValueId places_SD = w_.weight("places", {n_.S, n_.D}, {"", "embed"});
    const ValueId word_BSD =
        b_.annotate(b_.embedding(tokens_BS, table_VD), "embed.word", kResidual);
    const ValueId place_BSD =
        b_.annotate(b_.embedding(positions_BS_, places_SD), "embed.place", kResidual);
    ValueId h_BSD = b_.annotate(b_.add(word_BSD, place_BSD), "embed.sum", kResidual);
    for (int64_t i = 0; i < n_.blocks; ++i) h_BSD = block(i, h_BSD);
    w_.enter(n_.blocks + 1);
    const ValueId x_BSD = norm("final", h_BSD);
    const ValueId logits_BSV = b_.annotate(b_.dot(x_BSD, table_VD, "bsd,vd->bsv"), "logits",
                                           {"batch", "attn_seq", "vocab"});
    return w_.finish(
        b_.annotate(b_.cross_entropy(logits_BSV, targets_BS), "losses", {"batch", "attn_seq"}));
  }

 private:
  static std::vector<ir::Layer> layers(const NetSizes& sizes) {
    std::vector<ir::Layer> list{{"embed", false}};
    for (int64_t i = 0; i < sizes.blocks; ++i) list.push_back({fmt::format("h.{}", i), true});
    list.push_back({"head", false});
    return list;
  }
  ValueId norm(const std::string& name, ValueId x_BSD) {
    const ValueId gamma_D = w_.weight(name + ".norm.gain", {n_.D}, {"embed"});
    const ValueId beta_D = w_.weight(name + ".norm.shift", {n_.D}, {"embed"});
    return b_.annotate(b_.layer_norm(x_BSD, gamma_D, beta_D, 1e-5), name + ".norm", kResidual);
  }
  ValueId block(int64_t i, ValueId h_BSD) {
    const std::string name = fmt::format("h.{}", i);
    w_.enter(i + 1);
    h_BSD = b_.annotate(b_.add(h_BSD, attention(name, h_BSD)), name + ".middle", kResidual);
    return b_.annotate(b_.add(h_BSD, mlp(name, h_BSD)), name + ".out", kResidual);
  }
  ValueId attention(const std::string& name, ValueId h_BSD) {
    const ValueId x_BSD = norm(name + ".attn", h_BSD);
    const ValueId w_3HKD =
        w_.weight(name + ".qkv", {3, n_.H, n_.K, n_.D}, {"", "heads", "", "embed"});
    const ValueId b_3HK = w_.weight(name + ".qkv.bias", {3, n_.H, n_.K}, {"", "heads", ""});
    const ValueId qkv_BS3HK =
        b_.annotate(b_.bias_add(b_.dot(x_BSD, w_3HKD, "bsd,thkd->bsthk"), b_3HK), name + ".qkv.out",
                    {"batch", "attn_seq", "", "heads", ""});
    const ValueId a_BSHK =
        b_.annotate(b_.attention_packed(qkv_BS3HK, positions_BS_,
                                        1 / std::sqrt(static_cast<double>(n_.K)), true),
                    name + ".attn.out", {"batch", "attn_seq", "heads", ""});
    const ValueId w_DHK =
        w_.weight(name + ".attn.proj", {n_.D, n_.H, n_.K}, {"embed", "heads", ""});
    const ValueId y_BSD =
        b_.annotate(b_.dot(a_BSHK, w_DHK, "bshk,dhk->bsd"), name + ".attn.proj.out", kResidual);
    return b_.bias_add(y_BSD, w_.weight(name + ".attn.proj.bias", {n_.D}, {"embed"}));
  }
  ValueId mlp(const std::string& name, ValueId h_BSD) {
    const ValueId x_BSD = norm(name + ".mlp", h_BSD);
    const ValueId w_FD = w_.weight(name + ".up", {n_.F, n_.D}, {"ffn", "embed"});
    const ValueId b_F = w_.weight(name + ".up.bias", {n_.F}, {"ffn"});
    const ValueId up_BSF = b_.annotate(b_.dot(x_BSD, w_FD, "bsd,fd->bsf"), name + ".up.out",
                                       {"batch", "attn_seq", "ffn"});
    const ValueId u_BSF = b_.annotate(b_.bias_gelu(up_BSF, b_F, true), name + ".hidden",
                                      {"batch", "attn_seq", "ffn"});
    const ValueId w_DF = w_.weight(name + ".down", {n_.D, n_.F}, {"embed", "ffn"});
    const ValueId y_BSD =
        b_.annotate(b_.dot(u_BSF, w_DF, "bsf,df->bsd"), name + ".down.out", kResidual);
    return b_.bias_add(y_BSD, w_.weight(name + ".down.bias", {n_.D}, {"embed"}));
  }

  const NetSizes& n_;
  Writer w_;
  ops::Builder& b_;
  ValueId positions_BS_;
};

}  // namespace

ir::Module gpt_net(const NetSizes& sizes) { return Gpt(sizes).build(); }

ir::Module mlp_net(const NetSizes& n) {
  std::vector<ir::Layer> layers{{"in", true}};
  for (int64_t i = 0; i < n.blocks; ++i) layers.push_back({fmt::format("block.{}", i), true});
  layers.push_back({"out", true});
  Writer w("mlp", layers);
  ops::Builder& b = w.b();
  const ValueId x_BS = w.input("x", DType::kF32, {n.B, n.S}, {"batch", ""});
  w.input("loss_scale", DType::kF32, {}, {});
  w.enter(0);
  const ValueId w_DS = w.weight("in.weight", {n.D, n.S}, {"embed", ""});
  const ValueId first_BD = b.annotate(b.dot(x_BS, w_DS, "bs,ds->bd"), "in.out", {"batch", "embed"});
  ValueId h_BD = first_BD;
  for (int64_t i = 0; i < n.blocks; ++i) {
    const std::string name = fmt::format("block.{}", i);
    w.enter(i + 1);
    const ValueId w_FD = w.weight(name + ".up", {n.F, n.D}, {"ffn", "embed"});
    const ValueId b_F = w.weight(name + ".up.bias", {n.F}, {"ffn"});
    const ValueId u_BF = b.annotate(b.relu(b.bias_add(b.dot(h_BD, w_FD, "bd,fd->bf"), b_F)),
                                    name + ".hidden", {"batch", "ffn"});
    const ValueId w_DF = w.weight(name + ".down", {n.D, n.F}, {"embed", "ffn"});
    h_BD = b.annotate(b.dot(u_BF, w_DF, "bf,df->bd"), name + ".out", {"batch", "embed"});
  }
  w.enter(n.blocks + 1);
  const ValueId sum_BD = b.annotate(b.add(h_BD, first_BD), "out.skip", {"batch", "embed"});
  return w.finish(b.annotate(b.mul(sum_BD, sum_BD), "losses", {"batch", "embed"}));
}

sharding::Strategy strategy(bool sp) {
  sharding::Strategy strategy;
  strategy.axes["batch"] = {"dp"};
  for (const char* axis : {"heads", "kv_heads", "ffn", "vocab"}) strategy.axes[axis] = {"tp"};
  if (sp) strategy.axes["seq"] = {"tp"};
  return strategy;
}

}  // namespace mw::partition::test
