// What the op families share: the table they register in, checks of inference, streaming costs.
// Private to room ops.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "base/error.h"
#include "ir/graph.h"
#include "ops/op_def.h"

namespace mw::ops {

using Types = std::span<const ir::TensorType>;
using TypeList = std::vector<ir::TensorType>;

class Registry {
 public:
  // REQUIRES: nobody has registered the kind yet.
  void add(OpDef def);
  const OpDef& at(ir::OpKind kind) const { return defs_[static_cast<size_t>(kind)]; }
  // REQUIRES: every kind is registered.
  void check_complete() const;

 private:
  std::array<OpDef, ir::kOpKinds> defs_;
  std::array<bool, ir::kOpKinds> present_{};
};

void register_elementwise(Registry& registry);
void register_slices(Registry& registry);
void register_shape_ops(Registry& registry);
void register_reduce(Registry& registry);
void register_dot(Registry& registry);
void register_conv(Registry& registry);
void register_random(Registry& registry);
void register_activation(Registry& registry);
void register_softmax(Registry& registry);
void register_norm(Registry& registry);
void register_rope(Registry& registry);
void register_attention(Registry& registry);
void register_embedding(Registry& registry);
void register_cross_entropy(Registry& registry);
void register_moe(Registry& registry);
void register_dropout(Registry& registry);
void register_state_ops(Registry& registry);
void register_update_ops(Registry& registry);
void register_collectives(Registry& registry);

// Throws Error "op_name: text".
template <typename... Args>
[[noreturn]] void reject(const ir::Op& op, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format("{}: {}", ir::op_name(op.kind),
                          fmt::format(format, std::forward<Args>(args)...)));
}

// "dot: rhs f32[3,4] must have the type of lhs f32[2,4]".
void require_same(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                  std::string_view other_name, const ir::TensorType& other);
void require_rank(const ir::Op& op, std::string_view name, const ir::TensorType& type, int rank);
void require_min_rank(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                      int rank);
void require_dtype(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                   DType dtype);
void require_float(const ir::Op& op, std::string_view name, const ir::TensorType& type);
// "bias_add: bias f32[3] must be f32[4], the trailing dimensions of x f32[2,4]": `why` ends the
// sentence.
void require_type(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                  const ir::TensorType& wanted, std::string_view why);
// REQUIRES: there is one declared type for each of `count` results.
void require_declared(const ir::Op& op, Types declared, size_t count);

// The dimensions [first, last) as a type.
ir::TensorType dims_of(const ir::TensorType& type, int first, int last);
ir::TensorType with_dtype(ir::TensorType type, DType dtype);

// "a b c": `count` factor names for a rule's text, from `first`.
std::string factor_names(int count, char first = 'a');
std::string joined(std::initializer_list<std::string_view> parts);  // by ' ', without empty parts

// Inference of an op whose only result has the type of operand 0.
TypeList infer_first(const ir::Op& op, Types operands, Types declared);
// Inference of an op whose result types are the declared ones.
TypeList infer_declared(const ir::Op& op, Types operands, Types declared);
ShardingRule rule_elementwise(const ir::Op& op, Types operands, Types results);
// The same for an op that is linear in operand 0.
ShardingRule rule_elementwise_linear(const ir::Op& op, Types operands, Types results);

// Reads operands and writes results once; `flops` for each element of result 0.
OpCost streaming_cost(Types operands, Types results, double flops_per_element);
template <int kFlopsPerElement>
OpCost cost_streaming(const ir::Op&, Types operands, Types results) {
  return streaming_cost(operands, results, kFlopsPerElement);
}
double tensor_bytes(Types types);

}  // namespace mw::ops
