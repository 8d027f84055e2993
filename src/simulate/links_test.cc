#include "simulate/links.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace mw::simulate {
namespace {

struct Sent {
  double at = 0;
  int32_t from = 0, to = 0;
  double bytes = 0;
};
struct Taken {
  double known = 0;  // when it is told
  int32_t rank = 0;
  double begin = 0, end = 0;
};

// [message] arrival, on one level of one byte a second without latency.
std::map<int32_t, double> arrivals(const std::vector<Sent>& sent, const std::vector<Taken>& taken) {
  EventQueue queue;
  Links links(4, {0}, {1}, {0}, queue);
  for (size_t m = 0; m < sent.size(); ++m) queue.push(sent[m].at, false, static_cast<int32_t>(m));
  size_t told = 0;
  std::map<int32_t, double> arrived;
  while (!queue.empty()) {
    const Event event = queue.pop();
    for (; told < taken.size() && taken[told].known <= event.time; ++told)
      links.occupy(taken[told].rank, 0, taken[told].begin, taken[told].end);
    if (!event.ends) {
      const Sent& message = sent[static_cast<size_t>(event.index)];
      links.start(event.time, event.index, links.add_way(message.from, message.to, 0),
                  message.bytes);
      continue;
    }
    double arrival = 0;
    const int32_t message = links.finish(event, arrival);
    if (message != Links::kNone) arrived[message] = arrival;
  }
  return arrived;
}

using Arrivals = std::map<int32_t, double>;

TEST_CASE("what goes through a network's first switch and beyond shares a device's card") {
  const auto last = [](std::vector<size_t> ports) {  // of two messages over a level each
    EventQueue queue;
    Links links(3, std::move(ports), {1, 1}, {0, 0}, queue);
    links.start(0, 0, links.add_way(0, 1, 0), 4);
    links.start(0, 1, links.add_way(0, 2, 1), 4);
    double arrival = 0;
    while (!queue.empty()) links.finish(queue.pop(), arrival);
    return arrival;
  };
  CHECK(last({0, 1}) == 4);
  CHECK(last({0, 0}) == 8);
}

TEST_CASE("transfers share a port evenly, and go half as fast beside a collective") {
  // Alone; two out of one port; two into one port; one after the other.
  CHECK(arrivals({{0, 0, 1, 4}}, {}) == Arrivals{{0, 4}});
  CHECK(arrivals({{0, 0, 1, 4}, {0, 0, 2, 4}}, {}) == Arrivals{{0, 8}, {1, 8}});
  CHECK(arrivals({{0, 0, 2, 4}, {2, 1, 2, 4}}, {}) == Arrivals{{0, 6}, {1, 8}});
  CHECK(arrivals({{0, 0, 1, 4}, {4, 0, 1, 4}}, {}) == Arrivals{{0, 4}, {1, 8}});
  // From one rank to another they go in the order in which they were sent, to two of them at once.
  CHECK(arrivals({{0, 0, 1, 4}, {1, 0, 1, 4}}, {}) == Arrivals{{0, 4}, {1, 8}});
  CHECK(arrivals({{0, 0, 1, 4}, {0, 0, 1, 4}, {0, 0, 2, 4}}, {}) ==
        Arrivals{{0, 8}, {1, 12}, {2, 8}});
  // A collective of the sender, of the receiver, of both at once and one after the other.
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 0, 1, 3}}) == Arrivals{{0, 5}});
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 1, 1, 3}}) == Arrivals{{0, 5}});
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 0, 1, 3}, {0, 1, 2, 4}}) == Arrivals{{0, 5.5}});
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 0, 0, 2}, {0, 1, 3, 4}}) == Arrivals{{0, 5.5}});
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 0, 1, 9}}) == Arrivals{{0, 7}});
  // One that ends while an earlier one goes on.
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 0, 1, 5}, {0, 0, 2, 3}}) == Arrivals{{0, 6}});
  // Of another device; before and behind the transfer.
  CHECK(arrivals({{0, 0, 1, 4}}, {{0, 2, 1, 3}}) == Arrivals{{0, 4}});
  CHECK(arrivals({{5, 0, 1, 4}}, {{0, 0, 1, 3}, {0, 0, 9, 12}}) == Arrivals{{0, 9}});
}

TEST_CASE("a collective that is known late still slows down what is under way") {
  CHECK(arrivals({{0, 0, 1, 4}, {2, 2, 3, 1}}, {{2, 0, 2, 4}}) == Arrivals{{0, 5}, {1, 3}});
  // Known only at the end that was announced.
  CHECK(arrivals({{0, 0, 1, 4}}, {{4, 0, 3, 7}}) == Arrivals{{0, 5}});
  // A second transfer comes while a collective has the port: from 2 on they share half of it.
  CHECK(arrivals({{0, 0, 1, 4}, {2, 0, 2, 4}}, {{0, 0, 1, 3}}) == Arrivals{{0, 7.5}, {1, 9}});
}

TEST_CASE(
    "an announced end is looked at again when it comes, and brought forward when it must be") {
  // A second transfer makes the first one later, its end sooner than was feared: at 4 s, when the
  // first event comes, 1 byte of 4 is left; from 5 s on it has the port alone.
  CHECK(arrivals({{0, 0, 1, 4}, {2, 0, 2, 1}}, {}) == Arrivals{{0, 5}, {1, 4}});
  // The second transfer's end, announced while both shared, is brought forward by the first's.
  CHECK(arrivals({{0, 0, 1, 2}, {0, 0, 2, 6}}, {}) == Arrivals{{0, 4}, {1, 8}});
  CHECK(arrivals({{0, 0, 1, 2}, {0, 0, 2, 6}, {5, 0, 3, 3}}, {}) ==
        Arrivals{{0, 4}, {1, 11}, {2, 11}});
}

TEST_CASE("what stands still during intervals takes their time longer") {
  const std::vector<Interval> others{{1, 2}, {4, 7}};
  CHECK(takes_beside(others, 0, 1) == 1);
  CHECK(takes_beside(others, 0, 2) == 3);
  CHECK(takes_beside(others, 0, 4) == 8);
  CHECK(takes_beside(others, 5, 1) == 3);
  CHECK(takes_beside(others, 8, 1) == 1);
  CHECK(takes_beside({}, 8, 1) == 1);
  const std::vector<Interval> together = joined({{4, 5}, {1, 2}, {2, 3}, {4.5, 7}});
  REQUIRE(together.size() == 2);
  CHECK(together[0].begin == 1);
  CHECK(together[0].end == 3);
  CHECK(together[1].end == 7);
}

TEST_CASE("events come in order of time, those of one time in the order of their making") {
  std::mt19937 random(7);
  EventQueue queue;
  std::vector<std::pair<double, int32_t>> waiting;  // time, message: numbered as they are made
  int32_t made = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    if (waiting.empty() || random() % 5 < 3) {
      const double time = static_cast<double>(random() % 40);
      waiting.emplace_back(time, made);
      CHECK(queue.push(time, made % 3 == 0, made) == static_cast<uint32_t>(made));
      ++made;
    } else {
      const auto first = std::min_element(waiting.begin(), waiting.end());
      const Event event = queue.pop();
      REQUIRE(std::pair(event.time, event.index) == *first);
      CHECK(event.ends == (event.index % 3 == 0));
      CHECK(event.number == static_cast<uint32_t>(event.index));
      waiting.erase(first);
    }
    REQUIRE(queue.empty() == waiting.empty());
  }
}

}  // namespace
}  // namespace mw::simulate
