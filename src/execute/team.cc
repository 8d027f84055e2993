#include "execute/team.h"

#include "base/thread.h"

namespace mw::execute {

// By way of the empty team, whose destructor ends those that have started where one cannot.
Team::Team(int members) : Team() {
  threads_.reserve(static_cast<size_t>(members));
  for (int m = 0; m < members; ++m) threads_.push_back(start_thread([this, m] { work(m); }));
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
