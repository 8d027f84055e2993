#include "transform/test_models.h"

#include <fmt/core.h>

#include "base/rng.h"
#include "ops/builder.h"

namespace mw::transform::test {
namespace {

using ops::Builder;

class ModelWriter {
 public:
  explicit ModelWriter(const std::vector<std::string>& layers) : builder_(graph_) {
    module_.name = "test";
    graph_.name = "microbatch";
    for (const std::string& layer : layers) module_.layers.push_back({layer});
  }
  Builder& b() { return builder_; }
  void enter(int layer) { builder_.layer = LayerId(layer); }
  ValueId input(const std::string& name, DType dtype, const std::vector<int64_t>& sizes) {
    return graph_.add_input(ir::make_type(dtype, sizes), name);
  }
  ValueId weight(const std::string& name, const std::vector<int64_t>& sizes) {
    ir::State state;
    state.name = name;
    state.type = ir::make_type(DType::kF32, sizes);
    state.layer = builder_.layer;
    return graph_.add_input(ir::make_type(DType::kF32, sizes), name,
                            module_.add_state(std::move(state)));
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
  Builder builder_;
};

ValueId attention_block(ModelWriter& m, ValueId h_BSD, const std::string& name, double dropout,
                        const Builder::Random& random) {
  Builder& b = m.b();
  const ValueId n_BSD =
      b.layer_norm(h_BSD, m.weight(name + ".ln.g", {6}), m.weight(name + ".ln.b", {6}), 1e-5);
  const ValueId qkv =
      b.bias_add(b.dot(n_BSD, m.weight(name + ".qkv.w", {3, 2, 3, 6}), "bsd,thed->bsthe"),
                 m.weight(name + ".qkv.b", {3, 2, 3}));
  const ValueId a_BSHD =
      b.attention_packed(qkv, random.positions_BS, 0.577, true, dropout, name + ".attn", random);
  ValueId y_BSD = b.bias_add(b.dot(a_BSHD, m.weight(name + ".proj.w", {6, 2, 3}), "bshe,dhe->bsd"),
                             m.weight(name + ".proj.b", {6}));
  if (dropout > 0) y_BSD = b.dropout(y_BSD, dropout, name + ".resid", random);
  return b.annotate(b.add(h_BSD, y_BSD), name + ".attn.out", {"batch", "seq", "embed"});
}

ValueId mlp_block(ModelWriter& m, ValueId h_BSD, const std::string& name) {
  Builder& b = m.b();
  const ValueId u_BSF = b.bias_gelu(b.dot(h_BSD, m.weight(name + ".up.w", {8, 6}), "bsd,fd->bsf"),
                                    m.weight(name + ".up.b", {8}), true);
  const ValueId y_BSD = b.dot(u_BSF, m.weight(name + ".down.w", {6, 8}), "bsf,df->bsd");
  return b.annotate(b.add(h_BSD, y_BSD), name + ".out", {"batch", "seq", "embed"});
}

}  // namespace

ir::Module mlp(int blocks) {
  std::vector<std::string> layers{"in"};
  for (int i = 0; i < blocks; ++i) layers.push_back(fmt::format("block.{}", i));
  layers.push_back("out");
  ModelWriter m(layers);
  Builder& b = m.b();
  const ValueId x_BI = m.input("x", DType::kF32, {3, 4}),
                target_BO = m.input("target", DType::kF32, {3, 2});
  m.input("loss_scale", DType::kF32, {});
  m.enter(0);
  const ValueId first =
      b.annotate(b.dot(x_BI, m.weight("in.w", {5, 4}), "bi,di->bd"), "in.out", {"batch", "embed"});
  ValueId h = first;
  for (int i = 0; i < blocks; ++i) {
    m.enter(i + 1);
    const std::string name = fmt::format("block.{}", i);
    const ValueId w = m.weight(name + ".w", {5, 5});
    h = b.annotate(b.relu(b.bias_add(b.dot(h, w, "bd,ed->be"), m.weight(name + ".b", {5}))),
                   name + ".out", {"batch", "embed"});
  }
  m.enter(blocks + 1);
  const ValueId y = b.dot(b.add(h, first), m.weight("out.w", {2, 5}), "bd,od->bo");
  const ValueId error = b.sub(y, target_BO);
  return m.finish(b.mul(error, error));
}

ir::Module gpt(double dropout, int64_t seq, int64_t positions) {
  ModelWriter m({"embed", "h.0", "h.1", "head"});
  Builder& b = m.b();
  const auto sequence = [&](const std::string& name) {
    return b.annotate(m.input(name, DType::kI32, {2, seq}), name, {"batch", "seq"});
  };
  const ValueId tokens_BS = sequence("tokens"), targets_BS = sequence("targets");
  Builder::Random random;
  random.positions_BS = sequence("positions");
  m.input("loss_scale", DType::kF32, {});
  random.sample_ids_B = m.input("sample_ids", DType::kI64, {2});
  random.seed = m.input("seed", DType::kI64, {});
  random.step = m.input("step", DType::kI64, {});
  m.enter(0);
  const ValueId table_VD = m.weight("tbl", {7, 6});
  ValueId h = b.add(b.embedding(tokens_BS, table_VD),
                    b.embedding(random.positions_BS, m.weight("ptb", {positions, 6})));
  if (dropout > 0) h = b.dropout(h, dropout, "embed.drop", random);
  h = b.annotate(h, "embed.out", {"batch", "seq", "embed"});
  for (int i = 0; i < 2; ++i) {
    m.enter(i + 1);
    const std::string name = fmt::format("h.{}", i);
    h = mlp_block(m, attention_block(m, h, name, dropout, random), name);
  }
  m.enter(3);
  const ValueId n =
      b.layer_norm(h, m.weight("last_norm.g", {6}), m.weight("last_norm.b", {6}), 1e-5);
  return m.finish(b.cross_entropy(b.dot(n, table_VD, "bsd,vd->bsv"), targets_BS));
}

std::vector<ops::Tensor> inputs_of(const ir::Graph& graph) {
  std::vector<ops::Tensor> inputs;
  for (const ir::Input& input : graph.inputs) {
    const std::string& name = graph.value(input.value).name;
    ops::Tensor tensor = ops::zeros(graph.type(input.value));
    const RngKey key{1, 0, rng_site(name)};
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const uint32_t word = random_u32(key, i);
      tensor.values[i] = name == "positions"
                             ? static_cast<double>(i % static_cast<size_t>(tensor.type.dim(1)))
                         : name == "loss_scale"           ? 0.5
                         : name == "targets" && i == 2    ? -100
                         : is_floating(tensor.type.dtype) ? 0.5 * random_normal(key, i)
                                                          : static_cast<double>(word % 7);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

std::map<std::string, ops::Tensor> outcome(const ir::Module& module, const ir::Graph& graph,
                                           const std::vector<ops::Tensor>& inputs) {
  const std::vector<ops::Tensor> values = ops::interpret(graph, inputs);
  std::map<std::string, ops::Tensor> result;
  for (const ir::StateUpdate& update : graph.updates) {
    result[module.state(update.state).name] = values[update.value.index()];
  }
  for (const ValueId output : graph.outputs) result[graph.label(output)] = values[output.index()];
  return result;
}

ir::Graph& microbatch(ir::Module& module) { return *module.find_graph("microbatch"); }

int count_ops(const ir::Graph& graph, ir::OpKind kind) {
  int count = 0;
  for (const ir::Op& op : graph.ops) count += op.kind == kind;
  return count;
}

}  // namespace mw::transform::test
