// Reference interpreter: every op but the collectives in double precision, in plain loops. Slow and
// obvious; what tests hold gradients, expansions, passes, partitioned graphs and kernels against.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace mw::ops {

// Values in row-major order, whatever the dtype: bool is 0 or 1.
struct Tensor {
  ir::TensorType type;
  std::vector<double> values;
};
Tensor zeros(const ir::TensorType& type);

// Which device of its mesh the graph runs on: index along axes (major first) and number of devices
// along them. Only ops with shard offsets ask; the default is a single device.
struct InterpretContext {
  std::function<int64_t(const ir::Axes& axes)> index = [](const ir::Axes&) { return int64_t{0}; };
  std::function<int64_t(const ir::Axes& axes)> size = [](const ir::Axes&) { return int64_t{1}; };
};

// REQUIRES: operands have the types that the op was inferred from; the op is no collective that
// communicates (is_collective) and calls no graph.
std::vector<Tensor> interpret_op(const ir::Op& op, std::span<const Tensor> operands,
                                 std::span<const ir::TensorType> results,
                                 const InterpretContext& context = {});

// All values of the graph by id; `inputs` in the order of graph.inputs.
std::vector<Tensor> interpret(const ir::Graph& graph, std::span<const Tensor> inputs,
                              const InterpretContext& context = {});

}  // namespace mw::ops
