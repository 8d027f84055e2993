// The parts of the interpreter. Private to room ops.
#pragma once

#include <span>
#include <vector>

#include "ops/interpret.h"

namespace mw::ops {

struct Call {
  const ir::Op& op;
  std::span<const Tensor> operands;  // without an accumulator
  std::vector<Tensor>& results;      // zeros of their types
  const InterpretContext& context;

  const std::vector<double>& in(size_t i) const { return operands[i].values; }
  std::vector<double>& out(size_t i = 0) const { return results[i].values; }
  const ir::TensorType& in_type(size_t i) const { return operands[i].type; }
  const ir::TensorType& out_type(size_t i = 0) const { return results[i].type; }
  // Global index of the first of `local_size` elements.
  int64_t offset(const ir::ShardOffset& shard, int64_t local_size) const {
    return shard.axes.empty() ? 0 : context.index(shard.axes) * local_size;
  }
};

// Each runs the ops of its family and says whether the op is one.
bool interpret_elementwise(const Call& call);
bool interpret_shapes(const Call& call);
bool interpret_products(const Call& call);
bool interpret_rows(const Call& call);       // norms, softmax, cross-entropy, bias, activations
bool interpret_attention(const Call& call);  // with rope
bool interpret_lookup(const Call& call);     // embedding, dropout, random
bool interpret_moe(const Call& call);
bool interpret_state(const Call& call);  // state, update, local ops of collectives

using Index = std::vector<int64_t>;
// Row-major place of an index.
int64_t place(const ir::TensorType& type, const Index& index);
// Calls visit(index, place) for every element in order.
template <typename Visit>
void for_each(const ir::TensorType& type, Visit visit) {
  Index index(type.dims.size(), 0);
  const int64_t count = type.elements();
  for (int64_t i = 0; i < count; ++i) {
    visit(static_cast<const Index&>(index), static_cast<size_t>(i));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.dims[d].size) break;
      index[d] = 0;
    }
  }
}

// Of two; NaN where one is.
double greater(double a, double b);
double lesser(double a, double b);
double gelu(double x, bool tanh_approximation);
double gelu_derivative(double x, bool tanh_approximation);
// 1 / (1 - rate), or 0 where dropout at this index drops.
double dropout_factor(double rate, const std::string& site, double seed, double step,
                      uint64_t index);

}  // namespace mw::ops
