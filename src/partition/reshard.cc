#include "partition/reshard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "sharding/permutation.h"

namespace mw::partition {
namespace {

using ir::Axes;
using ir::OpKind;
using sharding::Sharding;

// Paths are compared in whole parts of a byte, so that equals are equal. A step is one part more: a
// slice costs no transfer, and among equals the fewest steps are taken.
constexpr double kParts = 1000;

// What is not partial has no reduction.
bool same(const Sharding& a, const Sharding& b) {
  return a.dims == b.dims && a.partial == b.partial &&
         (a.partial.empty() || a.reduction == b.reduction);
}

// Equal for what is the same, and hardly ever for what is not.
uint64_t fingerprint(const Sharding& s) {
  uint64_t hash = 0;
  const auto add = [&](const Axes& axes) {
    for (const Name axis : axes) hash = mix_bits(hash ^ reinterpret_cast<uintptr_t>(&axis.str()));
    hash = mix_bits(hash + 1);
  };
  for (const Axes& axes : s.dims) add(axes);
  add(s.partial);
  return hash;
}

struct Move {
  ReshardStep step;
  double bytes = 0;
};

class Planner {
 public:
  Planner(const ir::TensorType& global, const Sharding& to, const cluster::Mesh& mesh)
      : global_(global), to_(to), mesh_(mesh) {}

  ReshardPlan plan(const Sharding& from) {
    constexpr size_t kNone = std::numeric_limits<size_t>::max();
    struct Reached {
      Sharding sharding;
      int64_t parts = 0;
      size_t previous = 0;
      ReshardStep step;
      bool done = false;
      size_t next = kNone;
    };
    struct Node {
      int64_t least;  // of a path to the goal through it
      int64_t parts;  // so far
      int64_t order;  // insertion order: makes ties deterministic
      size_t at;
      bool operator>(const Node& other) const {
        return std::tie(least, parts, order) > std::tie(other.least, other.parts, other.order);
      }
    };
    std::vector<Reached> reached;
    // By fingerprint, and from there the next with the same: mostly a few, with many axes
    // thousands.
    std::unordered_map<uint64_t, size_t> places;
    const auto place_of = [&](const Sharding& sharding) -> size_t {
      const auto [it, is_new] = places.try_emplace(fingerprint(sharding), reached.size());
      if (is_new) return reached.size();
      size_t at = it->second;
      while (!same(reached[at].sharding, sharding)) {
        if (reached[at].next == kNone) return reached[at].next = reached.size();
        at = reached[at].next;
      }
      return at;
    };
    std::priority_queue<Node, std::vector<Node>, std::greater<>> queue;
    int64_t order = 0;
    place_of(from);
    reached.push_back({from, 0, 0, {}});
    queue.push({to_go(from), 0, order++, 0});
    std::optional<size_t> goal;
    int64_t enough = std::numeric_limits<int64_t>::max();  // a path of so many is known
    while (!queue.empty()) {
      const Node node = queue.top();
      queue.pop();
      if (reached[node.at].done) continue;
      reached[node.at].done = true;
      if (same(reached[node.at].sharding, to_)) {
        goal = node.at;
        break;
      }
      const Sharding sharding = reached[node.at].sharding;
      for (Move& move : moves(sharding)) {
        const int64_t parts = node.parts + std::llround(move.bytes * kParts) + 1;
        const int64_t least = parts + to_go(move.step.after);
        if (least >= enough) continue;
        const size_t at = place_of(move.step.after);
        if (at < reached.size() && reached[at].parts <= parts) continue;
        if (at == reached.size()) reached.emplace_back();
        Sharding after = move.step.after;
        reached[at] = {std::move(after),     parts, node.at,
                       std::move(move.step), false, reached[at].next};
        if (same(reached[at].sharding, to_)) enough = parts;
        queue.push({least, parts, order++, at});
      }
    }
    MW_CHECK(goal.has_value(), "no chain of collectives from {} to {} of {}", to_string(from),
             to_string(to_), ir::to_string(global_));
    ReshardPlan result;
    for (size_t at = *goal; at != 0; at = reached[at].previous)
      result.steps.push_back(reached[at].step);
    std::reverse(result.steps.begin(), result.steps.end());
    result.bytes =
        static_cast<double>(reached[*goal].parts - static_cast<int64_t>(result.steps.size())) /
        kParts;
    return result;
  }

 private:
  double local_bytes(const Sharding& s) const {
    return static_cast<double>(sharding::local_type(global_, s, mesh_).bytes().value);
  }
  // What gathers to `to` receive at the least: nothing else makes a device's part larger, but for
  // padding, which does not count.
  int64_t to_go(const Sharding& s) const {
    const auto all = static_cast<double>(global_.bytes().value);
    const auto part = [&](const Sharding& of) {
      int64_t parts = 1;
      for (const Axes& axes : of.dims) parts *= sharding::shards(axes, mesh_);
      return all / static_cast<double>(parts);
    };
    return static_cast<int64_t>(std::max(0.0, part(to_) - part(s)) * kParts);
  }
  double ring(const Axes& axes) const {
    const double n = static_cast<double>(sharding::shards(axes, mesh_));
    return (n - 1) / n;
  }
  bool divides(int dim, const Axes& axes) const {
    return global_.dim(dim) % sharding::shards(axes, mesh_) == 0;
  }
  // Borders of shards agree between `more` and its prefix `fewer`.
  bool compatible(int dim, const Axes& fewer, const Axes& more) const {
    return fewer.empty() || divides(dim, more);
  }
  bool wanted_partial(Name axis) const {
    return std::find(to_.partial.begin(), to_.partial.end(), axis) != to_.partial.end();
  }

  static bool uses(const Sharding& s, Name axis) {
    const auto has = [&](const Axes& axes) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end();
    };
    return has(s.partial) || std::any_of(s.dims.begin(), s.dims.end(), has);
  }

  std::vector<Move> moves(const Sharding& s) const {
    std::vector<Move> result;
    const int rank = static_cast<int>(s.dims.size());
    Axes pending;
    for (const Name axis : s.partial) {
      if (!wanted_partial(axis)) pending.push_back(axis);
    }
    if (!pending.empty()) add_reductions(s, pending, result);
    for (int dim = 0; dim < rank; ++dim) {
      add_gathers(s, dim, result);
      add_slices(s, dim, result);
      add_permute(s, dim, result);
      for (int other = 0; other < rank; ++other) {
        if (other != dim) add_all_to_all(s, dim, other, result);
      }
    }
    return result;
  }

  void add_reductions(const Sharding& s, const Axes& pending, std::vector<Move>& result) const {
    Sharding after = s;
    erase_if(after.partial, [&](Name a) { return !wanted_partial(a); });
    if (after.partial.empty()) after.reduction = ir::Reduction::kSum;
    result.push_back(
        {{OpKind::kAllReduce, pending, 0, 0, after}, 2 * ring(pending) * local_bytes(s)});
    // Scatter one of the pending axes over a dimension, or as many as the dimension wants next.
    for (const Name axis : pending) {
      for (int dim = 0; dim < static_cast<int>(s.dims.size()); ++dim)
        add_scatter(s, {axis}, dim, result);
    }
    for (int dim = 0; dim < static_cast<int>(s.dims.size()); ++dim) {
      const Axes& have = s.dims[static_cast<size_t>(dim)];
      const Axes& want = to_.dims[static_cast<size_t>(dim)];
      if (want.size() <= have.size() || !std::equal(have.begin(), have.end(), want.begin()))
        continue;
      Axes run;
      for (size_t i = have.size(); i < want.size(); ++i) {
        if (std::find(pending.begin(), pending.end(), want[i]) == pending.end()) break;
        run.push_back(want[i]);
        if (run.size() > 1) add_scatter(s, run, dim, result);
      }
    }
  }

  void add_scatter(const Sharding& s, const Axes& axes, int dim, std::vector<Move>& result) const {
    Sharding scattered = s;
    for (const Name axis : axes) erase(scattered.partial, axis);
    if (scattered.partial.empty()) scattered.reduction = ir::Reduction::kSum;
    Axes& of_dim = scattered.dims[static_cast<size_t>(dim)];
    const Axes before = of_dim;
    of_dim.insert(of_dim.end(), axes.begin(), axes.end());
    if (!compatible(dim, before, of_dim)) return;
    result.push_back(
        {{OpKind::kReduceScatter, axes, dim, 0, scattered}, ring(axes) * local_bytes(s)});
  }

  void add_gathers(const Sharding& s, int dim, std::vector<Move>& result) const {
    const Axes& axes = s.dims[static_cast<size_t>(dim)];
    for (size_t keep = 0; keep < axes.size(); ++keep) {
      const Axes kept(axes.begin(), axes.begin() + static_cast<int64_t>(keep));
      const Axes gathered(axes.begin() + static_cast<int64_t>(keep), axes.end());
      if (!compatible(dim, kept, axes)) continue;
      Sharding after = s;
      after.dims[static_cast<size_t>(dim)] = kept;
      result.push_back(
          {{OpKind::kAllGather, gathered, dim, 0, after}, ring(gathered) * local_bytes(after)});
    }
  }

  // Over the next of the wanted axes, and on to as many as are free.
  void add_slices(const Sharding& s, int dim, std::vector<Move>& result) const {
    const Axes& have = s.dims[static_cast<size_t>(dim)];
    const Axes& want = to_.dims[static_cast<size_t>(dim)];
    if (want.size() <= have.size() || !std::equal(have.begin(), have.end(), want.begin())) return;
    Axes added;
    for (size_t i = have.size(); i < want.size() && !uses(s, want[i]); ++i) {
      added.push_back(want[i]);
      Sharding after = s;
      Axes& cut = after.dims[static_cast<size_t>(dim)];
      cut.assign(want.begin(), want.begin() + static_cast<int64_t>(i) + 1);
      if (compatible(dim, have, cut))
        result.push_back({{OpKind::kShardSlice, added, dim, 0, after}, 0});
    }
  }

  // Straight to the wanted axes, or to as many of them as there are shards: the next steps are
  // those of the other dimensions, then a gather or a slice.
  void add_permute(const Sharding& s, int dim, std::vector<Move>& result) const {
    const Axes& have = s.dims[static_cast<size_t>(dim)];
    Axes want;
    for (const Name axis : to_.dims[static_cast<size_t>(dim)]) {
      if (sharding::shards(want, mesh_) >= sharding::shards(have, mesh_)) break;
      want.push_back(axis);
    }
    if (have.empty() || want == have ||
        sharding::shards(want, mesh_) != sharding::shards(have, mesh_))
      return;
    Sharding after = s;
    after.dims[static_cast<size_t>(dim)] = want;
    for (const Name axis : want) {
      if (std::find(s.partial.begin(), s.partial.end(), axis) != s.partial.end()) return;
      for (size_t other = 0; other < s.dims.size(); ++other) {
        if (static_cast<int>(other) == dim) continue;
        if (std::find(s.dims[other].begin(), s.dims[other].end(), axis) != s.dims[other].end())
          return;
      }
    }
    result.push_back({{OpKind::kPermute, sharding::permutation_axes(have, want), dim, 0, after},
                      local_bytes(s)});
  }

  void add_all_to_all(const Sharding& s, int from_dim, int to_dim,
                      std::vector<Move>& result) const {
    const Axes& axes = s.dims[static_cast<size_t>(from_dim)];
    if (axes.empty()) return;
    Sharding after = s;
    const Name axis = axes.back();
    after.dims[static_cast<size_t>(from_dim)].pop_back();
    Axes& target = after.dims[static_cast<size_t>(to_dim)];
    const Axes before = target;
    target.push_back(axis);
    if (!compatible(from_dim, after.dims[static_cast<size_t>(from_dim)], axes)) return;
    if (!compatible(to_dim, before, target)) return;
    result.push_back(
        {{OpKind::kAllToAll, {axis}, to_dim, from_dim, after}, ring({axis}) * local_bytes(s)});
  }

  const ir::TensorType& global_;
  const Sharding& to_;
  const cluster::Mesh& mesh_;
};

ir::TensorType with_dim(ir::TensorType type, int dim, int64_t size) {
  type.dims[static_cast<size_t>(dim)].size = size;
  return type;
}

}  // namespace

ReshardPlan plan_reshard(const ir::TensorType& global, const Sharding& from, const Sharding& to,
                         const cluster::Mesh& mesh) {
  if (from == to) return {};
  return Planner(global, to, mesh).plan(from);
}

ValueId emit_reshard(const ReshardPlan& plan, const ir::TensorType& global, ValueId local,
                     const Sharding& from, const cluster::Mesh& mesh,
                     const std::function<ir::TensorType(ValueId)>& type_of,
                     const AppendOp& append) {
  Sharding at = from;
  const auto make = [&](OpKind kind, ir::Attributes attrs, ValueId operand) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.operands = {operand};
    return op;
  };
  for (const ReshardStep& step : plan.steps) {
    const ir::TensorType target = sharding::local_type(global, step.after, mesh);
    const int64_t n = sharding::shards(step.axes, mesh);
    ir::TensorType type = type_of(local);
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{step.axes};
    attrs.op = at.reduction;
    attrs.dim = step.dim;
    attrs.concat_dim = step.concat_dim;
    if (step.kind != OpKind::kAllReduce) attrs.global_size = global.dim(step.dim);
    if (step.kind == OpKind::kPermute) {
      attrs.from = at.dims[static_cast<size_t>(step.dim)];
      attrs.to = step.after.dims[static_cast<size_t>(step.dim)];
    }
    const bool splits = step.kind == OpKind::kReduceScatter || step.kind == OpKind::kAllToAll;
    if (splits && type.dim(step.dim) != n * target.dim(step.dim)) {
      ir::PadAttrs pad;
      pad.low.assign(type.dims.size(), 0);
      pad.high.assign(type.dims.size(), 0);
      pad.high[static_cast<size_t>(step.dim)] = n * target.dim(step.dim) - type.dim(step.dim);
      type = with_dim(type, step.dim, n * target.dim(step.dim));
      local = append(make(OpKind::kPad, pad, local), type, at);
    }
    ir::TensorType result = target;
    const int joined = step.kind == OpKind::kAllGather ? step.dim : step.concat_dim;
    const bool joins = step.kind == OpKind::kAllGather || step.kind == OpKind::kAllToAll;
    if (joins) result = with_dim(result, joined, n * type.dim(joined));
    local = append(make(step.kind, attrs, local), result, step.after);
    if (joins && !(result == target))
      local = append(make(OpKind::kTrim, ir::NoAttrs{}, local), target, step.after);
    at = step.after;
  }
  return local;
}

}  // namespace mw::partition
