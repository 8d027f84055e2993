// CpuBackend: runs ops on the processor with the project's kernels and, for the rest, ATen.
#pragma once

#include <memory>

#include "execute/backend.h"

namespace mw::runtime {

class CpuBackend : public execute::Backend {
 public:
  std::unique_ptr<execute::Kernel> prepare(const ir::Graph& graph, const ir::Op& op,
                                           const execute::DeviceContext& device) override;
  std::shared_ptr<void> allocate(Bytes bytes, const execute::DeviceContext& device) override;
  // Nothing to do: a kernel knows its threads.
  void enter_rank(const execute::DeviceContext& device) override;
};

}  // namespace mw::runtime
