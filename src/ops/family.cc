#include "ops/family.h"

#include <utility>

namespace mw::ops {

void Registry::add(OpDef def) {
  const size_t index = static_cast<size_t>(def.kind);
  MW_CHECK(!present_[index], "{} is registered twice", ir::op_name(def.kind));
  MW_CHECK(def.infer != nullptr && def.cost != nullptr, "{} has no inference or no cost",
           ir::op_name(def.kind));
  present_[index] = true;
  defs_[index] = std::move(def);
}

void Registry::check_complete() const {
  for (int i = 0; i < ir::kOpKinds; ++i) {
    MW_CHECK(present_[static_cast<size_t>(i)], "{} is not registered",
             ir::op_name(static_cast<ir::OpKind>(i)));
  }
}

void require_same(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                  std::string_view other_name, const ir::TensorType& other) {
  if (type == other) return;
  reject(op, "{} {} must have the type of {} {}", name, ir::to_string(type), other_name,
         ir::to_string(other));
}

void require_rank(const ir::Op& op, std::string_view name, const ir::TensorType& type, int rank) {
  if (type.rank() == rank) return;
  reject(op, "{} {} must have {} dimensions, has {}", name, ir::to_string(type), rank, type.rank());
}

void require_min_rank(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                      int rank) {
  if (type.rank() >= rank) return;
  reject(op, "{} {} must have at least {} dimension{}", name, ir::to_string(type), rank,
         rank == 1 ? "" : "s");
}

void require_dtype(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                   DType dtype) {
  if (type.dtype == dtype) return;
  reject(op, "{} {} must be of dtype {}", name, ir::to_string(type), dtype_name(dtype));
}

void require_float(const ir::Op& op, std::string_view name, const ir::TensorType& type) {
  if (is_floating(type.dtype)) return;
  reject(op, "{} {} must be of a floating dtype", name, ir::to_string(type));
}

void require_type(const ir::Op& op, std::string_view name, const ir::TensorType& type,
                  const ir::TensorType& wanted, std::string_view why) {
  if (type == wanted) return;
  reject(op, "{} {} must be {}, {}", name, ir::to_string(type), ir::to_string(wanted), why);
}

void require_declared(const ir::Op& op, Types declared, size_t count) {
  MW_CHECK(declared.size() == count, "{} needs {} declared result types, got {}",
           ir::op_name(op.kind), count, declared.size());
}

ir::TensorType dims_of(const ir::TensorType& type, int first, int last) {
  return {type.dtype, {type.dims.begin() + first, type.dims.begin() + last}};
}

ir::TensorType with_dtype(ir::TensorType type, DType dtype) {
  type.dtype = dtype;
  return type;
}

std::string factor_names(int count, char first) {
  std::string names;
  for (int i = 0; i < count; ++i) {
    if (i > 0) names += ' ';
    names += static_cast<char>(first + i);
  }
  return names;
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    if (!text.empty()) text += ' ';
    text += part;
  }
  return text;
}

TypeList infer_first(const ir::Op&, Types operands, Types) { return {operands[0]}; }

TypeList infer_declared(const ir::Op& op, Types, Types declared) {
  MW_CHECK(!declared.empty(), "{} needs declared result types", ir::op_name(op.kind));
  return {declared.begin(), declared.end()};
}

ShardingRule rule_elementwise(const ir::Op&, Types operands, Types results) {
  return elementwise_rule(operands, results);
}

ShardingRule rule_elementwise_linear(const ir::Op&, Types operands, Types results) {
  ShardingRule rule = elementwise_rule(operands, results);
  rule.linear = {0};
  return rule;
}

double tensor_bytes(Types types) {
  double bytes = 0;
  for (const ir::TensorType& type : types) bytes += static_cast<double>(type.bytes().value);
  return bytes;
}

OpCost streaming_cost(Types operands, Types results, double flops_per_element) {
  const double elements = results.empty() ? 0 : static_cast<double>(results[0].elements());
  return {.flops = elements * flops_per_element,
          .bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

}  // namespace mw::ops
