#include "runtime/parallel.h"

#include "runtime/thread_team.h"

namespace mw::runtime::detail {
namespace {

// The calling rank's threads, made anew when a loop asks for another number of them: a larger team
// would hand out ranges under thread numbers that the loop has no scratch for.
ThreadTeam& team_of(int threads) {
  thread_local std::unique_ptr<ThreadTeam> team;
  if (team == nullptr || team->threads() != threads) {
    team.reset();
    team = std::make_unique<ThreadTeam>(threads);
  }
  return *team;
}

struct Loop {
  int64_t n, pieces;
  void (*body)(void* context, int thread, int64_t begin, int64_t end);
  void* context;

  int64_t border(int64_t piece) const {
    constexpr int64_t kStep = 16;
    const int64_t steps = (n + kStep - 1) / kStep;
    // Few indices are large ones, that share no line.
    if (steps < 4 * pieces) return n * piece / pieces;
    return std::min(n, steps * piece / pieces * kStep);
  }
};

}  // namespace

void fork(int threads, int64_t n, int64_t pieces,
          void (*body)(void* context, int thread, int64_t begin, int64_t end), void* context) {
  Loop loop{n, pieces, body, context};
  team_of(threads).run(
      pieces,
      [](void* context, int thread, int64_t piece) {
        const Loop& loop = *static_cast<Loop*>(context);
        loop.body(loop.context, thread, loop.border(piece), loop.border(piece + 1));
      },
      &loop);
}

}  // namespace mw::runtime::detail
