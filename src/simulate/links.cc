#include "simulate/links.h"

#include <algorithm>

#include "base/error.h"

namespace mw::simulate {

void EventQueue::push(double time, int32_t message, int32_t version) {
  heap_.push_back({time, made_++, message, version});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

Event EventQueue::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), later);
  const Event event = heap_.back();
  heap_.pop_back();
  return event;
}

Links::Links(size_t ranks, std::vector<double> bandwidth, std::vector<double> latency,
             EventQueue& queue)
    : levels_(bandwidth.size()),
      bandwidth_(std::move(bandwidth)),
      latency_(std::move(latency)),
      queue_(queue),
      out_(ranks * levels_),
      in_(ranks * levels_) {}

// Brings a transfer to `now` and announces its new end if its share of the ports has changed.
void Links::settle(Transfer& transfer, double now) {
  const double shares =
      static_cast<double>(std::max(out_[transfer.out].size(), in_[transfer.in].size()));
  const double rate = bandwidth_[transfer.level] / shares;
  if (rate == transfer.rate) return;
  transfer.left = std::max(0.0, transfer.left - (now - transfer.since) * transfer.rate);
  transfer.rate = rate;
  transfer.since = now;
  queue_.push(now + transfer.left / rate, transfer.message, ++transfer.version);
}

void Links::settle_ports(size_t out, size_t in, double now) {
  for (const int32_t t : out_[out]) settle(transfers_[static_cast<size_t>(t)], now);
  for (const int32_t t : in_[in]) settle(transfers_[static_cast<size_t>(t)], now);
}

void Links::start(double now, int32_t message, int32_t from, int32_t to, size_t level,
                  double bytes) {
  int32_t t = 0;
  if (free_.empty()) {
    t = static_cast<int32_t>(transfers_.size());
    transfers_.emplace_back();
  } else {
    t = free_.back();
    free_.pop_back();
  }
  if (transfer_of_.size() <= static_cast<size_t>(message))
    transfer_of_.resize(static_cast<size_t>(message) + 1, -1);
  transfer_of_[static_cast<size_t>(message)] = t;
  Transfer& transfer = transfers_[static_cast<size_t>(t)];
  transfer = {message, -1, port(from, level), port(to, level), level, bytes, 0, now};
  out_[transfer.out].push_back(t);
  in_[transfer.in].push_back(t);
  settle_ports(transfer.out, transfer.in, now);
}

bool Links::finish(const Event& event, double& arrival) {
  const int32_t t = transfer_of_[static_cast<size_t>(event.message)];
  if (t < 0) return false;
  Transfer& transfer = transfers_[static_cast<size_t>(t)];
  if (transfer.version != event.version) return false;
  arrival = event.time + latency_[transfer.level];
  const size_t out = transfer.out, in = transfer.in;
  std::erase(out_[out], t);
  std::erase(in_[in], t);
  transfer_of_[static_cast<size_t>(event.message)] = -1;
  free_.push_back(t);
  settle_ports(out, in, event.time);
  return true;
}

}  // namespace mw::simulate
