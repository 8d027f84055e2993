#include "execute/watchdog.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/thread.h"

namespace mw::execute {

Seconds StillTime::look(Seconds now, std::vector<uint64_t> progress) {
  if (progress.empty() || progress != last_) {
    still_ = Seconds();
    last_ = std::move(progress);
  } else {
    still_ += std::min(now - seen_, longest_gap_);
  }
  seen_ = now;
  return still_;
}

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
  const Seconds period(std::clamp(stall_.value / 8, 0.005, 1.0));
  StillTime still(period * 2);
  still.look(steady_clock().now(), progress_());
  Seconds patience = stall_;
  while (running_) {
    changed_.wait_for(lock, std::chrono::duration<double>(period.value),
                      [this] { return !running_; });
    if (!running_) return;
    const Seconds stalled = still.look(steady_clock().now(), progress_());
    if (stalled.value == 0) patience = stall_;
    if (stalled < patience) continue;
    if (on_stall_(stalled)) {
      changed_.wait(lock, [this] { return !running_; });
    } else {
      patience = patience * 2;
    }
  }
}

}  // namespace mw::execute
