#include "transform/slices.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "ops/builder.h"

namespace mw::transform {
namespace {

using ir::OpKind;

constexpr const char* kLoss = "loss_sum";
constexpr const char* kParts[] = {".q", ".k", ".v"};

std::string in_slice(const std::string& name, int32_t slice) {
  return slice == 0 || name.empty() ? name : fmt::format("{}/{}", name, slice);
}

// The dimension of a value that runs along the sequence, if any.
std::optional<int> sequence_dim(const ir::Value& value) {
  for (size_t d = 0; d < value.logical.size(); ++d) {
    if (value.logical[d] == "seq" || value.logical[d] == "attn_seq") return static_cast<int>(d);
  }
  return std::nullopt;
}

class Unroller {
 public:
  Unroller(const ir::Graph& one, int32_t slices, int64_t layers)
      : one_(one), slices_(slices), layers_(layers), builder_(all_) {
    all_.name = one.name;
    keys_.resize(one.ops.size());
    values_.resize(one.ops.size());
  }

  ir::Graph run() {
    for (const ir::Input& input : one_.inputs) add_input(input);
    ValueIds losses;
    const ValueId loss = find_loss();
    for (int32_t s = 0; s < slices_; ++s) {
      here_.assign(one_.values.size(), ValueId());
      for (const ir::Input& input : one_.inputs) here_[input.value.index()] = part(input.value, s);
      for (size_t o = 0; o < one_.ops.size(); ++o) add_op(o, s);
      losses.push_back(here_[loss.index()]);
    }
    sum_losses(losses);
    return std::move(all_);
  }

 private:
  ValueId find_loss() const {
    for (const ValueId v : one_.outputs) {
      if (one_.value(v).name == kLoss) return v;
    }
    throw_error("graph '{}' has no output '{}'; the loss of a slice must be one of its outputs",
                one_.name, kLoss);
  }

  void add_input(const ir::Input& input) {
    const ir::Value& value = one_.value(input.value);
    ir::TensorType type = value.type;
    const std::optional<int> dim = sequence_dim(value);
    if (!input.state.valid() && dim)
      type.dims[static_cast<size_t>(*dim)] = type.dim(*dim) * slices_;
    const ValueId whole = all_.add_input(type, value.name, input.state);
    all_.value(whole).logical = value.logical;
    inputs_[input.value] = whole;
  }

  // Of an input, what slices [0, slice] (`from_start`) or `slice` alone read.
  ValueId part(ValueId input, int32_t slice, bool from_start = false) {
    const ValueId whole = inputs_.at(input);
    const std::optional<int> dim = sequence_dim(one_.value(input));
    if (all_.type(whole) == one_.type(input) || !dim) return whole;
    const auto d = static_cast<size_t>(*dim);
    const int64_t size = one_.type(input).dim(*dim);
    std::vector<int64_t> start(all_.type(whole).dims.size(), 0), limit;
    for (const ir::Dim& n : all_.type(whole).dims) limit.push_back(n.size);
    start[d] = from_start ? 0 : slice * size;
    limit[d] = (slice + 1) * size;
    builder_.layer = LayerId();
    const ValueId made = builder_.slice(whole, start, limit);
    all_.value(made).logical = one_.value(input).logical;
    return made;
  }

  void add_op(size_t o, int32_t slice) {
    const ir::Op& op = one_.ops[o];
    ir::Op clone = op;
    if (op.layer.valid()) clone.layer = LayerId(op.layer.value + slice * layers_);
    for (ValueId& v : clone.operands) v = here_[v.index()];
    if (op.kind == OpKind::kAttention) lengthen(o, slice, clone);
    clone.results.clear();
    std::vector<ir::TensorType> types;
    for (const ValueId v : op.results) types.push_back(one_.type(v));
    const OpId id = all_.add_op(std::move(clone), types);
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId made = all_.op(id).results[r];
      const ir::Value& value = one_.value(op.results[r]);
      all_.value(made).name =
          value.name == kLoss ? fmt::format("{}/{}", kLoss, slice) : in_slice(value.name, slice);
      all_.value(made).logical = value.logical;
      here_[op.results[r].index()] = made;
    }
  }

  // The attention of a slice, with keys, values and positions from the start of the sequence.
  void lengthen(size_t o, int32_t slice, ir::Op& op) {
    auto& attrs = std::get<ir::AttentionAttrs>(op.attrs);
    if (!attrs.causal) {
      throw_error(
          "graph '{}': {} is not causal: a slice of a sequence would need the slices behind it; "
          "use whole sequences",
          one_.name, one_.label(one_.ops[o].results[0]));
    }
    builder_.layer = op.layer;
    if (attrs.packed) {
      const ValueId qkv_BS3HD = op.operands[0];
      const std::string name = one_.value(one_.ops[o].operands[0]).name;
      op.operands.erase(op.operands.begin());
      for (const int i : {0, 1, 2}) {
        op.operands.insert(op.operands.begin() + i,
                           head_part(qkv_BS3HD, i, in_slice(name + kParts[i], slice)));
      }
      attrs.packed = false;
    }
    const size_t positions = 3;
    keys_[o].push_back(op.operands[1]);
    values_[o].push_back(op.operands[2]);
    const size_t input = one_.ops[o].as<ir::AttentionAttrs>().packed ? 1 : 3;
    op.operands[positions] = part(one_.ops[o].operands[input], slice, true);
    builder_.layer = op.layer;
    if (slice == 0) return;
    op.operands[1] = together(keys_[o]);
    op.operands[2] = together(values_[o]);
  }

  // [B, S, 3, H, D] -> [B, S, H, D]
  ValueId head_part(ValueId qkv_BS3HD, int i, const std::string& name) {
    const ir::TensorType type = all_.type(qkv_BS3HD);
    const ir::LogicalAxes axes = all_.value(qkv_BS3HD).logical;
    const ValueId slice = builder_.slice(
        qkv_BS3HD, {0, 0, i, 0, 0}, {type.dim(0), type.dim(1), i + 1, type.dim(3), type.dim(4)});
    const ValueId made =
        builder_.reshape(slice, {type.dim(0), type.dim(1), type.dim(3), type.dim(4)});
    if (axes.empty()) return made;
    return builder_.annotate(made, name, {axes[0], axes[1], axes[3], axes[4]});
  }
  // [B, S, H, D] of every slice so far -> [B, T, H, D]
  ValueId together(const ValueIds& parts_BSHD) {
    const ValueId made = builder_.concat(parts_BSHD, 1);
    all_.value(made).logical = all_.value(parts_BSHD[0]).logical;
    return made;
  }

  void sum_losses(const ValueIds& losses) {
    const OpId producer = all_.value(losses.back()).producer;
    builder_.layer = all_.op(producer).layer;
    ValueId sum = losses[0];
    for (size_t s = 1; s < losses.size(); ++s) sum = builder_.add(sum, losses[s]);
    all_.value(sum).name = kLoss;
    all_.outputs = {sum};
  }

  const ir::Graph& one_;
  const int32_t slices_;
  const int64_t layers_;
  ir::Graph all_;
  ops::Builder builder_;
  std::map<ValueId, ValueId> inputs_;  // of `one_`
  ValueIds here_;                      // [value of `one_`] in the slice in the making
  std::vector<ValueIds> keys_;         // [attention op of `one_`][slice]
  std::vector<ValueIds> values_;
};

}  // namespace

void unroll_slices(ir::Module& module, const std::string& graph, int32_t slices) {
  ir::Graph* one = module.find_graph(graph);
  MW_CHECK(one != nullptr && slices > 1, "{} slices of graph {}", slices, graph);
  const size_t layers = module.layers.size();
  *one = Unroller(*one, slices, static_cast<int64_t>(layers)).run();
  for (int32_t s = 1; s < slices; ++s) {
    for (size_t l = 0; l < layers; ++l) {
      ir::Layer layer = module.layers[l];
      layer.name = in_slice(layer.name, s);
      module.layers.push_back(std::move(layer));
    }
  }
}

void merge_slices(ir::Module& module, const std::string& graph, int32_t slices) {
  const auto layers = static_cast<int64_t>(module.layers.size()) / slices;
  // By parameter and layer, the accumulator of the first slice; it stands for the others.
  std::map<std::pair<StateId, LayerId>, StateId> first;
  std::map<StateId, std::vector<StateId>> of_parameter;
  std::map<StateId, StateId> moved;
  for (size_t i = 0; i < module.states.size(); ++i) {
    ir::State& state = module.states[i];
    if (state.kind != ir::StateKind::kGradient || !state.parameter.valid()) continue;
    const StateId id(static_cast<int64_t>(i));
    const LayerId layer = state.use.valid() ? LayerId(state.use.value % layers) : state.use;
    const auto [it, is_new] = first.try_emplace({state.parameter, layer}, id);
    if (is_new) {
      of_parameter[state.parameter].push_back(id);
      continue;
    }
    moved[id] = it->second;
    state.parameter = StateId();
  }
  for (const auto& [parameter, accumulators] : of_parameter) {
    // One use, for which autodiff needed no layer in the name.
    if (accumulators.size() > 1) continue;
    const std::string& name = module.state(accumulators[0]).name;
    module.rename_state(accumulators[0], name.substr(0, name.rfind('@')));
  }
  ir::Graph& all = *module.find_graph(graph);
  for (ir::Input& input : all.inputs) {
    if (const auto it = moved.find(input.state); input.state.valid() && it != moved.end())
      input.state = it->second;
  }
  for (ir::StateUpdate& update : all.updates) {
    if (const auto it = moved.find(update.state); it != moved.end()) update.state = it->second;
  }
}

namespace {

// The losses of the slices, of which `sum` was made.
void find_losses(const ir::Graph& graph, ValueId sum, ValueIds& losses) {
  const OpId by = graph.value(sum).producer;
  const std::string& name = graph.value(sum).name;
  if (name.starts_with(std::string(kLoss) + "/") || !by.valid()) {
    losses.push_back(sum);
    return;
  }
  MW_CHECK(graph.op(by).kind == OpKind::kAdd, "{} is no sum of losses", graph.label(sum));
  for (const ValueId v : graph.op(by).operands) find_losses(graph, v, losses);
}

}  // namespace

void spread_loss(ir::Graph& graph, StateId state) {
  const auto update = std::find_if(graph.updates.begin(), graph.updates.end(),
                                   [&](const ir::StateUpdate& u) { return u.state == state; });
  MW_CHECK(update != graph.updates.end(), "graph '{}' has no update of the loss", graph.name);
  const ir::Op sum = graph.op(graph.value(update->value).producer);
  graph.updates.erase(update);
  ValueIds losses;
  find_losses(graph, sum.operands[1], losses);
  ValueId accumulator = sum.operands[0];
  for (size_t s = 0; s < losses.size(); ++s) {
    const ir::TensorType type = graph.type(accumulator);
    if (s > 0) {
      accumulator = graph.add_input(
          type, in_slice(graph.value(sum.operands[0]).name, static_cast<int32_t>(s)), state);
    }
    ir::Op add = sum;
    add.operands = {accumulator, losses[s]};
    add.results.clear();
    add.layer = graph.op(graph.value(losses[s]).producer).layer;
    const OpId id = graph.add_op(std::move(add), {type});
    graph.updates.push_back({state, graph.op(id).results[0]});
  }
}

}  // namespace mw::transform
