// A rank that fails, and one that hangs, anywhere in compiled programs: the run ends, and says who
// it was.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "base/rng.h"
#include "small_training.h"

namespace mw {
namespace {

using std::chrono::steady_clock;

// Does something at the n-th op of one rank, once armed; before that it counts.
struct Fault {
  RankId rank;
  int64_t at = 0;
  std::function<void()> act;
  std::atomic<bool> armed = false;
  std::atomic<int64_t> ops = 0;
  std::string op;  // its name, for the message

  InterpreterBackend::Hook hook() {
    return [this](RankId r, const ir::Op& running) {
      if (r != rank) return;
      const int64_t now = ops.fetch_add(1);
      if (!armed || now != at) return;
      op = ir::op_name(running.kind);
      act();
    };
  }
};

const std::vector<std::string> kPlans = {
    "pp=4,microbatches=4",
    "dp=2,tp=2,pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,sp,zero=1",
    "dp=2,tp=2,zero=3,microbatches=2",
    "dp=4,pp=2,microbatches=2,zero=2",
};

std::string error_of(SmallTraining& training) {
  try {
    training.step();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

execute::ExecutorOptions options_of(bool rendezvous, double stall_seconds) {
  execute::ExecutorOptions options;
  options.stall_seconds = stall_seconds;
  options.world.copying = rendezvous;
  if (rendezvous) options.world.sends = comm::Sends::kRendezvous;
  return options;
}

TEST_CASE("a rank that throws at any op ends all ranks within a second, with its name and place") {
  const char* all = std::getenv("MESHWRIGHT_TEST_ALL");
  const uint64_t draws = all != nullptr && std::string(all) == "1" ? 120 : 16;
  double longest = 0;
  for (uint64_t draw = 0; draw < draws; ++draw) {
    const std::string& plan = kPlans[draw % kPlans.size()];
    Fault fault;
    fault.rank = RankId(static_cast<int64_t>(
        mix_bits(2 * draw) % static_cast<uint64_t>(compile::parse_plan(plan).ranks())));
    SmallTraining training(plan, options_of(draw % 2 == 1, 60), fault.hook());
    training.initialize();
    fault.ops = 0;
    training.step();  // a sound one, that counts
    fault.at = static_cast<int64_t>(mix_bits(2 * draw + 1) % static_cast<uint64_t>(fault.ops));
    CAPTURE(plan);
    CAPTURE(fault.rank.value);
    CAPTURE(fault.at);
    steady_clock::time_point thrown;
    fault.act = [&] {
      thrown = steady_clock::now();
      throw RunError("out of luck");
    };
    fault.ops = 0;
    fault.armed = true;
    const std::string error = error_of(training);
    const double seconds = std::chrono::duration<double>(steady_clock::now() - thrown).count();
    longest = std::max(longest, seconds);
    CHECK(seconds < 1);
    CHECK(error.starts_with(fmt::format("rank {} (", fault.rank.value)));
    CHECK(error.find("), train run 2, command ") != std::string::npos);
    CHECK(error.find(fmt::format(" {} ", fault.op)) != std::string::npos);
    CHECK(error.ends_with(": out of luck"));
  }
  MESSAGE(fmt::format("longest time from the throw to the end of the run: {:.3f} s", longest));
}

TEST_CASE(
    "a rank that hangs in an op is named by the watchdog, with its instruction, as the others, and "
    "the run goes on with it") {
  for (const std::string& plan : kPlans) {
    CAPTURE(plan);
    Fault fault;
    fault.rank = RankId(1);
    fault.at = 3;
    std::atomic<bool> reported = false;
    std::string report;
    fault.act = [&] {
      const auto end = steady_clock::now() + std::chrono::seconds(30);
      while (!reported && steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    execute::ExecutorOptions options = options_of(false, 0.5);
    options.on_slow = [&](const std::string& text) {
      if (!reported) report = text;
      reported = true;
    };
    SmallTraining training(plan, options, fault.hook());
    training.initialize();
    fault.ops = 0;
    fault.armed = true;
    CHECK_NOTHROW(training.step());
    CHECK(reported);
    CHECK(report.starts_with("no rank has made progress for 0.5"));
    const auto line = report.find("  rank 1 (");
    REQUIRE(line != std::string::npos);
    const std::string own = report.substr(line, report.find('\n', line) - line);
    CAPTURE(own);
    CHECK(own.find("), train run 1, command ") != std::string::npos);
    CHECK(own.find(fmt::format(" {} ", fault.op)) != std::string::npos);
    CHECK(own.ends_with(": works, and waits for no other rank"));
    CHECK(report.find("waits", line + own.size() + 1) != std::string::npos);
  }
}

}  // namespace
}  // namespace mw
