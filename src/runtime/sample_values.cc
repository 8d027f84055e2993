#include "runtime/sample_values.h"

#include <algorithm>
#include <cstring>

#include "pipeline/buffer_lives.h"
#include "runtime/cpu_backend.h"

namespace mw::runtime {
namespace {

using pipeline::Fragment;

constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool in_workspace(const Fragment& fragment, size_t value) {
  return fragment.workspace_offset[value] != Fragment::kNotPlanned;
}
int64_t bytes_of(const ir::Graph& graph, size_t value) {
  return std::max(kAlignment, graph.values[value].type.bytes().value);
}

// Numbers that look like no sequence: of Knuth's multiplicative hashing.
int64_t spread(int64_t i) { return i * 2654435761 >> 8 & 0xffffff; }

}  // namespace

SampleValues::SampleValues(const Fragment& fragment)
    : fragment_(fragment), offset_(fragment.graph.values.size(), 0) {
  int64_t end = aligned(pipeline::workspace_end(fragment));
  for (size_t v = 0; v < offset_.size(); ++v) {
    if (fragment.alias_of[v].valid()) continue;
    offset_[v] = in_workspace(fragment, v) ? fragment.workspace_offset[v] : end;
    if (!in_workspace(fragment, v)) end += aligned(bytes_of(fragment.graph, v));
  }
  const int64_t bytes = std::max(kAlignment, end);
  memory_ = std::static_pointer_cast<char>(CpuBackend().allocate(Bytes(bytes), {}));
  std::memset(memory_.get(), 0, static_cast<size_t>(bytes));
  for (size_t v = 0; v < offset_.size(); ++v) fill(ValueId(static_cast<int32_t>(v)));
}

void* SampleValues::at(ValueId v) const {
  const ValueId root = fragment_.alias_of[v.index()];
  if (!root.valid()) return start_of(v);
  return start_of(root) + fragment_.alias_offset[v.index()];
}

bool SampleValues::is_alias(const ir::Op& op) const {
  const bool may = op.kind == ir::OpKind::kReshape || op.kind == ir::OpKind::kCopy ||
                   op.kind == ir::OpKind::kView || op.kind == ir::OpKind::kAssemble;
  return may && fragment_.alias_of[op.results[0].index()].valid();
}

void SampleValues::fill(ValueId v) const {
  const ir::Value& value = fragment_.graph.value(v);
  if (value.producer.valid() || fragment_.alias_of[v.index()].valid()) return;
  const int64_t count = value.type.elements();
  if (value.type.dtype == DType::kF32) {
    auto* data = reinterpret_cast<float*>(start_of(v));
    for (int64_t i = 0; i < count; ++i) data[i] = 1e-6F * static_cast<float>(1 + spread(i) % 50000);
  } else if (value.type.dtype == DType::kI32 && value.type.dims.size() > 1) {
    const int64_t length = value.type.dims.back().size, rows = rows_of_index(v);
    auto* data = reinterpret_cast<int32_t*>(start_of(v));
    for (int64_t i = 0; i < count; ++i)
      data[i] = static_cast<int32_t>(rows == 0 ? i % length : spread(i) % rows);
  }
}

// Of the table or the logits that it chooses from; 0: it is of positions.
int64_t SampleValues::rows_of_index(ValueId v) const {
  const ir::Graph& graph = fragment_.graph;
  int64_t rows = 0;
  for (const ir::Op& op : graph.ops) {
    if (std::find(op.operands.begin(), op.operands.end(), v) == op.operands.end()) continue;
    switch (op.kind) {
      case ir::OpKind::kEmbedding: rows = graph.type(op.operands[1]).dim(0); break;
      case ir::OpKind::kEmbeddingGrad: rows = graph.type(op.results[0]).dim(0); break;
      case ir::OpKind::kCrossEntropySum:
      case ir::OpKind::kCrossEntropyGrad: rows = graph.type(op.operands[0]).dims.back().size; break;
      case ir::OpKind::kCrossEntropyLoss: break;  // behind the sum
      default: return 0;
    }
  }
  return rows;
}

Bytes sample_bytes(const Fragment& fragment) {
  Bytes bytes(pipeline::workspace_end(fragment));
  for (size_t v = 0; v < fragment.graph.values.size(); ++v) {
    if (!fragment.alias_of[v].valid() && !in_workspace(fragment, v))
      bytes += Bytes(bytes_of(fragment.graph, v));
  }
  return bytes;
}

}  // namespace mw::runtime
