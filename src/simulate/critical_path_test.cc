#include "simulate/critical_path.h"

#include <doctest/doctest.h>

namespace mw::simulate {
namespace {

Wait wait(int32_t command, double begin, double end, int32_t peer_command, double peer_time,
          WaitReason reason = WaitReason::kReceive) {
  return {command, reason, Seconds(begin), Seconds(end), 0, peer_command, Seconds(peer_time)};
}

struct Part {
  int32_t rank;
  double begin, end;
  bool message;
  friend bool operator==(const Part&, const Part&) = default;
};
// Of rank 1, which ends at 9 with its fourth command and waits for rank 0, which does not wait.
std::vector<Part> path(const std::vector<Wait>& waits) {
  std::vector<Part> parts;
  for (const PathPart& part : critical_path({{}, waits}, {4, 9}, {3, 4}))
    parts.push_back({part.rank, part.begin.value, part.end.value, part.message});
  return parts;
}
using Parts = std::vector<Part>;

}  // namespace

TEST_CASE("the critical path goes back through what ended each wait") {
  CHECK(path({}) == Parts{{1, 0, 9, false}});
  // A message that left at 3; the wait before it was over by then.
  CHECK(path({wait(0, 0, 1, 0, 1), wait(2, 2, 5, 1, 3)}) ==
        Parts{{0, 0, 3, false}, {0, 3, 5, true}, {1, 5, 9, false}});
  // A slot that is free at once.
  CHECK(path({wait(2, 2, 5, 1, 5, WaitReason::kSlot)}) ==
        Parts{{0, 0, 5, false}, {1, 5, 9, false}});
  // Weights that are gathered are no message.
  CHECK(path({wait(0, 0, 2, 0, 0, WaitReason::kGather)}) ==
        Parts{{0, 0, 2, false}, {1, 2, 9, false}});
  // What ended after other work had come before it is not what the rank waited for.
  CHECK(path({wait(0, 0, 2, 0, 1), wait(2, 3, 4, 2, 6)}) ==
        Parts{{0, 0, 1, false}, {0, 1, 2, true}, {1, 2, 9, false}});
}

TEST_CASE("a wait of the command that sent, after it had sent, is not on the critical path") {
  // Rank 0 sent at 3, in its second command, which then waits from 4 to 6.
  Wait of_first = wait(0, 0, 1, 0, 1), later = wait(1, 4, 6, 2, 5);
  of_first.peer = later.peer = 1;
  const std::vector<PathPart> parts =
      critical_path({{of_first, later}, {wait(2, 2, 5, 1, 3)}}, {7, 9}, {2, 4});
  REQUIRE(parts.size() == 4);
  CHECK(parts[1].rank == 0);
  CHECK(parts[1].begin.value == 1);
  CHECK(parts[1].end.value == 3);
  CHECK(parts[2].message);
  CHECK(parts[3].begin.value == 5);
}

}  // namespace mw::simulate
