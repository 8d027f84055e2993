// Backend: runs single ops on one device. The runtime implements it on ATen and the project's
// kernels; tests have a fake one. Everything that crosses devices is the executor's.
#pragma once

#include <memory>
#include <span>

#include "base/ids.h"
#include "cluster/mesh.h"
#include "ir/graph.h"

namespace mw::execute {

// Where a kernel runs.
struct DeviceContext {
  const cluster::Mesh* mesh = nullptr;
  RankId rank;
  int threads = 1;
};

// An op made ready: kernel chosen, constants folded. Called from its rank's thread only.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Operand and result data, in the op's order; an in-place result has its operand's address.
  // `scratch` has scratch_bytes() bytes, aligned to 64.
  virtual void run(std::span<void* const> operands, std::span<void* const> results,
                   void* scratch) = 0;
  virtual Bytes scratch_bytes() const { return Bytes(0); }
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Throws Error for an op that this backend has no kernel for, naming the op.
  virtual std::unique_ptr<Kernel> prepare(const ir::Graph& graph, const ir::Op& op,
                                          const DeviceContext& device) = 0;
  // Zeroed memory, aligned to a page; lives as long as the handle.
  virtual std::shared_ptr<void> allocate(Bytes bytes, const DeviceContext& device) = 0;
  // Called once by every rank thread before its first kernel (thread counts, device selection).
  virtual void enter_rank(const DeviceContext& device) = 0;
};

}  // namespace mw::execute
