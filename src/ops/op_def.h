// What an op means: shape inference, sharding rule, cost, gradient, expansion. One file an op
// family defines its OpDefs and registers them in registry.cc; everything else in the project asks
// op_def(kind).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace mw::ops {

class Builder;
class GradientContext;

// A named index of an op in einsum form. Dimensions with the same factor move together.
struct Factor {
  char name = '?';
  int64_t size = 0;
  // In no result: the op reduces over it, so sharding it leaves the result partial with this
  // reduction.
  bool contracted = false;
  ir::Reduction reduction = ir::Reduction::kSum;
  // False: the op needs all of it on every device (a softmax row, a convolution's image height).
  bool shardable = true;
  // The kernel does not read it (cross_entropy_loss's logits): it may be sharded and leaves the
  // results whole.
  bool ignored = false;
  // The kernel knows where it ends and leaves a padded tail out: nothing is reduced from there, and
  // a result has zeros there.
  bool masked = false;
};

// "b m k, k n -> b m n": for every dimension of every operand and result its factors, major first
// (a reshape that joins two dimensions has two factors in one dimension; a factor that is not the
// first can be sharded only where those before it are split down to single elements).
struct ShardingRule {
  std::vector<Factor> factors;
  using Dims = std::vector<std::vector<int>>;  // [dimension] -> indices into factors
  std::vector<Dims> operands;
  std::vector<Dims> results;

  // Through which operands a pending sum may pass. kEach: the op is linear in each of `linear`
  // while the others are whole (dot). kJoint: linear in all of them together, so all must be
  // partial alike (add). An operand that is not listed must not be partial: a forgotten all-reduce
  // is a compile error.
  enum class Linearity : uint8_t { kEach, kJoint } linearity = Linearity::kEach;
  std::vector<int> linear;
  // A sharded contracted factor leaves every result partial.
  // For padded shards: whether zeros in the padded tail of an operand give zeros in the padded tail
  // of the result (true for dot, mul, scale, relu…; false for exp, bias_add, cross_entropy).
  bool zero_preserving = true;
  // For padded shards: whether finite numbers in the padded tails of the operands give finite ones
  // in the result's (false for div, log, sqrt, rsqrt, exp). What is false is masked at once, so
  // that a padded tail beside one of zeros adds nothing to a product: 0 * inf is not 0.
  bool finite_preserving = true;
  // It reads and writes so much that dividing those bytes counts beside what is moved for it.
  bool streams = false;

  // "b s k, n k -> b s n"; factor names in order of appearance.
  std::string to_string() const;
};

// Builds a rule from its text; sizes are read from the types. A dimension "(b s)" has two factors;
// "." is a factor of its own that cannot be sharded; a factor in brackets "[k]" cannot be sharded
// wherever it stands; "~k" is an ignored factor. A tensor of rank 0 is written as nothing: "b s d,
// , b -> b s d". Contracted factors are sums until set_reduction says otherwise. REQUIRES: the text
// fits the ranks of the types. `sizes`: of factors that the types leave open, as both of "(b s)"
// where neither is a dimension of its own.
ShardingRule make_rule(const std::string& text, std::span<const ir::TensorType> operands,
                       std::span<const ir::TensorType> results,
                       std::initializer_list<std::pair<char, int64_t>> sizes = {});
void set_reduction(ShardingRule& rule, ir::Reduction reduction);  // of every contracted factor
void set_masked(ShardingRule& rule, char factor);
// All dimensions of equal position move together; operands of rank 0 broadcast. REQUIRES: the
// others have the dimensions of result 0.
ShardingRule elementwise_rule(std::span<const ir::TensorType> operands,
                              std::span<const ir::TensorType> results);

struct OpCost {
  double flops = 0;  // multiply and add count two
  double bytes = 0;  // read and written, once each
  bool matrix_product = false;
};

// What the partitioner tells an op about the layout it gets: the mesh axes of every dimension.
struct LocalLayout {
  // [operand or result][dimension] -> axes, major first.
  std::vector<ir::DimAxes> operands, results;
  std::vector<ir::TensorType> global_operands, global_results;
  std::vector<ir::TensorType> local_operands, local_results;
};

struct OpDef {
  ir::OpKind kind;
  int min_operands = 0, max_operands = 0;  // max -1: any number
  // Result types from operand types; throws Error "op_name: …" on operands that do not fit. Ops
  // whose result type is not a function of operands and attributes (constant, broadcast, reshape,
  // random, view, convert) get `declared` and check it. Operands come without the accumulator of an
  // accumulating op; call ops::infer, which also checks operand counts.
  std::vector<ir::TensorType> (*infer)(const ir::Op& op, std::span<const ir::TensorType> operands,
                                       std::span<const ir::TensorType> declared) = nullptr;
  ShardingRule (*rule)(const ir::Op& op, std::span<const ir::TensorType> operands,
                       std::span<const ir::TensorType> results) = nullptr;
  OpCost (*cost)(const ir::Op& op, std::span<const ir::TensorType> operands,
                 std::span<const ir::TensorType> results) = nullptr;
  // Emits the gradient through context.builder(); null: not differentiable (integers, collectives,
  // gradients). The gradient is a list of ops, none of which makes both an input and a weight
  // gradient.
  void (*gradient)(GradientContext& context) = nullptr;
  // Rewrites attributes for a shard (global offsets, local slice bounds); null: attributes hold as
  // they are.
  void (*localize)(ir::Op& op, const LocalLayout& layout) = nullptr;
  // Composites: the same function in primitives; the oracle of the kernel's tests. Returns the
  // results.
  ValueIds (*expand)(Builder& builder, const ir::Op& op,
                     std::span<const ValueId> operands) = nullptr;
  // Result 0 may be written over this operand's memory if it is not read later (same type); -1:
  // none.
  int in_place_operand = -1;
  // [result] -> the operand whose memory it is always written to (accumulate, zero, assemble,
  // adamw), -1: none. Unlike in_place_operand this is part of the op's meaning.
  std::vector<int> aliases = {};
  // The op can add to an accumulator inside its kernel (dot, weight gradients), with the bits of an
  // accumulate after it: `accumulates` may be set.
  bool can_accumulate = false;
};

const OpDef& op_def(ir::OpKind kind);

// Checks the number of operands, infers, checks an accumulator (the last operand of an accumulating
// op: the type of result 0) and, where `declared` is given, that the inferred types are the
// declared ones. Throws Error "op_name: …".
std::vector<ir::TensorType> infer(const ir::Op& op, std::span<const ir::TensorType> operands,
                                  std::span<const ir::TensorType> declared = {});

// Checks that every op's result types are what its OpDef infers. Throws CheckFailure naming graph
// and op.
void verify_types(const ir::Graph& graph);

std::vector<ir::TensorType> operand_types(const ir::Graph& graph, const ir::Op& op);
std::vector<ir::TensorType> result_types(const ir::Graph& graph, const ir::Op& op);
// An accumulating op's rule has one more operand, the accumulator, with the factors of result 0;
// its pending sum must be that of the result. REQUIRES: the kind has a rule.
ShardingRule rule_of(const ir::Graph& graph, const ir::Op& op);
OpCost cost_of(const ir::Graph& graph, const ir::Op& op);
// Result i of the op always lies in the memory of this operand; -1: in its own. With `accumulates`,
// result 0 lies in the last operand.
int alias_operand(const ir::Op& op, int result);
// Emits the op's expansion. REQUIRES: the kind has one and the op is not a shard (offsets without
// axes).
ValueIds expand(Builder& builder, const ir::Op& op, std::span<const ValueId> operands);

// One op's gradient in the making.
class GradientContext {
 public:
  GradientContext(Builder& builder, ir::Op op, ValueIds result_grads, std::vector<bool> needed)
      : builder_(builder),
        op_(std::move(op)),
        result_grads_(std::move(result_grads)),
        needed_(std::move(needed)),
        operand_grads_(op_.operands.size()) {}

  Builder& builder() { return builder_; }
  const ir::Op& op() const { return op_; }
  ValueId operand(int i) const { return op_.operands[static_cast<size_t>(i)]; }
  ValueId result(int i) const { return op_.results[static_cast<size_t>(i)]; }
  // Gradient of a result; invalid where nothing depends on that result.
  ValueId result_grad(int i) const { return result_grads_[static_cast<size_t>(i)]; }
  // Whether the gradient of the operand is wanted.
  bool needs(int i) const { return needed_[static_cast<size_t>(i)]; }
  void set_operand_grad(int i, ValueId grad) { operand_grads_[static_cast<size_t>(i)] = grad; }
  const ValueIds& operand_grads() const { return operand_grads_; }

 private:
  Builder& builder_;
  ir::Op op_;
  ValueIds result_grads_;
  std::vector<bool> needed_;
  ValueIds operand_grads_;
};

}  // namespace mw::ops
