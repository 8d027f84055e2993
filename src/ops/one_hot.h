// Helpers of expansions that compare with an index. Private to room ops.
#pragma once

#include "ops/builder.h"

namespace mw::ops {

// i32 [n] of 0 .. n-1: constants, doubled by concatenation.
ValueId iota(Builder& builder, int64_t n);
// bool [dims of ids..., n]: where the last index is the id.
ValueId one_hot(Builder& builder, ValueId ids, int64_t n);

}  // namespace mw::ops
