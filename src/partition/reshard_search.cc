// plan_reshard: the search, over shardings in numbers. Mixtures ask for hundreds of thousands of
// chains, some of which reach a thousand shardings.
#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/round.h"
#include "partition/reshard.h"
#include "sharding/permutation.h"

namespace mw::partition {
namespace {

using ir::Axes;
using ir::OpKind;
using sharding::Sharding;

// Paths are compared in whole parts of a byte, so that equals are equal. A step is one part more: a
// slice costs no transfer, and among equals the fewest steps are taken.
constexpr double kParts = 1000;

// Axes are numbered by name, from 0 on; a set of them has bit i for axis i.
using AxisSet = uint32_t;

bool has(AxisSet set, int axis) { return (set >> axis & 1) != 0; }

// The axes of a dimension, major first: four bits an axis, its number plus one.
class AxisList {
 public:
  static constexpr int kMost = 15;

  int size() const { return (std::bit_width(bits_) + 3) / 4; }
  bool empty() const { return bits_ == 0; }
  int operator[](int i) const { return static_cast<int>(bits_ >> (4 * i) & 15) - 1; }
  // REQUIRES: it holds fewer than kMost.
  void push_back(int axis) { bits_ |= static_cast<uint64_t>(axis + 1) << (4 * size()); }
  void append(AxisList more) { bits_ |= more.bits_ << (4 * size()); }
  // REQUIRES: n < 16, as are all sizes.
  AxisList first(int n) const { return AxisList(bits_ & ((uint64_t{1} << (4 * n)) - 1)); }
  AxisList behind(int n) const { return AxisList(bits_ >> (4 * n)); }
  // Longer, and the same up to there.
  bool continues(AxisList shorter) const {
    return size() > shorter.size() && first(shorter.size()) == shorter;
  }
  AxisSet set() const {
    AxisSet set = 0;
    for (int i = 0; i < size(); ++i) set |= AxisSet{1} << (*this)[i];
    return set;
  }
  uint64_t bits() const { return bits_; }
  AxisList() = default;
  friend bool operator==(AxisList, AxisList) = default;

 private:
  explicit AxisList(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};

// A sharding. What is pending is reduced in one way.
struct Layout {
  absl::InlinedVector<AxisList, 6> dims;
  AxisSet partial = 0;

  AxisSet used() const {
    AxisSet set = partial;
    for (const AxisList axes : dims) set |= axes.set();
    return set;
  }
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct LayoutHash {
  size_t operator()(const Layout& layout) const {
    uint64_t hash = layout.partial;
    for (const AxisList axes : layout.dims) hash = mix_bits(hash + 1) ^ axes.bits();
    return mix_bits(hash);
  }
};

// As a ReshardStep; a permute's axes are those of both sides.
struct Step {
  OpKind kind = OpKind::kAllReduce;
  AxisList axes;
  size_t dim = 0, concat_dim = 0;
};

struct Move {
  Step step;
  Layout after;
  double bytes = 0;
};

// The mesh axes that two shardings have, and shardings over them in numbers.
class Numbers {
 public:
  Numbers(const Sharding& from, const Sharding& to, const cluster::Mesh& mesh) {
    for (const Sharding* sharding : {&from, &to}) {
      for (const Axes& axes : sharding->dims) names_.insert(names_.end(), axes.begin(), axes.end());
      names_.insert(names_.end(), sharding->partial.begin(), sharding->partial.end());
    }
    std::sort(names_.begin(), names_.end());
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    MW_CHECK(names_.size() <= AxisList::kMost, "{} mesh axes in one reshard", names_.size());
    for (const Name name : names_) sizes_.push_back(mesh.axis_size(name));
  }

  Layout layout(const Sharding& sharding) const {
    Layout layout;
    for (const Axes& axes : sharding.dims) {
      AxisList& list = layout.dims.emplace_back();
      for (const Name name : axes) list.push_back(number(name));
    }
    for (const Name name : sharding.partial) layout.partial |= AxisSet{1} << number(name);
    return layout;
  }
  Sharding sharding(const Layout& layout, ir::Reduction reduction) const {
    Sharding sharding;
    for (const AxisList axes : layout.dims) sharding.dims.push_back(names(axes));
    sharding.partial = names(list(layout.partial));
    if (sharding.is_partial()) sharding.reduction = reduction;
    return sharding;
  }
  Axes names(AxisList list) const {
    Axes axes;
    for (int i = 0; i < list.size(); ++i) axes.push_back(names_[static_cast<size_t>(list[i])]);
    return axes;
  }
  // By name.
  AxisList list(AxisSet set) const {
    AxisList list;
    for (int axis = 0; axis < static_cast<int>(names_.size()); ++axis) {
      if (has(set, axis)) list.push_back(axis);
    }
    return list;
  }
  int64_t shards(AxisList axes) const {
    int64_t count = 1;
    for (int i = 0; i < axes.size(); ++i) count *= sizes_[static_cast<size_t>(axes[i])];
    return count;
  }

 private:
  int number(Name name) const {
    return static_cast<int>(std::lower_bound(names_.begin(), names_.end(), name) - names_.begin());
  }

  std::vector<Name> names_;
  std::vector<int64_t> sizes_;
};

// What can be done next with a layout on its way to `to`.
class Moves {
 public:
  Moves(const ir::TensorType& global, const Layout& to, const Numbers& numbers)
      : global_(global), to_(to), numbers_(numbers) {}

  // Until the next call.
  const std::vector<Move>& of(const Layout& layout) {
    moves_.clear();
    bytes_ = local_bytes(layout);
    used_ = layout.used();
    const AxisSet pending = layout.partial & ~to_.partial;
    if (pending != 0) add_reductions(layout, pending);
    for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
      add_gathers(layout, dim);
      add_slices(layout, dim);
      add_permute(layout, dim);
      for (size_t other = 0; other < layout.dims.size(); ++other) {
        if (other != dim) add_all_to_all(layout, dim, other);
      }
    }
    return moves_;
  }

 private:
  double local_bytes(const Layout& layout) const {
    int64_t elements = 1;
    for (size_t dim = 0; dim < layout.dims.size(); ++dim)
      elements *= ceil_div(global_.dims[dim].size, numbers_.shards(layout.dims[dim]));
    return static_cast<double>(elements * dtype_size(global_.dtype));
  }
  double ring(AxisList axes) const {
    const double n = static_cast<double>(numbers_.shards(axes));
    return (n - 1) / n;
  }
  // Borders of shards agree between `more` and its prefix `fewer`.
  bool compatible(size_t dim, AxisList fewer, AxisList more) const {
    return fewer.empty() || global_.dims[dim].size % numbers_.shards(more) == 0;
  }
  Layout& add(OpKind kind, AxisList axes, size_t dim, const Layout& before) {
    return moves_.emplace_back(Move{{kind, axes, dim, 0}, before, 0}).after;
  }
  void cost(double bytes) { moves_.back().bytes = bytes; }

  void add_reductions(const Layout& layout, AxisSet pending) {
    const AxisList all = numbers_.list(pending);
    add(OpKind::kAllReduce, all, 0, layout).partial &= ~pending;
    cost(2 * ring(all) * bytes_);
    // Scatter one of the pending axes over a dimension, or as many as the dimension wants next.
    for (int i = 0; i < all.size(); ++i) {
      for (size_t dim = 0; dim < layout.dims.size(); ++dim)
        add_scatter(layout, all.behind(i).first(1), dim);
    }
    for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
      const AxisList have = layout.dims[dim], want = to_.dims[dim];
      if (!want.continues(have)) continue;
      AxisList run;
      for (int i = have.size(); i < want.size() && has(pending, want[i]); ++i) {
        run.push_back(want[i]);
        if (run.size() > 1) add_scatter(layout, run, dim);
      }
    }
  }

  void add_scatter(const Layout& layout, AxisList axes, size_t dim) {
    AxisList more = layout.dims[dim];
    more.append(axes);
    if (!compatible(dim, layout.dims[dim], more)) return;
    Layout& after = add(OpKind::kReduceScatter, axes, dim, layout);
    after.partial &= ~axes.set();
    after.dims[dim] = more;
    cost(ring(axes) * bytes_);
  }

  void add_gathers(const Layout& layout, size_t dim) {
    const AxisList axes = layout.dims[dim];
    for (int keep = 0; keep < axes.size(); ++keep) {
      const AxisList kept = axes.first(keep), gathered = axes.behind(keep);
      if (!compatible(dim, kept, axes)) continue;
      Layout& after = add(OpKind::kAllGather, gathered, dim, layout);
      after.dims[dim] = kept;
      cost(ring(gathered) * local_bytes(after));
    }
  }

  // Over the next of the wanted axes, and on to as many as are free.
  void add_slices(const Layout& layout, size_t dim) {
    const AxisList have = layout.dims[dim], want = to_.dims[dim];
    if (!want.continues(have)) return;
    for (int n = have.size() + 1; n <= want.size() && !has(used_, want[n - 1]); ++n) {
      const AxisList cut = want.first(n);
      if (compatible(dim, have, cut))
        add(OpKind::kShardSlice, cut.behind(have.size()), dim, layout).dims[dim] = cut;
    }
  }

  // Straight to the wanted axes, or to as many of them as there are shards: the next steps are
  // those of the other dimensions, then a gather or a slice.
  void add_permute(const Layout& layout, size_t dim) {
    const AxisList have = layout.dims[dim];
    const int64_t shards = numbers_.shards(have);
    int n = 0;
    while (n < to_.dims[dim].size() && numbers_.shards(to_.dims[dim].first(n)) < shards) ++n;
    const AxisList want = to_.dims[dim].first(n);
    if (have.empty() || want == have || numbers_.shards(want) != shards) return;
    if ((want.set() & used_ & ~have.set()) != 0) return;
    add(OpKind::kPermute, {}, dim, layout).dims[dim] = want;
    cost(bytes_);
  }

  void add_all_to_all(const Layout& layout, size_t from_dim, size_t to_dim) {
    const AxisList axes = layout.dims[from_dim];
    if (axes.empty()) return;
    const AxisList fewer = axes.first(axes.size() - 1), axis = axes.behind(axes.size() - 1);
    AxisList more = layout.dims[to_dim];
    more.append(axis);
    if (!compatible(from_dim, fewer, axes) || !compatible(to_dim, layout.dims[to_dim], more))
      return;
    Layout& after = add(OpKind::kAllToAll, axis, to_dim, layout);
    after.dims[from_dim] = fewer;
    after.dims[to_dim] = more;
    moves_.back().step.concat_dim = from_dim;
    cost(ring(axis) * bytes_);
  }

  const ir::TensorType& global_;
  const Layout& to_;
  const Numbers& numbers_;
  std::vector<Move> moves_;
  double bytes_ = 0;  // a device's part of the layout that is asked about, and the axes it is on
  AxisSet used_ = 0;
};

// A*: what gathers to the goal receive at the least is a bound of what is to go.
class Search {
 public:
  Search(const ir::TensorType& global, const Layout& from, const Layout& to, const Numbers& numbers)
      : global_(global), to_(to), numbers_(numbers), moves_(global, to, numbers) {
    places_.emplace(from, 0);
    reached_.push_back({from});
    queue_.push({to_go(from), 0, order_++, 0});
  }

  struct Reached {
    Layout layout;
    int64_t parts = 0;
    size_t previous = 0;
    Step step = {};
    bool done = false;
  };

  // From the first move to the goal. None: there is no path.
  std::optional<std::vector<Reached>> path() {
    while (!queue_.empty()) {
      const Node node = queue_.top();
      queue_.pop();
      if (reached_[node.at].done) continue;
      reached_[node.at].done = true;
      if (reached_[node.at].layout == to_) return path_to(node.at);
      const Layout layout = reached_[node.at].layout;
      for (const Move& move : moves_.of(layout)) take(node, move);
    }
    return {};
  }

 private:
  struct Node {
    int64_t least;  // of a path to the goal through it
    int64_t parts;  // so far
    int64_t order;  // insertion order: makes ties deterministic
    size_t at;
    bool operator>(const Node& other) const {
      return std::tie(least, parts, order) > std::tie(other.least, other.parts, other.order);
    }
  };

  void take(const Node& node, const Move& move) {
    const int64_t parts = node.parts + std::llround(move.bytes * kParts) + 1;
    const int64_t least = parts + to_go(move.after);
    if (least >= enough_) return;
    const auto [place, is_new] = places_.try_emplace(move.after, reached_.size());
    const size_t at = place->second;
    if (is_new) {
      reached_.push_back({move.after});
    } else if (reached_[at].parts <= parts) {
      return;
    }
    Reached& now = reached_[at];
    if (now.layout == to_) enough_ = parts;
    now.parts = parts;
    now.previous = node.at;
    now.done = false;
    now.step = move.step;
    queue_.push({least, parts, order_++, at});
  }

  // What gathers to `to` receive at the least: nothing else makes a device's part larger, but for
  // padding, which does not count.
  int64_t to_go(const Layout& layout) const {
    return static_cast<int64_t>(std::max(0.0, part(to_) - part(layout)) * kParts);
  }
  double part(const Layout& layout) const {
    int64_t parts = 1;
    for (const AxisList axes : layout.dims) parts *= numbers_.shards(axes);
    return static_cast<double>(global_.bytes().value) / static_cast<double>(parts);
  }
  std::vector<Reached> path_to(size_t at) const {
    std::vector<Reached> path;
    for (; at != 0; at = reached_[at].previous) path.push_back(reached_[at]);
    std::reverse(path.begin(), path.end());
    return path;
  }

  const ir::TensorType& global_;
  const Layout& to_;
  const Numbers& numbers_;
  Moves moves_;
  std::vector<Reached> reached_;
  std::unordered_map<Layout, size_t, LayoutHash> places_;
  std::priority_queue<Node, std::vector<Node>, std::greater<>> queue_;
  int64_t order_ = 0;
  int64_t enough_ = std::numeric_limits<int64_t>::max();  // a path of so many is known
};

}  // namespace

ReshardPlan plan_reshard(const ir::TensorType& global, const Sharding& from, const Sharding& to,
                         const cluster::Mesh& mesh) {
  if (from == to) return {};
  const Numbers numbers(from, to, mesh);
  const Layout start = numbers.layout(from), goal = numbers.layout(to);
  const auto path = Search(global, start, goal, numbers).path();
  // What stays pending stays so in the same way.
  MW_CHECK(path.has_value() && (!to.is_partial() || from.reduction == to.reduction),
           "no chain of collectives from {} to {} of {}", to_string(from), to_string(to),
           ir::to_string(global));
  ReshardPlan plan;
  const Layout* before = &start;
  for (const Search::Reached& reached : *path) {
    const Step& step = reached.step;
    const Axes axes = step.kind == OpKind::kPermute
                          ? sharding::permutation_axes(numbers.names(before->dims[step.dim]),
                                                       numbers.names(reached.layout.dims[step.dim]))
                          : numbers.names(step.axes);
    plan.steps.push_back({step.kind, axes, static_cast<int>(step.dim),
                          static_cast<int>(step.concat_dim),
                          numbers.sharding(reached.layout, from.reduction)});
    before = &reached.layout;
  }
  const int64_t parts = path->empty() ? 0 : path->back().parts;
  plan.bytes = static_cast<double>(parts - static_cast<int64_t>(plan.steps.size())) / kParts;
  return plan;
}

}  // namespace mw::partition
