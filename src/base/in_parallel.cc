#include "base/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace mw {
namespace {

// The pieces of one call, and who is at them.
struct Pieces {
  const std::function<void(size_t)>& work;
  std::vector<std::exception_ptr> failures;  // [piece]
  std::atomic<size_t> next{0};
  int helpers = 0;  // under the helpers' mutex

  void take() {
    for (size_t i = next++; i < failures.size(); i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  }
};

// Threads that live as long as the process: what each has allocated it uses again at the next call.
class Helpers {
 public:
  ~Helpers() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wanted_.notify_all();
  }

  // Works at the pieces with so many helpers at most until all are done. Pieces may have pieces of
  // their own: nobody waits for a helper that has not begun.
  void work_at(Pieces& pieces, size_t helpers) {
    {
      const std::lock_guard lock(mutex_);
      calls_.insert(calls_.end(), helpers, &pieces);
      while (idle_ + threads_.size() - started_ < calls_.size() && threads_.size() < kMost &&
             start_helper()) {
      }
    }
    wanted_.notify_all();
    pieces.take();
    std::unique_lock lock(mutex_);
    calls_.remove(&pieces);
    left_.wait(lock, [&] { return pieces.helpers == 0; });
  }

 private:
  static constexpr size_t kMost = 256;

  // False where the system starts no more: those that there are do the work.
  bool start_helper() {
    try {
      threads_.emplace_back([this] { help(); });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void help() {
    std::unique_lock lock(mutex_);
    ++started_;
    while (true) {
      ++idle_;
      wanted_.wait(lock, [&] { return ended_ || !calls_.empty(); });
      --idle_;
      if (ended_) return;
      Pieces& pieces = *calls_.front();
      calls_.pop_front();
      ++pieces.helpers;
      lock.unlock();
      pieces.take();
      lock.lock();
      if (--pieces.helpers == 0) left_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wanted_, left_;
  std::list<Pieces*> calls_;  // one for every helper that is wanted
  size_t started_ = 0, idle_ = 0;
  bool ended_ = false;
  std::vector<std::jthread> threads_;  // last: they end first
};

}  // namespace

void in_parallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  Pieces pieces{.work = work, .failures = std::vector<std::exception_ptr>(count)};
  const size_t team = std::min(count, static_cast<size_t>(std::max(1, threads)));
  if (team <= 1) {
    pieces.take();
  } else {
    static Helpers helpers;
    helpers.work_at(pieces, team - 1);
  }
  for (const std::exception_ptr& failure : pieces.failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

int threads_for(size_t steps) {
  constexpr size_t kWorthThreads = 50'000;
  return steps < kWorthThreads ? 1 : 4;
}

int threads_or_cores(int64_t asked) {
  if (asked > 0) return static_cast<int>(asked);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace mw
