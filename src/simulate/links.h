// Messages on their way: transfers that leave or reach a device at the same time share its port.
// Private to room simulate.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <absl/container/inlined_vector.h>

namespace mw::simulate {

struct Interval {
  double begin = 0, end = 0;
};
// How long something takes from `start` that stands still during these intervals, which are in
// order and apart.
double takes_beside(const std::vector<Interval>& others, double start, double takes);
// In order and apart.
std::vector<Interval> joined(std::vector<Interval> intervals);

// A message is published, or a transfer may end, at a time.
struct Event {
  double time = 0;
  uint32_t number = 0;  // the order of equal times is that of their making
  bool ends = false;
  int32_t index = 0;  // the message; of an end: the transfer
};

// A heap of four children a node, which is half as deep as one of two.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  // The event's number. REQUIRES: time >= 0.
  uint32_t push(double time, bool ends, int32_t index);
  Event pop();

 private:
  static constexpr size_t kChildren = 4;
  // An event as one integer: time, number, then what it is about. Times are no less than 0, and
  // then their bits are in their order. Compared without a branch, which nobody could foretell.
  __extension__ using Key = unsigned __int128;
  std::vector<Key> heap_;
  uint32_t made_ = 0;
};

// Every device has a port out and a port in at every link level, at all levels of the network one.
// Messages from one rank to another go one after the other, as a stream's do; a port's bandwidth is
// divided evenly among the transfers of several pairs of ranks, and a transfer goes at the slower
// of its two ports' shares, and half as fast while a collective has one of its ports.
class Links {
 public:
  // `ports`: [level] Cluster::port_levels.
  Links(size_t ranks, std::vector<size_t> ports, std::vector<double> bandwidth,
        std::vector<double> latency, EventQueue& queue);

  // A way for messages from a rank to another, over links of a level: its number.
  int32_t add_way(int32_t from, int32_t to, size_t level);
  void start(double now, int32_t message, int32_t way, double bytes);
  // A collective has both ports of a device. REQUIRES: it begins no earlier than the one before,
  // and no earlier than the last event.
  void occupy(int32_t rank, size_t level, double begin, double end);
  static constexpr int32_t kNone = -1;
  // The message whose transfer the event ends; kNone: it is outdated. `arrival` becomes when the
  // value is there: the transfer's end and the link's latency.
  int32_t finish(const Event& event, double& arrival);

 private:
  static constexpr double kBesideCollective = 0.5;
  struct Way {
    uint32_t line = 0;
    uint32_t out = 0, in = 0;  // ports
    uint32_t level = 0;
  };
  struct Waiting {
    int32_t message = 0;
    int32_t way = 0;
    double bytes = 0;
  };
  struct Transfer {
    int32_t message = 0;
    uint32_t event = 0;  // that announces its end
    Way way;
    double left = 0, rate = 0, since = 0;  // bytes, bytes a second, seconds
    double announced = 0;                  // when its event is, which is no later than its end
  };
  size_t port(int32_t rank, size_t level) const {
    return static_cast<size_t>(rank) * levels_ + port_of_[level];
  }
  // Most have one message, or transfer, at a time.
  using Line = absl::InlinedVector<Waiting, 2>;
  struct Port {
    absl::InlinedVector<int32_t, 4> out, in;  // transfers
    std::vector<Interval> taken;              // by collectives; in order and apart
  };
  void send(double now, const Waiting& message);
  // When it ends as far as is known, and how long it went on from `since` until `now`.
  double end_of(const Transfer& transfer) const;
  double moved(const Transfer& transfer, double now) const;
  void settle(int32_t t, double now);
  void settle_ports(const Way& way, double now);

  const size_t levels_;
  const std::vector<size_t> port_of_;  // [level]
  std::vector<Way> ways_;
  std::map<std::pair<int32_t, int32_t>, uint32_t> line_of_;  // [from, to]
  std::vector<Line> lines_;                  // the first of one's messages is under way
  std::vector<double> bandwidth_, latency_;  // [level]
  EventQueue& queue_;
  std::vector<Transfer> transfers_;  // those under way, and free places
  std::vector<int32_t> free_;
  std::vector<Port> ports_;  // of a device at a link level
};

}  // namespace mw::simulate
