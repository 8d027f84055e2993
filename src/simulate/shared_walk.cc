#include "simulate/shared_walk.h"

#include <algorithm>
#include <limits>

#include <absl/container/inlined_vector.h>

namespace mw::simulate {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNothing = 1e-9;  // of a link

class SharedClock {
 public:
  SharedClock(const FragmentCost& cost, Walk& walk, const WalkOptions& options)
      : cost_(cost),
        walk_(walk),
        shared_(walk.shared),
        options_(options),
        is_slower_(std::any_of(options.slowdowns.begin(), options.slowdowns.end(),
                               [](double slowdown) { return slowdown != 1; })) {}

  // Until the end (false) or until a collective over several pipeline ranks is next (true).
  bool run(double& meet) {
    while (true) {
      double start = kNever;
      const int32_t next = next_op(start);
      const double change = next_change();
      if (next < 0 && change == kNever) break;
      if (next < 0 || change < start) {
        go_on(change);
        continue;
      }
      go_on(start);
      const OpCost& op = op_of(next);
      if (op.cross >= 0) {
        const double sends = start + op.latency;
        meet = start + std::max(0.0, free_again(next, sends) - sends);
        walk_.next = static_cast<size_t>(next);
        return true;
      }
      begin(next, start);
    }
    for (size_t o = 0; o < cost_.ops.size(); ++o) {
      if (cost_.ops[o].alias) is_ended(static_cast<int32_t>(o));
    }
    walk_.next = cost_.ops.size();
    return false;
  }

 private:
  const OpCost& op_of(int32_t o) const { return cost_.ops[static_cast<size_t>(o)]; }
  uint32_t levels_of(const OpCost& op) const { return op.links & cost_.shared_levels; }

  // Of the streams' next ops the one that can start first, and when; -1: none can yet.
  int32_t next_op(double& start) {
    int32_t first = -1;
    for (size_t s = 0; s < cost_.queues.size(); ++s) {
      const std::vector<int32_t>& queue = cost_.queues[s];
      size_t& head = shared_.heads[s];
      if (!cost_.in_order) {
        while (head < queue.size() && op_of(queue[head]).alias) ++head;
      }
      if (head == queue.size()) continue;
      const int32_t o = queue[head];
      double at = 0;
      if (!can_start(o, at)) continue;
      if (at < start || (at == start && o < first)) {
        start = at;
        first = o;
      }
    }
    return first;
  }
  bool can_start(int32_t o, double& at) {
    const OpCost& op = op_of(o);
    at = walk_.streams[static_cast<size_t>(op.stream)];
    if (at == kNever || (op.cross >= 0 && o != first_cross()) || !are_there(op, at)) return false;
    // A collective that starts before the call was issued by the host long ago.
    if (!op.alias && (op.stream == 0 || options_.state_ready == nullptr))
      at = std::max(at, shared_.issued[static_cast<size_t>(o)]);
    return true;
  }
  // All ranks meet in the same order.
  int32_t first_cross() {
    size_t& first = shared_.first_cross;
    while (first < cost_.ops.size() && (cost_.ops[first].cross < 0 || shared_.ended[first]))
      ++first;
    return static_cast<int32_t>(first);
  }
  // Whether all that the op waits for has an end, which `at` is no earlier than then.
  bool are_there(const OpCost& op, double& at) {
    for (uint32_t d = op.first_dep; d < op.first_dep + op.deps; ++d) {
      const int32_t before = cost_.deps[d];
      if (!is_ended(before)) return false;
      at = std::max(at, walk_.spans[static_cast<size_t>(before)].end);
    }
    if (options_.state_ready == nullptr) return true;
    for (uint32_t s = op.first_state; s < op.first_state + op.states; ++s)
      at = std::max(at, (*options_.state_ready)[static_cast<size_t>(cost_.state_reads[s])]);
    return true;
  }
  // By data alone an alias is on no stream: it is there with what it is of.
  bool is_ended(int32_t o) {
    const OpCost& op = op_of(o);
    if (shared_.ended[static_cast<size_t>(o)] || !op.alias || cost_.in_order)
      return shared_.ended[static_cast<size_t>(o)];
    double at = 0;
    if (!are_there(op, at)) return false;
    end(o, at, at);
    return true;
  }

  void end(int32_t o, double start, double at) {
    walk_.spans[static_cast<size_t>(o)] = {start, at};
    shared_.ended[static_cast<size_t>(o)] = true;
  }

  void begin(int32_t o, double start) {
    const OpCost& op = op_of(o);
    const auto stream = static_cast<size_t>(op.stream);
    ++shared_.heads[stream];
    if (op.alias) {
      end(o, start, start);
      walk_.streams[stream] = start;
      return;
    }
    double takes = op.device;
    if (op.levels != 0) takes = beside_others(op, start, options_);
    if (is_slower_ && op.label < 0 && op.stream == 0) {
      walk_.spans[static_cast<size_t>(o)].start = start;
      walk_.streams[stream] = kNever;
      shared_.computing = {o, start, takes};
      return;
    }
    const bool depends = levels_of(op) != 0 || (is_slower_ && op.label >= 0);
    if (depends && takes > op.latency) {
      walk_.spans[static_cast<size_t>(o)].start = start;
      walk_.streams[stream] = kNever;
      shared_.sending.push_back({o, start + op.latency, takes - op.latency});
      return;
    }
    end(o, start, start + takes);
    walk_.streams[stream] = start + takes;
    walk_.end = std::max(walk_.end, start + takes);
  }

  // When those that have a link of op `o` at `at` leave it, if nobody comes; at once where there is
  // as much of the links as the op wants.
  double free_again(int32_t o, double at) const {
    const OpCost& op = op_of(o);
    std::vector<Walk::Shared::Sending> others;
    for (const Walk::Shared::Sending& other : shared_.sending) {
      if (other.from <= at && (levels_of(op_of(other.op)) & levels_of(op)) != 0)
        others.push_back(other);
    }
    if (has_room(o, others)) others.clear();
    std::sort(others.begin(), others.end(),
              [](const auto& a, const auto& b) { return a.from < b.from; });
    double free = others.empty() ? at : shared_.now;
    for (const Walk::Shared::Sending& other : others)
      free = std::max(free, other.from) + other.left;
    // Behind those that it would not be done before.
    const double sending = op.device - op.latency;
    for (bool later = true; later;) {
      later = false;
      for (const Walk::Shared::Crossing& cross : shared_.crossings) {
        const double then = std::max(free, at);
        if (cross.end <= then || then + sending <= cross.begin || have_room(o, cross)) continue;
        free = cross.end;
        later = true;
      }
    }
    return free;
  }

  double use(int32_t o, size_t level) const {
    return level < cost_.uses.size() ? cost_.uses[level][static_cast<size_t>(o)] : 1;
  }
  // What each user of a level may take of it, so that those that want no more have what they want
  // and the others have the rest in even shares.
  using Uses = absl::InlinedVector<double, 8>;
  static double fair_share(Uses uses, double rest) {
    if (uses.size() == 1) return rest;
    std::sort(uses.begin(), uses.end());
    for (size_t i = 0; i < uses.size(); ++i) {
      const double share = rest / static_cast<double>(uses.size() - i);
      if (uses[i] > share) return share;
      rest -= uses[i];
    }
    return 1;
  }
  // What collectives over several pipeline ranks leave of it: they take what they want.
  double left_of(size_t level) const {
    double rest = 1;
    for (const Walk::Shared::Crossing& cross : shared_.crossings) {
      if ((cross.levels >> level & 1) != 0 && cross.begin <= shared_.now && shared_.now < cross.end)
        rest -= use(cross.op, level);
    }
    return rest < kNothing ? 0 : rest;
  }
  double fair_share(size_t level) const {
    Uses uses;
    for (const Walk::Shared::Sending& one : shared_.sending) {
      if (one.from <= shared_.now && (levels_of(op_of(one.op)) >> level & 1) != 0)
        uses.push_back(use(one.op, level));
    }
    return fair_share(std::move(uses), left_of(level));
  }
  // Whether op `o` has all that it wants beside these.
  bool has_room(int32_t o, const std::vector<Walk::Shared::Sending>& others) const {
    const uint32_t levels = levels_of(op_of(o));
    for (size_t level = 0; levels >> level != 0; ++level) {
      if ((levels >> level & 1) == 0) continue;
      Uses uses = {use(o, level)};
      for (const Walk::Shared::Sending& other : others) {
        if ((levels_of(op_of(other.op)) >> level & 1) != 0) uses.push_back(use(other.op, level));
      }
      if (uses.size() > 1 && use(o, level) > fair_share(uses, 1)) return false;
    }
    return true;
  }
  bool have_room(int32_t o, const Walk::Shared::Crossing& cross) const {
    const uint32_t levels = levels_of(op_of(o)) & cross.levels;
    for (size_t level = 0; levels >> level != 0; ++level) {
      if ((levels >> level & 1) != 0 && use(o, level) + use(cross.op, level) > 1) return false;
    }
    return true;
  }
  double slowdown(Beside beside) const { return options_.slowdowns[static_cast<size_t>(beside)]; }
  bool computes() const { return shared_.computing.op >= 0; }
  // Seconds alone that computation, which is under way, has of a second from now on.
  double computing_rate() const {
    double most = 1;
    for (const Walk::Shared::Sending& one : shared_.sending) {
      if (one.from <= shared_.now) most = std::max(most, slowdown(op_of(one.op).beside));
    }
    for (const Walk::Shared::Crossing& cross : shared_.crossings) {
      if (cross.begin <= shared_.now && shared_.now < cross.end)
        most = std::max(most, slowdown(cross.beside));
    }
    return 1 / most;
  }
  // Seconds of its links alone, beside no computation, that a collective has of a second from now
  // on.
  double rate(const Walk::Shared::Sending& one) const {
    if (one.from > shared_.now) return 0;
    double least = 1;
    const uint32_t levels = levels_of(op_of(one.op));
    for (size_t level = 0; levels >> level != 0; ++level) {
      if ((levels >> level & 1) != 0)
        least = std::min(least, fair_share(level) / use(one.op, level));
    }
    return computes() ? least / slowdown(op_of(one.op).beside) : least;
  }
  // When what has `left` seconds alone and so much of a second from now on begins or ends.
  double change_of(const Walk::Shared::Sending& one, double rate) const {
    if (one.from > shared_.now) return one.from;
    return rate > 0 ? shared_.now + one.left / rate : kNever;
  }
  // When the next op under way ends or what it has of a second changes; kNever: none is.
  double next_change() const {
    if (shared_.sending.empty() && !computes()) return kNever;
    double next = kNever;
    if (computes()) next = change_of(shared_.computing, computing_rate());
    for (const Walk::Shared::Sending& one : shared_.sending)
      next = std::min(next, change_of(one, rate(one)));
    for (const Walk::Shared::Crossing& cross : shared_.crossings) {
      for (const double border : {cross.begin, cross.end}) {
        if (border > shared_.now) next = std::min(next, border);
      }
    }
    return next;
  }
  // What of it is left then. REQUIRES: nothing changes before.
  double left_at(double until, const Walk::Shared::Sending& one, double rate) const {
    if (one.from <= shared_.now && change_of(one, rate) <= until) return 0;
    return one.left - rate * (until - shared_.now);
  }
  // REQUIRES: nothing changes before.
  void go_on(double until) {
    std::vector<Walk::Shared::Sending>& sending = shared_.sending;
    Walk::Shared::Sending& computing = shared_.computing;
    const bool waits = sending.empty() && !computes();
    if (!waits && until >= shared_.now) {  // also what is left of a rounded second
      absl::InlinedVector<double, 8> left;
      for (const Walk::Shared::Sending& one : sending)
        left.push_back(left_at(until, one, rate(one)));
      if (computes()) {
        computing.left = left_at(until, computing, computing_rate());
        if (computing.left <= 0) {
          end_at(computing.op, until);
          computing.op = -1;
        }
      }
      size_t kept = 0;
      for (size_t i = 0; i < sending.size(); ++i) {
        sending[i].left = left[i];
        if (left[i] > 0) {
          sending[kept++] = sending[i];
        } else {
          end_at(sending[i].op, until);
        }
      }
      sending.resize(kept);
    }
    // Back, too: what waits for other ranks in the order of the program may have begun early.
    shared_.now = waits ? until : std::max(shared_.now, until);
  }
  void end_at(int32_t o, double at) {
    end(o, walk_.spans[static_cast<size_t>(o)].start, at);
    walk_.streams[static_cast<size_t>(op_of(o).stream)] = at;
    walk_.end = std::max(walk_.end, at);
  }

  const FragmentCost& cost_;
  Walk& walk_;
  Walk::Shared& shared_;
  const WalkOptions& options_;
  const bool is_slower_;  // what runs beside each other
};

}  // namespace

bool advance_shared(const FragmentCost& cost, Walk& walk, const WalkOptions& options,
                    double& meet) {
  return SharedClock(cost, walk, options).run(meet);
}

void finish_cross_shared(const FragmentCost& cost, Walk& walk, double start, double end) {
  const OpCost& op = cost.ops[walk.next];
  const uint32_t levels = op.links & cost.shared_levels;
  if (end > start + op.latency)
    walk.shared.crossings.push_back(
        {static_cast<int32_t>(walk.next), levels, op.beside, start + op.latency, end});
  walk.spans[walk.next] = {start, end};
  walk.shared.ended[walk.next] = true;
  ++walk.shared.heads[static_cast<size_t>(op.stream)];
  walk.streams[static_cast<size_t>(op.stream)] = end;
  walk.end = std::max(walk.end, end);
}

}  // namespace mw::simulate
