#include "predict/narrow_saved.h"

#include <cmath>
#include <map>
#include <utility>

namespace mw::predict {

using pipeline::Command;

NarrowSaved::NarrowSaved(const pipeline::Program& program, DType dtype, cost::Fp8 narrow)
    : program_(program), dtype_(dtype), narrow_(narrow) {
  for (const pipeline::Fragment& fragment : program.fragments)
    readers_.push_back(readers(fragment));
}

std::vector<NarrowSaved::Readers> NarrowSaved::readers(const pipeline::Fragment& fragment) {
  const ir::Graph& graph = fragment.graph;
  const std::vector<cost::ProductRole> roles = cost::product_roles(graph);
  const auto root = [&](ValueId v) {
    const ValueId of = fragment.alias_of[v.index()];
    return of.valid() ? of.index() : v.index();
  };
  std::vector<Readers> of_value(graph.values.size());
  for (size_t o = graph.ops.size(); o-- > 0;) {  // what a gather makes is read behind it
    const ir::Op& op = graph.ops[o];
    for (const ValueId v : op.operands) {
      Readers& mine = of_value[root(v)];
      if (!op.results.empty() && root(op.results[0]) == root(v)) continue;
      if (op.kind == ir::OpKind::kAllGather) {
        const Readers& behind = of_value[root(op.results[0])];
        mine.narrow = mine.narrow || behind.narrow;
        mine.wide = mine.wide || behind.wide;
      } else if (roles[o] == cost::ProductRole::kLinear) {
        mine.narrow = true;
      } else {
        mine.wide = true;
      }
    }
  }
  for (const ValueId v : graph.outputs) of_value[root(v)].wide = true;
  std::vector<Readers> ports;
  for (const pipeline::Port& port : fragment.inputs) ports.push_back(of_value[root(port.value)]);
  return ports;
}

std::vector<NarrowSaved::Readers> NarrowSaved::readers_of(const pipeline::RankProgram& rank) const {
  std::vector<Readers> of_buffer(rank.buffers.size());
  for (const Command& command : rank.commands) {
    if (command.kind != Command::Kind::kCall) continue;
    const size_t f = command.fragment.index();
    if (program_.fragments[f].kind == pipeline::ActionKind::kF) continue;
    for (size_t p = 0; p < readers_[f].size(); ++p) {
      Readers& mine = of_buffer[command.buffers[p].index()];
      mine.narrow = mine.narrow || readers_[f][p].narrow;
      mine.wide = mine.wide || readers_[f][p].wide;
    }
  }
  return of_buffer;
}

void NarrowSaved::convert(pipeline::RankProgram& rank) const {
  const std::vector<Readers> of_buffer = readers_of(rank);
  // Of a layout that microbatches share: what becomes of it. Layouts stay until all are done.
  std::map<std::pair<const pipeline::Layout*, bool>, pipeline::Shared<pipeline::Layout>> narrowed;
  std::vector<pipeline::Shared<pipeline::Layout>> before;
  for (size_t b = 0; b < rank.buffers.size(); ++b) {
    pipeline::Buffer& buffer = rank.buffers[b];
    if (!of_buffer[b].narrow || buffer.category != pipeline::Category::kActivations ||
        buffer.type().dtype != dtype_ || buffer.type().dims.empty())
      continue;
    const auto [it, is_new] =
        narrowed.try_emplace({&buffer.layout.get(), of_buffer[b].wide}, buffer.layout);
    if (is_new) {
      before.push_back(buffer.layout);
      make_narrow(it->second.edit(), of_buffer[b].wide);
    }
    buffer.layout = it->second;
  }
}

// Bytes in place of elements; `wide`: beside the value itself.
void NarrowSaved::make_narrow(pipeline::Layout& layout, bool wide) const {
  const double bytes =
      static_cast<double>(dtype_size(dtype_)) * (cost::narrow_share(narrow_) + (wide ? 1 : 0));
  for (ir::TensorType* type : {&layout.type, &layout.global_type}) {
    int64_t& last = type->dims.back().size;
    last = static_cast<int64_t>(std::ceil(static_cast<double>(last) * bytes));
    type->dtype = DType::kU8;
  }
}

}  // namespace mw::predict
