#include "comm/wait_point.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"

namespace mw::comm {

void AbortState::raise(std::string reason) {
  std::lock_guard lock(mutex_);
  if (raised()) return;
  reason_ = std::move(reason);
  raised_.store(true);
  for (WaitPoint* point : points_) point->wake();
}

void AbortState::rethrow() const {
  std::lock_guard lock(mutex_);
  throw Aborted(reason_);
}

void Sleep::begin(WaitKind kind, int64_t sequence) {
  std::lock_guard lock(mutex_);
  asleep_ = true;
  kind_ = kind;
  sequence_ = sequence;
  since_ = std::chrono::steady_clock::now();
}

void Sleep::end() {
  std::lock_guard lock(mutex_);
  asleep_ = false;
}

WaitPoint::WaitPoint(AbortState& abort) : abort_(abort) {
  std::lock_guard lock(abort_.mutex_);
  abort_.points_.push_back(this);
}

WaitPoint::~WaitPoint() {
  std::lock_guard lock(abort_.mutex_);
  std::erase(abort_.points_, this);
}

void WaitPoint::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void WaitPoint::wake() {
  // The lock lets no sleeper be between its last look at the condition and its sleep.
  {
    std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

}  // namespace mw::comm
