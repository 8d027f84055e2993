#include "simulate/shared_walk.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace mw::simulate {
namespace {

constexpr uint32_t kLevels = 2, kStreams = 4;

// Ops of random lengths on a stream of computation and three of collectives over two shared levels.
FragmentCost random_cost(std::mt19937& engine) {
  const auto below = [&](size_t count) { return static_cast<size_t>(engine()) % count; };
  FragmentCost cost;
  cost.streams = kStreams;
  cost.in_order = true;
  cost.shared_levels = (1 << kLevels) - 1;
  cost.queues.resize(kStreams);
  cost.uses.resize(kLevels);
  for (size_t o = 0; o < 14; ++o) {
    OpCost op;
    op.stream = static_cast<int32_t>(below(kStreams));
    op.device = 0.25 * static_cast<double>(1 + below(12));
    if (op.stream > 0) {
      op.label = op.stream - 1;
      op.latency = 0.25 * static_cast<double>(below(3));
      op.device += op.latency;
      op.levels = op.links = static_cast<uint32_t>(1 + below(cost.shared_levels));
      op.beside = static_cast<Beside>(below(kBesides));
    }
    op.first_dep = static_cast<uint32_t>(cost.deps.size());
    for (size_t d = 0; o > 0 && d < below(3); ++d)
      cost.deps.push_back(static_cast<int32_t>(below(o)));
    op.deps = static_cast<uint32_t>(cost.deps.size()) - op.first_dep;
    cost.queues[static_cast<size_t>(op.stream)].push_back(static_cast<int32_t>(o));
    for (std::vector<double>& uses : cost.uses)
      uses.push_back(std::vector{0.25, 0.5, 1.0}[below(3)]);
    cost.ops.push_back(op);
  }
  return cost;
}

// The same in small steps of time: [op] its end.
std::vector<double> ends_by_steps(const FragmentCost& cost, double step,
                                  const Slowdowns& slowdowns) {
  std::vector<double> ends(cost.ops.size(), -1), done(cost.ops.size(), 0);
  std::vector<size_t> heads(kStreams, 0);
  size_t open = cost.ops.size();
  for (double now = 0; open > 0; now += step) {
    std::vector<size_t> running;
    for (size_t s = 0; s < kStreams; ++s) {
      if (heads[s] == cost.queues[s].size()) continue;
      const auto o = static_cast<size_t>(cost.queues[s][heads[s]]);
      const OpCost& op = cost.ops[o];
      const auto first = cost.deps.begin() + op.first_dep;
      if (std::all_of(first, first + op.deps, [&](int32_t d) {
            const double end = ends[static_cast<size_t>(d)];
            return end >= 0 && end <= now + step / 2;
          }))
        running.push_back(o);
    }
    const auto sends = [&](size_t o, size_t level) {
      return (cost.ops[o].levels >> level & 1) != 0 && done[o] >= cost.ops[o].latency - step / 2;
    };
    std::vector<double> rates(cost.ops.size(), 1);
    for (size_t level = 0; level < kLevels; ++level) {
      // Drop by drop to all who want more.
      std::vector<double> has(cost.ops.size(), 0);
      double left = 1;
      for (bool given = true; given && left > 1e-9;) {
        given = false;
        for (const size_t o : running) {
          if (!sends(o, level) || has[o] >= cost.uses[level][o]) continue;
          has[o] += 1.0 / 1024;
          left -= 1.0 / 1024;
          given = true;
        }
      }
      for (const size_t o : running) {
        if (sends(o, level)) rates[o] = std::min(rates[o], has[o] / cost.uses[level][o]);
      }
    }
    // Computation and what is on its way are slower beside each other.
    for (const size_t computes : running) {
      if (cost.ops[computes].stream != 0) continue;
      double most = 1;
      for (const size_t o : running) {
        if (cost.ops[o].stream == 0 || done[o] < cost.ops[o].latency - step / 2) continue;
        const double slowdown = slowdowns[static_cast<size_t>(cost.ops[o].beside)];
        rates[o] /= slowdown;
        most = std::max(most, slowdown);
      }
      rates[computes] /= most;
    }
    for (const size_t o : running) {
      done[o] += step * std::min(1.0, rates[o]);
      if (done[o] < cost.ops[o].device - step / 2) continue;
      ends[o] = now + step;
      ++heads[static_cast<size_t>(cost.ops[o].stream)];
      --open;
    }
  }
  return ends;
}

// Two ops on streams of their own that have a level's link in turn.
FragmentCost two_in_order() {
  FragmentCost cost;
  cost.streams = 3;
  cost.in_order = true;
  cost.shared_levels = 1;
  cost.queues = {{}, {0}, {1}};
  cost.ops.resize(2);
  cost.ops[0].stream = 1;
  cost.ops[1].stream = 2;
  return cost;
}

}  // namespace

TEST_CASE(
    "shared links are divided, and what runs beside each other is slower, as in small steps of "
    "time") {
  std::mt19937 engine(5);
  for (int turn = 0; turn < 120; ++turn) {
    const FragmentCost cost = random_cost(engine);
    WalkOptions options;
    for (double& slowdown : options.slowdowns)
      slowdown = turn % 2 == 0 ? 1 : std::vector{1.0, 1.25, 2.0}[engine() % 3];
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    REQUIRE_FALSE(advance_shared(cost, walk, options, meet));
    const std::vector<double> ends = ends_by_steps(cost, 1.0 / 256, options.slowdowns);
    for (size_t o = 0; o < ends.size(); ++o) {
      CAPTURE(turn);
      CAPTURE(o);
      CHECK(walk.spans[o].end == doctest::Approx(ends[o]).epsilon(0.01));
    }
  }
}

TEST_CASE("what is waited for from other pipeline ranks comes in the order of the program") {
  // Two such collectives, the second of which could be first; the link is the first's alone from 3
  // to 5, while another collective has a second left.
  FragmentCost cost;
  cost.streams = 4;
  cost.in_order = true;
  cost.shared_levels = 1;
  cost.queues = {{0}, {1}, {2}, {3}};
  cost.ops.resize(4);
  for (size_t o = 0; o < 4; ++o) {
    cost.ops[o].stream = static_cast<int32_t>(o);
    cost.ops[o].device = 2;
    if (o > 0)
      cost.ops[o].levels = cost.ops[o].links = 1, cost.ops[o].label = static_cast<int32_t>(o) - 1;
  }
  cost.ops[1].cross = 0;
  cost.ops[1].deps = 1;
  cost.deps = {0};
  cost.ops[2].cross = 1;
  cost.ops[3].device = 4;
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(walk.next == 1);
  CHECK(meet == 4);  // when the link is free again
  finish_cross(cost, walk, 4, 6);
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(walk.next == 2);
  finish_cross(cost, walk, 6, 7);
  CHECK_FALSE(advance(cost, walk, {}, meet));
  CHECK(walk.spans[3].end == 4);
  CHECK(walk.end == 7);
  // Others stand still while it has the link.
  walk.begin(cost, 0);
  REQUIRE(advance(cost, walk, {}, meet));
  finish_cross(cost, walk, 3, 5);
  REQUIRE(advance(cost, walk, {}, meet));
  finish_cross(cost, walk, 6, 7);
  CHECK_FALSE(advance(cost, walk, {}, meet));
  CHECK(walk.spans[3].end == 6);
}

TEST_CASE("what is waited for from other pipeline ranks takes of a link what it wants") {
  // It could begin at 2 s, beside another collective that has the whole link for 4 s.
  FragmentCost cost;
  cost.streams = 3;
  cost.in_order = true;
  cost.shared_levels = 1;
  cost.queues = {{0}, {1}, {2}};
  cost.ops.resize(3);
  for (size_t o = 0; o < 3; ++o) {
    cost.ops[o].stream = static_cast<int32_t>(o);
    cost.ops[o].device = o == 2 ? 4 : 2;
    if (o > 0)
      cost.ops[o].levels = cost.ops[o].links = 1, cost.ops[o].label = static_cast<int32_t>(o) - 1;
  }
  cost.ops[1].cross = 0;
  cost.ops[1].deps = 1;
  cost.deps = {0};
  struct Case {
    double wants, meet, other_end;
  };
  // Half of it is its share; what is left is the other's.
  for (const Case& c : {Case{0.25, 2, 4.5}, {0.5, 2, 5}, {0.75, 4, 4}, {1, 4, 4}}) {
    CAPTURE(c.wants);
    cost.uses = {{0, c.wants, 1}};
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    REQUIRE(advance(cost, walk, {}, meet));
    CHECK(meet == c.meet);
    finish_cross(cost, walk, meet, meet + 2);
    CHECK_FALSE(advance(cost, walk, {}, meet));
    CHECK(walk.spans[2].end == c.other_end);
  }
}

TEST_CASE(
    "two that other pipeline ranks begin with have a link together if it is enough for both") {
  FragmentCost cost = two_in_order();
  for (size_t o = 0; o < 2; ++o) {
    cost.ops[o].device = 3;
    cost.ops[o].links = 1;
    cost.ops[o].label = cost.ops[o].cross = static_cast<int32_t>(o);
  }
  for (const double second : {0.4, 0.6}) {
    CAPTURE(second);
    cost.uses = {{0.6, second}};
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    REQUIRE(advance(cost, walk, {}, meet));
    finish_cross(cost, walk, 0, 3);
    REQUIRE(advance(cost, walk, {}, meet));
    CHECK(meet == (second == 0.4 ? 0 : 3));
  }
}

TEST_CASE("of two that other pipeline ranks begin with at once the second waits for the link") {
  FragmentCost cost = two_in_order();
  for (size_t o = 0; o < 2; ++o) {
    cost.ops[o].device = 3;
    cost.ops[o].latency = 1;
    cost.ops[o].links = 1;
    cost.ops[o].label = cost.ops[o].cross = static_cast<int32_t>(o);
  }
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(meet == 0);
  finish_cross(cost, walk, 0, 3);
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(meet == 2);  // its second without bytes is beside the last of the first's
  finish_cross(cost, walk, 2, 5);
  CHECK_FALSE(advance(cost, walk, {}, meet));
  CHECK(walk.end == 5);
  // So it does where its bytes would begin before the first's and be in their way: those are later
  // by what other ranks are late.
  for (const double late : {0.5, 1.0, 2.0, 3.0}) {
    CAPTURE(late);
    walk.begin(cost, 0);
    REQUIRE(advance(cost, walk, {}, meet));
    finish_cross(cost, walk, late, late + 3);
    REQUIRE(advance(cost, walk, {}, meet));
    CHECK(meet == (late < 2 ? late + 2 : 0));
  }
}

TEST_CASE("what has left the link before another's first byte does not hold that one up") {
  FragmentCost cost = two_in_order();
  for (size_t o = 0; o < 2; ++o) {
    cost.ops[o].links = 1;
    cost.ops[o].label = static_cast<int32_t>(o);
  }
  cost.ops[0].device = 1.5;
  cost.ops[1].device = 3;
  cost.ops[1].cross = 0;
  for (const auto& [latency, meets] : {std::pair{2.0, 0.0}, {1.5, 0.0}, {1.0, 0.5}, {0.0, 1.5}}) {
    CAPTURE(latency);
    cost.ops[1].latency = latency;
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    REQUIRE(advance(cost, walk, {}, meet));
    CHECK(meet == meets);
  }
}

TEST_CASE("what other pipeline ranks begin with is beside others between its bytes alone") {
  // From 1 s to 4 s over one link; computation of 4 s beside it, and 4 s over another link.
  FragmentCost cost = two_in_order();
  cost.shared_levels = 0b11;
  cost.queues = {{2}, {0}, {1}};
  cost.ops.resize(3);
  cost.ops[0].label = cost.ops[0].cross = 0;
  cost.ops[0].links = 0b01;
  cost.ops[0].beside = Beside::kTensor;
  cost.ops[1].label = 1;
  cost.ops[1].links = 0b10;
  for (OpCost& op : cost.ops) op.device = 4;
  WalkOptions options;
  options.slowdowns[static_cast<size_t>(Beside::kTensor)] = 2;
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  REQUIRE(advance(cost, walk, options, meet));
  finish_cross(cost, walk, 1, 4);
  CHECK_FALSE(advance(cost, walk, options, meet));
  CHECK(walk.spans[1].end == 4);
  CHECK(walk.spans[2].end == 5.5);  // 1 s alone, 1.5 s of its time beside, 1.5 s alone
}

TEST_CASE("only computation of the first stream and collectives of others slow each other down") {
  // A collective of 2 s on the first stream with 2 s of computation behind it, one of 3 s on the
  // second, and what sends nothing on the third.
  FragmentCost cost = two_in_order();
  cost.shared_levels = 0;
  cost.queues = {{0, 3}, {1}, {2}};
  cost.ops = std::vector<OpCost>(4);
  const double seconds[] = {2, 3, 6, 2};
  const int32_t streams[] = {0, 1, 2, 0}, labels[] = {0, 1, -1, -1};
  for (size_t o = 0; o < 4; ++o) {
    cost.ops[o].device = seconds[o];
    cost.ops[o].stream = streams[o];
    cost.ops[o].label = labels[o];
  }
  cost.ops[1].beside = Beside::kGradReduce;
  WalkOptions options;
  options.slowdowns.fill(3);
  options.slowdowns[static_cast<size_t>(Beside::kGradReduce)] = 2;
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  CHECK_FALSE(advance_shared(cost, walk, options, meet));
  CHECK(walk.spans[0].end == 2);
  CHECK(walk.spans[1].end == 4);  // its last second is beside computation
  CHECK(walk.spans[2].end == 6);
  CHECK(walk.spans[3].end == 5);
}

TEST_CASE("behind what other pipeline ranks began with early, ops begin early too") {
  // The first meets others at 2 s, behind computation; the second has begun with them at 0 s.
  FragmentCost cost = two_in_order();
  cost.queues = {{0}, {1}, {2, 3}};
  cost.ops = std::vector<OpCost>(4);
  for (size_t o = 0; o < 4; ++o) {
    cost.ops[o].device = 2;
    cost.ops[o].stream = static_cast<int32_t>(std::min<size_t>(o, 2));
    cost.ops[o].label = static_cast<int32_t>(o) - 1;
  }
  cost.ops[1].cross = 0;
  cost.ops[1].deps = 1;
  cost.deps = {0};
  cost.ops[2].cross = 1;
  cost.ops[3].links = 1;
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(meet == 2);
  finish_cross(cost, walk, 2, 4);
  REQUIRE(advance(cost, walk, {}, meet));
  CHECK(meet == 0);
  finish_cross(cost, walk, 0, 1);
  CHECK_FALSE(advance(cost, walk, {}, meet));
  CHECK(walk.spans[3].end == 3);
}

}  // namespace mw::simulate
