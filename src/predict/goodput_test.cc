#include "predict/goodput.h"

#include <cmath>

#include <doctest/doctest.h>

#include "base/rng.h"
#include "base/test_close_to.h"

using namespace mw;
using namespace mw::predict;

namespace {

constexpr double kMinute = 60, kHour = 3600, kDay = 86400;

Goodput of(double mtbf, double checkpoint, double restart,
           std::optional<Seconds> interval = std::nullopt) {
  return goodput({Seconds(mtbf), Seconds(checkpoint), Seconds(restart), interval}, 1,
                 Seconds(1e-3));
}

// Plays the model: the share of time that is training that lasts, over `segments` checkpoints.
double played(double mtbf, double checkpoint, double restart, double interval, int segments) {
  uint64_t draws = 0;
  const auto next_failure = [&] {
    return -mtbf * std::log1p(-static_cast<double>(random_uniform(RngKey{7, 0, 0}, draws++)));
  };
  double time = 0;
  for (int s = 0; s < segments; ++s) {
    for (double fails = next_failure(); fails < interval + checkpoint; fails = next_failure()) {
      time += fails;
      for (double again = next_failure(); again < restart; again = next_failure()) time += again;
      time += restart;
    }
    time += interval + checkpoint;
  }
  return interval * segments / time;
}

}  // namespace

TEST_CASE("the best intervals are Daly's printed ones") {
  // [Daly 2006], figures 3, 4 and 5: checkpoints of 5 min, restarts of 10 min.
  CHECK(std::round(of(24 * kHour, 5 * kMinute, 10 * kMinute).best_interval.value / kMinute) == 117);
  CHECK(std::round(of(6 * kHour, 5 * kMinute, 10 * kMinute).best_interval.value / kMinute) == 57);
  CHECK(of(15 * kMinute, 5 * kMinute, 10 * kMinute).best_interval.value / kMinute ==
        mw::test::close_to(9.1).epsilon(0.01));
  CHECK(std::round(of(24 * kHour, 5 * kMinute, 600).daly.value / kMinute) == 117);
  CHECK(of(24 * kHour, 5 * kMinute, 600).young.value / kMinute == mw::test::close_to(120));
}

TEST_CASE("Daly's estimate has its third order, and ends at the mean time between failures") {
  // M (sqrt(2 c) (1 + sqrt(c / 2) / 3 + c / 18) - c) [Daly 2006, equation 37] for c below 2.
  struct Case {
    double checkpoint, daly;  // over M
  };
  for (const Case& c : {Case{0.02, 0.2 * (1 + 0.1 / 3 + 0.02 / 18) - 0.02},
                        Case{0.5, 1 + 0.5 / 3 + 0.5 / 18 - 0.5}, Case{2, 1}, Case{18, 1}}) {
    CHECK(of(1000, 1000 * c.checkpoint, 0).daly.value == mw::test::close_to(1000 * c.daly));
  }
}

TEST_CASE("no interval is better than the best one, and shares add up to one") {
  for (const double mtbf : {600.0, 1e4, 1e6}) {
    for (const double checkpoint : {0.01, 3.0, 300.0}) {
      const Goodput best = of(mtbf, checkpoint, 120);
      CHECK(best.goodput == best.best_goodput);
      CHECK(best.goodput + best.checkpoints + best.lost_work + best.restarts ==
            mw::test::close_to(1).epsilon(1e-12));
      for (const double factor : {0.5, 0.9, 1.1, 2.0}) {
        const Goodput other = of(mtbf, checkpoint, 120, best.best_interval * factor);
        CHECK(other.goodput < best.goodput);
        CHECK(other.best_goodput == best.goodput);
      }
    }
  }
}

TEST_CASE("an interval is of whole steps") {
  const Failures failures{Seconds(1e6), Seconds(1), Seconds(60), Seconds(0.001)};
  CHECK(goodput(failures, 1, Seconds(2)).interval == Seconds(2));
  Failures more = failures;
  more.interval = Seconds(7.5);
  CHECK(goodput(more, 1, Seconds(2)).interval == Seconds(8));
  // sqrt(2 C M) is 1.4 of its steps; one and two of them are tried.
  Failures best{Seconds(100), Seconds(1), Seconds(60), std::nullopt};
  CHECK(goodput(best, 1, Seconds(10)).best_interval == Seconds(10));
  best.device_mtbf = Seconds(200);
  CHECK(goodput(best, 1, Seconds(11)).best_interval == Seconds(22));
}

TEST_CASE("a checkpoint that stops nothing is best after every step") {
  const Failures failures{Seconds(1000), Seconds(0), Seconds(100), std::nullopt};
  const Goodput best = goodput(failures, 1, Seconds(7));
  CHECK(best.best_interval == Seconds(7));
  CHECK(best.checkpoints == 0);
  CHECK(best.young == Seconds(0));
  // tau / (M e^(R / M) (e^(tau / M) - 1))
  CHECK(best.goodput == mw::test::close_to(0.007 / (std::exp(0.1) * std::expm1(0.007))));
}

TEST_CASE("goodput is what a played job has") {
  CHECK(of(3600, 30, 300, Seconds(600)).goodput ==
        mw::test::close_to(played(3600, 30, 300, 600, 200000)).epsilon(0.003));
  CHECK(of(1000, 100, 500, Seconds(700)).goodput ==
        mw::test::close_to(played(1000, 100, 500, 700, 200000)).epsilon(0.006));
}

TEST_CASE("failures grow with the number of devices, and a checkpoint is not within a step") {
  const Failures failures{Seconds(1000 * kHour), Seconds(1), Seconds(0), std::nullopt};
  CHECK(goodput(failures, 1000, Seconds(1)).job_mtbf.value == mw::test::close_to(kHour));
  CHECK(goodput(failures, 1000, Seconds(500)).best_interval.value == 500);
  CHECK(goodput(failures, 1000, Seconds(1)).goodput > goodput(failures, 2000, Seconds(1)).goodput);
}

TEST_CASE("Llama 3's and ByteRobust's published shares of effective time come out") {
  // 419 unexpected interruptions in 54 days: one in 3.1 h. 405e9 parameters, steps of some seconds.
  const Seconds checkpoint(405e9 * kCheckpointBytesAParameter / kLlama3StorageBytesPerSecond);
  const Failures failures{kLlama3DeviceMtbf, checkpoint, kDalyRestart, std::nullopt};
  const Goodput llama = goodput(failures, 16384, Seconds(5));
  CHECK(54 * kDay / llama.job_mtbf.value == mw::test::close_to(419));
  CHECK(llama.goodput > 0.90);  // published: higher than 90 % [Dubey 2024, section 3.3.4]
  CHECK(llama.goodput < 0.95);
  // 97 % on 9,600 devices with a checkpoint every step [ByteRobust, arXiv 2509.16293].
  const Goodput byte =
      goodput({kLlama3DeviceMtbf, Seconds(0.05), kDalyRestart, std::nullopt}, 9600, Seconds(5));
  CHECK(byte.goodput == mw::test::close_to(0.97).epsilon(0.01));
}

TEST_CASE("where hardly an interval ends without a failure, shares are still numbers") {
  const Goodput rare = of(100, 10, 50, Seconds(1e7));
  CHECK(rare.goodput == 0);
  CHECK(rare.checkpoints == 0);
  CHECK(rare.lost_work + rare.restarts == mw::test::close_to(1));
  CHECK(rare.restarts == mw::test::close_to(1 - std::exp(-0.5)));
}
