// dW always accumulates inside the product: an element's sum over microbatches is then one chain of
// additions.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Folds accumulate(acc, g) into the op that makes g where that op can accumulate, makes nothing
// else, and nothing else reads g or acc: the op gets acc as its last operand and `accumulates`, and
// its result takes the place of the sum. Works on partitioned graphs too. Returns old value id ->
// new value id (the sum's is that of g; invalid: dropped).
std::vector<ValueId> fold_accumulate(ir::Graph& graph);

}  // namespace mw::transform
