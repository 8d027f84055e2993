// Inside the threads backend: blocking that can be aborted and looked at.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/waiting.h"

namespace mw::comm {

class WaitPoint;

// Whether the run was given up, and every place at which a thread may be asleep meanwhile.
class AbortState {
 public:
  bool raised() const { return raised_.load(); }
  // Wakes every sleeper. The first reason stands.
  void raise(std::string reason);
  // Throws Aborted if raised.
  void check() const {
    if (raised()) rethrow();
  }

 private:
  friend class WaitPoint;
  [[noreturn]] void rethrow() const;

  std::atomic<bool> raised_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
  std::vector<WaitPoint*> points_;
};

// What one handle is asleep on; written by its thread, read by a watchdog.
class Sleep {
 public:
  void begin(WaitKind kind, int64_t sequence);
  void end();
  // Calls use(kind, sequence, since) if asleep; the sleeper cannot wake up meanwhile.
  template <typename Use>
  void look(Use use) const {
    std::lock_guard lock(mutex_);
    if (asleep_) use(kind_, sequence_, since_);
  }

 private:
  mutable std::mutex mutex_;
  bool asleep_ = false;
  WaitKind kind_ = WaitKind::kCollective;
  int64_t sequence_ = 0;
  std::chrono::steady_clock::time_point since_;
};

// Where threads wait for a condition on atomics. Conditions and what notify() follows use
// sequentially consistent operations, so that a sleeper that is not yet counted sees the change.
class WaitPoint {
 public:
  // How long a waiter looks again and again before it sleeps. To wake a sleeper takes 50 to 150 us
  // on a virtual machine: with a shorter spin one rank's sleep makes the other sleep in the
  // collective after. What waits for a message may wait for a whole pass.
  static constexpr std::chrono::microseconds kCollectiveSpin{200}, kSpin{25};

  // REQUIRES: `abort` outlives it.
  explicit WaitPoint(AbortState& abort);
  ~WaitPoint();
  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;

  // Call after a change that may make a condition true.
  void notify() {
    if (sleepers_.load() > 0) wake();
  }

  // Returns true when done() holds; false, if `abortable`, when the run was given up before that.
  template <typename Done>
  bool wait(Sleep& sleep, WaitKind kind, int64_t sequence, bool spin, bool abortable, Done done) {
    if (done()) return true;
    if (spin) {
      const auto end = std::chrono::steady_clock::now() +
                       (kind == WaitKind::kCollective ? kCollectiveSpin : kSpin);
      do {
        for (int i = 0; i < kPauses; ++i) {
          pause();
          if (done()) return true;
        }
      } while (std::chrono::steady_clock::now() < end);
    }
    sleep.begin(kind, sequence);
    {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      changed_.wait(lock, [&] { return done() || (abortable && abort_.raised()); });
      sleepers_.fetch_sub(1);
    }
    sleep.end();
    return done();
  }

 private:
  friend class AbortState;
  static constexpr int kPauses = 50;  // between looks at the clock; some microseconds
  static void pause();
  void wake();

  AbortState& abort_;
  std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace mw::comm
