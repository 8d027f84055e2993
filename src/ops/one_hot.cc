#include "ops/one_hot.h"

namespace mw::ops {

ValueId iota(Builder& builder, int64_t n) {
  ValueId numbers = builder.constant(0, ir::make_type(DType::kI32, {1}));
  for (int64_t size = 1; size < n; size *= 2) {
    const ir::TensorType type = builder.type(numbers);
    const ValueId next = builder.add(numbers, builder.constant(static_cast<double>(size), type));
    numbers = builder.concat({numbers, next}, 0);
  }
  return builder.type(numbers).dim(0) == n ? numbers : builder.slice(numbers, {0}, {n});
}

ValueId one_hot(Builder& builder, ValueId ids, int64_t n) {
  std::vector<int64_t> sizes;
  std::vector<int> dims;
  const int rank = builder.type(ids).rank();
  for (int d = 0; d < rank; ++d) {
    sizes.push_back(builder.type(ids).dim(d));
    dims.push_back(d);
  }
  sizes.push_back(n);
  return builder.compare(ir::CompareAttrs::Direction::kEq, builder.broadcast(ids, sizes, dims),
                         builder.broadcast(iota(builder, n), sizes, {rank}));
}

}  // namespace mw::ops
