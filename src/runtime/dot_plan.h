// DotPlan: a product in einsum form as loops around one matrix product, so that every spec whose
// letters fold is gemm()'s.
#pragma once

#include <optional>
#include <vector>

#include "ir/attributes.h"
#include "ir/types.h"

namespace mw::runtime {

// Row-major c_mn (+)= op(a) op(b), inside of the loops.
struct DotPlan {
  int64_t m = 1, n = 1, k = 1;
  // Which side is stored transposed: a as [k, m], b as [n, k].
  bool a_transposed = false, b_transposed = false;
  int64_t lda = 1, ldb = 1, ldc = 1;
  bool swapped = false;  // a is the op's rhs and b its lhs
  struct Loop {
    int64_t size = 1;
    int64_t a = 0, b = 0, c = 0;  // strides in elements
    bool contracted = false;      // c is the sum of its turns
  };
  std::vector<Loop> loops;  // outermost first
  int64_t products() const {
    int64_t count = 1;
    for (const Loop& loop : loops) count *= loop.size;
    return count;
  }
};

// Null where no letters give a matrix product: a letter twice in one operand, a letter of one
// operand alone that is summed over, an empty dimension, no unit stride, sizes beyond 32
// bits.
std::optional<DotPlan> plan_dot(const ir::DotAttrs& spec, const ir::TensorType& lhs,
                                const ir::TensorType& rhs, const ir::TensorType& out);

}  // namespace mw::runtime
