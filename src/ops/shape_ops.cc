// broadcast, reshape, transpose.
#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::DimsAttrs;
using ir::OpKind;

std::vector<int64_t> sizes_of(const ir::TensorType& type) {
  std::vector<int64_t> sizes;
  for (const ir::Dim& dim : type.dims) sizes.push_back(dim.size);
  return sizes;
}

// --- broadcast ---

TypeList infer_broadcast(const ir::Op& op, Types operands, Types declared) {
  require_declared(op, declared, 1);
  const ir::TensorType& x = operands[0];
  const ir::TensorType& y = declared[0];
  const std::vector<int>& dims = op.as<DimsAttrs>().dims;
  bool fits = x.dtype == y.dtype && static_cast<int>(dims.size()) == x.rank() &&
              std::set<int>(dims.begin(), dims.end()).size() == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    fits = dims[i] >= 0 && dims[i] < y.rank() && x.dims[i] == y.dims[static_cast<size_t>(dims[i])];
  }
  if (!fits) {
    reject(op,
           "x {} does not fit result {} with its dimensions at [{}]; each must have the size that "
           "the result has there",
           ir::to_string(x), ir::to_string(y), fmt::join(dims, ","));
  }
  return {y};
}

ShardingRule rule_broadcast(const ir::Op& op, Types operands, Types results) {
  const std::string out = factor_names(results[0].rank());
  std::string in;
  for (const int d : op.as<DimsAttrs>().dims) in += static_cast<char>('a' + d), in += ' ';
  ShardingRule rule = make_rule(in + " -> " + out, operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_broadcast(GradientContext& c) {
  Builder& b = c.builder();
  const std::vector<int>& dims = c.op().as<DimsAttrs>().dims;
  std::vector<int> repeated, kept(dims);
  for (int d = 0; d < b.type(c.result(0)).rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) repeated.push_back(d);
  }
  ValueId dx = c.result_grad(0);
  if (!repeated.empty()) dx = b.reduce(dx, ir::Reduction::kSum, repeated);
  std::sort(kept.begin(), kept.end());
  if (kept != dims) {
    std::vector<int> permutation;
    for (const int d : dims) {
      permutation.push_back(
          static_cast<int>(std::find(kept.begin(), kept.end(), d) - kept.begin()));
    }
    dx = b.transpose(dx, permutation);
  }
  c.set_operand_grad(0, dx);
}

// --- reshape ---

TypeList infer_reshape(const ir::Op& op, Types operands, Types declared) {
  require_declared(op, declared, 1);
  if (operands[0].dtype != declared[0].dtype || operands[0].elements() != declared[0].elements()) {
    reject(op, "x {} has {} elements, the result {} has {}; elements and dtype must be the same",
           ir::to_string(operands[0]), operands[0].elements(), ir::to_string(declared[0]),
           declared[0].elements());
  }
  if (declared[0].elements() == 0) {
    reject(op, "x {} and the result {} must have no dimension of size 0",
           ir::to_string(operands[0]), ir::to_string(declared[0]));
  }
  return {declared[0]};
}

// Factors of two shapes of one row-major order, from the major end: the smaller of the two
// remaining sizes is a factor where it divides the larger. Where it does not, dimensions up to the
// next common border get factors of their own that cannot be sharded.
class ReshapeRule {
 public:
  ReshapeRule(const ir::TensorType& in, const ir::TensorType& out)
      : in_(in, rule_.operands), out_(out, rule_.results) {}

  ShardingRule make() {
    while (in_.next() && out_.next()) {
      if (in_.skip_one(rule_.factors) || out_.skip_one(rule_.factors)) continue;
      const int64_t small = std::min(in_.rest, out_.rest), large = std::max(in_.rest, out_.rest);
      if (large % small != 0) {
        opaque();
        continue;
      }
      const int index = static_cast<int>(rule_.factors.size());
      rule_.factors.push_back(Factor{.name = static_cast<char>('a' + index), .size = small});
      in_.take(index, small);
      out_.take(index, small);
    }
    while (in_.next()) in_.own(rule_.factors);
    while (out_.next()) out_.own(rule_.factors);
    rule_.linear = {0};
    return std::move(rule_);
  }

 private:
  struct Side {
    Side(const ir::TensorType& t, std::vector<ShardingRule::Dims>& tensors)
        : type(t), dims(tensors.emplace_back()) {
      dims.resize(t.dims.size());
    }
    // Moves to a dimension with something left; false at the end.
    bool next() {
      if (dim >= type.rank()) return false;
      if (fresh) rest = type.dim(dim), fresh = false, pending = true;
      return true;
    }
    // A dimension of size 1 gets a factor of its own.
    bool skip_one(std::vector<Factor>& factors) {
      if (!pending || rest != 1) return false;
      own(factors);
      return true;
    }
    void own(std::vector<Factor>& factors) {
      dims[static_cast<size_t>(dim)].push_back(static_cast<int>(factors.size()));
      factors.push_back(Factor{.name = '.', .size = rest, .shardable = false});
      advance();
    }
    void take(int index, int64_t size) {
      dims[static_cast<size_t>(dim)].push_back(index);
      pending = false;
      rest /= size;
      if (rest == 1) advance();
    }
    void advance() { ++dim, rest = 1, fresh = dim < type.rank(), pending = false; }

    const ir::TensorType& type;
    ShardingRule::Dims& dims;
    int dim = 0;
    int64_t rest = 1;
    bool fresh = true;     // `dim` is not begun
    bool pending = false;  // no factor of `dim` is taken yet
  };

  void opaque() {
    int64_t in = in_.rest, out = out_.rest;
    in_.own(rule_.factors);
    out_.own(rule_.factors);
    while (in != out) {
      Side& side = in < out ? in_ : out_;
      int64_t& product = in < out ? in : out;
      side.next();
      product *= side.rest;
      side.own(rule_.factors);
    }
  }

  ShardingRule rule_;
  Side in_, out_;
};

ShardingRule rule_reshape(const ir::Op&, Types operands, Types results) {
  return ReshapeRule(operands[0], results[0]).make();
}

void gradient_reshape(GradientContext& c) {
  Builder& b = c.builder();
  c.set_operand_grad(0, b.reshape(c.result_grad(0), sizes_of(b.type(c.operand(0)))));
}

// --- transpose ---

TypeList infer_transpose(const ir::Op& op, Types operands, Types) {
  const std::vector<int>& permutation = op.as<DimsAttrs>().dims;
  std::vector<int> sorted(permutation);
  std::sort(sorted.begin(), sorted.end());
  bool fits = static_cast<int>(sorted.size()) == operands[0].rank();
  for (size_t i = 0; fits && i < sorted.size(); ++i) fits = sorted[i] == static_cast<int>(i);
  if (!fits) {
    reject(op, "[{}] is not a permutation of the dimensions of x {}", fmt::join(permutation, ","),
           ir::to_string(operands[0]));
  }
  ir::TensorType y = operands[0];
  for (size_t i = 0; i < permutation.size(); ++i)
    y.dims[i] = operands[0].dims[static_cast<size_t>(permutation[i])];
  return {y};
}

ShardingRule rule_transpose(const ir::Op& op, Types operands, Types results) {
  std::string out;
  for (const int d : op.as<DimsAttrs>().dims) out += static_cast<char>('a' + d), out += ' ';
  ShardingRule rule = make_rule(factor_names(operands[0].rank()) + " -> " + out, operands, results);
  rule.linear = {0};
  return rule;
}

void gradient_transpose(GradientContext& c) {
  const std::vector<int>& permutation = c.op().as<DimsAttrs>().dims;
  std::vector<int> inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i)
    inverse[static_cast<size_t>(permutation[i])] = static_cast<int>(i);
  c.set_operand_grad(0, c.builder().transpose(c.result_grad(0), inverse));
}

}  // namespace

void register_shape_ops(Registry& registry) {
  registry.add({.kind = OpKind::kBroadcast,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_broadcast,
                .rule = rule_broadcast,
                .cost = cost_streaming<0>,
                .gradient = gradient_broadcast});
  registry.add({.kind = OpKind::kReshape,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_reshape,
                .rule = rule_reshape,
                .cost = cost_streaming<0>,
                .gradient = gradient_reshape});
  registry.add({.kind = OpKind::kTranspose,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_transpose,
                .rule = rule_transpose,
                .cost = cost_streaming<0>,
                .gradient = gradient_transpose});
}

}  // namespace mw::ops
