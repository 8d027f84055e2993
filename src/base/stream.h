// An opaque handle to a queue of device work, so that rooms below `runtime` can pass one on.
#pragma once

#include <cstdint>

namespace mw {

// Zero is the default stream; on the CPU every handle is zero and work is done when the call
// returns. A CUDA backend stores its cudaStream_t here.
struct StreamHandle {
  uintptr_t value = 0;
  friend constexpr bool operator==(StreamHandle, StreamHandle) = default;
};

}  // namespace mw
