// What of libtorch's global behaviour the backend sets.
#pragma once

namespace mw::runtime {

// Threads of ATen's and BLAS's parallel regions that start on the calling thread.
void set_thread_count(int threads);

}  // namespace mw::runtime
