// Independent pieces of work on a few threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace mw {

// Calls work(0), …, work(count - 1), each once, on at most so many threads, of which the caller is
// one; the others stay for the next call. Pieces may call it too. Throws what the lowest piece
// threw, when all have ended.
void in_parallel(size_t count, int threads, const std::function<void(size_t)>& work);

// As many threads as so many steps of work are worth: one for few.
int threads_for(size_t steps);

// As many as are asked for; as there are cores where that is 0.
int threads_or_cores(int64_t asked);

}  // namespace mw
