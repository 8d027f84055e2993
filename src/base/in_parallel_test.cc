#include "base/in_parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

TEST_CASE("every piece is worked at once, on any number of threads") {
  for (const size_t count : {0, 1, 2, 7, 300}) {
    for (const int threads : {-1, 0, 1, 2, 5, 400}) {
      std::vector<std::atomic<int>> times(count);
      mw::in_parallel(count, threads, [&](size_t i) { ++times[i]; });
      for (const std::atomic<int>& each : times) CHECK(each == 1);
    }
  }
}

TEST_CASE("pieces may have pieces of their own, and callers be many") {
  std::atomic<int> worked{0};
  std::vector<std::jthread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      mw::in_parallel(6, 3, [&](size_t) {
        mw::in_parallel(5, 4, [&](size_t) { mw::in_parallel(2, 2, [&](size_t) { ++worked; }); });
      });
    });
  }
  callers.clear();
  CHECK(worked == 4 * 6 * 5 * 2);
}

TEST_CASE("threads stay: a thousand calls do not make a thousand") {
  static std::atomic<int> threads{0};
  for (int call = 0; call < 1000; ++call) {
    mw::in_parallel(4, 2, [](size_t) {
      // Numbers of threads that have ended are given again; what a thread keeps is made anew.
      thread_local const int number = ++threads;
      CHECK(number > 0);
    });
  }
  CHECK(threads < 500);
}

TEST_CASE("what the lowest piece threw is thrown when all have ended") {
  for (const int threads : {1, 3}) {
    std::atomic<int> worked{0};
    const auto work = [&](size_t i) {
      ++worked;
      if (i == 2 || i == 5) throw std::runtime_error(i == 2 ? "two" : "five");
    };
    CHECK_THROWS_WITH_AS(mw::in_parallel(8, threads, work), "two", std::runtime_error);
    CHECK(worked == 8);
  }
}
