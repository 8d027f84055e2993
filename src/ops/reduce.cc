// reduce. The gradient of max and min is shared equally by the elements that tie (as torch.amax).
#include <algorithm>

#include <fmt/ranges.h>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::OpKind;
using ir::ReduceAttrs;
using ir::Reduction;

bool reduces(const ReduceAttrs& attrs, int d) {
  return std::find(attrs.dims.begin(), attrs.dims.end(), d) != attrs.dims.end();
}

TypeList infer_reduce(const ir::Op& op, Types operands, Types) {
  const ReduceAttrs& attrs = op.as<ReduceAttrs>();
  const ir::TensorType& x = operands[0];
  int before = -1;
  for (const int d : attrs.dims) {
    if (d <= before || d >= x.rank()) {
      reject(op, "dims [{}] must be ascending dimensions of x {}", fmt::join(attrs.dims, ","),
             ir::to_string(x));
    }
    before = d;
  }
  ir::TensorType y{x.dtype, {}};
  for (int d = 0; d < x.rank(); ++d) {
    if (!reduces(attrs, d)) y.dims.push_back(x.dims[static_cast<size_t>(d)]);
  }
  return {y};
}

ShardingRule rule_reduce(const ir::Op& op, Types operands, Types results) {
  const ReduceAttrs& attrs = op.as<ReduceAttrs>();
  std::string out;
  for (int d = 0; d < operands[0].rank(); ++d) {
    if (!reduces(attrs, d)) out += static_cast<char>('a' + d), out += ' ';
  }
  ShardingRule rule = make_rule(factor_names(operands[0].rank()) + " -> " + out, operands, results);
  set_reduction(rule, attrs.op);
  if (attrs.op == Reduction::kSum) rule.linear = {0};
  return rule;
}

// y repeated to the type of x.
ValueId repeat(Builder& b, ValueId y, const ir::TensorType& x, const ReduceAttrs& attrs) {
  std::vector<int64_t> sizes;
  std::vector<int> dims;
  for (int d = 0; d < x.rank(); ++d) {
    sizes.push_back(x.dim(d));
    if (!reduces(attrs, d)) dims.push_back(d);
  }
  return b.broadcast(y, sizes, dims);
}

void gradient_reduce(GradientContext& c) {
  Builder& b = c.builder();
  const ReduceAttrs& attrs = c.op().as<ReduceAttrs>();
  const ValueId dy = c.result_grad(0);
  const ir::TensorType x = b.type(c.operand(0));
  if (attrs.op == Reduction::kSum) {
    c.set_operand_grad(0, repeat(b, dy, x, attrs));
    return;
  }
  const ValueId mask =
      b.compare(ir::CompareAttrs::Direction::kEq, c.operand(0), repeat(b, c.result(0), x, attrs));
  const ValueId ties = b.reduce(b.convert(mask, x.dtype), Reduction::kSum, attrs.dims);
  c.set_operand_grad(0, b.select(mask, repeat(b, b.div(dy, ties), x, attrs), b.constant(0, x)));
}

}  // namespace

void register_reduce(Registry& registry) {
  registry.add({.kind = OpKind::kReduce,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_reduce,
                .rule = rule_reduce,
                .cost =
                    [](const ir::Op&, Types operands, Types results) {
                      return OpCost{.flops = static_cast<double>(operands[0].elements()),
                                    .bytes = tensor_bytes(operands) + tensor_bytes(results)};
                    },
                .gradient = gradient_reduce});
}

}  // namespace mw::ops
