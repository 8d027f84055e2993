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
      // What is cut first, while a sum pends too, makes the next steps smaller.
      {R"([{}, {"tp"}])", R"([{"dp", "tp"}, {}])",
       "shard_slice{dp} dim 0; all_to_all{tp} dim 0 from 1: 48 B"},
      {R"([{}, {}] partial{"tp"})", R"([{"dp", "tp"}, {}])",
       "shard_slice{dp} dim 0; reduce_scatter{tp} dim 0: 192 B"},
      {R"([{}, {}] partial{"tp"})", R"([{"dp"}, {}])",
       "shard_slice{dp} dim 0; all_reduce{tp}: 384 B"},
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
  CHECK(steps(R"([{"c"}, {}])", R"([{"a", "b"}, {}])") ==
        "permute{c,a,b} dim 0 from {c} to {a,b}: 128 B");
  CHECK(steps(R"([{"a"}, {}] partial{"c"})", R"([{"b"}, {}] partial{"c"})") ==
        "permute{a,b} dim 0 from {a} to {b}: 256 B");
}

TEST_CASE("whole shards move to as many of the wanted axes as there are shards, and are cut then") {
  const cluster::Mesh mesh({{"a", 4}, {"b", 4}, {"c", 2}});
  const ir::TensorType type = ir::make_type(DType::kF32, {16});  // 64 B
  const Sharding from = parse_sharding(R"([{"a"}])");
  const ReshardPlan plan = plan_reshard(type, from, parse_sharding(R"([{"b", "c"}])"), mesh);
  CHECK(join(test::communication(emit(plan, type, from, mesh).graph), "; ") ==
        "permute{a,b} dim 0 from {a} to {b}; shard_slice{c} dim 0");
  CHECK(std::llround(plan.bytes) == 16);
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
  const ReshardPlan plan = plan_reshard(type, from, to, mesh);
  if (!plan.steps.empty() && !(plan.steps.back().after == to)) return "ends elsewhere";
  const Emitted emitted = emit(plan, type, from, mesh);
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

// --- every short chain of moves ---

class Chains {
 public:
  Chains(const ir::TensorType& type, const Sharding& to, const cluster::Mesh& mesh)
      : type_(type), to_(to), mesh_(mesh) {}

  // The fewest bytes from `at` in at most `steps` moves, if they are fewer than `bound`; or bound.
  double cheapest(const Sharding& at, int steps, double bound) {
    if (at == to_) return 0;
    if (steps == 0) return bound;
    std::vector<std::pair<Sharding, double>> next;
    add_reductions(at, next);
    for (size_t dim = 0; dim < at.dims.size(); ++dim) add_moves(at, dim, next);
    double best = bound;
    for (const auto& [sharding, bytes] : next) {
      if (bytes < best) best = std::min(best, bytes + cheapest(sharding, steps - 1, best - bytes));
    }
    return best;
  }

 private:
  using Next = std::vector<std::pair<Sharding, double>>;

  double bytes(const Sharding& s) const {
    return static_cast<double>(sharding::local_type(type_, s, mesh_).bytes().value);
  }
  double ring(const ir::Axes& axes) const {
    const auto n = static_cast<double>(sharding::shards(axes, mesh_));
    return (n - 1) / n;
  }
  // Shards of `fewer` axes are whole numbers of those of `more`.
  bool borders_agree(size_t dim, const ir::Axes& fewer, const ir::Axes& more) const {
    return fewer.empty() || type_.dim(static_cast<int>(dim)) % sharding::shards(more, mesh_) == 0;
  }
  static Sharding with(const Sharding& s, size_t dim, ir::Axes axes) {
    Sharding made = s;
    made.dims[dim] = std::move(axes);
    for (const Name axis : made.dims[dim]) erase(made.partial, axis);
    if (made.partial.empty()) made.reduction = ir::Reduction::kSum;
    return made;
  }
  // All ordered choices of some of the axes.
  static std::vector<ir::Axes> choices(const ir::Axes& axes) {
    std::vector<ir::Axes> all{{}};
    for (size_t i = 0; i < all.size(); ++i) {
      for (const Name axis : axes) {
        if (std::find(all[i].begin(), all[i].end(), axis) != all[i].end()) continue;
        ir::Axes more = all[i];
        more.push_back(axis);
        all.push_back(std::move(more));
      }
    }
    return all;
  }
  ir::Axes free_axes(const Sharding& s) const {
    ir::Axes found;
    for (const cluster::Axis& axis : mesh_.axes()) {
      bool used = std::find(s.partial.begin(), s.partial.end(), axis.name) != s.partial.end();
      for (const ir::Axes& axes : s.dims)
        used = used || std::find(axes.begin(), axes.end(), axis.name) != axes.end();
      if (!used) found.push_back(axis.name);
    }
    return found;
  }
  // Whether `to` has them behind the axes that the dimension has.
  bool wanted_next(size_t dim, const ir::Axes& have, const ir::Axes& axes) const {
    ir::Axes more = have;
    more.insert(more.end(), axes.begin(), axes.end());
    const ir::Axes& want = to_.dims[dim];
    return more.size() <= want.size() && std::equal(more.begin(), more.end(), want.begin());
  }
  ir::Axes pending(const Sharding& s) const {
    ir::Axes axes = s.partial;
    for (const Name axis : to_.partial) erase(axes, axis);
    return axes;
  }

  void add_reductions(const Sharding& s, Next& next) const {
    for (const ir::Axes& axes : choices(pending(s))) {
      if (axes.empty()) continue;
      Sharding reduced = s;
      for (const Name axis : axes) erase(reduced.partial, axis);
      if (reduced.partial.empty()) reduced.reduction = ir::Reduction::kSum;
      next.emplace_back(reduced, 2 * ring(axes) * bytes(s));
    }
  }

  void add_moves(const Sharding& s, size_t dim, Next& next) const {
    const ir::Axes& have = s.dims[dim];
    const auto longer = [&](const ir::Axes& axes, double cost) {
      ir::Axes more = have;
      more.insert(more.end(), axes.begin(), axes.end());
      if (!axes.empty() && borders_agree(dim, have, more))
        next.emplace_back(with(s, dim, more), cost);
    };
    const ir::Axes unused = free_axes(s);
    for (const ir::Axes& axes : choices(unused)) {
      if (wanted_next(dim, have, axes)) longer(axes, 0);
    }
    for (const ir::Axes& axes : choices(pending(s))) longer(axes, ring(axes) * bytes(s));
    for (size_t keep = 0; keep < have.size(); ++keep) {
      const ir::Axes kept(have.begin(), have.begin() + static_cast<int64_t>(keep)),
          gathered(have.begin() + static_cast<int64_t>(keep), have.end());
      if (!borders_agree(dim, kept, have)) continue;
      const Sharding whole = with(s, dim, kept);
      next.emplace_back(whole, ring(gathered) * bytes(whole));
      if (gathered.size() == 1) add_exchanges(s, whole, dim, gathered, next);
    }
    ir::Axes movable = unused;
    movable.insert(movable.end(), have.begin(), have.end());
    for (const ir::Axes& axes : choices(movable)) {
      if (axes != have && !have.empty() && wanted_next(dim, {}, axes) &&
          sharding::shards(axes, mesh_) == sharding::shards(have, mesh_))
        next.emplace_back(with(s, dim, axes), bytes(s));
    }
  }

  void add_exchanges(const Sharding& s, const Sharding& whole, size_t dim, const ir::Axes& axis,
                     Next& next) const {
    for (size_t other = 0; other < s.dims.size(); ++other) {
      ir::Axes more = s.dims[other];
      more.push_back(axis[0]);
      if (other != dim && borders_agree(other, s.dims[other], more))
        next.emplace_back(with(whole, other, more), ring(axis) * bytes(s));
    }
  }

  const ir::TensorType& type_;
  const Sharding& to_;
  const cluster::Mesh& mesh_;
};

TEST_CASE("no chain of three moves is cheaper than the one that is taken") {
  const cluster::Mesh meshes[] = {cluster::Mesh({{"dp", 2}, {"tp", 4}}),
                                  cluster::Mesh({{"tp", 3}, {"dp", 2}}),
                                  cluster::Mesh({{"dp", 2}, {"tp", 2}, {"cp", 2}})};
  const int64_t sizes[] = {3, 7, 8, 12, 16, 24};
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const cluster::Mesh& mesh = meshes[random.below(3)];
    const ir::TensorType type =
        ir::make_type(DType::kF32, {sizes[random.below(6)], sizes[random.below(6)]});
    ir::Axes all;
    for (const cluster::Axis& axis : mesh.axes()) all.push_back(axis.name);
    const Sharding from = random_sharding(random, type, mesh, all),
                   to = random_sharding(random, type, mesh, from.partial);
    const double taken = plan_reshard(type, from, to, mesh).bytes;
    CAPTURE(seed);
    // Paths are compared in thousandths of a byte.
    CHECK_MESSAGE(Chains(type, to, mesh).cheapest(from, 3, taken) > taken - 0.01,
                  ir::to_string(type), " on ", cluster::to_string(mesh), " from ", to_string(from),
                  " to ", to_string(to));
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
