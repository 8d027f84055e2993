// The clock of all ranks by hand: times are whole seconds, messages one byte a second.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "simulate/test_hand.h"

namespace mw::simulate {
namespace {

using pipeline::ActionKind;

// A backward pass of 4 s that reads a weight and has its two gradients at 1 s and 2 s.
FragmentCost backward() {
  FragmentCost cost = made_of({computes(1), computes(1), computes(2)});
  cost.state_uses = {{2, 0, -1}, {0, -1, 0}, {1, -1, 1}};
  return cost;
}
// Sums of 2 s each, one after the other, and a step of 1 s behind them.
FragmentCost update() {
  FragmentCost cost = made_of({reduces(2, 1), reduces(2, 1), computes(1)});
  read_state(cost, 0, 0);
  read_state(cost, 1, 1);
  wait_for(cost, 2, {0, 1});
  cost.state_uses = {{0, 0, 0}, {1, 1, 1}};
  return cost;
}

}  // namespace

TEST_CASE(
    "first passes wait for the weights that the update before them gathers, as they read them") {
  Hand hand(1);
  hand.options.overlap.param_gather = true;
  hand.slow_down(Beside::kParamGather, 3);
  // Weights 0 and 1 are gathered until 2 s and 5 s. The pass reads 0 at once and 1 after a second.
  FragmentCost forward = made_of({computes(1), computes(1), computes(1)});
  forward.state_uses = {{0, 0, -1}, {1, 1, -1}};
  FragmentCost gathers = made_of({computes(1), reduces(2, 1), reduces(3, 1)});
  gathers.gathers = {1, 2};
  for (const size_t o : {1, 2}) gathers.ops[o].alias = true;
  gathers.state_uses = {{0, -1, 1}, {1, -1, 2}, {2, -1, 0}};
  const int32_t f = hand.fragment(ActionKind::kF, std::move(forward));
  const int32_t u = hand.fragment(ActionKind::kUpdate, std::move(gathers));
  hand.call(0, f, {0, 1});
  hand.call(0, f, {0, 1});
  hand.call(0, u, {0, 1, 2});
  const auto ran = hand.run();
  // 4 s of waiting, 3 s of work of which the first second runs beside the gather and takes 3 s.
  CHECK(ran.wait(0, WaitReason::kGather) == 4);
  CHECK(ran.sums[0].gaps == 2);
  CHECK(ran.sums[0].compute == 3 + 3 + 1);
  CHECK(ran.sums[0].comm[0] == 5);
  CHECK(ran.sums[0].exposed[0] == 0);
  CHECK(ran.sums[0].end == 4 + (3 + 2) + 3 + 1);
  CHECK(ran.last_waits == std::vector<int32_t>{-1});  // for no other rank
  // A pass that reads what comes first alone begins at 2 s and has 3 s beside the gather.
  Hand early(1);
  early.options = hand.options;
  early.program.fragments = hand.program.fragments;
  early.fragments = hand.fragments;
  early.fragments[0].cost.state_uses = {{0, 0, -1}};
  early.call(0, f, {0});
  early.call(0, u, {0, 1, 2});
  CHECK(early.run().sums[0].end == 2 + (3 + 2 * 3) + 1);
  // A short one is slower as long as it runs: at 2 s a second beside the gather that takes three.
  Hand brief(1);
  brief.options = hand.options;
  FragmentCost second = made_of({computes(1)});
  second.state_uses = {{0, 0, -1}};
  const int32_t s = brief.fragment(ActionKind::kF, std::move(second));
  FragmentCost later = hand.fragments[static_cast<size_t>(u)].cost;
  const int32_t update = brief.fragment(ActionKind::kUpdate, std::move(later));
  brief.call(0, s, {0});
  brief.call(0, update, {0, 1, 2});
  CHECK(brief.run().sums[0].end == 2 + 3 + 1);
  // One that writes a state, reads 1 at once and 0 after a second begins at 5 s.
  early.fragments[0].cost.state_uses = {{0, -1, 0}, {1, 0, -1}, {2, 1, -1}};
  early.flat.ranks[0].bindings = {2, 1, 0, 0, 1, 2};
  early.flat.ranks[0].calls[1].bindings = 3;
  CHECK(early.run().sums[0].end == 5 + 3 + 1);
}

TEST_CASE("gathers beside first passes leave links to collectives that take most of them") {
  // The pass reads weights behind a collective that sends from 1 s to 5 s; they are gathered in 5
  // s.
  for (const uint32_t fills : {0b00, 0b01, 0b10}) {
    CAPTURE(fills);
    Hand hand(1);
    hand.options.overlap.param_gather = true;
    FragmentCost forward = made_of({computes(1), reduces(4, 0), computes(1)});
    forward.ops[1].fills = fills;
    forward.state_uses = {{0, 2, -1}};
    FragmentCost gathers = made_of({computes(1), reduces(5, 1)});
    gathers.gathers = {1};
    gathers.ops[1].alias = true;
    gathers.ops[1].fills = 0b01;
    gathers.state_uses = {{0, -1, 1}};
    hand.call(0, hand.fragment(ActionKind::kF, std::move(forward)), {0});
    hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(gathers)), {0});
    const auto ran = hand.run();
    CHECK(ran.wait(0, WaitReason::kGather) == (fills == 0b01 ? 4 : 0));
    CHECK(ran.sums[0].end == (fills == 0b01 ? 4 : 0) + 6 + 1);
  }
}

TEST_CASE("gathers stand still while collectives have their links, before a weight is read") {
  struct Case {
    bool waits;  // the second collective, for the reading op
    double first, second, begin;
  };
  // The pass reads a weight at 3 s, which is gathered in 5 s; it begins when those are gone by but
  // for what its own time before has of the links: none, or 2 s.
  for (const Case& c : {Case{false, 1, 3, 5}, {true, 1, 2, 3}}) {
    CAPTURE(c.waits);
    Hand hand(1);
    hand.options.overlap.param_gather = true;
    FragmentCost forward =
        made_of({computes(3), reduces(c.first, 1), computes(1), reduces(c.second, 1)});
    if (c.waits) wait_for(forward, 3, {2});
    forward.state_uses = {{0, 2, -1}};
    FragmentCost gathers = made_of({computes(1), reduces(5, 1)});
    gathers.gathers = {1};
    gathers.ops[1].alias = true;
    gathers.state_uses = {{0, -1, 1}};
    for (OpCost* op : {&forward.ops[1], &forward.ops[3], &gathers.ops[1]}) op->fills = 0b11;
    hand.call(0, hand.fragment(ActionKind::kF, std::move(forward)), {0});
    hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(gathers)), {0});
    CHECK(hand.run().wait(0, WaitReason::kGather) == c.begin);
  }
}

TEST_CASE("gathers that a call's collectives held up are later for the calls behind it") {
  // The first pass has the links from 0 s to 4 s, a gather of 6 s is there at 10 s; the second
  // pass reads that.
  Hand hand(1);
  hand.options.overlap.param_gather = true;
  FragmentCost first = made_of({reduces(4, 0), computes(3)});
  FragmentCost gathers = made_of({computes(1), reduces(6, 1)});
  first.ops[0].fills = gathers.ops[1].fills = 1;
  gathers.gathers = {1};
  gathers.ops[1].alias = true;
  gathers.state_uses = {{0, -1, 1}};
  FragmentCost second = made_of({computes(1)});
  second.state_uses = {{0, 0, -1}};
  hand.call(0, hand.fragment(ActionKind::kF, std::move(first)));
  hand.call(0, hand.fragment(ActionKind::kF, std::move(second)), {0});
  hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(gathers)), {0});
  const auto ran = hand.run();
  CHECK(ran.wait(0, WaitReason::kGather) == 3);
  CHECK(ran.sums[0].end == 10 + 1 + 1);
  // Computation is slower while it goes on, not while it stands still.
  hand.slow_down(Beside::kParamGather, 3);
  CHECK(hand.run().sums[0].end == 7 + 2 * 6 + 1 + 1);
}

TEST_CASE("first passes wait for weights that an update makes whole and has no input of") {
  // Its state is buffer 3; its outputs, gathered until 5 s and 2 s, are buffers 2 and 1.
  for (const auto& [buffer, ready] : {std::pair{1, 2.0}, {2, 5.0}, {3, 0.0}}) {
    CAPTURE(buffer);
    Hand hand(1);
    hand.options.overlap.param_gather = true;
    FragmentCost forward = made_of({computes(1)});
    forward.state_uses = {{0, 0, -1}};
    FragmentCost gathers = made_of({computes(1), reduces(2, 1), reduces(3, 1)});
    gathers.gathers = {1, 2};
    for (const size_t o : {1, 2}) gathers.ops[o].alias = true;
    gathers.state_uses = {{0, -1, 0}};
    gathers.gathered = {{2, 0}, {1, 1}};
    hand.call(0, hand.fragment(ActionKind::kF, std::move(forward)), {buffer});
    hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(gathers)), {3, 2, 1});
    CHECK(hand.run().wait(0, WaitReason::kGather) == ready);
  }
}

TEST_CASE("sums of gradients begin when the gradients are complete, before their call") {
  for (const double slower : {1.0, 1.5}) {
    Hand hand(1);
    hand.options.overlap.grad_reduce = true;
    hand.slow_down(Beside::kGradReduce, slower);
    hand.call(0, hand.fragment(ActionKind::kB, backward()), {2, 0, 1});
    hand.call(0, hand.fragment(ActionKind::kUpdate, update(), 2), {0, 1});
    const auto ran = hand.run();
    // Sums 1-3 and 3-5, the step 5-6. 3 s of them ran beside the backward pass, which took so much
    // longer.
    CHECK(ran.sums[0].end == 6 + 3 * (slower - 1));
    CHECK(ran.sums[0].comm[0] == 4);
    CHECK(ran.sums[0].exposed[0] == 1);
    CHECK(ran.sums[0].compute == 4 + 1);
  }
  // Gradients of the last backward pass count.
  Hand twice(1);
  twice.options.overlap.grad_reduce = true;
  const int32_t b = twice.fragment(ActionKind::kB, backward());
  twice.call(0, b, {2, 0, 1});
  twice.call(0, b, {2, 0, 1});
  twice.call(0, twice.fragment(ActionKind::kUpdate, update(), 2), {0, 1});
  CHECK(twice.run().sums[0].end == 10);
}

TEST_CASE("sums of gradients begin early before the last command that waits, in every call") {
  struct Case {
    int32_t calls, last_early;
    double call;  // seconds
  };
  // The backward pass is the first of three commands of a call: of one call its sums begin early
  // if the second is the last that waits, of two if that of the second call, the fifth, is.
  for (const Case& c : {Case{1, 0, 9}, {1, 1, 6}, {1, -1, 9}, {2, 3, 9}, {2, 4, 6}}) {
    CAPTURE(c.calls);
    CAPTURE(c.last_early);
    Hand hand(1);
    hand.options.overlap.grad_reduce = true;
    hand.options.calls = c.calls;
    hand.last_early = {c.last_early};
    const int32_t b = hand.fragment(ActionKind::kB, backward()),
                  u = hand.fragment(ActionKind::kUpdate, update(), 2);
    for (int32_t call = 0; call < c.calls; ++call) {
      hand.call(0, b, {2, 0, 1});
      hand.load(0);
      hand.call(0, u, {0, 1});
    }
    CHECK(hand.run().sums[0].end == c.calls * c.call);
  }
}

TEST_CASE("an update's sums leave the ports to messages that are on their way") {
  struct Case {
    uint32_t update_levels;
    bool sends;
    double end;
  };
  // The message has the ports of both ranks until 4 s; the gradient is there from 0 s.
  for (const Case& c : {Case{1, true, 4 + 3}, {0, true, 3}, {1, false, 4 + 3}, {0, false, 4}}) {
    CAPTURE(c.update_levels);
    CAPTURE(c.sends);
    Hand hand(2);
    hand.options.overlap.grad_reduce = true;
    hand.update_levels = c.update_levels;
    const int32_t m = hand.message(0, 1, 4);
    hand.publish(0, m);
    hand.receive(1, m);
    FragmentCost cost = made_of({reduces(3, 1)});
    cost.state_uses = {{0, 0, 0}};
    read_state(cost, 0, 0);
    const size_t rank = c.sends ? 0 : 1;
    hand.call(rank, hand.fragment(ActionKind::kUpdate, std::move(cost), 1), {0});
    CHECK(hand.run().sums[rank].end == c.end);
  }
}

TEST_CASE(
    "an update's sums leave the ports to all messages, whatever the order of their commands") {
  // Rank 0 sends from 5 s to 9 s, and then takes what came from 0 s to 4 s. Its sum of 3 s runs
  // from 4 s to 5 s and from 9 s on.
  Hand hand(2);
  hand.options.overlap.grad_reduce = true;
  const int32_t there = hand.message(0, 1, 4), back = hand.message(1, 0, 4);
  FragmentCost cost = made_of({reduces(3, 1)});
  cost.state_uses = {{0, 0, 0}};
  read_state(cost, 0, 0);
  hand.publish(1, back);
  hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(5)})));
  hand.publish(0, there);
  hand.receive(0, back);
  hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(cost), 1), {0});
  CHECK(hand.run().sums[0].end == 11);
}

TEST_CASE("an update's early sums leave links to collectives of calls that take most of them") {
  struct Case {
    uint32_t of_call, of_update;
    double end;
  };
  // The gradient is there at 1 s, the call's collective sends from 2 s to 6 s. The sum of 3 s runs
  // from 1 s to 2 s and from 6 s on, or beside it.
  for (const Case& c : {Case{1, 1, 8}, {0, 1, 6}, {1, 0, 6}, {2, 1, 6}, {3, 2, 8}}) {
    CAPTURE(c.of_call);
    CAPTURE(c.of_update);
    Hand hand(1);
    hand.options.overlap.grad_reduce = true;
    FragmentCost gradient = made_of({computes(1), computes(1), reduces(4, 0)});
    gradient.ops[2].fills = c.of_call;
    gradient.state_uses = {{0, -1, 0}};
    FragmentCost sum = made_of({reduces(3, 1)});
    sum.ops[0].fills = c.of_update;
    sum.state_uses = {{0, 0, 0}};
    read_state(sum, 0, 0);
    hand.call(0, hand.fragment(ActionKind::kB, std::move(gradient)), {0});
    hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(sum), 1), {0});
    CHECK(hand.run().sums[0].end == c.end);
  }
}

TEST_CASE("an update's early sums leave links to all calls since the gradient, and to messages") {
  // The gradient is there at 2 s; collectives send from 2 s to 4 s and, of the next call, from 5 s
  // to 7 s, a message from 4 s to 5 s. The last call ends at 7 s, or at 12 s.
  struct Case {
    bool message;
    double last, slower, end;
  };
  for (const Case& c : {Case{false, 0, 1, 9}, {true, 0, 1, 10}, {false, 5, 1.5, 12 + 0.5 * 3}}) {
    CAPTURE(c.message);
    CAPTURE(c.last);
    Hand hand(2);
    hand.options.overlap.grad_reduce = true;
    hand.slow_down(Beside::kGradReduce, c.slower);
    FragmentCost gradient = made_of({computes(1), reduces(2, 0)});
    gradient.state_uses = {{0, -1, 0}};
    FragmentCost next = made_of({computes(1), reduces(2, 0), computes(c.last)});
    FragmentCost sum = made_of({reduces(3, 1)});
    sum.state_uses = {{0, 0, 0}};
    read_state(sum, 0, 0);
    for (OpCost* op : {&gradient.ops[1], &next.ops[1], &sum.ops[0]}) op->fills = 1;
    hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(1)})));
    hand.call(0, hand.fragment(ActionKind::kB, std::move(gradient)), {0});
    if (c.message) hand.publish(0, hand.message(0, 1, 1));
    hand.call(0, hand.fragment(ActionKind::kB, std::move(next)));
    hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(sum), 1), {0});
    CHECK(hand.run().sums[0].end == c.end);
  }
}

TEST_CASE("a message has its receiver's ports before its latency, which nobody waits for there") {
  // From 0 s to 4 s, and it is there at 6 s. The sum of 3 s, whose gradient is there at 1 s, runs
  // from 4 s on.
  Hand hand(2);
  hand.latency = 2;
  hand.options.overlap.grad_reduce = true;
  const int32_t m = hand.message(0, 1, 4);
  hand.publish(0, m);
  FragmentCost gradient = made_of({computes(1)});
  gradient.state_uses = {{0, -1, 0}};
  hand.call(1, hand.fragment(ActionKind::kB, std::move(gradient)), {0});
  hand.receive(1, m);
  FragmentCost cost = made_of({reduces(3, 1)});
  cost.state_uses = {{0, 0, 0}};
  read_state(cost, 0, 0);
  hand.call(1, hand.fragment(ActionKind::kUpdate, std::move(cost), 1), {0});
  const auto ran = hand.run();
  CHECK(ran.wait(1, WaitReason::kReceive) == 6 - 1);
  CHECK(ran.sums[1].end == 7);
}

TEST_CASE("messages that a rank sends or takes back to back have its ports one after the other") {
  // Two of 4 s each, the second published at 1 s: the ports are free from 8 s on.
  for (const size_t rank : {0, 1}) {
    Hand hand(2);
    hand.options.overlap.grad_reduce = true;
    const int32_t first = hand.message(0, 1, 4), second = hand.message(0, 1, 4);
    hand.publish(0, first);
    hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(1)})));
    hand.publish(0, second);
    hand.receive(1, first);
    hand.receive(1, second);
    FragmentCost cost = made_of({reduces(3, 1)});
    cost.state_uses = {{0, 0, 0}};
    read_state(cost, 0, 0);
    hand.call(rank, hand.fragment(ActionKind::kUpdate, std::move(cost), 1), {0});
    CHECK(hand.run().sums[rank].end == 11);
  }
}

TEST_CASE("a rank's calls add up to its FLOPs, those that it makes again told apart") {
  Hand hand(1);
  FragmentCost cost = made_of({computes(1)});
  cost.flops = 10;
  cost.recomputed_flops = 3;
  const int32_t f = hand.fragment(ActionKind::kF, std::move(cost));
  hand.call(0, f);
  hand.call(0, f);
  const auto ran = hand.run();
  CHECK(ran.sums[0].flops == 20);
  CHECK(ran.sums[0].recomputed_flops == 6);
}

TEST_CASE("a call that meets no other rank has its collectives' time, and what of it shows") {
  Hand hand(1);
  const int32_t call = hand.fragment(ActionKind::kF, made_of({computes(1), reduces(3, 1)}));
  for (int i = 0; i < 2; ++i) hand.call(0, call);
  const auto ran = hand.run();
  CHECK(ran.sums[0].compute == 2);
  CHECK(ran.sums[0].comm[0] == 6);
  CHECK(ran.sums[0].exposed[0] == 4);
  CHECK(ran.sums[0].end == 6);
}

TEST_CASE("ranks that meet wait for the last of them") {
  Hand hand(3);
  hand.cross_groups = {{{0, 1, 2}}};
  const int32_t meets = hand.fragment(ActionKind::kUpdate, made_of({reduces(2, 1, 0)}));
  for (const auto& [rank, seconds] : {std::pair<size_t, double>{0, 1}, {1, 5}, {2, 3}}) {
    hand.call(rank, hand.fragment(ActionKind::kF, made_of({computes(seconds)})));
    hand.call(rank, meets);
  }
  const auto ran = hand.run();
  CHECK(ran.last_waits == std::vector<int32_t>{-1, -1, -1});  // for no message
  for (size_t r = 0; r < 3; ++r) {
    CAPTURE(r);
    CHECK(ran.sums[r].end == 7);
    CHECK(ran.sums[r].exposed[0] == 2);
    CHECK(ran.sums[r].gaps == 0);
    const std::vector<Wait>& waits = ran.logs[r].waits;
    REQUIRE(waits.size() == (r == 1 ? 0 : 1));
    if (r == 1) continue;
    CHECK(waits[0].begin.value == (r == 0 ? 1 : 3));
    CHECK(waits[0].end.value == 5);
    CHECK(waits[0].peer == 1);
    CHECK(waits[0].peer_command == 1);
    CHECK(waits[0].command == 1);
    CHECK(waits[0].peer_time.value == 5);
  }
}

TEST_CASE("of ranks that come last at one time, the first is waited for") {
  for (const size_t early : {0, 1, 2}) {
    Hand hand(3);
    hand.cross_groups = {{{0, 1, 2}}};
    const int32_t meets = hand.fragment(ActionKind::kUpdate, made_of({reduces(2, 1, 0)}));
    for (size_t rank = 0; rank < 3; ++rank) {
      hand.call(rank,
                hand.fragment(ActionKind::kF, made_of({computes(rank == early ? 1.0 : 3.0)})));
      hand.call(rank, meets);
    }
    const auto ran = hand.run();
    REQUIRE(ran.logs[early].waits.size() == 1);
    CHECK(ran.logs[early].waits[0].peer == (early == 0 ? 1 : 0));
  }
}

TEST_CASE("streams that wait at a time stand still once, for the first of their peers") {
  // Rank 0 computes for 2 s, meets rank 1 with what it made and rank 2 with what it had. Rank 1
  // comes at 6 s, rank 2 at 5 s.
  Hand hand(3);
  hand.cross_groups = {{{0, 1}}, {{0, 2}}};
  FragmentCost both = made_of({computes(2), reduces(1, 1, 0), reduces(1, 2, 1)});
  wait_for(both, 1, {0});
  hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(both)));
  for (const auto& [rank, seconds] : {std::pair<size_t, double>{1, 6}, {2, 5}}) {
    hand.call(rank, hand.fragment(ActionKind::kF, made_of({computes(seconds)})));
    hand.call(rank, hand.fragment(ActionKind::kUpdate,
                                  made_of({reduces(1, 1, static_cast<int32_t>(rank) - 1)})));
  }
  const auto ran = hand.run();
  CHECK(ran.sums[0].end == 7);
  // 0-2 computes, 2-5 stands still, 5-6 with rank 2, 6-7 with rank 1.
  CHECK(ran.wait(0, WaitReason::kCollective) == 3);
  CHECK(ran.sums[0].exposed[0] == 2);
  CHECK(ran.sums[0].gaps == 0);
  REQUIRE(ran.logs[0].waits.size() == 1);
  CHECK(ran.logs[0].waits[0].begin.value == 2);
  CHECK(ran.logs[0].waits[0].end.value == 5);
  CHECK(ran.logs[0].waits[0].peer == 2);
}

TEST_CASE("what is alive only beside a message or a load counts in the peak") {
  Hand hand(1);
  hand.load(0);
  hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(1)})));
  hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(2)})));
  pipeline::BufferLives lives;
  lives.fixed[static_cast<size_t>(pipeline::Category::kWeights)] = 100;
  lives.born = {{0, pipeline::Category::kData, 40}, {1, pipeline::Category::kActivations, 10}};
  lives.died = {{0, pipeline::Category::kData, 40}, {1, pipeline::Category::kActivations, 10}};
  const std::vector<int64_t> alive = pipeline::alive_bytes(lives, 3);
  CHECK(alive == std::vector<int64_t>{140, 110, 100});
  struct Case {
    std::vector<int64_t> workspace;  // of the two calls
    int32_t command;
    int64_t bytes;
    double time;
  };
  for (const Case& c : {Case{{20, 40}, 0, 140, 0}, Case{{30, 40}, 0, 140, 0},
                        Case{{31, 41}, 1, 141, 0}, Case{{31, 42}, 2, 142, 1}}) {
    FlatRank& rank = hand.flat.ranks[0];
    rank.fullest = fullest_of(rank, alive, c.workspace);
    CHECK(rank.fullest.command == c.command);
    CHECK(rank.fullest.bytes == c.bytes);
    CHECK(rank.fullest.workspace ==
          (c.command == 0 ? 0 : c.bytes - alive[static_cast<size_t>(c.command)]));
    CHECK(hand.run().sums[0].peak_time == c.time);
  }
}

}  // namespace mw::simulate
