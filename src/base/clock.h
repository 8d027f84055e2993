// Time behind an interface, so that tests own it.
#pragma once

#include <atomic>

#include "base/ids.h"

namespace mw {

class Clock {
 public:
  virtual ~Clock() = default;
  // Since an arbitrary start; never goes back. Safe from any thread.
  virtual Seconds now() const = 0;
};

// The machine's monotonic clock.
Clock& steady_clock();

// Stands still until told.
class FakeClock : public Clock {
 public:
  Seconds now() const override { return Seconds(now_.load()); }
  // REQUIRES: by is not negative.
  void advance(Seconds by) { now_.store(now_.load() + by.value); }

 private:
  std::atomic<double> now_{0};
};

}  // namespace mw
