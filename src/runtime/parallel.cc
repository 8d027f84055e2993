// The one file of the room that is compiled with OpenMP: libtorch's threads, so that a process has
// one pool a rank.
#include "runtime/parallel.h"

#include <omp.h>

namespace mw::runtime::detail {

void fork(int threads, int64_t n, void (*body)(void*, int, int64_t, int64_t), void* context) {
  constexpr int64_t kStep = 16;
#pragma omp parallel num_threads(threads)
  {
    // OpenMP may give fewer threads than asked for.
    const int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t steps = (n + kStep - 1) / kStep;
    const bool fine = steps < 4 * team;  // few indices, each of them large
    const int64_t begin = fine ? n * thread / team : steps * thread / team * kStep;
    const int64_t end =
        fine ? n * (thread + 1) / team : std::min(n, steps * (thread + 1) / team * kStep);
    body(context, static_cast<int>(thread), begin, end);
  }
}

}  // namespace mw::runtime::detail
