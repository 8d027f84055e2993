#include "execute/team.h"

namespace mw::execute {

Team::Team(int members) {
  threads_.reserve(static_cast<size_t>(members));
  for (int m = 0; m < members; ++m) threads_.emplace_back([this, m] { work(m); });
}

Team::~Team() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
  std::unique_lock lock(mutex_);
  job_ = &job;
  busy_ = size();
  ++generation_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return busy_ == 0; });
  job_ = nullptr;
}

void Team::work(int member) {
  uint64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || generation_ != done; });
    if (generation_ == done) return;
    done = generation_;
    const std::function<void(int)>* job = job_;
    lock.unlock();
    (*job)(member);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace mw::execute
