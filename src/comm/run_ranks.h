// Running the ranks of a threads world.
#pragma once

#include <functional>

#include "comm/thread_world.h"

namespace mw::comm {

// Calls fn once for every rank, each on a thread of its own, and returns when all have ended. If a
// rank throws, the others are aborted, and the first error that is not an Aborted is rethrown with
// "rank 3: " before its text, as what it was: Error (with all findings), CheckFailure, otherwise
// RunError. If the world was aborted from outside, Aborted is thrown.
void run_ranks(ThreadWorld& world, const std::function<void(Endpoint&)>& fn);

}  // namespace mw::comm
