#include "simulate/pair_cost.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace mw::simulate {
namespace {

bool is_exchange(const OpCost& op) { return op.label >= 0 && op.beside == Beside::kOther; }
// Whether the other's computation waits for it as its own does.
bool holds(const OpCost& op) {
  return op.label >= 0 && op.beside != Beside::kOther && op.beside != Beside::kParamGather &&
         op.beside != Beside::kGradReduce;
}

class Joiner {
 public:
  Joiner(const FragmentCost& first, const FragmentCost& second, size_t begins)
      : sides_{Side(first), Side(second)}, last_(begins) {
    for (Side& side : sides_) {
      MW_CHECK(!side.cost.crosses, "a call that meets other ranks is laid beside another");
      for (const OpCost& op : side.cost.ops) {
        if (is_exchange(op)) side.exchanges += op.device;
      }
    }
    name_streams();
  }

  PairCost join() {
    while (true) {
      for (size_t i = 0; i < 2; ++i) add_aliases(i);
      double starts[2];
      for (size_t i = 0; i < 2; ++i) starts[i] = next_start(sides_[i]);
      if (starts[0] == kNever && starts[1] == kNever) break;
      size_t which = starts[1] < starts[0] ? 1 : 0;
      if (starts[0] == starts[1]) {
        const double longer = sides_[1].exchanges - sides_[0].exchanges;
        const bool none_yet = made_.cost.ops.empty();
        which = none_yet || longer == 0 ? last_ : longer > 0 ? 1 : 0;
      }
      add(which, starts[which]);
      last_ = which;
    }
    made_.cost.streams = static_cast<int32_t>(streams_.size());
    for (size_t i = 0; i < 2; ++i) {
      MW_CHECK(sides_[i].next == sides_[i].cost.ops.size(),
               "an op never starts: a time is infinite");
      made_.place_of[i] = std::move(sides_[i].place);
    }
    add_uses();
    find_queues(made_.cost);
    return std::move(made_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Side {
    explicit Side(const FragmentCost& from) : cost(from) {}
    const FragmentCost& cost;
    size_t next = 0;                          // op
    std::vector<int32_t> place;               // [op]
    std::vector<int32_t> stream;              // [stream] of both
    std::vector<int32_t> last;                // [stream] its last op that runs, among those of both
    std::vector<std::vector<int32_t>> waits;  // [stream] what its next op waits for, too
    double exchanges = 0;                     // seconds of those that are left
  };

  // Collectives of one label are on one stream, whoever's they are: that of their process group.
  void name_streams() {
    std::vector<int32_t> label_of(1, -1);  // [stream of both] of its first collective
    for (Side& side : sides_) {
      const auto streams = static_cast<size_t>(side.cost.streams);
      side.last.assign(streams, -1);
      side.waits.resize(streams);
      side.stream.assign(streams, -1);
      side.stream[0] = 0;
      for (const OpCost& op : side.cost.ops) {
        int32_t& stream = side.stream[static_cast<size_t>(op.stream)];
        if (stream >= 0 || op.alias) continue;
        const bool own = op.label < 0;
        const auto at = std::find(label_of.begin() + 1, label_of.end(), op.label);
        stream = static_cast<int32_t>((own ? label_of.end() : at) - label_of.begin());
        const bool taken = static_cast<size_t>(stream) < label_of.size() &&
                           std::count(side.stream.begin(), side.stream.end(), stream) > 1;
        if (taken) stream = static_cast<int32_t>(label_of.size());
        if (static_cast<size_t>(stream) == label_of.size()) label_of.push_back(op.label);
      }
      for (int32_t& stream : side.stream) stream = std::max(stream, 0);  // of aliases alone
    }
    streams_.assign(label_of.size(), 0);
  }

  // What the side's next op waits for, among the ops of both.
  std::vector<int32_t> deps_of(const Side& side) const {
    const OpCost& op = side.cost.ops[side.next];
    std::vector<int32_t> deps;
    for (uint32_t d = op.first_dep; d < op.first_dep + op.deps; ++d)
      deps.push_back(side.place[static_cast<size_t>(side.cost.deps[d])]);
    const std::vector<int32_t>& waits = side.waits[static_cast<size_t>(op.stream)];
    deps.insert(deps.end(), waits.begin(), waits.end());
    return deps;
  }
  double ready(const std::vector<int32_t>& deps) const {
    double at = 0;
    for (const int32_t dep : deps) at = std::max(at, ends_[static_cast<size_t>(dep)]);
    return at;
  }

  // Views of what is there run nowhere. In order of a stream they are behind all before them, and
  // what comes after waits for what they wait for.
  void add_aliases(size_t which) {
    Side& side = sides_[which];
    for (; side.next < side.cost.ops.size() && side.cost.ops[side.next].alias; ++side.next) {
      const auto stream = static_cast<size_t>(side.cost.ops[side.next].stream);
      std::vector<int32_t> deps = deps_of(side);
      if (side.cost.in_order) {
        side.waits[stream] = deps;
        if (side.last[stream] >= 0) deps.push_back(side.last[stream]);
      }
      place(which, deps);
      ends_.push_back(ready(deps));
    }
  }

  double next_start(const Side& side) const {
    if (side.next == side.cost.ops.size()) return kNever;
    const OpCost& op = side.cost.ops[side.next];
    const auto stream = static_cast<size_t>(side.stream[static_cast<size_t>(op.stream)]);
    double start = std::max({streams_[stream], ready(deps_of(side)), host_ + op.host});
    const size_t other = &side == &sides_[0] ? 1 : 0;
    if (stream == 0 || holds(op)) start = std::max(start, held_[other]);
    if (const int32_t last = sides_[other].last[0]; holds(op) && last >= 0)
      start = std::max(start, ends_[static_cast<size_t>(last)]);
    return start;
  }

  void add(size_t which, double start) {
    Side &side = sides_[which], &other = sides_[1 - which];
    const OpCost& op = side.cost.ops[side.next];
    const auto own = static_cast<size_t>(op.stream);
    const auto stream = static_cast<size_t>(side.stream[own]);
    std::vector<int32_t> deps = deps_of(side);
    if (stream == 0 || holds(op)) {
      if (holding_[1 - which] >= 0) deps.push_back(holding_[1 - which]);
      if (holds(op) && other.last[0] >= 0) deps.push_back(other.last[0]);
    }
    const auto here = static_cast<int32_t>(made_.cost.ops.size());
    const double end = start + op.device;
    if (holds(op)) {
      holding_[which] = here;
      held_[which] = std::max(held_[which], end);
    }
    if (is_exchange(op)) side.exchanges -= op.device;
    side.waits[own].clear();
    side.last[own] = here;
    place(which, deps);
    ends_.push_back(end);
    streams_[stream] = end;
    host_ += op.host;
    ++side.next;
  }

  void place(size_t which, const std::vector<int32_t>& deps) {
    Side& side = sides_[which];
    FragmentCost& cost = made_.cost;
    OpCost op = side.cost.ops[side.next];
    op.stream = side.stream[static_cast<size_t>(op.stream)];
    op.first_dep = static_cast<uint32_t>(cost.deps.size());
    op.deps = static_cast<uint32_t>(deps.size());
    op.first_state = op.states = 0;
    cost.deps.insert(cost.deps.end(), deps.begin(), deps.end());
    side.place.push_back(static_cast<int32_t>(cost.ops.size()));
    cost.ops.push_back(op);
  }

  // A level that is shared in neither may be in both.
  void add_uses() {
    FragmentCost& cost = made_.cost;
    size_t levels = 0;
    for (const Side& side : sides_) levels = std::max(levels, side.cost.uses.size());
    cost.uses.assign(levels, std::vector<double>(cost.ops.size(), 1));
    for (size_t i = 0; i < 2; ++i) {
      for (size_t l = 0; l < sides_[i].cost.uses.size(); ++l) {
        for (size_t o = 0; o < sides_[i].cost.ops.size(); ++o)
          cost.uses[l][static_cast<size_t>(made_.place_of[i][o])] = sides_[i].cost.uses[l][o];
      }
    }
  }

  std::array<Side, 2> sides_;
  PairCost made_;
  std::vector<double> ends_;     // [op of both]
  std::vector<double> streams_;  // [stream of both] when it is free
  double host_ = 0;
  std::array<int32_t, 2> holding_ = {-1, -1};  // the side's last collective that holds the other
  std::array<double, 2> held_ = {0, 0};        // until then
  size_t last_;                                // the side whose op came last
};

}  // namespace

bool has_exchanges(const FragmentCost& cost) {
  return std::any_of(cost.ops.begin(), cost.ops.end(), is_exchange);
}

PairCost pair_cost(const FragmentCost& first, const FragmentCost& second, size_t begins) {
  return Joiner(first, second, begins).join();
}

namespace {

Walk walked(const FragmentCost& cost, const Slowdowns& slowdowns) {
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  MW_CHECK(!advance(cost, walk, {.slowdowns = slowdowns}, meet),
           "a pair of its own meets others at {}", meet);
  return walk;
}

}  // namespace

TimedPair time_pair(const FragmentCost& first, const FragmentCost& second,
                    const Slowdowns& slowdowns, uint32_t levels, size_t labels) {
  PairCost pair = pair_cost(first, second, 0);
  Walk walk = walked(pair.cost, slowdowns);
  PairCost other = pair_cost(first, second, 1);
  if (Walk turned = walked(other.cost, slowdowns); turned.end < walk.end) {
    std::swap(pair, other);
    std::swap(walk, turned);
  }
  TimedPair timed;
  timed.time = divide(pair.cost, walk, 0, walk.end, labels);
  timed.links = link_use(pair.cost, walk.spans, levels);
  timed.taken = link_use(pair.cost, walk.spans, ~uint32_t{0}, &OpCost::fills);
  for (size_t i = 0; i < 2; ++i) {
    for (const int32_t place : pair.place_of[i])
      timed.spans[i].push_back(walk.spans[static_cast<size_t>(place)]);
  }
  return timed;
}

}  // namespace mw::simulate
