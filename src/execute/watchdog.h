// Watchdog: a thread that looks whether the ranks of a run still make progress.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/ids.h"

namespace mw::execute {

// For how long no rank has moved, as far as somebody looked: while the process is stopped nobody
// does.
class StillTime {
 public:
  explicit StillTime(Seconds longest_gap) : longest_gap_(longest_gap) {}
  // `progress` as in Watchdog. 0 where it has changed, or is empty.
  Seconds look(Seconds now, std::vector<uint64_t> progress);

 private:
  Seconds longest_gap_, still_, seen_;
  std::vector<uint64_t> last_;
};

class Watchdog {
 public:
  // One number a rank, another one after every instruction that it starts; empty while no rank is
  // in its program.
  using Progress = std::function<std::vector<uint64_t>()>;
  using OnStall = std::function<bool(Seconds stalled)>;  // whether the run ends with it

  // Calls on_stall, from its own thread, when no rank made progress for `stall`; where that does
  // not end the run, again after twice the time, and so on. A rank alone that waits is no stall: if
  // its peers never come, they stop as well. Nor is it one that no rank is in its program: threads
  // that have not begun yet, or that the caller has not seen the end of. Both functions are called
  // only between start() and stop().
  Watchdog(Seconds stall, Progress progress, OnStall on_stall);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void start();
  // Returns when no call of a function is in progress.
  void stop();

 private:
  void work();
  // Looks from time to time until the run ends. REQUIRES: the lock is held.
  void watch(std::unique_lock<std::mutex>& lock);

  const Seconds stall_;
  const Progress progress_;
  const OnStall on_stall_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;
  bool closing_ = false;
  std::thread thread_;
};

// Watches from its construction to its destruction.
class Watch {
 public:
  explicit Watch(Watchdog& watchdog) : watchdog_(watchdog) { watchdog_.start(); }
  ~Watch() { watchdog_.stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Watchdog& watchdog_;
};

}  // namespace mw::execute
