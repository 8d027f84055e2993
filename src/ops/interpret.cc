#include "ops/interpret.h"

#include "base/error.h"
#include "ops/interpret_families.h"
#include "ops/op_def.h"

namespace mw::ops {

Tensor zeros(const ir::TensorType& type) {
  return {type, std::vector<double>(static_cast<size_t>(type.elements()), 0.0)};
}

int64_t place(const ir::TensorType& type, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < index.size(); ++d) at = at * type.dims[d].size + index[d];
  return at;
}

std::vector<Tensor> interpret_op(const ir::Op& op, std::span<const Tensor> operands,
                                 std::span<const ir::TensorType> results,
                                 const InterpretContext& context) {
  MW_CHECK(!ir::is_collective(op.kind), "{} is the caller's to interpret", ir::op_name(op.kind));
  std::vector<Tensor> out;
  for (const ir::TensorType& type : results) out.push_back(zeros(type));
  const Call call{op, op.accumulates ? operands.first(operands.size() - 1) : operands, out,
                  context};
  const bool done = interpret_elementwise(call) || interpret_shapes(call) ||
                    interpret_products(call) || interpret_rows(call) || interpret_attention(call) ||
                    interpret_lookup(call) || interpret_moe(call) || interpret_state(call);
  MW_CHECK(done, "{} has no interpretation", ir::op_name(op.kind));
  if (op.accumulates) {
    for (size_t i = 0; i < out[0].values.size(); ++i) out[0].values[i] += operands.back().values[i];
  }
  return out;
}

std::vector<Tensor> interpret(const ir::Graph& graph, std::span<const Tensor> inputs,
                              const InterpretContext& context) {
  MW_CHECK(inputs.size() == graph.inputs.size(), "graph '{}' has {} inputs, got {}", graph.name,
           graph.inputs.size(), inputs.size());
  std::vector<Tensor> values(graph.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueId id = graph.inputs[i].value;
    MW_CHECK(inputs[i].type == graph.type(id), "input {} is {}, got {}", graph.label(id),
             ir::to_string(graph.type(id)), ir::to_string(inputs[i].type));
    values[id.index()] = inputs[i];
  }
  for (const ir::Op& op : graph.ops) {
    std::vector<Tensor> operands;
    for (const ValueId operand : op.operands) operands.push_back(values[operand.index()]);
    std::vector<Tensor> results = interpret_op(op, operands, result_types(graph, op), context);
    for (size_t i = 0; i < results.size(); ++i)
      values[op.results[i].index()] = std::move(results[i]);
  }
  return values;
}

}  // namespace mw::ops
