#include "runtime/thread_team.h"

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include "execute/test_allocations.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

TEST_CASE("every piece of every job is run once, by any number of threads") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    CHECK(team.threads() == threads);
    for (int64_t pieces = 0; pieces < 400; ++pieces) {
      std::vector<int> runs(static_cast<size_t>(pieces) + 1, 0);
      std::vector<int> by(static_cast<size_t>(threads), 0);
      struct Job {
        std::vector<int>&runs, &by;
      } job{runs, by};
      team.run(
          pieces,
          [](void* context, int thread, int64_t i) {
            ++static_cast<Job*>(context)->runs[static_cast<size_t>(i)];
            ++static_cast<Job*>(context)->by[static_cast<size_t>(thread)];
          },
          &job);
      int64_t once = 0, all = 0;
      for (const int n : runs) once += n == 1;
      for (const int n : by) all += n;
      REQUIRE(once == pieces);
      REQUIRE(all == pieces);
    }
  }
}

TEST_CASE("a team ends at once, in whatever state its helpers are") {
  for (int i = 0; i < 2000; ++i) {
    ThreadTeam team(3);
    if (i % 2 == 0) team.run(i % 5, [](void*, int, int64_t) {}, nullptr);
  }
}

TEST_CASE("parallel_for covers a range once, in ranges of at least a grain that begin at lines") {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t n : {0, 1, 15, 16, 17, 100, 4096, 100003}) {
      for (const int64_t grain : {1, 16, 1000}) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(grain);
        std::vector<int> seen(static_cast<size_t>(n), 0);
        std::atomic<int> small{0}, badly_placed{0};
        parallel_for(threads, n, grain, [&](int thread, int64_t begin, int64_t end) {
          CHECK((thread >= 0 && thread < threads));
          if (end - begin < std::min(n, grain) / 2) ++small;
          if (n >= 1024 && begin % 16 != 0) ++badly_placed;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        int64_t once = 0;
        for (const int s : seen) once += s == 1;
        CHECK(once == n);
        if (n >= 1024 && grain >= 1000) CHECK(small == 0);
        CHECK(badly_placed == 0);
      }
    }
  }
}

// Of a loop's ranges each waits until as many have begun, which so many threads alone can do.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  // Whether all came.
  bool meet() {
    ++come_;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (come_ < expected_ && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return come_ >= expected_;
  }

 private:
  const int expected_;
  std::atomic<int> come_{0};
};

TEST_CASE(
    "helpers that sleep are woken; a loop has as many threads as it asks for, and no others") {
  for (const int threads : {2, 4, 3}) {
    for (int loop = 0; loop < 2; ++loop) {
      CAPTURE(threads);
      Meeting meeting(threads);
      std::atomic<int> met{0}, others{0};
      std::atomic<bool> came[4] = {};
      parallel_for(threads, 4 * threads, 1, [&](int thread, int64_t, int64_t) {
        if (thread >= threads) {
          ++others;
        } else if (!came[thread].exchange(true)) {
          met += meeting.meet() ? 1 : 0;
          // So long that the rank's own thread sleeps, too, and is to be woken.
          if (thread > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      });
      CHECK(others == 0);
      CHECK(met == threads);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until they sleep
    }
  }
}

TEST_CASE("once its threads are there a loop allocates nothing") {
  const auto loop = [](int threads) { parallel_for(threads, 100, 1, [](int64_t, int64_t) {}); };
  loop(3);
  execute::start_counting_allocations();
  loop(3);
  CHECK(execute::stop_counting_allocations() == 0);
}

TEST_CASE("few indices are dealt out one by one") {
  for (const int64_t n : {2, 5, 8}) {
    std::atomic<int> ranges{0};
    parallel_for(2, n, 1, [&](int64_t begin, int64_t end) {
      CHECK(end == begin + 1);
      ++ranges;
    });
    CHECK(ranges == n);
  }
}

}  // namespace
}  // namespace mw::runtime
