// CpuBackend: runs ops on the processor with the project's kernels, libtorch's BLAS and, for the
// rest, ATen.
#pragma once

#include <memory>
#include <string>

#include "execute/backend.h"

namespace mw::runtime {

class CpuBackend : public execute::Backend {
 public:
  // Asks MKL for bits that depend neither on the number of threads nor on the alignment, unless the
  // user's MKL_CBWR says otherwise. REQUIRES: nothing in the process has used MKL before, no other
  // thread reads the environment meanwhile.
  CpuBackend();

  std::unique_ptr<execute::Kernel> prepare(const ir::Graph& graph, const ir::Op& op,
                                           const execute::DeviceContext& device) override;
  std::shared_ptr<void> allocate(Bytes bytes, const execute::DeviceContext& device) override;
  void enter_rank(const execute::DeviceContext& device) override;
};

// "libtorch 2.13.0, AVX2, …": what runs the products, for reports.
std::string library_versions();

}  // namespace mw::runtime
