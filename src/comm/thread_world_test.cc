// Channels, abort, stall reports and run_ranks of the threads backend.
#include "comm/thread_world.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/run_ranks.h"

namespace mw::comm {
namespace {

using namespace std::chrono_literals;

constexpr Bytes kMessage = Bytes(4 * sizeof(int64_t));

std::unique_ptr<Channel> producer_of(Endpoint& endpoint, int slots = 2) {
  return endpoint.channel(RankId(1), 3, kMessage, slots, true);
}
std::unique_ptr<Channel> consumer_of(Endpoint& endpoint, int slots = 2) {
  return endpoint.channel(RankId(0), 3, kMessage, slots, false);
}

TEST_CASE("messages arrive in order, in place and whole, in every mode of the world") {
  for (int mode = 0; mode < 12; ++mode) {
    CAPTURE(mode);
    ThreadWorldOptions options{.sends = static_cast<Sends>(mode % 3), .copying = mode % 2 != 0};
    if (mode >= 6) options.delay_seed = mode;
    ThreadWorld world(2, options);
    int64_t sent = 0;
    CHECK_NOTHROW(run_ranks(world, [&](Endpoint& endpoint) {
      constexpr int64_t kCount = 100;
      if (endpoint.rank() == RankId(0)) {
        const auto channel = producer_of(endpoint, 3);
        for (int64_t s = 0; s < kCount; ++s) {
          auto* slot = static_cast<int64_t*>(channel->acquire(s));
          if (reinterpret_cast<uintptr_t>(slot) % 64 != 0) throw std::runtime_error("alignment");
          for (int i = 0; i < 4; ++i) slot[i] = 10 * s + i;
          channel->publish(s);
        }
        sent = channel->bytes_sent().value;
        return;
      }
      const auto channel = consumer_of(endpoint, 3);
      const auto check = [](const int64_t* slot, int64_t s) {
        for (int i = 0; i < 4; ++i) {
          if (slot[i] != 10 * s + i)
            throw std::runtime_error(fmt::format("message {}: {}", s, slot[i]));
        }
      };
      for (int64_t s = 0; s < kCount; s += 2) {  // two are held and released in the other order
        const auto* first = static_cast<const int64_t*>(channel->receive(s));
        const auto* second = static_cast<const int64_t*>(channel->receive(s + 1));
        check(second, s + 1);
        channel->release(s + 1);
        check(first, s);
        channel->release(s);
      }
    }));
    CHECK(sent == 100 * kMessage.value);
  }
}

TEST_CASE("with copying a slot is full of NaNs before it is written and after it was released") {
  ThreadWorld world(2, {.copying = true});
  run_ranks(world, [](Endpoint& endpoint) {
    const int64_t poison = -1;
    if (endpoint.rank() == RankId(0)) {
      const auto channel = producer_of(endpoint);
      auto* slot = static_cast<int64_t*>(channel->acquire(0));
      if (*slot != poison) throw std::runtime_error("acquire");
      *slot = 5;
      channel->publish(0);
      if (*slot != poison) throw std::runtime_error("publish");
      *slot = 6;  // too late: nobody sees it
    } else {
      const auto channel = consumer_of(endpoint);
      const auto* slot = static_cast<const int64_t*>(channel->receive(0));
      if (*slot != 5) throw std::runtime_error("receive");
      channel->release(0);
      if (*slot != poison) throw std::runtime_error("release");
    }
  });
}

TEST_CASE("a channel can be opened again, also before the other side has closed it") {
  ThreadWorld world(2);
  CHECK_NOTHROW(run_ranks(world, [](Endpoint& endpoint) {
    for (int64_t round = 0; round < 20; ++round) {
      if (endpoint.rank() == RankId(0)) {
        const auto channel = producer_of(endpoint);
        *static_cast<int64_t*>(channel->acquire(0)) = round;
        channel->publish(0);
      } else {
        const auto channel = consumer_of(endpoint);
        if (*static_cast<const int64_t*>(channel->receive(0)) != round)
          throw std::runtime_error("round");
        channel->release(0);
      }
    }
  }));
}

std::string check_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const CheckFailure& e) {
    const std::string text = e.what();
    return text.substr(text.rfind("channel"));
  }
  return "";
}

TEST_CASE("calls out of order or on the wrong side are bugs that are named") {
  ThreadWorld world(2);
  const auto producer = producer_of(world.endpoint(RankId(0)));
  const auto consumer = consumer_of(world.endpoint(RankId(1)));
  const std::string where = "channel 3 (rank 0 to rank 1): ";
  CHECK(check_text([&] { producer->receive(0); }) == where + "receive(0) by the producer");
  CHECK(check_text([&] { consumer->acquire(0); }) == where + "acquire(0) by the consumer");
  CHECK(check_text([&] { producer->acquire(1); }) ==
        where + "acquire(1), but the next message is 0");
  CHECK(check_text([&] { producer->publish(0); }) == where + "publish(0) before acquire");
  CHECK(check_text([&] { consumer->release(0); }) ==
        where + "release(0), which is not held; 0 messages were received");
  producer->acquire(0);
  producer->publish(0);
  consumer->receive(0);
  consumer->release(0);
  CHECK(check_text([&] { consumer->release(0); }) ==
        where + "release(0), which is not held; 1 messages were received");
}

TEST_CASE("sides that open different rings learn of each other") {
  ThreadWorld world(2);
  const auto producer = producer_of(world.endpoint(RankId(0)), 2);
  CHECK_THROWS_WITH_AS(
      consumer_of(world.endpoint(RankId(1)), 4),
      "channel 3 (rank 0 to rank 1): rank 1 opens 4 slots of 32 bytes, rank 0 opened 2 "
      "slots of 32 bytes; both sides must open the same ring",
      RunError);
}

using Rank = std::function<void(Endpoint&)>;

// Runs rank 0 until the watchdog sees it blocked, with rank 1 beside it that ends by itself;
// aborts, and returns what the watchdog read, without the time.
std::string stall_of(ThreadWorldOptions options, const Rank& rank_0, const Rank& rank_1) {
  ThreadWorld world(3, options);
  std::string reason;
  std::thread blocked([&] {
    try {
      rank_0(world.endpoint(RankId(0)));
    } catch (const Aborted& e) {
      reason = e.what();
    }
  });
  std::thread([&] { rank_1(world.endpoint(RankId(1))); }).join();
  std::vector<Waiting> waiting;
  do {
    std::this_thread::sleep_for(1ms);
    waiting = world.waiting();
  } while (waiting.empty() || waiting[0].waited < Seconds(0.02));
  CHECK(waiting.size() == 1);
  CHECK(waiting[0].waited < Seconds(3600));
  const auto start = std::chrono::steady_clock::now();
  world.abort("the watchdog had enough");
  blocked.join();
  // Milliseconds; the bound is for a machine that has much else to do.
  CHECK(std::chrono::steady_clock::now() - start < 500ms);
  CHECK(reason == "the watchdog had enough");
  CHECK(world.waiting().empty());
  waiting[0].waited = Seconds(0);
  return describe(waiting[0]);
}

std::unique_ptr<Communicator> pair_group(Endpoint& endpoint) {
  return endpoint.group({RankId(0), RankId(1)}, "dp");
}

TEST_CASE("each kind of wait is visible while it lasts and ends with an abort") {
  const Rank nothing = [](Endpoint&) {};
  CHECK(stall_of(
            {}, [](Endpoint& e) { e.group({RankId(2), RankId(0), RankId(1)}, "dp"); }, nothing) ==
        "rank 0 waits 0.00 s for ranks 2, 1 to create group 'dp'");
  CHECK(stall_of(
            {},
            [](Endpoint& e) {
              const auto group = pair_group(e);
              float x[4] = {};
              const Buffer buffers[] = {{x, 4}};
              group->all_reduce(buffers, DType::kF32, ReduceOp::kSum);
            },
            [](Endpoint& e) { pair_group(e); }) ==
        "rank 0 waits 0.00 s in group 'dp' at operation 0 (all_reduce sum f32 [4]) for rank 1");
  const Rank send_three = [](Endpoint& e) {
    const auto channel = producer_of(e);
    for (int64_t s = 0; s < 3; ++s) {
      channel->acquire(s);
      channel->publish(s);
    }
  };
  CHECK(stall_of({}, send_three, nothing) ==
        "rank 0 waits 0.00 s on channel 3 (rank 0 to rank 1) for rank 1 to release message 0");
  CHECK(stall_of({.sends = Sends::kBlocking}, send_three, nothing) ==
        "rank 0 waits 0.00 s on channel 3 (rank 0 to rank 1) for rank 1 to receive message 0");
  CHECK(stall_of(
            {}, [](Endpoint& e) { e.channel(RankId(1), 7, kMessage, 1, false)->receive(0); },
            nothing) ==
        "rank 0 waits 0.00 s on channel 7 (rank 1 to rank 0) for rank 1 to publish message 0");
}

TEST_CASE(
    "two ranks that both send first pass under rendezvous and stall where publish waits for "
    "receive") {
  const auto exchange = [](Endpoint& e) {
    const RankId peer(1 - e.rank().value);
    const auto to = e.channel(peer, 0, kMessage, 1, true),
               from = e.channel(peer, 0, kMessage, 1, false);
    to->acquire(0);
    to->publish(0);
    from->receive(0);
    from->release(0);
  };
  for (const Sends sends : {Sends::kBuffered, Sends::kRendezvous}) {
    ThreadWorld passes(2, {.sends = sends, .copying = true});
    CHECK_NOTHROW(run_ranks(passes, exchange));
  }

  ThreadWorld world(2, {.sends = Sends::kBlocking});
  std::string report;
  std::thread watchdog([&] {
    while (world.waiting().size() < 2) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    for (Waiting w : world.waiting()) {
      w.waited = Seconds(0);
      report += describe(w) + '\n';
    }
    world.abort("stalled");
  });
  CHECK_THROWS_WITH_AS(run_ranks(world, exchange), "stalled", Aborted);
  watchdog.join();
  CHECK(report ==
        "rank 0 waits 0.00 s on channel 0 (rank 0 to rank 1) for rank 1 to receive message 0\n"
        "rank 1 waits 0.00 s on channel 0 (rank 1 to rank 0) for rank 0 to receive message 0\n");
}

TEST_CASE("a rank's error stops the others and is rethrown as what it was, with the rank") {
  const auto failing = [](auto error) {
    return [error](Endpoint& e) {
      if (e.rank() == RankId(2)) throw error;
      std::vector<RankId> all = {RankId(0), RankId(1), RankId(2), RankId(3)};
      e.group(all, "world")->barrier();
    };
  };
  ThreadWorld a(4), b(4), c(4), d(4);
  CHECK_THROWS_WITH_AS(run_ranks(a, failing(std::runtime_error("boom"))), "rank 2: boom", RunError);
  CHECK_THROWS_WITH_AS(run_ranks(b, failing(CheckFailure("bug"))), "rank 2: bug", CheckFailure);
  CHECK_THROWS_WITH_AS(run_ranks(c, failing(Error(std::vector<std::string>{"x", "y"}))),
                       "rank 2: x\nrank 2: y", Error);
  CHECK_THROWS_WITH_AS(run_ranks(d, failing(7)), "rank 2: an exception that is no std::exception",
                       RunError);
  CHECK_THROWS_WITH_AS(a.endpoint(RankId(0)).channel(RankId(1), 0, kMessage, 1, true),
                       "rank 2: boom", Aborted);
}

TEST_CASE("what made a rank fail is told, though another one was stopped before") {
  ThreadWorld world(2);
  CHECK_THROWS_WITH_AS(run_ranks(world,
                                 [](Endpoint& e) {
                                   if (e.rank() == RankId(0)) throw Aborted("stopped");
                                   std::this_thread::sleep_for(20ms);
                                   throw RunError("out of luck");
                                 }),
                       "rank 1: out of luck", RunError);
}

TEST_CASE("an abort amid collectives lets no rank touch another's dead buffers") {
  for (int round = 0; round < 30; ++round) {
    ThreadWorld world(4);
    std::thread watchdog([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * (round % 10)));
      world.endpoint(RankId(round % 4)).abort("enough");
    });
    CHECK_THROWS_WITH_AS(run_ranks(world,
                                   [](Endpoint& e) {
                                     const auto group = e.group(
                                         {RankId(0), RankId(1), RankId(2), RankId(3)}, "world");
                                     while (true) {
                                       std::vector<float> x(5000, 1.f);
                                       const Buffer buffers[] = {{x.data(), 5000}};
                                       group->all_reduce(buffers, DType::kF32, ReduceOp::kSum);
                                       if (x[4999] != 4.f) throw std::runtime_error("sum");
                                     }
                                   }),
                         "enough", Aborted);
    watchdog.join();
  }
}

TEST_CASE("blocked ranks use no processor time") {
  ThreadWorld world(16);
  std::clock_t used = 0;
  std::thread watchdog([&] {
    while (world.waiting().size() < 16) std::this_thread::sleep_for(1ms);
    const std::clock_t before = std::clock();
    std::this_thread::sleep_for(100ms);
    used = std::clock() - before;
    world.abort("done");
  });
  CHECK_THROWS_AS(run_ranks(world,
                            [](Endpoint& e) {
                              const RankId peer((e.rank().value + 1) % 16);
                              e.channel(peer, 0, kMessage, 1, false)->receive(0);
                            }),
                  Aborted);
  watchdog.join();
  CHECK(static_cast<double>(used) / CLOCKS_PER_SEC < 0.05);
}

}  // namespace
}  // namespace mw::comm
