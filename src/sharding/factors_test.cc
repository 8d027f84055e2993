#include "sharding/factors.h"

#include <doctest/doctest.h>

namespace mw::sharding {
namespace {

const cluster::Mesh kMesh({{"dp", 2}, {"tp_kv", 2}, {"tp_rep", 2}, {"tp", 4}});

// Queries of 8 heads in 2 groups of 4, keys of 2 heads.
ops::ShardingRule grouped() {
  const std::vector<ir::TensorType> operands{ir::make_type(DType::kF32, {4, 8, 16}),
                                             ir::make_type(DType::kF32, {4, 2, 16})};
  return ops::make_rule("b (k g) [d], b k [d] -> b (k g) [d]", operands, {operands.data(), 1});
}

std::string text(const FactorAxes& axes) {
  Sharding sharding;
  sharding.dims.assign(axes.begin(), axes.end());
  return to_string(sharding);
}

TEST_CASE("the axes of a joined dimension belong to its factors, major first") {
  const ops::ShardingRule rule = grouped();
  const auto of = [&](const std::string& sharding) {
    return text(factors_of(rule, rule.operands[0], parse_sharding(sharding), kMesh));
  };
  CHECK(of(R"([{"dp"}, {"tp_kv"}, {}])") == R"([{"dp"}, {"tp_kv"}, {}, {}])");
  CHECK(of(R"([{"dp"}, {"tp_kv", "tp_rep"}, {}])") == R"([{"dp"}, {"tp_kv"}, {"tp_rep"}, {}])");
  // Four shards of two key heads follow no border.
  CHECK(of(R"([{}, {"tp"}, {}])") == "[{}, {}, {}, {}]");
  // Behind all eight single heads there is nothing to split.
  CHECK(of(R"([{}, {"tp_kv", "tp", "dp"}, {}])") == R"([{}, {"tp_kv"}, {"tp"}, {}])");
}

ops::ShardingRule rule_of(const std::string& text, const std::vector<int64_t>& operand,
                          const std::vector<std::vector<int64_t>>& results,
                          std::initializer_list<std::pair<char, int64_t>> sizes = {}) {
  std::vector<ir::TensorType> operands, made;
  if (!operand.empty()) operands.push_back(ir::make_type(DType::kF32, operand));
  for (const auto& dims : results) made.push_back(ir::make_type(DType::kF32, dims));
  return ops::make_rule(text, operands, made, sizes);
}

TEST_CASE("a dimension of one factor may be padded, a joined one not") {
  const ops::ShardingRule rule = rule_of("b (k g) -> b k g", {5, 9}, {{5, 3, 3}});
  CHECK(text(factors_of(rule, rule.operands[0], parse_sharding(R"([{"dp"}, {"tp_kv"}])"), kMesh)) ==
        R"([{"dp"}, {}, {}])");
  CHECK(can_shard(rule, {{"dp"}, {}, {}}, kMesh));
  CHECK_FALSE(can_shard(rule, {{"dp", "tp"}, {}, {}}, kMesh));  // five rows for eight
  CHECK_FALSE(can_shard(rule, {{}, {"tp_kv"}, {}}, kMesh));
  const cluster::Mesh threes({{"a", 3}, {"b", 2}});
  CHECK(can_shard(rule, {{}, {"a"}, {}}, threes));
  CHECK_FALSE(can_shard(rule, {{}, {"a"}, {"b"}}, threes));
}

TEST_CASE("what operands or results cannot have an op cannot have") {
  const ops::ShardingRule joins = rule_of("k g -> (k g)", {2, 4}, {{8}}),
                          parts = rule_of("(k g) -> k g", {8}, {{2, 4}});
  for (const ops::ShardingRule* rule : {&joins, &parts}) {
    CHECK(can_shard(*rule, {{"tp_kv"}, {"tp"}}, kMesh));
    CHECK_FALSE(can_shard(*rule, {{}, {"tp"}}, kMesh));
  }
  // A factor of one element behind one that is not split lets no other pass.
  const ops::ShardingRule three = rule_of("(a b c) -> a b c", {8}, {{2, 1, 4}});
  CHECK(can_shard(three, {{"tp_kv"}, {}, {"tp"}}, kMesh));
  CHECK_FALSE(can_shard(three, {{}, {}, {"tp"}}, kMesh));
}

TEST_CASE("a sharding that follows the factors comes back from them") {
  const ops::ShardingRule rule = grouped();
  for (const std::string sharding : {R"([{"dp"}, {}, {}])", R"([{}, {"tp_kv", "tp_rep"}, {}])"}) {
    const Sharding given = parse_sharding(sharding);
    CHECK(sharding_of_factors(rule.operands[0], factors_of(rule, rule.operands[0], given, kMesh)) ==
          given);
  }
}

TEST_CASE("a factor may be split only where those before it are split to single elements") {
  const ops::ShardingRule rule = grouped();
  CHECK(can_shard(rule, {{"dp"}, {"tp_kv"}, {"tp_rep"}, {}}, kMesh));
  CHECK(can_shard(rule, {{}, {"tp_kv"}, {"tp"}, {}}, kMesh));
  CHECK_FALSE(can_shard(rule, {{}, {}, {"tp_rep"}, {}}, kMesh));
  CHECK_FALSE(can_shard(rule, {{}, {"tp"}, {}, {}}, kMesh));      // more shards than elements
  CHECK_FALSE(can_shard(rule, {{}, {}, {}, {"tp_rep"}}, kMesh));  // needed whole
}

TEST_CASE("a factor that one result lacks is reduced in that one") {
  const std::vector<ir::TensorType> types{ir::make_type(DType::kF32, {4, 8, 16}),
                                          ir::make_type(DType::kF32, {4, 2, 16})};
  const ops::ShardingRule rule =
      ops::make_rule("b (k g) [d], b k [d] -> b (k g) [d], b k [d]", types, types);
  CHECK_FALSE(reduced_in(rule, 2, 0));
  CHECK(reduced_in(rule, 2, 1));
  CHECK_FALSE(reduced_in(rule, 1, 1));
  CHECK(reduced_in_any(rule, 2));
  CHECK_FALSE(reduced_in_any(rule, 1));
  CHECK(reduced_in_any(rule_of("b k -> b, b k", {4, 8}, {{4}, {4, 8}}), 1));
  // What no operand has, or the kernel does not read, is no sum.
  CHECK_FALSE(reduced_in(rule_of("b -> b v, b", {4}, {{4, 8}, {4}}), 1, 1));
  CHECK_FALSE(reduced_in_any(rule_of("b ~v -> b", {4, 8}, {{4}}), 1));
}

}  // namespace
}  // namespace mw::sharding
