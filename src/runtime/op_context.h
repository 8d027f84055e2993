// What a prepare function sees of an op, and how it makes a kernel of a lambda.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "execute/backend.h"
#include "ir/graph.h"

namespace mw::runtime {

struct OpContext {
  const ir::Graph& graph;
  const ir::Op& op;
  const execute::DeviceContext& device;

  const ir::TensorType& operand(size_t i) const { return graph.type(op.operands[i]); }
  const ir::TensorType& result(size_t i = 0) const { return graph.type(op.results[i]); }
  int threads() const { return device.threads; }
  // Index of this device along the axes.
  int64_t index(const ir::Axes& axes) const {
    return axes.empty() ? 0 : device.mesh->index(device.rank, axes);
  }
  // Global index of the first of `local` indices.
  int64_t offset(const ir::ShardOffset& shard, int64_t local) const {
    return index(shard.axes) * local;
  }
  // Whether every floating-point operand and result is f32.
  bool is_f32() const {
    for (const ValueId v : op.operands) {
      if (is_floating(graph.type(v).dtype) && graph.type(v).dtype != DType::kF32) return false;
    }
    for (const ValueId v : op.results) {
      if (is_floating(graph.type(v).dtype) && graph.type(v).dtype != DType::kF32) return false;
    }
    return true;
  }
  // Whether every operand and result is of this type.
  bool all_are(DType dtype) const {
    for (const ValueId v : op.operands) {
      if (graph.type(v).dtype != dtype) return false;
    }
    for (const ValueId v : op.results) {
      if (graph.type(v).dtype != dtype) return false;
    }
    return true;
  }
};

// A call's operands and results.
struct Args {
  std::span<void* const> operands, results;
  void* scratch = nullptr;

  template <typename T = float>
  const T* in(size_t i) const {
    return static_cast<const T*>(operands[i]);
  }
  template <typename T = float>
  T* out(size_t i = 0) const {
    return static_cast<T*>(results[i]);
  }
};

using Prepared = std::unique_ptr<execute::Kernel>;

// A kernel that calls f(Args).
template <typename F>
Prepared make_kernel(F f, int64_t scratch_bytes = 0) {
  class LambdaKernel final : public execute::Kernel {
   public:
    LambdaKernel(F f, int64_t scratch_bytes) : f_(std::move(f)), scratch_bytes_(scratch_bytes) {}
    void run(std::span<void* const> operands, std::span<void* const> results,
             void* scratch) override {
      f_(Args{operands, results, scratch});
    }
    Bytes scratch_bytes() const override { return Bytes(scratch_bytes_); }

   private:
    F f_;
    int64_t scratch_bytes_;
  };
  return std::make_unique<LambdaKernel>(std::move(f), scratch_bytes);
}

// The accumulator of an accumulating op is its last operand and the memory of result 0; should a
// plan have put the result elsewhere, its bytes are brought there. The same for ops whose meaning
// is to change an operand.
inline void bring(void* result, const void* operand, int64_t bytes) {
  if (result != operand) std::memcpy(result, operand, static_cast<size_t>(bytes));
}

// Rows of the last `tail` dimensions.
inline int64_t leading(const ir::TensorType& type, int tail = 1) {
  int64_t n = 1;
  for (int d = 0; d < type.rank() - tail; ++d) n *= type.dim(d);
  return n;
}
inline int64_t last(const ir::TensorType& type) {
  return type.rank() == 0 ? 1 : type.dim(type.rank() - 1);
}

}  // namespace mw::runtime
