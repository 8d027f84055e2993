#include "predict/torch_fragments.h"

#include <set>
#include <utility>

#include "predict/kept_products.h"

namespace mw::predict {
namespace {

using pipeline::Category;
using pipeline::Command;
using pipeline::Fragment;
using pipeline::PortKind;

// Of a mixture's rows, in half precision what f32 takes besides, less what is not saved of what the
// experts made.
constexpr int64_t kRowCopies = 2;

class FragmentReader {
 public:
  // `categories`: of the buffers at its input ports.
  FragmentReader(const Fragment& fragment, const std::vector<Category>& categories,
                 const StackMemory& memory)
      : fragment_(fragment), graph_(fragment.graph), categories_(categories), memory_(memory) {}

  FragmentMemory read() {
    made_.forward = fragment_.kind == pipeline::ActionKind::kF;
    find_roots();
    find_weights();
    find_gradients();
    for (const ir::Op& op : graph_.ops) made_.ops.push_back(op_memory(op));
    if (memory_.kept_products && made_.forward) {
      for (const OpId op : kept_products(fragment_)) made_.ops[op.index()].kept = true;
    }
    find_repeats();
    find_last_reads();
    return std::move(made_);
  }

 private:
  size_t root(ValueId v) const { return static_cast<size_t>(made_.root[v.index()]); }

  void find_roots() {
    const size_t values = graph_.values.size();
    made_.input.assign(values, -1);
    made_.output.assign(values, -1);
    for (size_t v = 0; v < values; ++v) {
      const ValueId of = fragment_.alias_of[v];
      made_.root.push_back(of.valid() ? of.value : static_cast<int32_t>(v));
    }
    for (size_t i = 0; i < fragment_.inputs.size(); ++i)
      made_.input[fragment_.inputs[i].value.index()] = static_cast<int32_t>(i);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      made_.output[root(graph_.outputs[i])] = static_cast<int32_t>(i);
  }

  bool is_state(size_t v, Category category) const {
    const int32_t port = made_.input[v];
    return port >= 0 && fragment_.inputs[static_cast<size_t>(port)].kind == PortKind::kState &&
           categories_[static_cast<size_t>(port)] == category;
  }

  // Weights, what is gathered of them, and views of both. Only what an op reads is one.
  void find_weights() {
    weight_.assign(graph_.values.size(), false);
    for (size_t v = 0; v < graph_.values.size(); ++v) weight_[v] = is_state(v, Category::kWeights);
    std::set<std::pair<size_t, int64_t>> seen;  // value, offset
    for (const ir::Op& op : graph_.ops) {
      if (op.operands.empty()) continue;
      const size_t from = op.operands[0].index();
      const bool gathered = op.kind == ir::OpKind::kAllGather && is_state(from, Category::kWeights);
      if (gathered || (op.kind == ir::OpKind::kView && weight_[from]))
        weight_[op.results[0].index()] = true;
      made_.gathers = made_.gathers || gathered;
      if (gathered) gathers_.insert(op.results[0].index());
    }
    for (const ir::Op& op : graph_.ops) {
      if (op.kind == ir::OpKind::kView || !op.layer.valid()) continue;
      for (const ValueId v : op.operands) {
        if (!weight_[v.index()] || is_gather(op)) continue;
        if (!seen.insert({root(v), fragment_.alias_offset[v.index()]}).second) continue;
        LayerWeights& layer = made_.weights[op.layer.value];
        layer.elements.push_back(graph_.type(v).elements());
        layer.sum += layer.elements.back();
      }
    }
  }
  bool is_gather(const ir::Op& op) const {
    return !op.results.empty() && gathers_.count(op.results[0].index()) > 0;
  }

  // What ends in a state of gradients: the state, buffers that are put together and reduced.
  void find_gradients() {
    gradient_.assign(graph_.values.size(), false);
    for (size_t v = 0; v < graph_.values.size(); ++v)
      gradient_[v] = is_state(v, Category::kGradients);
    for (size_t o = graph_.ops.size(); o-- > 0;) {
      const ir::Op& op = graph_.ops[o];
      if (!carries_gradients(op.kind) || op.results.empty() || !gradient_[root(op.results[0])])
        continue;
      for (const ValueId v : op.operands) gradient_[root(v)] = true;
      made_.scatters = made_.scatters || op.kind == ir::OpKind::kReduceScatter;
    }
  }
  static bool carries_gradients(ir::OpKind kind) {
    switch (kind) {
      case ir::OpKind::kAccumulate:
      case ir::OpKind::kAssemble:
      case ir::OpKind::kAllReduce:
      case ir::OpKind::kReduceScatter: return true;
      default: return false;
    }
  }

  OpMemory op_memory(const ir::Op& op) const {
    OpMemory made;
    made.layer = op.layer.value;
    switch (op.kind) {
      case ir::OpKind::kView:
      case ir::OpKind::kConstant:
      case ir::OpKind::kZero: return made;
      case ir::OpKind::kCrossEntropyMax:
      case ir::OpKind::kCrossEntropySum:
      case ir::OpKind::kCrossEntropyLoss:
      case ir::OpKind::kCrossEntropyGrad: read_loss(op, made); break;
      default: break;
    }
    const bool gradient = !op.results.empty() && gradient_[root(op.results[0])];
    if (op.results.empty() || is_gather(op) || (gradient && carries_gradients(op.kind)))
      return made;
    if (gradient) {
      made.kind = OpMemory::Kind::kWeightGradient;
      made.elements = graph_.type(op.results[0]).elements();
      return made;
    }
    if (made.kind == OpMemory::Kind::kNothing) made.kind = OpMemory::Kind::kCompute;
    for (const ValueId v : op.results) {
      if (root(v) == v.index() && made_.input[v.index()] < 0) made.makes.push_back(v.value);
    }
    if (op.kind == ir::OpKind::kAllGather || op.kind == ir::OpKind::kReduceScatter) {
      const auto& attrs = op.as<ir::CollectiveAttrs>();
      const ValueId whole = op.kind == ir::OpKind::kAllGather ? op.results[0] : op.operands[0];
      if (attrs.dim != 0) made.copy = graph_.type(whole).bytes().value;
    }
    return made;
  }

  void read_loss(const ir::Op& op, OpMemory& made) const {
    if (!memory_.f32_loss) return;
    const ValueId logits = op.operands[0];
    made.kind = op.kind == ir::OpKind::kCrossEntropyGrad ? OpMemory::Kind::kLossGradient
                                                         : OpMemory::Kind::kLoss;
    made.elements = graph_.type(logits).elements();
    made.divided = graph_.type(logits).dims.back().size <
                   fragment_.global_types[logits.index()].dims.back().size;
  }
  // Keys and values that fewer heads have than queries, a mixture's rows.
  void find_repeats() {
    made_.repeats.assign(graph_.values.size(), 1);
    made_.saves_repeats = memory_.copies;
    for (const ir::Op& op : graph_.ops) {
      if (op.kind == ir::OpKind::kMoeDispatch && op.operands.size() == 2 && memory_.copies)
        made_.repeats[root(op.results[0])] = kRowCopies;
      const bool forward = op.kind == ir::OpKind::kAttention;
      if (!forward && op.kind != ir::OpKind::kAttentionGrad) continue;
      if (op.as<ir::AttentionAttrs>().packed) continue;
      const size_t q = forward ? 0 : 1;
      for (const size_t operand : {q + 1, q + 2}) {
        const ValueId v = op.operands[operand];
        made_.repeats[root(v)] = graph_.type(op.operands[q]).dim(2) / graph_.type(v).dim(2);
      }
    }
  }

  void find_last_reads() {
    std::vector<int32_t> last(graph_.values.size(), -1);
    for (size_t o = 0; o < graph_.ops.size(); ++o) {
      for (const auto* values : {&graph_.ops[o].operands, &graph_.ops[o].results})
        for (const ValueId v : *values) last[root(v)] = static_cast<int32_t>(o);
    }
    made_.last_reads.resize(graph_.ops.size());
    for (size_t v = 0; v < last.size(); ++v) {
      if (last[v] >= 0)
        made_.last_reads[static_cast<size_t>(last[v])].push_back(static_cast<int32_t>(v));
    }
  }

  const Fragment& fragment_;
  const ir::Graph& graph_;
  const std::vector<Category>& categories_;
  const StackMemory& memory_;
  FragmentMemory made_;
  std::vector<bool> weight_, gradient_;  // [value], [root]
  std::set<size_t> gathers_;             // results of gathers of weights
};

}  // namespace

std::vector<FragmentMemory> read_fragments(const pipeline::Program& program,
                                           const StackMemory& memory) {
  std::vector<FragmentMemory> fragments(program.fragments.size());
  std::vector<bool> done(fragments.size(), false);
  for (const pipeline::RankProgram& rank : program.ranks) {
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall || done[command.fragment.index()]) continue;
      const size_t f = command.fragment.index();
      const Fragment& fragment = program.fragments[f];
      done[f] = true;
      if (fragment.kind == pipeline::ActionKind::kUpdate) continue;
      std::vector<Category> categories;
      for (size_t i = 0; i < fragment.inputs.size(); ++i)
        categories.push_back(rank.buffers[command.buffers[i].index()].category);
      fragments[f] = FragmentReader(fragment, categories, memory).read();
    }
  }
  return fragments;
}

}  // namespace mw::predict
