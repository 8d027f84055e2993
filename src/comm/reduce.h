// The arithmetic of a reduction over buffers that all lie in this process.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/collective.h"

namespace mw::comm {

// out[k][i] = in[0][i] (op) in[1][i] (op) … for i in [0, count) and every k, in ascending order of
// the inputs for every i: one pass that reads each input once. bf16 and f16 are accumulated in fp32
// and rounded once; integers wrap; a NaN in any input makes max and min NaN. An output may be one
// of the inputs; buffers overlap in no other way. in[k] and out[k] point to elements of `dtype` and
// are aligned to them. REQUIRES: at least one input; not a sum of bools.
void reduce(DType dtype, ReduceOp op, std::span<const void* const> in, std::span<void* const> out,
            int64_t count);

}  // namespace mw::comm
