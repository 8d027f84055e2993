// Recording on a rank while it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "trace/span.h"

namespace mw::trace {

// Names of spans by dense ids. Thread-safe; interning is for the set-up, spans carry the ids.
class NameTable {
 public:
  NameId intern(std::string_view name);
  // By id.
  std::vector<std::string> names() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, NameId, std::less<>> ids_;
  std::vector<std::string> names_;
};

// What one thread of one rank did, in memory that is allocated once. One thread writes; others may
// read what is there meanwhile. When it is full, further records are counted and dropped.
class Recorder {
 public:
  // REQUIRES: capacities are not negative.
  Recorder(RankId rank, int64_t span_capacity, int64_t memory_capacity);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  RankId rank() const { return rank_; }
  // Sets the rank.
  void record(Span span);
  void record(MemorySample sample);
  // Forgets everything, so that the next step is recorded. REQUIRES: no reader meanwhile.
  void clear();

  std::span<const Span> spans() const { return {spans_.data(), count(span_count_)}; }
  std::span<const MemorySample> memory() const { return {memory_.data(), count(memory_count_)}; }
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static size_t count(const std::atomic<int64_t>& n) {
    return static_cast<size_t>(n.load(std::memory_order_acquire));
  }

  RankId rank_;
  std::vector<Span> spans_;
  std::vector<MemorySample> memory_;
  std::atomic<int64_t> span_count_ = 0;
  std::atomic<int64_t> memory_count_ = 0;
  std::atomic<int64_t> dropped_ = 0;
};

// Records a span from its construction to its destruction, also when an exception passes; with no
// recorder it does nothing.
class ScopedSpan {
 public:
  // Everything but rank, start and duration is taken from `span`, which may be changed until the
  // end. REQUIRES: recorder (if any) and clock outlive it.
  ScopedSpan(Recorder* recorder, const Clock& clock, Span span);
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  Span& span() { return span_; }

 private:
  Recorder* recorder_;
  const Clock& clock_;
  Span span_;
};

}  // namespace mw::trace
