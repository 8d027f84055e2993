#include "sharding/permutation.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace mw::sharding {
namespace {

using Moves = std::vector<std::pair<int, int>>;

const cluster::Mesh kAbc({{"a", 2}, {"b", 3}, {"c", 2}});

TEST_CASE("the same axes in another order: every device is source and destination once") {
  // Device (a, b) has shard 3 a + b and gets shard 2 b + a.
  CHECK(shard_moves({"a", "b"}, {"b", "a"}, {"a", "b"}, kAbc) ==
        Moves{{0, 0}, {1, 3}, {2, 1}, {3, 4}, {4, 2}, {5, 5}});
}

TEST_CASE("to another axis of equal size: who has its new shard keeps it") {
  CHECK(permutation_axes({"a"}, {"c"}) == Axes{"a", "c"});
  CHECK(shard_moves({"a"}, {"c"}, {"a", "c"}, kAbc) == Moves{{0, 0}, {1, 2}, {2, 1}, {3, 3}});
}

TEST_CASE("from one axis to as many devices on two") {
  const cluster::Mesh mesh({{"a", 4}, {"b", 2}, {"c", 2}});
  const Axes group = permutation_axes({"a"}, {"b", "c"});
  const Moves moves = shard_moves({"a"}, {"b", "c"}, group, mesh);
  CHECK(moves.size() == 16);
  for (const auto& [source, destination] : moves) CHECK(source / 4 == destination % 4);
}

TEST_CASE("who keeps its shard is out of the matching of the others") {
  const cluster::Mesh mesh({{"a", 4}, {"b", 2}, {"c", 2}});
  // Device 6 has shard 1 before and after, though it is the third that has it and the second that
  // gets it.
  CHECK(shard_moves({"a"}, {"c", "b"}, {"a", "b", "c"}, mesh) == Moves{{0, 0},
                                                                       {1, 4},
                                                                       {2, 8},
                                                                       {3, 12},
                                                                       {4, 2},
                                                                       {5, 10},
                                                                       {6, 6},
                                                                       {7, 14},
                                                                       {8, 1},
                                                                       {9, 9},
                                                                       {10, 5},
                                                                       {11, 13},
                                                                       {12, 3},
                                                                       {13, 7},
                                                                       {14, 11},
                                                                       {15, 15}});
}

TEST_CASE("axes of one device move nothing; a group has each axis once") {
  const cluster::Mesh mesh({{"a", 2}, {"b", 3}, {"one", 1}});
  CHECK(permutation_axes({"a", "b"}, {"b", "a"}) == Axes{"a", "b"});
  CHECK(shard_moves({"a", "one"}, {"one", "a"}, {"a"}, mesh) == Moves{{0, 0}, {1, 1}});
  CHECK_THROWS_WITH_AS(shard_moves({"a"}, {"b"}, {"a", "b"}, mesh),
                       doctest::Contains("2 shards become 3"), CheckFailure);
}

}  // namespace
}  // namespace mw::sharding
