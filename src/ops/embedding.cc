// Rows of a table by token. A token outside of the table's rows (of a shard) gives zeros.
#include "ops/builder.h"
#include "ops/family.h"
#include "ops/one_hot.h"

namespace mw::ops {
namespace {

using ir::EmbeddingAttrs;
using ir::OpKind;
using Operands = std::span<const ValueId>;

TypeList infer_embedding(const ir::Op& op, Types operands, Types) {
  const ir::TensorType &tokens = operands[0], &table = operands[1];
  const EmbeddingAttrs& attrs = op.as<EmbeddingAttrs>();
  require_dtype(op, "tokens", tokens, DType::kI32);
  require_rank(op, "table", table, 2);
  require_float(op, "table", table);
  if (attrs.rows.axes.empty() && table.dim(0) != attrs.vocab) {
    reject(op, "table {} must have vocab={} rows", ir::to_string(table), attrs.vocab);
  }
  ir::TensorType y{table.dtype, tokens.dims};
  y.dims.push_back(table.dims[1]);
  return {y};
}

// The table's type is [vocab, D], of a shard the declared type.
TypeList infer_embedding_grad(const ir::Op& op, Types operands, Types declared) {
  const ir::TensorType &tokens = operands[0], &dy = operands[1];
  const EmbeddingAttrs& attrs = op.as<EmbeddingAttrs>();
  require_dtype(op, "tokens", tokens, DType::kI32);
  require_min_rank(op, "dy", dy, 1);
  require_float(op, "dy", dy);
  if (dims_of(dy, 0, dy.rank() - 1).dims != tokens.dims) {
    reject(op, "dy {} must have the dimensions of tokens {} and one more", ir::to_string(dy),
           ir::to_string(tokens));
  }
  ir::TensorType table{dy.dtype, {attrs.vocab, dy.dims.back()}};
  if (!attrs.rows.axes.empty()) {
    require_declared(op, declared, 1);
    require_rank(op, "result", declared[0], 2);
    table.dims[0] = declared[0].dims[0];
  }
  return {table};
}

ShardingRule rule_embedding(const ir::Op&, Types operands, Types results) {
  const std::string leading = factor_names(operands[0].rank());
  ShardingRule rule = make_rule(leading + ", v e -> " + joined({leading, "e"}), operands, results);
  rule.linear = {1};
  set_masked(rule, 'v');
  rule.zero_preserving = false;  // Token 0 is a row like any other.
  return rule;
}

ShardingRule rule_embedding_grad(const ir::Op&, Types operands, Types results) {
  const std::string leading = factor_names(operands[0].rank());
  ShardingRule rule =
      make_rule(leading + ", " + joined({leading, "e"}) + " -> v e", operands, results);
  rule.linear = {1};
  set_masked(rule, 'v');
  return rule;
}

void gradient_embedding(GradientContext& c) {
  EmbeddingAttrs attrs = c.op().as<EmbeddingAttrs>();
  c.set_operand_grad(
      1, c.builder().emit1(OpKind::kEmbeddingGrad, attrs, {c.operand(0), c.result_grad(0)}));
}

void localize_embedding(ir::Op& op, const LocalLayout& layout) {
  const bool forward = op.kind == OpKind::kEmbedding;
  const ir::Axes& axes = forward ? layout.operands[1][0] : layout.results[0][0];
  const int64_t rows = (forward ? layout.global_operands[1] : layout.global_results[0]).dim(0);
  std::get<EmbeddingAttrs>(op.attrs).rows =
      axes.empty() ? ir::ShardOffset{} : ir::ShardOffset{axes, rows};
}

// As a product with the one-hot tokens.
std::string letters(int count, char first) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(first + i);
  return text;
}

ValueIds expand_embedding(Builder& b, const ir::Op& op, Operands x) {
  const ValueId hot =
      b.convert(one_hot(b, x[0], op.as<EmbeddingAttrs>().vocab), b.type(x[1]).dtype);
  const std::string leading = letters(b.type(x[0]).rank(), 'a');
  return {b.dot(hot, x[1], leading + "v,ve->" + leading + "e")};
}

ValueIds expand_embedding_grad(Builder& b, const ir::Op& op, Operands x) {
  const ValueId hot =
      b.convert(one_hot(b, x[0], op.as<EmbeddingAttrs>().vocab), b.type(x[1]).dtype);
  const std::string leading = letters(b.type(x[0]).rank(), 'A');
  return {b.dot(hot, x[1], leading + "v," + leading + "e->ve")};
}

}  // namespace

void register_embedding(Registry& registry) {
  // Only the rows that tokens name are read.
  registry.add({.kind = OpKind::kEmbedding,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_embedding,
                .rule = rule_embedding,
                .cost =
                    [](const ir::Op&, Types operands, Types results) {
                      return OpCost{.bytes = tensor_bytes(operands.first(1)) +
                                             2 * tensor_bytes(results)};
                    },
                .gradient = gradient_embedding,
                .localize = localize_embedding,
                .expand = expand_embedding});
  registry.add({.kind = OpKind::kEmbeddingGrad,
                .min_operands = 2,
                .max_operands = 2,
                .infer = infer_embedding_grad,
                .rule = rule_embedding_grad,
                .cost =
                    [](const ir::Op& op, Types operands, Types results) {
                      // Rows are read and added to; without an accumulator the table is zeroed
                      // first.
                      const double dy = tensor_bytes(operands.subspan(1));
                      return OpCost{.flops = static_cast<double>(operands[1].elements()),
                                    .bytes = tensor_bytes(operands) + 2 * dy +
                                             (op.accumulates ? 0 : tensor_bytes(results))};
                    },
                .localize = localize_embedding,
                .expand = expand_embedding_grad,
                .can_accumulate = true});
}

}  // namespace mw::ops
