#include "sharding/permutation.h"

#include <doctest/doctest.h>

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

}  // namespace
}  // namespace mw::sharding
