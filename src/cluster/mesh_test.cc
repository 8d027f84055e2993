#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "cluster/mesh.h"

using namespace mw;
using namespace mw::cluster;

namespace {

std::vector<int> numbers(const std::vector<RankId>& ranks) {
  std::vector<int> numbers;
  for (const RankId rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

std::string mesh_message(const std::string& text) {
  return mw::test::thrown_by([&] { parse_mesh(text); });
}

}  // namespace

// The worked example of Megatron-LM's initialize_model_parallel: 16 GPUs, tensor 2, pipeline 4, so
// data 2. There ranks run tensor fastest, then data, then pipeline.
TEST_CASE("sixteen ranks fall into Megatron's groups") {
  const Mesh mesh({{"pp", 4}, {"dp", 2}, {"tp", 2}});
  CHECK(mesh.size() == 16);
  CHECK(to_string(mesh) == "{pp:4, dp:2, tp:2}");
  std::vector<std::vector<int>> tensor, data, pipeline;
  for (int rank = 0; rank < 16; ++rank) {
    const RankId id(rank);
    if (mesh.index(id, {"tp"}) == 0) tensor.push_back(numbers(mesh.members(id, {"tp"})));
    if (mesh.index(id, {"dp"}) == 0) data.push_back(numbers(mesh.members(id, {"dp"})));
    if (mesh.index(id, {"pp"}) == 0) pipeline.push_back(numbers(mesh.members(id, {"pp"})));
  }
  CHECK(tensor == std::vector<std::vector<int>>{
                      {0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  CHECK(data == std::vector<std::vector<int>>{
                    {0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  CHECK(pipeline == std::vector<std::vector<int>>{
                        {0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
}

TEST_CASE("several axes make one group in the order that they are listed") {
  const Mesh mesh({{"pp", 4}, {"dp", 2}, {"tp", 2}});
  CHECK(numbers(mesh.members(RankId(6), {"dp", "tp"})) == std::vector<int>{4, 5, 6, 7});
  CHECK(numbers(mesh.members(RankId(6), {"tp", "dp"})) == std::vector<int>{4, 6, 5, 7});
  CHECK(mesh.index(RankId(6), {"dp", "tp"}) == 2);
  CHECK(mesh.index(RankId(6), {"tp", "dp"}) == 1);
  CHECK(mesh.group_size({"dp", "tp"}) == 4);
  CHECK(mesh.group_size({}) == 1);
  CHECK(mesh.index(RankId(6), {}) == 0);
  CHECK(numbers(mesh.members(RankId(6), {})) == std::vector<int>{6});
}

TEST_CASE("every rank stands at its index among its members") {
  const Mesh mesh({{"a", 2}, {"b", 1}, {"c", 3}, {"d", 4}});
  const std::vector<Names> lists = {{"a"}, {"d", "a"}, {"c", "b"}, {"c", "a", "d"}, {"b"}};
  for (int64_t r = 0; r < mesh.size(); ++r) {
    const RankId rank(r);
    CHECK(mesh.rank_at(mesh.coordinates(rank)) == rank);
    for (const auto& axes : lists) {
      const auto members = mesh.members(rank, axes);
      CHECK(static_cast<int64_t>(members.size()) == mesh.group_size(axes));
      CHECK(members[static_cast<size_t>(mesh.index(rank, axes))] == rank);
      for (size_t i = 0; i < members.size(); ++i)
        CHECK(mesh.index(members[i], axes) == static_cast<int64_t>(i));
    }
  }
  CHECK(mesh.coordinates(RankId(23)) == std::vector<int64_t>{1, 0, 2, 3});
}

TEST_CASE("an axis that the mesh lacks counts as one device") {
  const Mesh mesh({{"dp", 4}});
  CHECK(mesh.axis_size("tp") == 1);
  CHECK(!mesh.has("tp"));
  CHECK(mesh.has("dp"));
  CHECK(mesh.group_size({"tp", "dp"}) == 4);
  CHECK(mesh.index(RankId(3), {"dp", "tp"}) == 3);
  CHECK(numbers(mesh.members(RankId(3), {"tp"})) == std::vector<int>{3});
  CHECK(Mesh().size() == 1);
  CHECK(to_string(Mesh()) == "{}");
}

TEST_CASE("a mesh parses from its text") {
  const Mesh mesh({{"pp", 4}, {"dp", 2}, {"tp", 8}});
  CHECK(parse_mesh(to_string(mesh)) == mesh);
  CHECK(parse_mesh("pp:4,dp:2, tp:8") == mesh);
  CHECK(parse_mesh("{}") == Mesh());
}

TEST_CASE("a mesh that cannot be says why, all at once") {
  CHECK(mesh_message("{dp:0, tp:2, tp:4}") ==
        "mesh {dp:0, tp:2, tp:4}: axis 'dp' has size 0; it must be at least 1\n"
        "mesh {dp:0, tp:2, tp:4}: axis 'tp' is there twice");
  CHECK(mesh_message("{:2}") == "mesh {:2}: axis 0 has no name");
  CHECK(mesh_message("{dp=2}") ==
        "mesh '{dp=2}': 'dp=2' must be name:size, as in {pp:4, dp:2, tp:8}");
  CHECK(mesh_message("{a:100000, b:100000}") ==
        "mesh {a:100000, b:100000}: has more than 2^31 - 1 devices");
}

TEST_CASE("a rank outside the mesh or an axis listed twice is our own bug") {
  const Mesh mesh({{"dp", 4}});
  CHECK_THROWS_AS(mesh.coordinates(RankId(4)), CheckFailure);
  CHECK_THROWS_AS(mesh.index(RankId(0), {"dp", "dp"}), CheckFailure);
  CHECK_THROWS_AS(mesh.rank_at({4}), CheckFailure);
}
