#include "base/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace mw {

void in_parallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next{0};
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> team;
    for (size_t t = 1; t < std::min(count, static_cast<size_t>(std::max(1, threads))); ++t)
      team.emplace_back(take);
    take();
  }
  for (const std::exception_ptr& failure : failures) {
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
