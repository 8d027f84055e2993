#include "execute/watchdog.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace mw::execute {
namespace {

using std::chrono::milliseconds;

TEST_CASE("ranks are still for as long as they were seen to be, whatever the clock says") {
  StillTime still(Seconds(2));
  CHECK(still.look(Seconds(100), {7, 9}).value == 0);
  CHECK(still.look(Seconds(101), {7, 9}).value == 1);
  CHECK(still.look(Seconds(900), {7, 9}).value == 3);  // nobody could look meanwhile
  CHECK(still.look(Seconds(901), {7, 9}).value == 4);
  CHECK(still.look(Seconds(902), {7, 10}).value == 0);
  CHECK(still.look(Seconds(903), {7, 10}).value == 1);
  CHECK(still.look(Seconds(904), {}).value == 0);
  CHECK(still.look(Seconds(905), {}).value == 0);
}

TEST_CASE("a stall that does not end the run is reported again after twice the time") {
  std::vector<double> stalls;
  std::atomic<int> reports = 0;
  std::atomic<uint64_t> moved = 0;
  Watchdog watchdog(
      Seconds(0.02), [&] { return std::vector<uint64_t>{moved}; },
      [&](Seconds stalled) {
        stalls.push_back(stalled.value);
        if (stalls.size() == 3) ++moved;  // then the first time counts again
        ++reports;
        return stalls.size() == 4;
      });
  {
    const Watch watch(watchdog);
    while (reports < 4) std::this_thread::sleep_for(milliseconds(1));
  }
  REQUIRE(stalls.size() == 4);
  CHECK(stalls[0] >= 0.02);
  CHECK(stalls[1] >= 0.04);
  CHECK(stalls[2] >= 0.08);
  CHECK(stalls[3] >= 0.02);
  CHECK(stalls[3] < stalls[2]);
}

TEST_CASE(
    "no progress of ranks in their programs is a stall, reported once where it ends the run") {
  std::atomic<int> stalls = 0;
  Watchdog watchdog(
      Seconds(0.02), [] { return std::vector<uint64_t>{7, 9}; },
      [&](Seconds stalled) {
        CHECK(stalled >= Seconds(0.02));
        ++stalls;
        return true;
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
      [&](Seconds) {
        ++stalls;
        return true;
      });
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
