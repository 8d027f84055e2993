#include "execute/watchdog.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace mw::execute {
namespace {

using std::chrono::milliseconds;

TEST_CASE("no progress of ranks in their programs is a stall, reported once in a run") {
  std::atomic<int> stalls = 0;
  Watchdog watchdog(
      Seconds(0.02), [] { return std::vector<uint64_t>{7, 9}; },
      [&](Seconds stalled) {
        CHECK(stalled >= Seconds(0.02));
        ++stalls;
      });
  {
    const Watch watch(watchdog);
    while (stalls == 0) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(60));
  }
  CHECK(stalls == 1);
}

TEST_CASE("ranks that have not begun or have all ended are no stall, however long they take") {
  std::atomic<bool> runs = false;
  std::atomic<int> looks = 0, stalls = 0;
  Watchdog watchdog(
      Seconds(0.01),
      [&] {
        ++looks;
        return runs ? std::vector<uint64_t>{1} : std::vector<uint64_t>{};
      },
      [&](Seconds) { ++stalls; });
  const auto wait_for_looks = [&] {
    for (const int seen = looks; looks < seen + 10;) std::this_thread::sleep_for(milliseconds(1));
  };
  const Watch watch(watchdog);
  wait_for_looks();
  CHECK(stalls == 0);
  runs = true;
  while (stalls == 0) std::this_thread::sleep_for(milliseconds(1));
  CHECK(stalls == 1);
}

}  // namespace
}  // namespace mw::execute
