#include "runtime/test_op_case.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "execute/test_allocations.h"
#include "ops/interpret.h"
#include "ops/op_def.h"
#include "runtime/cpu_backend.h"

namespace mw::runtime {

at::Tensor random_tensor(const std::vector<int64_t>& sizes, uint64_t seed) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  auto* data = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    data[i] = 2 * random_uniform({.seed = seed}, static_cast<uint64_t>(i)) - 1;
  return x;
}

at::Tensor random_ints(const std::vector<int64_t>& sizes, int64_t below, at::ScalarType dtype) {
  at::Tensor x = at::empty(sizes, at::kLong);
  auto* data = x.data_ptr<int64_t>();
  for (int64_t i = 0; i < x.numel(); ++i)
    data[i] = random_u32({.seed = 7}, static_cast<uint64_t>(i)) % below;
  return x.to(dtype);
}

at::Tensor scalar(int64_t value) { return at::scalar_tensor(value, at::kLong); }

ir::TensorType type_of(const at::Tensor& tensor) {
  DType dtype = DType::kF32;
  switch (tensor.scalar_type()) {
    case at::kBool: dtype = DType::kBool; break;
    case at::kByte: dtype = DType::kU8; break;
    case at::kInt: dtype = DType::kI32; break;
    case at::kLong: dtype = DType::kI64; break;
    case at::kBFloat16: dtype = DType::kBF16; break;
    case at::kDouble: dtype = DType::kF64; break;
    default: break;
  }
  return ir::make_type(dtype, tensor.sizes().vec());
}

Tensors gradients(const std::function<at::Tensor(const Tensors&)>& f, const Tensors& inputs,
                  const at::Tensor& dy) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.detach().clone().set_requires_grad(true));
  f(leaves).backward(dy);
  Tensors grads;
  for (const at::Tensor& leaf : leaves) grads.push_back(leaf.grad());
  return grads;
}

namespace {

// The op with its operands as inputs of `graph`.
OpId add_case(ir::Graph& graph, const OpCase& c) {
  ir::Op op;
  op.kind = c.kind;
  op.attrs = c.attrs;
  op.accumulates = c.accumulates;
  std::vector<ir::TensorType> types;
  for (const at::Tensor& operand : c.operands) {
    types.push_back(type_of(operand));
    op.operands.push_back(graph.add_input(types.back(), ""));
  }
  return graph.add_op(op, ops::infer(op, types, c.declared));
}

std::vector<int64_t> sizes_of(const ir::TensorType& type) {
  std::vector<int64_t> sizes;
  for (const ir::Dim& dim : type.dims) sizes.push_back(dim.size);
  return sizes;
}

}  // namespace

Tensors interpret_case(const OpCase& c) {
  ir::Graph graph;
  const OpId id = add_case(graph, c);
  std::vector<ops::Tensor> operands;
  for (const at::Tensor& operand : c.operands) {
    const at::Tensor wide = operand.to(at::kDouble).contiguous();
    const double* data = wide.data_ptr<double>();
    operands.push_back({type_of(operand), std::vector<double>(data, data + wide.numel())});
  }
  ops::InterpretContext context;
  context.index = [&](const ir::Axes& axes) { return c.mesh.index(RankId(c.rank), axes); };
  context.size = [&](const ir::Axes& axes) { return c.mesh.group_size(axes); };
  std::vector<ops::Tensor> results =
      ops::interpret_op(graph.op(id), operands, ops::result_types(graph, graph.op(id)), context);
  Tensors tensors;
  for (ops::Tensor& result : results) {
    tensors.push_back(
        at::from_blob(result.values.data(), sizes_of(result.type), at::kDouble).clone());
  }
  return tensors;
}

Tensors run_case(const OpCase& c, int threads, bool in_place) {
  ir::Graph graph;
  const OpId id = add_case(graph, c);
  Tensors operands;
  for (const at::Tensor& operand : c.operands) operands.push_back(operand.contiguous().clone());

  static CpuBackend backend;
  const execute::DeviceContext device{&c.mesh, RankId(c.rank), threads};
  backend.enter_rank(device);
  const auto kernel = backend.prepare(graph, graph.op(id), device);
  Tensors results;
  std::vector<void*> in, out;
  for (const at::Tensor& operand : operands) in.push_back(operand.data_ptr());
  for (size_t r = 0; r < graph.op(id).results.size(); ++r) {
    const ir::TensorType& type = graph.type(graph.op(id).results[r]);
    int over = ops::alias_operand(graph.op(id), static_cast<int>(r));
    if (in_place && over < 0 && r == 0) over = ops::op_def(c.kind).in_place_operand;
    if (c.kind == ir::OpKind::kView)
      over = -1;  // lies inside the operand, which is no kernel's affair
    if (over >= 0 && (in_place || over > 0)) {
      results.push_back(operands[static_cast<size_t>(over)]);
    } else {
      const std::vector<std::pair<DType, at::ScalarType>> dtypes = {
          {DType::kBool, at::kBool}, {DType::kI32, at::kInt},       {DType::kI64, at::kLong},
          {DType::kF32, at::kFloat}, {DType::kBF16, at::kBFloat16}, {DType::kF64, at::kDouble}};
      const auto dtype = std::find_if(dtypes.begin(), dtypes.end(),
                                      [&](const auto& d) { return d.first == type.dtype; });
      results.push_back(at::empty(sizes_of(type), dtype->second));
      std::memset(results.back().data_ptr(), 0xff, static_cast<size_t>(type.bytes().value));
    }
    out.push_back(results.back().data_ptr());
  }
  // NaN, and behind it bytes that the kernel must not touch.
  constexpr size_t kGuard = 4096;
  constexpr char kUntouched = 0x5a;
  const auto scratch_bytes = static_cast<size_t>(kernel->scratch_bytes().value);
  std::vector<char> scratch(scratch_bytes + 64 + kGuard, static_cast<char>(0xff));
  auto address = reinterpret_cast<uintptr_t>(scratch.data());
  address = (address + 63) / 64 * 64;
  char* const guard = reinterpret_cast<char*>(address) + scratch_bytes;
  std::fill_n(guard, kGuard, kUntouched);
  execute::start_counting_allocations();
  kernel->run(in, out, reinterpret_cast<void*>(address));
  const int64_t allocations = execute::stop_counting_allocations();
  MW_CHECK(c.by_aten || threads > 1 || allocations == 0, "{} called new {} times",
           ir::op_name(c.kind), allocations);
  MW_CHECK(std::all_of(guard, guard + kGuard, [](char x) { return x == kUntouched; }),
           "{} wrote behind its scratch", ir::op_name(c.kind));
  return results;
}

}  // namespace mw::runtime
