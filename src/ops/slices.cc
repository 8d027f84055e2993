// slice, pad, concat.
#include <fmt/ranges.h>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::ConcatAttrs;
using ir::OpKind;
using ir::PadAttrs;
using ir::SliceAttrs;

// "a [b] c": dimension names, in brackets where the op changes the dimension. In the result a
// changed dimension is another factor: a capital letter.
struct DimNames {
  std::string in, out;
};
template <typename Changed>
DimNames dim_names(int rank, Changed changed) {
  DimNames names;
  for (int d = 0; d < rank; ++d) {
    const char letter = static_cast<char>('a' + d), capital = static_cast<char>('A' + d);
    names.in += changed(d) ? fmt::format("[{}] ", letter) : fmt::format("{} ", letter);
    names.out += changed(d) ? fmt::format("[{}] ", capital) : fmt::format("{} ", letter);
  }
  return names;
}

bool slices_dim(const SliceAttrs& attrs, const ir::TensorType& x, int d) {
  const size_t i = static_cast<size_t>(d);
  return attrs.start[i] != 0 || attrs.limit[i] != x.dim(d) || attrs.stride[i] != 1;
}

// --- slice ---

TypeList infer_slice(const ir::Op& op, Types operands, Types) {
  const SliceAttrs& attrs = op.as<SliceAttrs>();
  ir::TensorType y = operands[0];
  const size_t rank = y.dims.size();
  bool fits =
      attrs.start.size() == rank && attrs.limit.size() == rank && attrs.stride.size() == rank;
  for (size_t d = 0; fits && d < rank; ++d) {
    fits = 0 <= attrs.start[d] && attrs.start[d] < attrs.limit[d] &&
           attrs.limit[d] <= y.dims[d].size && attrs.stride[d] >= 1;
    if (!slices_dim(attrs, operands[0], static_cast<int>(d)) && fits) continue;
    if (fits) y.dims[d] = (attrs.limit[d] - attrs.start[d] + attrs.stride[d] - 1) / attrs.stride[d];
  }
  if (!fits) {
    reject(op, "[{}) to [{}) by [{}] does not lie in x {}", fmt::join(attrs.start, ","),
           fmt::join(attrs.limit, ","), fmt::join(attrs.stride, ","), ir::to_string(operands[0]));
  }
  return {y};
}

ShardingRule rule_slice(const ir::Op& op, Types operands, Types results) {
  const SliceAttrs& attrs = op.as<SliceAttrs>();
  const DimNames names =
      dim_names(operands[0].rank(), [&](int d) { return slices_dim(attrs, operands[0], d); });
  ShardingRule rule = make_rule(names.in + "->" + names.out, operands, results);
  rule.linear = {0};
  return rule;
}

// dy with stride - 1 zeros after every element of dimension d: [.., n, ..] -> [.., n * stride, ..].
ValueId spread(Builder& b, ValueId dy, int d, int64_t stride) {
  std::vector<int64_t> split, merged;
  for (int i = 0; i < b.type(dy).rank(); ++i) {
    const int64_t size = b.type(dy).dim(i);
    split.push_back(size);
    merged.push_back(i == d ? size * stride : size);
    if (i == d) split.push_back(1);
  }
  std::vector<int64_t> low(split.size(), 0), high(split.size(), 0);
  high[static_cast<size_t>(d) + 1] = stride - 1;
  return b.reshape(b.pad(b.reshape(dy, split), low, high), merged);
}

void gradient_slice(GradientContext& c) {
  Builder& b = c.builder();
  const SliceAttrs& attrs = c.op().as<SliceAttrs>();
  const ir::TensorType x = b.type(c.operand(0));
  ValueId dy = c.result_grad(0);
  for (int d = 0; d < x.rank(); ++d) {
    if (attrs.stride[static_cast<size_t>(d)] > 1)
      dy = spread(b, dy, d, attrs.stride[static_cast<size_t>(d)]);
  }
  // The spread gradient may be longer than what is left of x behind start: its tail is zeros.
  const ir::TensorType spread_type = b.type(dy);
  std::vector<int64_t> low, high, zero, limit;
  bool too_long = false;
  for (int d = 0; d < x.rank(); ++d) {
    const int64_t start = attrs.start[static_cast<size_t>(d)];
    const int64_t size = std::min(spread_type.dim(d), x.dim(d) - start);
    too_long = too_long || size < spread_type.dim(d);
    low.push_back(start);
    high.push_back(x.dim(d) - start - size);
    zero.push_back(0);
    limit.push_back(size);
  }
  if (too_long) dy = b.slice(dy, zero, limit);
  c.set_operand_grad(0, b.pad(dy, low, high));
}

// A dimension that the slice leaves whole has a shard's size on a shard.
void localize_slice(ir::Op& op, const LocalLayout& layout) {
  SliceAttrs attrs = op.as<SliceAttrs>();
  const SliceAttrs global = attrs;
  for (int d = 0; d < layout.global_operands[0].rank(); ++d) {
    if (layout.operands[0][static_cast<size_t>(d)].empty()) continue;
    MW_CHECK(!slices_dim(global, layout.global_operands[0], d), "a sliced dimension is sharded");
    MW_CHECK(layout.local_operands.size() == 1, "slice needs its operand's local type");
    attrs.limit[static_cast<size_t>(d)] = layout.local_operands[0].dim(d);
  }
  op.attrs = attrs;
}

// --- pad ---

TypeList infer_pad(const ir::Op& op, Types operands, Types) {
  const PadAttrs& attrs = op.as<PadAttrs>();
  ir::TensorType y = operands[0];
  bool fits = attrs.low.size() == y.dims.size() && attrs.high.size() == y.dims.size();
  for (size_t d = 0; fits && d < y.dims.size(); ++d) {
    fits = attrs.low[d] >= 0 && attrs.high[d] >= 0;
    if (attrs.low[d] + attrs.high[d] > 0) y.dims[d] = y.dims[d].size + attrs.low[d] + attrs.high[d];
  }
  if (!fits) {
    reject(op, "low [{}] and high [{}] must be one number >= 0 for each dimension of x {}",
           fmt::join(attrs.low, ","), fmt::join(attrs.high, ","), ir::to_string(operands[0]));
  }
  return {y};
}

ShardingRule rule_pad(const ir::Op& op, Types operands, Types results) {
  const PadAttrs& attrs = op.as<PadAttrs>();
  const DimNames names = dim_names(operands[0].rank(), [&](int d) {
    return attrs.low[static_cast<size_t>(d)] + attrs.high[static_cast<size_t>(d)] > 0;
  });
  ShardingRule rule = make_rule(names.in + "->" + names.out, operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_pad(GradientContext& c) {
  Builder& b = c.builder();
  const PadAttrs& attrs = c.op().as<PadAttrs>();
  std::vector<int64_t> limit(attrs.low);
  for (size_t d = 0; d < limit.size(); ++d) limit[d] += b.type(c.operand(0)).dims[d].size;
  c.set_operand_grad(0, b.slice(c.result_grad(0), attrs.low, limit));
}

// --- concat ---

TypeList infer_concat(const ir::Op& op, Types operands, Types) {
  const int dim = op.as<ConcatAttrs>().dim;
  ir::TensorType y = operands[0];
  if (dim < 0 || dim >= y.rank()) reject(op, "part {} has no dimension {}", ir::to_string(y), dim);
  int64_t size = 0;
  for (const ir::TensorType& part : operands) {
    ir::TensorType wanted = y;
    if (part.rank() == y.rank())
      wanted.dims[static_cast<size_t>(dim)] = part.dims[static_cast<size_t>(dim)];
    if (part != wanted) {
      reject(op, "part {} must be like part {} in all but dimension {}", ir::to_string(part),
             ir::to_string(operands[0]), dim);
    }
    size += part.dim(dim);
  }
  y.dims[static_cast<size_t>(dim)] = size;
  return {y};
}

ShardingRule rule_concat(const ir::Op& op, Types operands, Types results) {
  const int dim = op.as<ConcatAttrs>().dim;
  std::string text;
  for (size_t i = 0; i <= operands.size(); ++i) {
    if (i > 0) text += i == operands.size() ? " -> " : ", ";
    for (int d = 0; d < results[0].rank(); ++d) {
      text += d == dim ? '.' : static_cast<char>('a' + d);
      text += ' ';
    }
  }
  ShardingRule rule = make_rule(text, operands, results);
  rule.linearity = ShardingRule::Linearity::kJoint;
  for (size_t i = 0; i < operands.size(); ++i) rule.linear.push_back(static_cast<int>(i));
  return rule;
}

void gradient_concat(GradientContext& c) {
  Builder& b = c.builder();
  const size_t dim = static_cast<size_t>(c.op().as<ConcatAttrs>().dim);
  const ir::TensorType y = b.type(c.result(0));
  std::vector<int64_t> start(y.dims.size(), 0), limit;
  for (const ir::Dim& d : y.dims) limit.push_back(d.size);
  limit[dim] = 0;
  for (int i = 0; i < static_cast<int>(c.op().operands.size()); ++i) {
    start[dim] = limit[dim];
    limit[dim] += b.type(c.operand(i)).dims[dim].size;
    if (c.needs(i)) c.set_operand_grad(i, b.slice(c.result_grad(0), start, limit));
  }
}

}  // namespace

void register_slices(Registry& registry) {
  // A slice reads only what it keeps.
  registry.add({.kind = OpKind::kSlice,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_slice,
                .rule = rule_slice,
                .cost = [](const ir::Op&, Types,
                           Types results) { return OpCost{.bytes = 2 * tensor_bytes(results)}; },
                .gradient = gradient_slice,
                .localize = localize_slice});
  registry.add({.kind = OpKind::kPad,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_pad,
                .rule = rule_pad,
                .cost = cost_streaming<0>,
                .gradient = gradient_pad});
  registry.add({.kind = OpKind::kConcat,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_concat,
                .rule = rule_concat,
                .cost = cost_streaming<0>,
                .gradient = gradient_concat});
}

}  // namespace mw::ops
