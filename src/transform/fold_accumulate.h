// dW is added to its accumulator inside the product: no gradient of a weight's size lies beside its
// accumulator. The bits stay those of the product and a sum after it (ops/op_def.h).
#pragma once

#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Folds accumulate(acc, g) into the op that makes g where that op can accumulate, makes nothing
// else, and nothing else reads g or acc: the op gets acc as its last operand and `accumulates`, and
// its result takes the place of the sum. Works on partitioned graphs too. Returns old value id ->
// new value id (the sum's is that of g; invalid: dropped).
ValueIds fold_accumulate(ir::Graph& graph);

}  // namespace mw::transform
