// For this room's tests: a backend of plain float loops, and a builder of small programs by hand.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "execute/backend.h"
#include "pipeline/program.h"

namespace mw::execute {

// Runs ops through a table of lambdas on floats and writes down what each rank ran.
class FakeBackend : public Backend {
 public:
  struct Call {
    const ir::Graph& graph;
    const ir::Op& op;
    RankId rank;
    std::span<void* const> operands, results;
    const float* in(size_t i) const { return static_cast<const float*>(operands[i]); }
    float* out(size_t i = 0) const { return static_cast<float*>(results[i]); }
    int64_t elements() const { return graph.type(op.results[0]).elements(); }
  };
  using Function = std::function<void(const Call&)>;

  FakeBackend() {
    table_[ir::OpKind::kScale] = [](const Call& c) {
      const auto factor = static_cast<float>(c.op.as<ir::ScaleAttrs>().factor);
      for (int64_t i = 0; i < c.elements(); ++i) c.out()[i] = c.in(0)[i] * factor;
    };
    table_[ir::OpKind::kAdd] = table_[ir::OpKind::kAccumulate] = [](const Call& c) {
      for (int64_t i = 0; i < c.elements(); ++i) c.out()[i] = c.in(0)[i] + c.in(1)[i];
    };
    table_[ir::OpKind::kReshape] = table_[ir::OpKind::kCopy] = [](const Call& c) {
      std::memcpy(c.out(), c.in(0), static_cast<size_t>(c.elements()) * sizeof(float));
    };
  }

  void on(ir::OpKind kind, Function function) { table_[kind] = std::move(function); }

  std::unique_ptr<Kernel> prepare(const ir::Graph& graph, const ir::Op& op,
                                  const DeviceContext& device) override {
    class FakeKernel : public Kernel {
     public:
      FakeKernel(const ir::Graph& graph, const ir::Op& op, RankId rank, const Function& function)
          : graph_(graph), op_(op), rank_(rank), function_(function) {}
      void run(std::span<void* const> operands, std::span<void* const> results, void*) override {
        function_({graph_, op_, rank_, operands, results});
      }

     private:
      const ir::Graph& graph_;
      const ir::Op& op_;
      RankId rank_;
      const Function& function_;
    };
    std::lock_guard lock(mutex_);
    ++prepared;
    const auto found = table_.find(op.kind);
    if (found == table_.end())
      throw_error("op {}: the fake backend has no kernel for it", ir::op_name(op.kind));
    return std::make_unique<FakeKernel>(graph, op, device.rank, found->second);
  }
  std::shared_ptr<void> allocate(Bytes bytes, const DeviceContext&) override {
    std::lock_guard lock(mutex_);
    ++allocations;
    allocated += bytes;
    const auto size = static_cast<size_t>((bytes.value + 4095) / 4096 * 4096);
    void* data = std::aligned_alloc(4096, size);
    std::memset(data, 0, size);
    return {data, std::free};
  }
  void enter_rank(const DeviceContext&) override {}

  int prepared = 0, allocations = 0;
  Bytes allocated;

 private:
  std::mutex mutex_;
  std::map<ir::OpKind, Function> table_;
};

inline ir::TensorType f32(const std::vector<int64_t>& sizes) {
  return ir::make_type(DType::kF32, sizes);
}

// Builds a fragment op by op. Every value that is no port gets workspace of its own.
class FragmentBuilder {
 public:
  explicit FragmentBuilder(std::string name) { fragment_.name = std::move(name); }

  ValueId input(const std::string& name, ir::TensorType type,
                pipeline::PortKind kind = pipeline::PortKind::kBoundary) {
    const ValueId v = fragment_.graph.add_input(std::move(type), name);
    fragment_.inputs.push_back({kind, v, name});
    return v;
  }
  ValueIds op(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
              std::vector<ir::TensorType> types) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.operands = std::move(operands);
    const OpId id = fragment_.graph.add_op(std::move(op), std::move(types));
    return fragment_.graph.op(id).results;
  }
  ValueId scale(ValueId x, double factor) {
    return op(ir::OpKind::kScale, ir::ScaleAttrs{factor}, {x}, {fragment_.graph.type(x)})[0];
  }
  ValueId collective(ir::OpKind kind, ir::CollectiveAttrs attrs, ValueId x, ir::TensorType type) {
    return op(kind, std::move(attrs), {x}, {std::move(type)})[0];
  }
  // The result lies where `root` lies, `offset` bytes on.
  void alias(ValueId v, ValueId root, int64_t offset = 0) { aliases_[v] = {root, offset}; }
  void output(ValueId v, const std::string& name,
              pipeline::PortKind kind = pipeline::PortKind::kBoundary) {
    if (kind == pipeline::PortKind::kState) {
      fragment_.graph.updates.push_back({StateId(0), v});
    } else {
      fragment_.graph.outputs.push_back(v);
    }
    fragment_.outputs.push_back({kind, v, name});
  }

  pipeline::Fragment build() {
    const size_t values = fragment_.graph.values.size();
    fragment_.workspace_offset.assign(values, pipeline::Fragment::kNotPlanned);
    fragment_.alias_of.assign(values, ValueId());
    fragment_.alias_offset.assign(values, 0);
    fragment_.launches.resize(fragment_.graph.ops.size());
    std::vector<bool> is_port(values, false);
    for (const auto& port : fragment_.inputs) is_port[port.value.index()] = true;
    for (const auto& port : fragment_.outputs) is_port[port.value.index()] = true;
    for (const auto& [v, to] : aliases_) {
      fragment_.alias_of[v.index()] = to.first;
      fragment_.alias_offset[v.index()] = to.second;
    }
    for (size_t v = 0; v < values; ++v) {
      if (is_port[v] || fragment_.alias_of[v].valid()) continue;
      fragment_.workspace_offset[v] = fragment_.workspace.value;
      fragment_.workspace += Bytes((fragment_.graph.values[v].type.bytes().value + 63) / 64 * 64);
    }
    return fragment_;
  }

 private:
  pipeline::Fragment fragment_;
  std::map<ValueId, std::pair<ValueId, int64_t>> aliases_;
};

// Appends buffers and commands to a rank's program.
class RankBuilder {
 public:
  explicit RankBuilder(pipeline::RankProgram& rank) : rank_(rank) {}

  BufferId state(const std::string& name, ir::TensorType type) {
    const BufferId id = add(name, type, pipeline::Storage::Kind::kState, rank_.state_arena.value);
    rank_.state_arena += padded(type);
    ++rank_.states;
    return id;
  }
  BufferId arena(const std::string& name, ir::TensorType type) {
    const BufferId id = add(name, type, pipeline::Storage::Kind::kArena, rank_.arena.value);
    rank_.arena += padded(type);
    return id;
  }
  BufferId slot(const std::string& name, ir::TensorType type, int32_t channel, int32_t slot) {
    const BufferId id = add(name, std::move(type), pipeline::Storage::Kind::kSlot, 0);
    rank_.buffers.back().storage.channel = channel;
    rank_.buffers.back().storage.slot = slot;
    return id;
  }
  BufferId view(const std::string& name, ir::TensorType type, BufferId parent, int64_t offset,
                ir::Axes axes, int64_t stride) {
    const BufferId id = add(name, std::move(type), pipeline::Storage::Kind::kView, offset);
    rank_.buffers.back().storage.parent = parent;
    rank_.buffers.back().storage.part = {std::move(axes), stride};
    return id;
  }
  void load(const std::string& name, BufferId buffer, int32_t microbatch) {
    pipeline::Command& c = command(pipeline::Command::Kind::kLoad, microbatch);
    c.name = name;
    c.buffers = {buffer};
  }
  void call(int fragment, BufferIds buffers, int32_t microbatch = 0) {
    pipeline::Command& c = command(pipeline::Command::Kind::kCall, microbatch);
    c.fragment = FragmentId(fragment);
    c.buffers = std::move(buffers);
  }
  void message(pipeline::Command::Kind kind, int32_t channel, int32_t sequence) {
    pipeline::Command& c = command(kind, sequence);
    c.channel = channel;
    c.sequence = sequence;
  }
  // REQUIRES: all arena buffers are there.
  void finish(Bytes workspace) {
    for (pipeline::Command& command : rank_.commands) command.workspace_offset = rank_.arena.value;
    rank_.arena += workspace;
  }
  int32_t stage = 0;

 private:
  static Bytes padded(const ir::TensorType& type) {
    return Bytes((type.bytes().value + 63) / 64 * 64);
  }
  BufferId add(const std::string& name, ir::TensorType type, pipeline::Storage::Kind kind,
               int64_t offset) {
    pipeline::Buffer buffer;
    buffer.value = name;
    buffer.layout = {type, type, {}};
    buffer.storage.kind = kind;
    buffer.storage.offset = offset;
    rank_.buffers.push_back(std::move(buffer));
    return BufferId(static_cast<int64_t>(rank_.buffers.size()) - 1);
  }
  pipeline::Command& command(pipeline::Command::Kind kind, int32_t microbatch) {
    pipeline::Command c;
    c.kind = kind;
    c.microbatch = microbatch;
    c.action.stage = StageId(stage);
    c.action.first = std::max(microbatch, 0);
    rank_.commands.push_back(std::move(c));
    return rank_.commands.back();
  }
  pipeline::RankProgram& rank_;
};

}  // namespace mw::execute
