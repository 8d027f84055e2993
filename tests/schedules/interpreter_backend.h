// A backend without libtorch: every op by the reference interpreter, results rounded to their
// dtype.
#pragma once

#include <functional>
#include <memory>

#include "execute/backend.h"

namespace mw {

class InterpreterBackend : public execute::Backend {
 public:
  // Called before every op, from its rank's thread; may throw or block.
  using Hook = std::function<void(RankId rank, const ir::Op& op)>;
  explicit InterpreterBackend(Hook hook = nullptr) : hook_(std::move(hook)) {}

  std::unique_ptr<execute::Kernel> prepare(const ir::Graph& graph, const ir::Op& op,
                                           const execute::DeviceContext& device) override;
  std::shared_ptr<void> allocate(Bytes bytes, const execute::DeviceContext& device) override;
  void enter_rank(const execute::DeviceContext&) override {}

 private:
  const Hook hook_;
};

}  // namespace mw
