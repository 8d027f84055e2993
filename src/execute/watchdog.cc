#include "execute/watchdog.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/thread.h"

namespace mw::execute {

Watchdog::Watchdog(Seconds stall, Progress progress, OnStall on_stall)
    : stall_(stall),
      progress_(std::move(progress)),
      on_stall_(std::move(on_stall)),
      thread_(start_thread([this] { work(); })) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    running_ = false;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::start() {
  std::lock_guard lock(mutex_);
  running_ = true;
  changed_.notify_all();
}

void Watchdog::stop() {
  std::lock_guard lock(mutex_);
  running_ = false;
  changed_.notify_all();
}

void Watchdog::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return running_ || closing_; });
    if (closing_) return;
    watch(lock);
  }
}

void Watchdog::watch(std::unique_lock<std::mutex>& lock) {
  // The mutex is held while a function is called, which is what stop() waits for.
  const auto period = std::chrono::duration<double>(std::clamp(stall_.value / 8, 0.005, 1.0));
  std::vector<uint64_t> last = progress_();
  Seconds since = steady_clock().now();
  while (running_) {
    changed_.wait_for(lock, period, [this] { return !running_; });
    if (!running_) return;
    const Seconds now = steady_clock().now();
    std::vector<uint64_t> current = progress_();
    if (current != last || current.empty()) {
      last = std::move(current);
      since = now;
    } else if (now - since >= stall_) {
      on_stall_(now - since);
      changed_.wait(lock, [this] { return !running_; });
    }
  }
}

}  // namespace mw::execute
