// Independent pieces of work on a few threads.
#pragma once

#include <cstddef>
#include <functional>

namespace mw {

// Calls work(0), …, work(count - 1), each once, on at most so many threads. Throws what the lowest
// piece threw, when all have ended.
void in_parallel(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace mw
