#include "partition/reshard.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "partition/test_ranks.h"

namespace mw::partition {
namespace {

using sharding::parse_sharding;
using sharding::Sharding;
using test::PerRank;
using test::Tensor;

const cluster::Mesh kTwoByFour({{"dp", 2}, {"tp", 4}});

// A graph that does nothing but the reshard.
struct Emitted {
  ir::Graph graph;
  ValueId result;
};

Emitted emit(const ReshardPlan& plan, const ir::TensorType& global, const Sharding& from,
             const cluster::Mesh& mesh) {
  Emitted emitted;
  ir::Graph& graph = emitted.graph;
  const ValueId x = graph.add_input(sharding::local_type(global, from, mesh), "x");
  emitted.result = emit_reshard(
      plan, global, x, from, mesh, [&](ValueId v) { return graph.type(v); },
      [&](ir::Op op, const ir::TensorType& type, const Sharding&) {
        return graph.op(graph.add_op(std::move(op), {type})).results.front();
      });
  graph.outputs = {emitted.result};
  return emitted;
}

std::string chain(const ir::TensorType& global, const std::string& from, const std::string& to) {
  const ReshardPlan plan =
      plan_reshard(global, parse_sharding(from), parse_sharding(to), kTwoByFour);
  const Emitted emitted = emit(plan, global, parse_sharding(from), kTwoByFour);
  ir::verify(emitted.graph);
  std::string text = join(test::communication(emitted.graph), "; ");
  return fmt::format("{}{}{} B", text, text.empty() ? "" : ": ", std::llround(plan.bytes));
}

struct Row {
  std::string from, to, steps;
};

TEST_CASE("a reshard is the cheapest chain of collectives") {
  const ir::TensorType type = ir::make_type(DType::kF32, {8, 16});  // 512 B
  const Row rows[] = {
      {R"([{}, {}])", R"([{}, {}])", "0 B"},
      // Without a pending sum: slices are free, gathers cost (n-1)/n of what they make.
      {R"([{}, {}])", R"([{"tp"}, {}])", "shard_slice{tp} dim 0: 0 B"},
      {R"([{}, {}])", R"([{"dp", "tp"}, {}])", "shard_slice{dp,tp} dim 0: 0 B"},
      {R"([{"tp"}, {}])", R"([{}, {}])", "all_gather{tp} dim 0: 384 B"},
      {R"([{"dp", "tp"}, {}])", R"([{"dp"}, {}])", "all_gather{tp} dim 0: 192 B"},
      {R"([{"dp", "tp"}, {}])", R"([{}, {}])", "all_gather{dp,tp} dim 0: 448 B"},
      {R"([{"tp"}, {}])", R"([{}, {"tp"}])", "all_to_all{tp} dim 1 from 0: 96 B"},
      {R"([{"dp"}, {"tp"}])", R"([{"dp", "tp"}, {}])", "all_to_all{tp} dim 0 from 1: 48 B"},
      // Whole shards move where there are as many before and behind.
      {R"([{"dp", "tp"}, {}])", R"([{"tp", "dp"}, {}])",
       "permute{dp,tp} dim 0 from {dp,tp} to {tp,dp}: 64 B"},
      // Pending sums: Megatron's g and, with sequence parallelism, its reduce-scatter.
      {R"([{}, {}] partial{"tp"})", R"([{}, {}])", "all_reduce{tp}: 768 B"},
      {R"([{}, {}] partial{"tp"})", R"([{}, {"tp"}])", "reduce_scatter{tp} dim 1: 384 B"},
      {R"([{"dp"}, {}] partial{"tp"})", R"([{"dp"}, {"tp"}])", "reduce_scatter{tp} dim 1: 192 B"},
      {R"([{}, {}] partial{"dp", "tp"})", R"([{}, {}])", "all_reduce{dp,tp}: 896 B"},
      {R"([{}, {}] partial{"dp", "tp"})", R"([{}, {}] partial{"dp"})", "all_reduce{tp}: 768 B"},
      {R"([{}, {}] partial{"dp", "tp"})", R"([{"tp"}, {}] partial{"dp"})",
       "reduce_scatter{tp} dim 0: 384 B"},
      {R"([{"tp"}, {}] partial{"dp"})", R"([{}, {}])",
       "reduce_scatter{dp} dim 0; all_gather{tp,dp} dim 0: 512 B"},
      {R"([{}, {}] partial<max>{"tp"})", R"([{}, {}])", "all_reduce{tp}: 768 B"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.from);
    CAPTURE(row.to);
    CHECK(chain(type, row.from, row.to) == row.steps);
  }
}

TEST_CASE("whole shards move to other axes of as many devices, a shard a device") {
  const cluster::Mesh mesh({{"a", 2}, {"b", 2}, {"c", 4}});
  const auto steps = [&](const std::string& from, const std::string& to) {
    const ir::TensorType type = ir::make_type(DType::kF32, {8, 16});  // 512 B
    const ReshardPlan plan = plan_reshard(type, parse_sharding(from), parse_sharding(to), mesh);
    const Emitted emitted = emit(plan, type, parse_sharding(from), mesh);
    return fmt::format("{}: {} B", join(test::communication(emitted.graph), "; "),
                       std::llround(plan.bytes));
  };
  CHECK(steps(R"([{"a"}, {}])", R"([{"b"}, {}])") == "permute{a,b} dim 0 from {a} to {b}: 256 B");
  CHECK(steps(R"([{"a", "b"}, {}])", R"([{"c"}, {}])") ==
        "permute{a,b,c} dim 0 from {a,b} to {c}: 128 B");
  CHECK(steps(R"([{"a"}, {}] partial{"c"})", R"([{"b"}, {}] partial{"c"})") ==
        "permute{a,b} dim 0 from {a} to {b}: 256 B");
}

TEST_CASE("a dimension that its axes do not divide changes as a whole") {
  const ir::TensorType type = ir::make_type(DType::kF32, {7, 6});
  // 7 over 4: shards of 2; the gather makes 8 rows and trims one.
  CHECK(chain(type, R"([{"tp"}, {}])", R"([{}, {}])") == "all_gather{tp} dim 0: 126 B");
  // From two shards of 4 rows to 8 of 1 there is no way but over the whole.
  CHECK(chain(type, R"([{"dp"}, {}])", R"([{"dp", "tp"}, {}])") ==
        "all_gather{dp} dim 0; shard_slice{dp,tp} dim 0: 84 B");
  CHECK(chain(type, R"([{}, {}] partial{"tp"})", R"([{"tp"}, {}])") ==
        "reduce_scatter{tp} dim 0: 126 B");
}

// --- random reshards on interpreted ranks ---

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(random_uniform(RngKey{seed_, 0, 1}, next_++) *
                                static_cast<double>(n));
  }

 private:
  uint64_t seed_, next_ = 0;
};

// Every axis goes to a dimension, to the pending ones, or nowhere.
Sharding random_sharding(Random& random, const ir::TensorType& type, const cluster::Mesh& mesh,
                         const ir::Axes& pending) {
  Sharding sharding = sharding::replicated(type.rank());
  std::vector<std::string> axes;
  for (const cluster::Axis& axis : mesh.axes()) axes.push_back(axis.name);
  for (size_t i = axes.size(); i > 1; --i)
    std::swap(axes[i - 1], axes[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  for (const Name axis : axes) {
    const int64_t to = random.below(type.rank() + 2);
    if (to < type.rank()) {
      sharding.dims[static_cast<size_t>(to)].push_back(axis);
    } else if (to == type.rank() &&
               std::find(pending.begin(), pending.end(), axis) != pending.end()) {
      sharding.partial.push_back(axis);
    }
  }
  std::sort(sharding.partial.begin(), sharding.partial.end());
  return sharding;
}

std::string outcome(const ir::TensorType& type, const Sharding& from, const Sharding& to,
                    const cluster::Mesh& mesh) {
  const Emitted emitted = emit(plan_reshard(type, from, to, mesh), type, from, mesh);
  ir::verify(emitted.graph);
  const Tensor whole = test::random_tensor(type, "reshard");
  // Tails hold garbage: no chain may let it into an element.
  const std::vector<PerRank> values =
      test::run_ranks(emitted.graph, {test::shard(whole, from, mesh, 1e6)}, mesh);
  std::string problem;
  const auto got = test::unshard(values[emitted.result.index()], type, to, mesh, problem);
  if (!got) return problem;
  for (size_t i = 0; i < whole.values.size(); ++i) {
    if (std::abs(got->values[i] - whole.values[i]) > 1e-9) {
      return fmt::format("element {} is {}, must be {}", i, got->values[i], whole.values[i]);
    }
  }
  return "";
}

TEST_CASE("every reshard of random shardings keeps the value") {
  const cluster::Mesh meshes[] = {
      cluster::Mesh({{"dp", 2}, {"tp", 4}}), cluster::Mesh({{"tp", 3}, {"dp", 2}}),
      cluster::Mesh({{"dp", 2}, {"tp", 2}, {"cp", 2}}), cluster::Mesh({{"tp", 4}})};
  const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const cluster::Mesh& mesh = meshes[random.below(4)];
    std::vector<int64_t> dims;
    for (int64_t d = 1 + random.below(3); d > 0; --d) dims.push_back(sizes[random.below(10)]);
    const ir::TensorType type = ir::make_type(DType::kF32, dims);
    ir::Axes all;
    for (const cluster::Axis& axis : mesh.axes()) all.push_back(axis.name);
    Sharding from = random_sharding(random, type, mesh, all);
    if (from.is_partial()) from.reduction = static_cast<ir::Reduction>(random.below(3));
    Sharding to = random_sharding(random, type, mesh, from.partial);
    if (to.is_partial()) to.reduction = from.reduction;
    const std::string problem = outcome(type, from, to, mesh);
    CAPTURE(seed);
    CHECK_MESSAGE(problem.empty(), ir::to_string(type), " on ", cluster::to_string(mesh), " from ",
                  to_string(from), " to ", to_string(to), ": ", problem);
  }
}

TEST_CASE("resharding costs no more than gathering everything") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const ir::TensorType type = ir::make_type(DType::kF32, {16, 8, 24});
    const Sharding from = random_sharding(random, type, kTwoByFour, {}),
                   to = random_sharding(random, type, kTwoByFour, {});
    const double whole = plan_reshard(type, from, sharding::replicated(3), kTwoByFour).bytes;
    CAPTURE(seed);
    CHECK(plan_reshard(type, from, to, kTwoByFour).bytes <= whole);
  }
}

}  // namespace
}  // namespace mw::partition
