#include "simulate/fragment_walk.h"

#include <doctest/doctest.h>

namespace mw::simulate {

TEST_CASE("collectives of two streams take a link one after the other, of two links at once") {
  // Two collectives of 3 s and 2 s that wait for nothing, and one of 1 s of the first one's stream.
  FragmentCost cost;
  cost.streams = 3;
  const auto add = [&](double seconds, int32_t stream, uint32_t levels) {
    OpCost op;
    op.device = seconds;
    op.stream = stream;
    op.label = stream - 1;
    op.levels = levels;
    cost.ops.push_back(op);
  };
  add(3, 1, 0b10);
  add(2, 2, 0b11);
  add(1, 1, 0b10);
  const auto walked = [&](uint32_t shared) {
    cost.shared_levels = shared;
    Walk walk;
    walk.begin(cost, 10);
    double meet = 0;
    CHECK_FALSE(advance(cost, walk, {}, meet));
    return walk;
  };
  const Walk apart = walked(0);
  CHECK(apart.spans[1].end == 12);
  CHECK(apart.end == 14);
  // The second goes on when the first has ended; the third, behind it on the first's stream, waits.
  const Walk together = walked(0b10);
  CHECK(together.spans[0].end == 13);
  CHECK(together.spans[1].end == 15);
  CHECK(together.spans[2].end == 16);
  CHECK(together.end == 16);
  CHECK(together.links[1].size() == 1);
}

TEST_CASE("an interval joins those that it touches") {
  std::vector<Interval> intervals;
  const auto add = [&](double begin, double end) { add_interval(intervals, {begin, end}); };
  add(4, 5);
  add(1, 2);
  add(7, 8);
  REQUIRE(intervals.size() == 3);
  CHECK(intervals[0].begin == 1);
  CHECK(intervals[2].end == 8);
  add(2, 4);
  REQUIRE(intervals.size() == 2);
  CHECK(intervals[0].begin == 1);
  CHECK(intervals[0].end == 5);
  add(0, 9);
  REQUIRE(intervals.size() == 1);
  CHECK(intervals[0].end == 9);
}

}  // namespace mw::simulate
