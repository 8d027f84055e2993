// Pairs of calls by hand: times are whole seconds, messages one byte a second.
#include <utility>

#include <doctest/doctest.h>

#include "simulate/test_hand.h"

namespace mw::simulate {

using pipeline::ActionKind;

TEST_CASE("a pair begins when both inputs are there, and sends behind both") {
  for (const bool gradient_late : {false, true}) {
    CAPTURE(gradient_late);
    Hand hand(2);
    hand.options.trace = true;
    const int32_t forward = hand.fragment(ActionKind::kF, made_of({computes(3)}));
    const int32_t backward = hand.fragment(ActionKind::kB, made_of({computes(6)}));
    const int32_t other = hand.fragment(ActionKind::kF, made_of({computes(gradient_late ? 9 : 1)}));
    const int32_t output = hand.message(0, 1, 1), gradient = hand.message(1, 0, 1);
    hand.call(1, other);
    hand.publish(1, gradient);
    hand.receive(1, output);
    hand.call(0, forward);
    hand.publish(0, output);
    hand.receive(0, gradient);
    hand.call(0, backward);
    hand.pair_last(0, 8);
    const Hand::Ran ran = hand.run();
    const double begin = gradient_late ? 10 : 2;
    CHECK(ran.wait(0, WaitReason::kReceive) == begin);
    CHECK(ran.sums[0].end == begin + 8);
    CHECK(ran.sums[0].compute == 8);
    CHECK(ran.messages[static_cast<size_t>(output)].begin == begin + 8);
    CHECK(ran.sums[1].end == begin + 9);
    // Their bars divide the time as they take it by themselves.
    REQUIRE(ran.logs[0].calls.size() == 2);
    const CallRecord &first = ran.logs[0].calls[0], &second = ran.logs[0].calls[1];
    CHECK(first.begin == begin);
    CHECK(first.end == doctest::Approx(begin + 8.0 * 3 / 9));
    CHECK(second.begin == first.end);
    CHECK(second.end == begin + 8);
    CHECK(first.pair == 0);
    CHECK(second.pair == 0);
    CHECK(second.which == 1);
    CHECK(second.pair_begin == begin);
  }
}

TEST_CASE("of several messages for a pair's second call the last is waited for") {
  for (const int32_t late : {1, 2}) {
    CAPTURE(late);
    Hand hand(3);
    const int32_t forward = hand.fragment(ActionKind::kF, made_of({computes(3)}));
    const int32_t backward = hand.fragment(ActionKind::kB, made_of({computes(6)}));
    hand.call(0, forward);
    for (const int32_t peer : {1, 2}) {
      const int32_t message = hand.message(peer, 0, 1);
      hand.call(static_cast<size_t>(peer),
                hand.fragment(ActionKind::kB, made_of({computes(peer == late ? 9 : 1)})));
      hand.publish(static_cast<size_t>(peer), message);
      hand.receive(0, message);
    }
    hand.call(0, backward);
    hand.pair_last(0, 8);
    const Hand::Ran ran = hand.run();
    CHECK(ran.sums[0].end == 10 + 8);
    REQUIRE(ran.logs[0].waits.size() == 1);
    CHECK(ran.logs[0].waits[0].peer == late);
  }
}

TEST_CASE("a gradient that a pair's backward writes is there at its own op's end") {
  Hand hand(1);
  hand.options.overlap.grad_reduce = true;
  const int32_t forward = hand.fragment(ActionKind::kF, made_of({computes(3)}));
  FragmentCost writes = made_of({computes(1), computes(1), computes(2)});
  writes.state_uses = {{2, 0, -1}, {0, -1, 0}, {1, -1, 1}};
  const int32_t back = hand.fragment(ActionKind::kB, std::move(writes), 3);
  FragmentCost sum = made_of({reduces(2, 1), computes(1)});
  sum.state_uses = {{0, 0, 0}};
  read_state(sum, 0, 0);
  wait_for(sum, 1, {0});
  const int32_t update = hand.fragment(ActionKind::kUpdate, std::move(sum), 1);
  hand.call(0, forward);
  hand.call(0, back, {2, 0, 1});
  hand.pair_last(0, 6);
  hand.pairs[0].spans[1] = {{0, 1}, {1, 2}, {4, 6}};
  hand.call(0, update, {0});
  // The sum goes from 1 s to 3 s, the step's op is behind the pair.
  CHECK(hand.run().sums[0].end == 7);
  hand.pairs[0].spans[1] = {{4, 5}, {5, 6}, {5, 6}};
  CHECK(hand.run().sums[0].end == 8);
  // From 1 s to 5 s the pair's collectives have the links.
  hand.pairs[0].spans[1] = {{0, 1}, {1, 2}, {4, 6}};
  hand.pairs[0].taken = {{{1, 5}}};
  CHECK(hand.run().sums[0].end == 7);
  hand.fragments[static_cast<size_t>(update)].cost.ops[0].fills = 1;
  CHECK(hand.run().sums[0].end == 8);
}

TEST_CASE("a pair waits for gathered weights by when it reads them as one") {
  // A weight is gathered until 3 s, another until 12 s. The pair reads it 4 s behind its begin, of
  // which its collectives take 2 s; the forward alone would after 2 s.
  Hand hand(1);
  hand.options.overlap.param_gather = true;
  FragmentCost reads = made_of({computes(2), computes(1)});
  reads.state_uses = {{0, 1, -1}};
  FragmentCost gathers = made_of({computes(1), reduces(3, 1), reduces(9, 1)});
  gathers.gathers = {1, 2};
  for (const size_t o : {1, 2}) {
    gathers.ops[o].alias = true;
    gathers.ops[o].fills = 1;
  }
  gathers.state_uses = {{0, -1, 1}, {1, -1, 2}};
  hand.call(0, hand.fragment(ActionKind::kF, std::move(reads)), {0});
  hand.call(0, hand.fragment(ActionKind::kB, made_of({computes(6)})));
  hand.pair_last(0, 8);
  hand.pairs[0].spans[0] = {{0, 2}, {4, 5}};
  hand.pairs[0].taken = {{{0, 2}}};
  hand.call(0, hand.fragment(ActionKind::kUpdate, std::move(gathers)), {0, 1});
  const Hand::Ran ran = hand.run();
  CHECK(ran.wait(0, WaitReason::kGather) == 1);
  CHECK(ran.sums[0].end == 1 + 8 + 1);
  // Slower as long as both run beside the gather.
  hand.slow_down(Beside::kParamGather, 2);
  CHECK(hand.run().sums[0].end == 1 + 8 + 8 + 1);
}

}  // namespace mw::simulate
