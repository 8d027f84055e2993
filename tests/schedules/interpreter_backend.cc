#include "interpreter_backend.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "ops/interpret.h"
#include "ops/op_def.h"

namespace mw {
namespace {

// Calls visit(T()) with the C++ type of a dtype.
template <typename Visit>
void with_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8: return visit(uint8_t());
    case DType::kI32: return visit(int32_t());
    case DType::kI64: return visit(int64_t());
    case DType::kF32: return visit(float());
    case DType::kF64: return visit(double());
    case DType::kBF16:
    case DType::kF16: break;
  }
  MW_CHECK(false, "no interpretation of {}", dtype_name(dtype));
}

ops::Tensor read(const ir::TensorType& type, const void* data) {
  ops::Tensor tensor = ops::zeros(type);
  with_type(type.dtype, [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(data);
    for (size_t i = 0; i < tensor.values.size(); ++i)
      tensor.values[i] = static_cast<double>(from[i]);
  });
  return tensor;
}

void write(const ops::Tensor& tensor, void* data) {
  with_type(tensor.type.dtype, [&](auto zero) {
    auto* to = static_cast<decltype(zero)*>(data);
    for (size_t i = 0; i < tensor.values.size(); ++i)
      to[i] = static_cast<decltype(zero)>(tensor.values[i]);
  });
}

class InterpreterKernel : public execute::Kernel {
 public:
  InterpreterKernel(const ir::Graph& graph, const ir::Op& op, const execute::DeviceContext& device,
                    const InterpreterBackend::Hook& hook)
      : graph_(graph), op_(op), rank_(device.rank), hook_(hook) {
    context_.index = [mesh = device.mesh, rank = device.rank](const ir::Axes& axes) {
      return mesh->index(rank, axes);
    };
    context_.size = [mesh = device.mesh](const ir::Axes& axes) { return mesh->group_size(axes); };
    for (const ValueId result : op.results) types_.push_back(graph.type(result));
  }

  void run(std::span<void* const> operands, std::span<void* const> results, void*) override {
    if (hook_) hook_(rank_, op_);
    std::vector<ops::Tensor> in;
    for (size_t i = 0; i < operands.size(); ++i)
      in.push_back(read(graph_.type(op_.operands[i]), operands[i]));
    const std::vector<ops::Tensor> out = ops::interpret_op(op_, in, types_, context_);
    for (size_t i = 0; i < results.size(); ++i) write(out[i], results[i]);
  }

 private:
  const ir::Graph& graph_;
  const ir::Op& op_;
  const RankId rank_;
  const InterpreterBackend::Hook& hook_;
  ops::InterpretContext context_;
  std::vector<ir::TensorType> types_;
};

}  // namespace

std::unique_ptr<execute::Kernel> InterpreterBackend::prepare(const ir::Graph& graph,
                                                             const ir::Op& op,
                                                             const execute::DeviceContext& device) {
  return std::make_unique<InterpreterKernel>(graph, op, device, hook_);
}

std::shared_ptr<void> InterpreterBackend::allocate(Bytes bytes, const execute::DeviceContext&) {
  const auto size = static_cast<size_t>((bytes.value + 4095) / 4096 * 4096);
  void* data = std::aligned_alloc(4096, size);
  std::memset(data, 0, size);
  return {data, std::free};
}

}  // namespace mw
