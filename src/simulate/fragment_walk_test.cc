#include "simulate/fragment_walk.h"

#include <doctest/doctest.h>

#include <utility>

#include "base/test_close_to.h"

namespace mw::simulate {

using mw::test::close_to;

// Its ops by stream, as FragmentCoster queues them.
void share_levels(FragmentCost& cost, uint32_t levels) {
  cost.shared_levels = levels;
  cost.queues.assign(static_cast<size_t>(cost.streams), {});
  for (size_t o = 0; o < cost.ops.size(); ++o) {
    const OpCost& op = cost.ops[o];
    if (op.stream > 0) cost.besides |= uint32_t{1} << static_cast<int>(op.beside);
    cost.queues[static_cast<size_t>(op.stream)].push_back(static_cast<int32_t>(o));
  }
}

// REQUIRES: no other ranks are met.
Walk walked_from_zero(const FragmentCost& cost) {
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  CHECK_FALSE(advance(cost, walk, {}, meet));
  return walk;
}

TEST_CASE("collectives of two streams share a link, of two links they go on at once") {
  // Two collectives of 3 s and 2 s that wait for nothing, and one of 1 s of the first one's stream.
  FragmentCost cost;
  cost.streams = 3;
  const auto add = [&](double seconds, int32_t stream, uint32_t levels) {
    OpCost op;
    op.device = seconds;
    op.stream = stream;
    op.label = stream - 1;
    op.levels = op.links = levels;
    cost.ops.push_back(op);
  };
  add(3, 1, 0b10);
  add(2, 2, 0b11);
  add(1, 1, 0b10);
  const auto walked = [&](uint32_t shared) {
    share_levels(cost, shared);
    Walk walk;
    walk.begin(cost, 10);
    double meet = 0;
    CHECK_FALSE(advance(cost, walk, {}, meet));
    return walk;
  };
  const Walk apart = walked(0);
  CHECK(apart.spans[1].end == 12);
  CHECK(apart.end == 14);
  // Half the link each until the second ends; the third comes behind the first on its stream.
  const Walk together = walked(0b10);
  CHECK(together.spans[0].end == 15);
  CHECK(together.spans[1].end == 14);
  CHECK(together.spans[2].start == 15);
  CHECK(together.spans[2].end == 16);
  CHECK(together.end == 16);
  // The second takes a quarter of the link, as another is narrower: it is not slowed down, and
  // leaves three quarters.
  cost.uses.assign(2, std::vector<double>(3, 1));
  cost.uses[1][1] = 0.25;
  const Walk narrow = walked(0b10);
  CHECK(narrow.spans[1].end == 12);
  CHECK(narrow.spans[0].end == 13.5);
}

TEST_CASE("a collective's latency leaves its link to others") {
  // Of 4 s and 5 s, of which 3 s and 1 s are latency, at once on two streams.
  FragmentCost cost;
  cost.streams = 3;
  for (const auto& [device, latency] : {std::pair{4.0, 3.0}, std::pair{5.0, 1.0}}) {
    OpCost op;
    op.device = device;
    op.latency = latency;
    op.stream = static_cast<int32_t>(cost.ops.size()) + 1;
    op.label = op.stream - 1;
    op.levels = op.links = 0b1;
    cost.ops.push_back(op);
  }
  share_levels(cost, 0b1);
  Walk walk;
  walk.begin(cost, 0);
  double meet = 0;
  CHECK_FALSE(advance(cost, walk, {}, meet));
  // The second has the link from 1 on, half of it from 3 to 5, while the first sends its second.
  CHECK(walk.spans[0].end == 5);
  CHECK(walk.spans[1].end == 6);
  const auto use = link_use(cost, walk.spans, 0b1);
  REQUIRE(use.size() == 1);
  REQUIRE(use[0].size() == 1);
  CHECK(use[0][0].begin == 1);
  // Of the levels that are asked for alone, and of nothing that is latency alone.
  cost.ops[0].levels = 0b11;
  const auto outside = link_use(cost, walk.spans, 0b10);
  REQUIRE(outside.size() == 2);
  CHECK(outside[0].empty());
  REQUIRE(outside[1].size() == 1);
  CHECK(outside[1][0].begin == 3);
  CHECK(outside[1][0].end == 5);
  cost.ops[0].levels = 0b1;
  CHECK(link_use(cost, {{0, 3}, {0, 1}}, 0b1).empty());
  // Of several pipeline ranks' the latency runs while another has the link.
  cost.ops[1].cross = 0;
  walk.begin(cost, 0);
  CHECK(advance(cost, walk, {}, meet));
  CHECK(meet == 0);
  cost.ops[1].latency = 3.5;
  walk.begin(cost, 0);
  CHECK(advance(cost, walk, {}, meet));
  CHECK(meet == 0.5);
  // Messages hold up what is behind the latency alone: half a second is shared.
  std::vector<std::vector<Interval>> messages{{{0, 2}}};
  cost.ops[1].cross = -1;
  walk.begin(cost, 0);
  CHECK_FALSE(advance(cost, walk, {.messages = &messages}, meet));
  CHECK(walk.spans[0].end == 4.5);
  CHECK(walk.spans[1].end == 5.5);
  // From 3 to 4 both stand still: 2 s of the first and 2 s of the second, from 3.5 on shared.
  messages = {{{3, 4}}};
  walk.begin(cost, 0);
  CHECK_FALSE(advance(cost, walk, {.messages = &messages}, meet));
  CHECK(walk.spans[0].end == 6.5);
  CHECK(walk.spans[1].end == 7);
}

TEST_CASE("messages hold up what crosses their level, other collectives what takes most of one") {
  // On a torus, whose sides have levels of their own: 3 s behind half a second of latency.
  OpCost op;
  op.device = 3.5;
  op.latency = 0.5;
  op.levels = 0b01;
  op.links = 0b110;
  op.fills = 0b010;
  const std::vector<std::vector<Interval>> messages{{{1, 2}}}, taken{{}, {{1, 3}}, {{0, 9}}};
  CHECK(beside_others(op, 0, {}) == 3.5);
  CHECK(beside_others(op, 0, {.messages = &messages}) == 4.5);
  CHECK(beside_others(op, 0, {.taken = &taken}) == 5.5);
  CHECK(beside_others(op, 0, {.messages = &messages, .taken = &taken}) == 5.5);
}

TEST_CASE("computation and collectives take longer beside each other") {
  // Two collectives of 3 s and 1 s, and three ops of 1 s beside them.
  FragmentCost cost;
  cost.streams = 3;
  const auto add = [&](double seconds, int32_t stream, Beside beside = Beside::kOther) {
    OpCost op;
    op.device = seconds;
    op.stream = stream;
    op.label = stream - 1;
    op.beside = beside;
    cost.ops.push_back(op);
  };
  add(3, 1, Beside::kTensor);
  add(1, 2, Beside::kGradReduce);
  for (int i = 0; i < 3; ++i) add(1, 0);
  // The same where collectives share a link that none of these crosses.
  uint32_t shared = 0;
  SUBCASE("apart") {}
  SUBCASE("where links are shared") { shared = 0b1; }
  share_levels(cost, shared);
  WalkOptions options;
  options.slowdowns[static_cast<size_t>(Beside::kTensor)] = 1.5;
  options.slowdowns[static_cast<size_t>(Beside::kGradReduce)] = 1.25;
  const auto walked = [&] {
    Walk walk;
    walk.begin(cost, 0);
    double meet = 0;
    CHECK_FALSE(advance(cost, walk, options, meet));
    return walk;
  };
  Walk walk = walked();
  // The longer collective takes 4.5 s beside them, in which three ops take 1.5 s each; the other
  // one 1.25 s.
  CHECK(walk.spans[0].end == 4.5);
  CHECK(walk.spans[1].end == 1.25);
  CHECK(walk.spans[2].end == 1.5);
  CHECK(walk.spans[3].end == 3);
  CHECK(walk.spans[4].end == 4.5);
  options.slowdowns[static_cast<size_t>(Beside::kGradReduce)] = 2;
  walk = walked();
  // Computation has half of the 2 s that the shorter one takes now; then it is beside the longer
  // one alone, which is slower by its own kind all the time.
  CHECK(walk.spans[1].end == 2);
  CHECK(walk.spans[0].end == 4.5);
  CHECK(walk.spans[2].end == 2);
  CHECK(walk.spans[3].end == 3.5);
  CHECK(walk.spans[4].end == close_to(4.5 + (1 - 1 / 1.5)));
  // Beside one that several pipeline ranks begin at 0 and end at 3.
  cost.ops[0].cross = 0;
  Walk met;
  met.begin(cost, 0);
  double meet = 0;
  REQUIRE(advance(cost, met, options, meet));
  finish_cross(cost, met, 0, 3);
  CHECK_FALSE(advance(cost, met, options, meet));
  CHECK(met.spans[2].end == 2);
  CHECK(met.spans[3].end == close_to(3 + (1 - 1 / 1.5)));
}

TEST_CASE("in order, what comes behind an empty op of a stream waits for what that waited for") {
  FragmentCost cost;
  cost.streams = 2;
  cost.ops.resize(3);
  cost.ops[0].device = 3;
  cost.ops[0].stream = 1;
  cost.ops[0].label = 0;
  cost.ops[1].alias = true;
  cost.ops[1].deps = 1;
  cost.deps = {0};
  cost.ops[2].device = 1;
  for (const bool in_order : {false, true}) {
    cost.in_order = in_order;
    const Walk walk = walked_from_zero(cost);
    CHECK(walk.spans[1].end == 3);
    CHECK(walk.spans[2].start == (in_order ? 3 : 0));
  }
}

TEST_CASE(
    "in order, who waits for an empty op waits for its stream; else for what it is of alone") {
  // 3 s of computation, a view of something else, and a collective of it.
  FragmentCost cost;
  cost.streams = 2;
  cost.ops.resize(3);
  cost.ops[0].device = 3;
  cost.ops[1].alias = true;
  cost.ops[2].device = 1;
  cost.ops[2].stream = 1;
  cost.ops[2].label = 0;
  cost.ops[2].deps = 1;
  cost.deps = {1};
  for (const bool in_order : {false, true}) {
    cost.in_order = in_order;
    const Walk walk = walked_from_zero(cost);
    CHECK(walk.spans[2].start == (in_order ? 3 : 0));
  }
}

TEST_CASE("collectives that begin before their call do not wait for its host") {
  FragmentCost cost;
  cost.streams = 2;
  cost.ops.resize(2);
  cost.ops[0].device = 3;
  cost.ops[0].stream = 1;
  cost.ops[0].label = 0;
  cost.ops[0].states = 1;
  cost.ops[1].device = 1;
  cost.state_reads = {0};
  const std::vector<double> ready = {4};
  for (const uint32_t shared : {0b0, 0b1}) {
    share_levels(cost, shared);
    Walk walk;
    walk.begin(cost, 10);
    walk.streams[1] = 0;
    double meet = 0;
    CHECK_FALSE(advance(cost, walk, {.state_ready = &ready}, meet));
    CHECK(walk.spans[0].start == 4);
    CHECK(walk.spans[1].start == 10);
  }
}

TEST_CASE("communication is exposed where nothing computes, and counts once where several run") {
  struct Case {
    std::vector<OpSpan> comm;
    double exposed, gaps;
  };
  // Beside computation from 0 to 4, in a call that ends at 10.
  const std::vector<Case> cases = {
      {{{0, 4}}, 0, 6},         {{{0, 6}}, 2, 4},  {{{5, 8}, {6, 9}}, 4, 2},
      {{{0, 2}, {1, 6}}, 2, 4}, {{{3, 12}}, 6, 0},
  };
  for (const Case& c : cases) {
    FragmentCost cost;
    Walk walk;
    walk.spans = {{0, 4}};
    walk.spans.insert(walk.spans.end(), c.comm.begin(), c.comm.end());
    cost.ops.resize(walk.spans.size());
    for (size_t o = 1; o < cost.ops.size(); ++o) cost.ops[o].label = 0;
    const FragmentTime time = divide(cost, walk, 0, 10, 1);
    CHECK(time.compute == 4);
    CHECK(time.exposed[0] == c.exposed);
    CHECK(time.gaps == c.gaps);
  }
}

TEST_CASE("a call stands still where nothing of it runs, between its begin and its end") {
  struct Case {
    std::vector<OpSpan> spans;
    std::vector<std::pair<double, double>> gaps;
  };
  // In a call from 3 to 10.
  const std::vector<Case> cases = {
      {{}, {{3, 10}}},
      {{{0, 2}, {5, 6}}, {{3, 5}, {6, 10}}},
      {{{0, 4}, {4, 5}, {7, 10}}, {{5, 7}}},
      {{{8, 9}, {4, 4}, {12, 13}}, {{3, 8}, {9, 10}}},
      {{{2, 12}}, {}},
  };
  for (const Case& c : cases) {
    FragmentCost cost;
    cost.ops.resize(c.spans.size());
    Walk walk;
    walk.spans = c.spans;
    std::vector<std::pair<double, double>> gaps;
    for (const Interval& gap : still(cost, walk, 3, 10)) gaps.emplace_back(gap.begin, gap.end);
    CHECK(gaps == c.gaps);
  }
}

}  // namespace mw::simulate
