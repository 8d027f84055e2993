#include "simulate/fragment_walk.h"

#include <doctest/doctest.h>

#include <utility>

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

TEST_CASE("a collective's latency leaves its link to others") {
  // Of 4 s and 5 s, of which 3 s and 1 s are latency, at once on two streams.
  FragmentCost cost;
  cost.streams = 3;
  cost.shared_levels = 0b1;
  for (const auto& [device, latency] : {std::pair{4.0, 3.0}, std::pair{5.0, 1.0}}) {
    OpCost op;
    op.device = device;
    op.latency = latency;
    op.stream = static_cast<int32_t>(cost.ops.size()) + 1;
    op.label = op.stream - 1;
    op.levels = 0b1;
    cost.ops.push_back(op);
  }
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  CHECK_FALSE(advance(cost, walk, {}, meet));
  // The first has the link for its last second, from 3 to 4; the second for 4 s about that.
  CHECK(walk.spans[0].end == 4);
  CHECK(walk.spans[1].end == 6);
  REQUIRE(walk.links[0].size() == 1);
  CHECK(walk.links[0][0].begin == 1);
  CHECK(walk.links[0][0].end == 6);
  const auto use = link_use(cost, walk.spans, 0b1);
  REQUIRE(use.size() == 1);
  REQUIRE(use[0].size() == 1);
  CHECK(use[0][0].begin == 1);
  // Of several pipeline ranks' the latency runs while another has the link.
  cost.ops[1].cross = 0;
  walk.begin(cost, 0);
  CHECK(advance(cost, walk, {}, meet));
  CHECK(meet == 0);
  cost.ops[1].latency = 3.5;
  walk.begin(cost, 0);
  CHECK(advance(cost, walk, {}, meet));
  CHECK(meet == 0.5);
  // Messages hold up what is behind the latency alone.
  const std::vector<std::vector<Interval>> messages{{{0, 2}}};
  cost.ops[1].cross = -1;
  walk.begin(cost, 0);
  CHECK_FALSE(advance(cost, walk, {.messages = &messages}, meet));
  CHECK(walk.spans[0].end == 4);
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
