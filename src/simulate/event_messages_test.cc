// Messages between ranks by hand: times are whole seconds, messages one byte a second.
#include <vector>

#include <doctest/doctest.h>

#include "simulate/test_hand.h"

namespace mw::simulate {

using pipeline::ActionKind;

TEST_CASE("computation beside messages of its rank takes longer while they are on their way") {
  struct Case {
    int messages;
    double seconds, end;
  };
  // Messages of 4 s each go one after the other; beside them a second takes half as long again.
  for (const Case& c : {Case{0, 10, 10}, {1, 10, 12}, {2, 10, 14}, {2, 6, 9}, {1, 4, 6}}) {
    CAPTURE(c.messages);
    CAPTURE(c.seconds);
    Hand hand(2);
    hand.slow_down(Beside::kMessages, 1.5);
    for (int m = 0; m < c.messages; ++m) hand.publish(0, hand.message(0, 1, 4));
    hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(c.seconds)})));
    const auto ran = hand.run();
    CHECK(ran.sums[0].end == c.end);
    CHECK(ran.sums[0].compute == c.seconds);
    CHECK(ran.sums[0].gaps == c.end - c.seconds);
    CHECK(ran.sums[0].messages_sent == 4 * c.messages);
  }
}

TEST_CASE("a sender that its message holds up waits from its end on for its arrival") {
  Hand hand(2);
  hand.options.overlap.messages = false;
  const int32_t m = hand.message(0, 1, 4);
  hand.call(0, hand.fragment(ActionKind::kF, made_of({computes(2)})));
  hand.publish(0, m);
  hand.receive(1, m);
  const auto ran = hand.run();
  for (const size_t r : {0, 1}) {
    REQUIRE(ran.logs[r].waits.size() == 1);
    const Wait& wait = ran.logs[r].waits[0];
    CHECK(wait.reason == (r == 0 ? WaitReason::kSend : WaitReason::kReceive));
    CHECK(wait.begin.value == (r == 0 ? 2 : 0));
    CHECK(wait.end.value == 6);
    CHECK(wait.peer == 0);
    CHECK(wait.peer_command == 1);
    CHECK(wait.peer_time.value == 2);  // when it was sent
  }
}

TEST_CASE("who waits for a slot waits for the command that gives it back, when it does") {
  Hand hand(2);
  const int32_t slot = hand.message(0, 1, 4);
  hand.acquire(0, slot);
  hand.publish(0, slot);
  hand.acquire(0, slot);
  hand.receive(1, slot);
  hand.call(1, hand.fragment(ActionKind::kF, made_of({computes(3)})));
  hand.release(1, slot);
  const auto ran = hand.run();
  REQUIRE(ran.logs[0].waits.size() == 1);
  const Wait& wait = ran.logs[0].waits[0];
  CHECK(wait.reason == WaitReason::kSlot);
  CHECK(wait.command == 2);
  CHECK(wait.begin.value == 0);
  CHECK(wait.end.value == 7);
  CHECK(wait.peer == 1);
  CHECK(wait.peer_command == 2);
  CHECK(wait.peer_time.value == 7);
  CHECK(ran.last_waits == std::vector<int32_t>{2, 0});
}

TEST_CASE("messages have a slot in turn: each is waited for, and each waits for the one before") {
  // A message of 4 s a turn; the receiver works 3 s and 1 s before it gives the slot back.
  for (const bool holds_up : {false, true}) {
    CAPTURE(holds_up);
    Hand hand(2);
    hand.options.trace = true;
    hand.options.overlap.messages = !holds_up;
    const int32_t slot = hand.message(0, 1, 4);
    for (const double seconds : {3.0, 1.0, 0.0}) {
      hand.acquire(0, slot);
      hand.publish(0, slot);
      hand.receive(1, slot);
      hand.call(1, hand.fragment(ActionKind::kF, made_of({computes(seconds)})));
      hand.release(1, slot);
    }
    const auto ran = hand.run();
    std::vector<double> begins, arrivals;
    for (const MessageRecord& message : ran.messages) {
      begins.push_back(message.begin);
      arrivals.push_back(message.arrival);
    }
    CHECK(begins == std::vector<double>{0, 7, 12});
    CHECK(arrivals == std::vector<double>{4, 11, 16});
    CHECK(ran.wait(0, WaitReason::kSlot) == (holds_up ? 3 + 1 : 7 + 5));
    CHECK(ran.wait(0, WaitReason::kSend) == (holds_up ? 3 * 4 : 0));
    CHECK(ran.wait(1, WaitReason::kReceive) == 3 * 4);
    CHECK(ran.sums[1].end == 16);
  }
}

TEST_CASE("a message goes half as fast while its sender's collectives have the port") {
  Hand hand(2);
  hand.options.trace = true;
  const int32_t m = hand.message(0, 1, 4);
  const int32_t first = hand.fragment(ActionKind::kF, made_of({computes(1)}));
  const int32_t f = hand.fragment(ActionKind::kF, made_of({computes(3)}));
  hand.fragments[static_cast<size_t>(f)].links = {{{2, 6}}};
  hand.publish(0, m);
  hand.call(0, first);
  hand.call(0, f);  // from 1 s: its collective from 3 s to 7 s
  hand.receive(1, m);
  const auto ran = hand.run();
  CHECK(ran.messages[0].arrival == 5);
  CHECK(ran.wait(1, WaitReason::kReceive) == 5);
}

TEST_CASE("who receives a scattered value waits for its parts and gathers them") {
  Hand hand(2);
  const int32_t m = hand.message(0, 1, 4);
  hand.flat.channels[0].gather = 0.5;
  hand.publish(0, m);
  hand.receive(1, m);
  const auto ran = hand.run();
  CHECK(ran.wait(1, WaitReason::kReceive) == 4);
  CHECK(ran.sums[1].comm[0] == 0.5);
  CHECK(ran.sums[1].exposed[0] == 0.5);
  CHECK(ran.sums[1].end == 4.5);
}

}  // namespace mw::simulate
