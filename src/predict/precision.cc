#include "predict/precision.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "pipeline/memory_plan.h"

namespace mw::predict {
namespace {

using pipeline::Buffer;
using pipeline::Category;
using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;
using pipeline::RankProgram;
using pipeline::Storage;

// Statistics beside the main result: log-sum-exp, means, maxima, sums.
bool is_statistic(const ir::Graph& graph, const ir::Value& value) {
  if (!value.producer.valid()) return false;
  switch (graph.op(value.producer).kind) {
    case ir::OpKind::kCrossEntropyMax:
    case ir::OpKind::kCrossEntropySum:
    case ir::OpKind::kCrossEntropyLoss: return true;
    case ir::OpKind::kSwigluGrad: return false;  // its second result is a gradient like the first
    default: return value.result > 0 && value.type.rank() < 4;
  }
}

class Converter {
 public:
  Converter(Program program, DType dtype) : program_(std::move(program)), dtype_(dtype) {}

  Program run() {
    find_categories();
    for (size_t f = 0; f < program_.fragments.size(); ++f) convert(f);
    find_port_types();
    for (RankProgram& rank : program_.ranks) {
      convert_buffers(rank);
      place_states(rank);
    }
    pipeline::plan_ranks(program_);
    return std::move(program_);
  }

 private:
  // [fragment][input port] the category of the buffer that calls give it.
  void find_categories() {
    categories_.resize(program_.fragments.size());
    for (const RankProgram& rank : program_.ranks) {
      for (const Command& command : rank.commands) {
        if (command.kind != Command::Kind::kCall) continue;
        auto& ports = categories_[command.fragment.index()];
        if (!ports.empty()) continue;
        const Fragment& fragment = program_.fragments[command.fragment.index()];
        for (size_t i = 0; i < fragment.inputs.size(); ++i)
          ports.push_back(rank.buffers[command.buffers[i].index()].category);
      }
    }
  }

  void convert(size_t f) {
    Fragment& fragment = program_.fragments[f];
    if (categories_[f].size() != fragment.inputs.size()) return;  // nobody calls it
    ir::Graph& graph = fragment.graph;
    const bool update = fragment.kind == pipeline::ActionKind::kUpdate;
    std::vector<std::optional<Category>> of_state(graph.values.size());
    for (size_t i = 0; i < fragment.inputs.size(); ++i) {
      if (fragment.inputs[i].kind == pipeline::PortKind::kState)
        of_state[fragment.inputs[i].value.index()] = categories_[f][i];
    }
    std::vector<bool> half(graph.values.size(), false);
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const ir::Value& value = graph.values[v];
      if (value.type.dtype != DType::kF32) continue;
      const ValueId root =
          fragment.alias_of[v].valid() ? fragment.alias_of[v] : ValueId(static_cast<int64_t>(v));
      const std::optional<Category> state = of_state[root.index()];
      if (state) {
        half[v] = *state == Category::kWeights;
      } else {
        half[v] = !update && value.type.elements() > 1 && !is_statistic(graph, value);
      }
    }
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (!half[v]) continue;
      graph.values[v].type.dtype = dtype_;
      fragment.global_types[v].dtype = dtype_;
    }
    pipeline::plan_fragment(fragment);
  }

  // What a buffer has that is given to a port.
  struct PortType {
    pipeline::Shared<ir::TensorType> type, global_type;
  };
  void find_port_types() {
    port_types_.resize(program_.fragments.size());
    for (size_t f = 0; f < program_.fragments.size(); ++f) {
      const Fragment& fragment = program_.fragments[f];
      const auto add = [&](ValueId v) {
        PortType& port = port_types_[f].emplace_back();
        port.type = fragment.graph.type(v);
        port.global_type = fragment.global_types[v.index()];
      };
      for (const pipeline::Port& port : fragment.inputs) add(port.value);
      for (const ValueId v : fragment.graph.outputs) add(v);
    }
  }

  // A buffer has the type of the port that it is first given to, which writes it.
  void convert_buffers(RankProgram& rank) {
    std::vector<bool> seen(rank.buffers.size(), false);
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kCall) continue;
      const std::vector<PortType>& ports = port_types_[command.fragment.index()];
      for (size_t p = 0; p < command.buffers.size(); ++p) {
        const size_t b = command.buffers[p].index();
        if (seen[b]) continue;
        seen[b] = true;
        Buffer& buffer = rank.buffers[b];
        if (buffer.type->dtype == ports[p].type->dtype) continue;
        MW_CHECK(buffer.type->dtype == DType::kF32, "{} has two types", buffer.name);
        buffer.type = ports[p].type;
        buffer.global_type = ports[p].global_type;
        if (buffer.storage.kind == Storage::Kind::kSlot)
          program_.channels[static_cast<size_t>(buffer.storage.channel)].type.dtype =
              buffer.type->dtype;
      }
    }
    for (size_t b = 0; b < rank.buffers.size(); ++b) {
      Buffer& buffer = rank.buffers[b];
      if (buffer.category != Category::kWeights || buffer.type->dtype == dtype_) continue;
      buffer.type.edit().dtype = dtype_;
      buffer.global_type.edit().dtype = dtype_;
    }
  }

  // States one behind the other, and the master copy: as many bytes as one of the two moments.
  void place_states(RankProgram& rank) const {
    int64_t end = 0, optimizer = 0;
    for (Buffer& buffer : rank.buffers) {
      if (buffer.category == Category::kWeights && buffer.storage.kind == Storage::Kind::kView) {
        buffer.storage.offset = buffer.storage.offset / 4 * dtype_size(dtype_);
        buffer.storage.shard_stride = buffer.storage.shard_stride / 4 * dtype_size(dtype_);
      }
      if (buffer.storage.kind != Storage::Kind::kState) continue;
      if (buffer.category == Category::kOptimizer) optimizer += buffer.bytes().value;
      buffer.storage.offset = end;
      end += aligned(buffer.bytes().value);
    }
    if (optimizer > 0) {
      Buffer master;
      master.name = "master weights";
      master.type = ir::make_type(DType::kF32, {optimizer / 2 / 4});
      master.global_type = master.type;
      master.sharding = sharding::replicated(1);
      master.category = Category::kOptimizer;
      master.storage.kind = Storage::Kind::kState;
      master.storage.offset = end;
      end += aligned(optimizer / 2);
      rank.buffers.push_back(std::move(master));
    }
    rank.state_arena = Bytes(end);
  }
  static int64_t aligned(int64_t bytes) {
    return (bytes + pipeline::kAlignment - 1) / pipeline::kAlignment * pipeline::kAlignment;
  }

  Program program_;
  DType dtype_;
  std::vector<std::vector<Category>> categories_;
  std::vector<std::vector<PortType>> port_types_;  // [fragment] inputs, then outputs
};

}  // namespace

Program in_precision(Program program, DType dtype) {
  if (dtype == DType::kF32) return program;
  return Converter(std::move(program), dtype).run();
}

}  // namespace mw::predict
