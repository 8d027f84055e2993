#include "planner/front.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/rng.h"

using namespace mw;
using namespace mw::planner;

namespace {

Estimated point(int64_t name, double step, double peak) {
  Estimated made;
  made.plan.microbatches = name;
  made.step = Seconds(step);
  made.peak = Bytes(static_cast<int64_t>(peak));
  return made;
}

std::vector<Estimated> random_points(uint64_t seed) {
  const RngKey key{seed};
  std::vector<Estimated> points;
  for (int64_t i = 0; i < 300; ++i) {
    const double x = random_u32(key, static_cast<uint64_t>(2 * i)) / 4294967296.0;
    const double y = random_u32(key, static_cast<uint64_t>(2 * i + 1)) / 4294967296.0;
    points.push_back(point(i, 1 + x, 1e9 * (1 + 9 * y)));
  }
  return points;
}

}  // namespace

TEST_CASE("a front says what may belong to it") {
  Front front;
  CHECK(front.takes(Seconds(9), Bytes(9000)));
  front.keep(point(1, 1, 1000));
  CHECK(!front.takes(Seconds(1), Bytes(1000)));
  CHECK(!front.takes(Seconds(0.995), Bytes(995)));  // within a hundredth
  CHECK(front.takes(Seconds(0.98), Bytes(5000)));
  CHECK(front.takes(Seconds(1.4), Bytes(900)));
  CHECK(!front.takes(Seconds(1.6), Bytes(10)));  // one and a half times the fastest
  front.keep(point(2, 0.5, 2000));
  CHECK(!front.takes(Seconds(1.4), Bytes(900)));
}

TEST_CASE("whatever is kept has one that is told, no slower and with hardly more memory") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Front front;
    const std::vector<Estimated> points = random_points(seed);
    for (const Estimated& here : points) front.keep(here);
    const std::vector<Estimated> told = front.told();
    const auto of = [&](const Estimated& one) -> const Estimated& {
      return points[static_cast<size_t>(one.plan.microbatches)];
    };
    REQUIRE(!told.empty());
    CHECK(of(told.back()).step.value <= 1.5 * of(told[0]).step.value);
    for (size_t i = 1; i < told.size(); ++i) {
      CHECK(of(told[i]).step > of(told[i - 1]).step);
      CHECK(static_cast<double>(of(told[i]).peak.value) <=
            0.9 * static_cast<double>(of(told[i - 1]).peak.value));
    }
    for (const Estimated& here : points) {
      if (here.step.value > 1.5 * of(told[0]).step.value) continue;
      CHECK(std::any_of(told.begin(), told.end(), [&](const Estimated& one) {
        return of(one).step <= here.step && 0.9 * static_cast<double>(of(one).peak.value) <=
                                                static_cast<double>(here.peak.value);
      }));
    }
  }
}
