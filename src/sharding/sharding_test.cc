#include "sharding/sharding.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "sharding/strategy.h"

namespace mw::sharding {
namespace {

const cluster::Mesh kTraining({{"pp", 2}, {"dp", 2}, {"tp", 4}, {"cp", 1}});

TEST_CASE("the text form of a sharding round-trips") {
  for (const std::string text :
       {"[]", "[{}]", "[{\"dp\"}, {}, {\"tp\"}]", "[{\"dp\", \"tp\"}, {}] partial{\"cp\"}",
        "[{}] partial<max>{\"dp\", \"tp\"}"}) {
    CHECK(to_string(parse_sharding(text)) == text);
  }
  CHECK(to_string(parse_sharding("[] partial{\"tp\", \"dp\"}")) == "[] partial{\"dp\", \"tp\"}");
  // What is not partial has no reduction.
  CHECK(parse_sharding("[{}] partial<max>{}") == parse_sharding("[{}]"));
}

TEST_CASE("a broken sharding text names the column and what was expected") {
  CHECK_THROWS_WITH_AS(parse_sharding("[{\"dp\"} {}]"),
                       "sharding '[{\"dp\"} {}]', column 9: expected ']'; a sharding looks like "
                       "[{\"dp\"}, {}] partial{\"tp\"}",
                       Error);
  CHECK_THROWS_WITH_AS(parse_sharding("[{\"dp}]"),
                       doctest::Contains("column 4: expected a closing '\"';"), Error);
  CHECK_THROWS_AS(parse_sharding("[] partial<mean>{\"dp\"}"), Error);
  CHECK_THROWS_AS(parse_sharding("[] x"), Error);
}

TEST_CASE("a local shape is the ceiling of the global one") {
  const ir::TensorType type = ir::make_type(DType::kF32, {10, 7, 3});
  const Sharding sharding = parse_sharding("[{\"dp\"}, {\"tp\"}, {}]");
  CHECK(local_type(type, sharding, kTraining) == ir::make_type(DType::kF32, {5, 2, 3}));
  CHECK_FALSE(is_padded(type, sharding, 0, kTraining));
  CHECK(is_padded(type, sharding, 1, kTraining));
}

TEST_CASE("a shape has as many dimensions as its sharding") {
  CHECK_THROWS_WITH_AS(
      local_type(ir::make_type(DType::kF32, {4}), parse_sharding("[{}, {}]"), kTraining),
      doctest::Contains("f32[4] with [{}, {}]"), CheckFailure);
}

TEST_CASE("what pends is not replicated") {
  CHECK(parse_sharding("[{}, {}]").is_replicated());
  CHECK_FALSE(parse_sharding("[{}, {\"tp\"}]").is_replicated());
  CHECK_FALSE(parse_sharding("[{}, {}] partial{\"tp\"}").is_replicated());
}

TEST_CASE("normalizing drops axes of one device") {
  CHECK(to_string(normalized(parse_sharding("[{\"dp\"}] partial<max>{\"tp\"}"), kTraining)) ==
        "[{\"dp\"}] partial<max>{\"tp\"}");
  Sharding unlike = replicated(1);
  unlike.partial = {"tp", "dp", "cp"};
  CHECK(normalized(unlike, kTraining).partial == Axes{"dp", "tp"});
  unlike.partial = {"cp"};
  unlike.reduction = ir::Reduction::kMax;
  CHECK(normalized(unlike, kTraining) == replicated(1));
  CHECK(to_string(normalized(parse_sharding("[{\"cp\", \"tp\"}] partial{\"cp\"}"), kTraining)) ==
        "[{\"tp\"}]");
}

TEST_CASE("findings name an axis used twice, an unknown axis and a wrong rank") {
  const ir::TensorType type = ir::make_type(DType::kF32, {4});
  CHECK(findings(parse_sharding("[{\"tp\"}]"), type, kTraining).empty());
  CHECK(findings(parse_sharding("[{\"tp\"}] partial{\"tp\"}"), type, kTraining).front() ==
        "sharding [{\"tp\"}] partial{\"tp\"} uses axis 'tp' twice");
  CHECK(findings(parse_sharding("[{\"xp\"}]"), type, kTraining).size() == 1);
  CHECK(findings(parse_sharding("[{}, {}]"), type, kTraining).size() == 1);
  CHECK(findings(parse_sharding("[]"), type, kTraining) ==
        std::vector<std::string>{"sharding [] has 0 dimensions, the value f32[4] has 1"});
}

TEST_CASE("a strategy gives logical axes their mesh axes, each mesh axis once") {
  const Strategy strategy{{{"batch", {"dp"}}, {"seq", {"cp", "tp"}}, {"heads", {"tp"}}}};
  CHECK(to_string(sharding_of({"batch", "seq", "embed"}, strategy, kTraining)) ==
        "[{\"dp\"}, {\"tp\"}, {}]");
  CHECK(to_string(sharding_of({"batch", "seq", "heads", ""}, strategy, kTraining)) ==
        "[{\"dp\"}, {\"tp\"}, {}, {}]");
}

}  // namespace
}  // namespace mw::sharding
