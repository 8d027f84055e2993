// Every kind against published orders and numbers. Golden orders: tests/golden/schedules (what
// torch.distributed.pipelining 2.13 generates, DeepSeek's DualPipe, Chimera's paper); tables: Zero
// Bubble (2401.10241), Controllable Memory (2405.15362), Chimera (2107.06925).
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "pipeline/schedule_timeline.h"
#include "pipeline/test_golden.h"

using namespace mw;
using namespace mw::pipeline;
using mw::pipeline::test::golden;

static double round_to(double value, int digits) {
  const double scale = std::pow(10, digits);
  return std::round(value * scale) / scale;
}

static double highest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

TEST_CASE("generated orders are the golden ones, action by action") {
  struct Case {
    const char* file;
    ScheduleRequest request;
  };
  const auto request = [](const char* kind, int32_t ranks, int32_t microbatches) {
    return ScheduleRequest{.kind = kind, .ranks = ranks, .microbatches = microbatches};
  };
  ScheduleRequest two_pairs = request("chimera", 8, 8);
  two_pairs.pairs = 2;
  const Case cases[] = {
      {"GPipe_pp4_m8.csv", request("gpipe", 4, 8)},
      {"1F1B_pp4_m8.csv", request("1f1b", 4, 8)},
      {"Interleaved1F1B_pp4_m8.csv", request("interleaved-1f1b", 4, 8)},
      {"LoopedBFS_pp4_m8.csv", request("looped-bfs", 4, 8)},
      {"InterleavedZeroBubble_pp4_m8.csv", request("interleaved-zb", 4, 8)},
      {"ZBVZeroBubble_pp4_m8.csv", request("zb-v", 4, 8)},
      {"DualPipeV_pp4_m8.csv", request("dualpipe-v", 4, 8)},
      {"ZBH1_pp4_m8.csv", request("zb-h1", 4, 8)},
      {"ZBH2_pp4_m8.csv", request("zb-h2", 4, 8)},
      {"VMin_pp4_m8.csv", request("v-min", 4, 8)},
      {"Chimera_f1_pp4_m8.csv", request("chimera", 4, 8)},
      {"Chimera_f2_pp8_m8.csv", two_pairs},
      {"DualPipe_pp4_m8.csv", request("dualpipe", 4, 8)},
      {"DualPipe_pp8_m20.csv", request("dualpipe", 8, 20)},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.file));
    const Schedule made = make_schedule(c.request), read = parse_csv(golden(c.file), c.file);
    CHECK(made.placement == read.placement);
    CHECK(made.ranks == read.ranks);
    CHECK(made.microbatches == read.microbatches);
  }
}

// Makespan; flush bubble; span bubble; peak activations at f = b = w = 1.
struct Row {
  const char* kind;
  int32_t ranks, microbatches;
  double makespan, bubble, span_bubble, peak;
};

static const Row kRows[] = {
    {"gpipe", 4, 4, 21, .429, .429, 4},
    {"gpipe", 4, 32, 105, .086, .086, 32},
    {"gpipe", 8, 16, 69, .304, .304, 16},
    {"1f1b", 4, 4, 21, .429, .429, 4},
    {"1f1b", 4, 8, 33, .273, .273, 4},
    {"1f1b", 8, 64, 213, .099, .099, 8},
    {"interleaved-1f1b", 4, 4, 33, .273, .273, 4},
    {"interleaved-1f1b", 4, 8, 57, .158, .158, 5.5},
    {"interleaved-1f1b", 4, 32, 201, .045, .045, 5.5},
    {"interleaved-1f1b", 8, 8, 69, .304, .304, 8},
    {"interleaved-1f1b", 8, 64, 405, .052, .052, 11.5},
    {"looped-bfs", 4, 8, 57, .158, .158, 8},
    {"looped-bfs", 8, 64, 405, .052, .052, 64},
    {"interleaved-zb", 4, 4, 27, .111, .111, 4},
    {"interleaved-zb", 4, 8, 51, .059, .059, 4},
    {"interleaved-zb", 8, 64, 391, .018, .018, 8},
    {"zb-v", 4, 4, 30, .200, .200, 4},
    {"zb-v", 4, 8, 51, .059, 0, 4},
    {"zb-v", 4, 16, 99, .030, 0, 4},
    {"zb-v", 8, 8, 62, .226, .226, 8},
    {"zb-v", 8, 64, 391, .018, 0, 8},
    {"dualpipe-v", 4, 8, 54, .111, .111, 4.5},
    {"dualpipe-v", 4, 32, 198, .030, .030, 4.5},
    {"dualpipe-v", 8, 16, 110, .127, .127, 8.5},
    {"dualpipe-v", 8, 64, 398, .035, .035, 8.5},
    {"chimera", 4, 4, 16, .250, .250, 4},
    {"chimera", 4, 8, 30, .200, .200, 4},
    {"chimera", 4, 32, 114, .158, .158, 4},
    {"chimera", 8, 8, 36, .333, .333, 8},
    {"chimera", 8, 64, 246, .220, .220, 8},
    {"zb-h1", 4, 4, 15, .200, .200, 4},
    {"zb-h1", 4, 8, 27, .111, .111, 4},
    {"zb-h1", 8, 64, 199, .035, .035, 8},
    {"zb-h2", 4, 4, 16, .250, .200, 4},
    {"zb-h2", 4, 8, 27, .111, 0, 7},
    {"zb-h2", 8, 8, 34, .294, .226, 8},
    {"zb-h2", 8, 64, 199, .035, 0, 15},
    {"dualpipe", 4, 8, 26, .077, .077, 5},
    {"dualpipe", 4, 32, 98, .020, .020, 5},
    {"dualpipe", 8, 16, 54, .111, .111, 9},
    {"dualpipe", 8, 20, 66, 6. / 66, 6. / 66, 9},
    {"dualpipe", 8, 64, 198, .030, .030, 9},
    {"v-min", 4, 4, 35, .314, -1, 2},
    {"v-min", 4, 8, 59, .186, -1, 2},
    {"v-min", 4, 32, 203, .054, -1, 2},
    {"v-min", 8, 8, 75, .360, -1, 4},
    {"v-min", 8, 64, 411, .066, -1, 4},
    {"v-half", 4, 8, 53, .094, -1, 3},
    {"v-half", 4, 16, 101, .050, -1, 3},
    {"v-half", 4, 32, 197, .025, -1, 3},
    {"v-half", 8, 16, 113, .150, -1, 5},
    {"v-half", 8, 32, 209, .081, -1, 5},
    {"v-half", 16, 32, 233, .176, -1, 9},
};

TEST_CASE("makespans, bubbles and peaks at unit costs are those of the reference's tables") {
  for (const Row& row : kRows) {
    CAPTURE(row.kind);
    CAPTURE(row.ranks);
    CAPTURE(row.microbatches);
    const Timeline times = timeline(
        make_schedule({.kind = row.kind, .ranks = row.ranks, .microbatches = row.microbatches}),
        {});
    CHECK(times.makespan == row.makespan);
    CHECK(std::abs(times.bubble - row.bubble) <= 5e-4);
    if (row.span_bubble >= 0) CHECK(std::abs(times.span_bubble - row.span_bubble) <= 5e-4);
    CHECK(highest(times.peak_activations) == row.peak);
  }
}

TEST_CASE("v-half's period is its building block's, whatever F, I and W take") {
  // Of two chunks: all work, and what the block itself leaves idle.
  for (const auto& [b, w] :
       {std::pair{1.0, 1.0}, {1.2, .8}, {1.5, 1.0}, {.5, 1.0}, {1.0, 2.0}, {1.5, .5}, {2.0, 1.0}}) {
    const ScheduleCosts costs{.f = {1}, .b = {b}, .w = {w}};
    const double period = 2 * (1 + b + w) + std::max(0.0, 2 * (b - 1 - w / 2));
    for (int32_t p = 3; p <= 16; ++p) {
      CAPTURE(p);
      CAPTURE(b);
      CAPTURE(w);
      const auto makespan = [&](int32_t m) {
        return timeline(make_schedule({.kind = "v-half", .ranks = p, .microbatches = m}), costs)
            .makespan;
      };
      CHECK(makespan(4 * p) - makespan(3 * p) == doctest::Approx(p * period));
    }
  }
}

TEST_CASE("the closed forms hold for all sizes") {
  const auto run = [](ScheduleRequest request, const ScheduleCosts& costs = {}) {
    return timeline(make_schedule(request), costs);
  };
  for (int32_t p = 2; p <= 10; ++p) {
    for (int32_t m = p; m <= 4 * p; m += p) {
      CAPTURE(p);
      CAPTURE(m);
      const double pd = p, md = m;
      CHECK(run({.kind = "1f1b", .ranks = p, .microbatches = m}).bubble ==
            mw::test::close_to((pd - 1) / (md + pd - 1)));
      CHECK(run({.kind = "gpipe", .ranks = p, .microbatches = m}).bubble ==
            mw::test::close_to((pd - 1) / (md + pd - 1)));
      for (int32_t v = 1; v <= 3; ++v) {
        CHECK(
            run({.kind = "interleaved-1f1b", .ranks = p, .chunks = v, .microbatches = m}).bubble ==
            mw::test::close_to((pd - 1) / (v * md + pd - 1)));
      }
      const ScheduleCosts uneven{.f = {1}, .b = {1.25}, .w = {.5}};
      // 1F1B leaves (p - 1)(f + b + w) idle, ZB-H1 (p - 1)(f + b - w).
      CHECK(run({.kind = "1f1b", .ranks = p, .microbatches = m}, uneven).makespan ==
            mw::test::close_to((md + pd - 1) * 2.75));
      CHECK(run({.kind = "zb-h1", .ranks = p, .microbatches = m}, uneven).makespan ==
            mw::test::close_to(md * 2.75 + (pd - 1) * 1.75));
      for (int32_t s = 1; s <= 4; ++s) {
        const Timeline slices =
            run({.kind = "seq-1f1b", .ranks = p, .microbatches = m, .slices = s});
        CHECK(slices.makespan == mw::test::close_to(3 * md + (pd - 1) * 3 / s));
        CHECK(highest(slices.peak_activations) == mw::test::close_to((s + pd - 1) / s));
      }
      const Timeline stale = run({.kind = "pipedream-2bw", .ranks = p, .microbatches = m}, uneven);
      CHECK(stale.bubble == mw::test::close_to(0));
      CHECK(stale.weight_copies == 2);
      CHECK(highest(stale.peak_activations) == p);
      if (p % 2 == 0) {
        const ScheduleCosts equal{.f = {1}, .b = {.5}, .w = {.5}};
        const Timeline chimera = run({.kind = "chimera", .ranks = p, .microbatches = m}, equal);
        CHECK(chimera.bubble == mw::test::close_to((pd - 2) / (2 * md + pd - 2)));
        CHECK(chimera.weight_copies == 2);
      }
      if (p % 2 == 0) {
        const Timeline v_half = run({.kind = "v-half", .ranks = p, .microbatches = m});
        CHECK(v_half.makespan == (p == 2 ? 6 * m + 1 : 6 * m + 3 * p - 7));
        if (p == 2 && m > p) CHECK(v_half.span_bubble == 0);
      }
    }
  }
}

TEST_CASE("v-half of few microbatches takes as long as their way there and back") {
  for (int32_t p = 4; p <= 16; p += 2) {
    for (int32_t m = 1; m <= p / 2; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const Timeline times =
          timeline(make_schedule({.kind = "v-half", .ranks = p, .microbatches = m}), {});
      CHECK(times.makespan == 4 * p + 2 * m - 1);
      CHECK(highest(times.peak_activations) <= p / 2 + 1);
    }
  }
}

TEST_CASE("work that fills a step leaves a bubble of 0, not of a rounding below it") {
  const ScheduleCosts narrow{.f = {2}, .b = {1}, .w = {.1}};
  const Timeline full =
      timeline(make_schedule({.kind = "pipedream-2bw", .ranks = 12, .microbatches = 24}), narrow);
  CHECK(full.bubble >= 0);
  CHECK(full.span_bubble >= 0);
  CHECK(full.period_bubble >= 0);
}

// Two microbatches are on their way while a rank waits, whichever step they are of.
TEST_CASE("a step without a flush takes its part of the microbatches' round trips") {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = p; m <= 2 * p + 1; ++m) {
      for (const double comm : {0., .5, 4., 20.}) {
        CAPTURE(p);
        CAPTURE(m);
        CAPTURE(comm);
        const ScheduleCosts costs{.comm = comm};
        const Timeline times = timeline(
            make_schedule({.kind = "pipedream-2bw", .ranks = p, .microbatches = m}), costs);
        const double rate = std::max(3., (3 * p + 2 * (p - 1) * comm) / p);
        CHECK(times.makespan == mw::test::close_to(m * rate));
        CHECK(times.bubble == mw::test::close_to(1 - 3 / rate));
        const ScheduleCosts in_ms{.f = {1e-3}, .b = {1e-3}, .w = {1e-3}, .comm = 1e-3 * comm};
        const Timeline short_times = timeline(
            make_schedule({.kind = "pipedream-2bw", .ranks = p, .microbatches = m}), in_ms);
        CHECK(short_times.makespan == mw::test::close_to(1e-3 * m * rate));
      }
    }
  }
  const ScheduleCosts uneven{
      .f = {.52, 1.1}, .b = {.88}, .w = {2.59, .59}, .comm = 8};  // 22.56 for a round trip of two
  CHECK(timeline(make_schedule({.kind = "pipedream-2bw", .ranks = 2, .microbatches = 3}), uneven)
            .makespan == mw::test::close_to(33.84));
}

// 1F1B of many steps' microbatches has one flush, however many they are.
TEST_CASE("without a flush a step takes what 1f1b takes longer for one more, in the long run") {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    uint64_t drawn = 0;
    const auto below = [&](uint32_t n) { return random_u32({.seed = seed}, drawn++) % n; };
    const auto p = static_cast<int32_t>(2 + below(4)), m = p + static_cast<int32_t>(below(6));
    const auto stage_costs = [&] {
      std::vector<double> costs;
      for (int32_t s = 0; s < p; ++s) costs.push_back(.5 + .25 * below(8));
      return costs;
    };
    const ScheduleCosts costs{
        .f = stage_costs(), .b = stage_costs(), .w = stage_costs(), .comm = .5 * below(8)};
    const auto makespan = [&](const char* kind, int32_t steps) {
      const Schedule schedule =
          make_schedule({.kind = kind, .ranks = p, .microbatches = steps * m});
      return timeline(schedule, costs).makespan;
    };
    // 420 is a multiple of all bunches of up to 7 microbatches.
    const double long_run = (makespan("1f1b", 840) - makespan("1f1b", 420)) / 420;
    CHECK(makespan("pipedream-2bw", 1) == mw::test::close_to(long_run).epsilon(1e-9));
  }
}

TEST_CASE("chimera with B = 2 F at N = D takes 5 D - 4, with f pairs Table 3's bubble") {
  for (const int32_t d : {4, 8, 16}) {
    CHECK(
        timeline(make_schedule({.kind = "chimera", .ranks = d, .microbatches = d}), {}).makespan ==
        5 * d - 4);
  }
  const Schedule two =
      make_schedule({.kind = "chimera", .ranks = 8, .microbatches = 8, .pairs = 2});
  CHECK(timeline(two, {}).makespan == 28);
  const Timeline equal = timeline(two, {.f = {1}, .b = {.5}, .w = {.5}});
  CHECK(equal.makespan == 18);
  CHECK(equal.weight_copies == 4);
}

TEST_CASE("forward doubling and backward halving leave (D - 2) / (3 N / 2 + D - 2) idle") {
  for (int32_t d = 2; d <= 12; d += 2) {
    for (int32_t units = 1; units <= 3; ++units) {
      CAPTURE(d);
      CAPTURE(units);
      const int32_t n = 2 * d * units;
      const Timeline doubling =
          timeline(make_schedule({.kind = "chimera-doubling", .ranks = d, .microbatches = n}), {});
      CHECK(doubling.makespan == 3 * n + 2 * (d - 2));
      CHECK(highest(doubling.peak_activations) == 2 * d);
      const Timeline halving = timeline(
          make_schedule({.kind = "chimera-halving", .ranks = d, .microbatches = n / 2}), {});
      CHECK(halving.makespan == 3 * n / 2 + d - 2);
      CHECK(highest(halving.peak_activations) == d);
    }
  }
}

// Zero Bubble, tables 5 and 6.
TEST_CASE("bubble rates of the zero-bubble paper hold to four decimals") {
  std::istringstream lines(golden("zero_bubble.csv"));
  std::string line;
  std::getline(lines, line);
  int rows = 0;
  while (std::getline(lines, line)) {
    std::vector<std::string> cell;
    std::istringstream cells(line);
    for (std::string text; std::getline(cells, text, ',');) cell.push_back(text);
    const auto number = [&](size_t column) { return std::stod(cell[column]); };
    CAPTURE(line);
    const auto p = static_cast<int32_t>(number(1)), m = static_cast<int32_t>(number(2));
    const double hidden = number(14), heads = number(15), seq = number(16);
    const ScheduleCosts costs{.f = {number(3)},
                              .b = {number(4)},
                              .w = {number(5)},
                              .comm = number(6),
                              .mb = 34 * hidden + 5 * heads * seq,
                              .mw = 32 * hidden};
    const auto rate = [&](const char* kind, double limit) {
      const ScheduleRequest request{
          .kind = kind, .ranks = p, .microbatches = m, .memory_limit = limit, .costs = costs};
      const Timeline times = timeline(make_schedule(request), costs);
      if (limit > 0) CHECK(highest(times.peak_activations) <= limit + 1e-6);
      return round_to(times.span_bubble, 4);
    };
    CHECK(rate("1f1b", 0) == mw::test::close_to(number(7)).epsilon(1e-9));
    CHECK(rate("zb-h1", 0) == mw::test::close_to(number(9)).epsilon(1e-9));
    CHECK(rate("zb-h2", 0) == mw::test::close_to(number(10)).epsilon(1e-9));
    CHECK(rate("zb-auto", p) == mw::test::close_to(number(11)).epsilon(1e-9));
    CHECK(rate("zb-auto", 2 * p) == mw::test::close_to(number(12)).epsilon(1e-9));
    ++rows;
  }
  CHECK(rows == 6);
}

TEST_CASE("every kind's schedules can run, for all sizes that it takes") {
  for (const std::string& kind : all_schedule_kinds()) {
    int made = 0;
    for (int32_t p = 1; p <= 7; ++p) {
      for (int32_t m = 1; m <= 17; ++m) {
        CAPTURE(kind);
        CAPTURE(p);
        CAPTURE(m);
        Schedule schedule;
        try {
          schedule = make_schedule({.kind = kind, .ranks = p, .microbatches = m});
        } catch (const Error&) {
          continue;
        }
        ++made;
        CHECK(schedule.name == kind);
        const std::vector<std::string> wrong = findings(schedule);
        CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
        const Schedule read = parse_csv(to_csv(schedule), "s.csv");
        CHECK(read.ranks == schedule.ranks);
        if (schedule.placement.replicas() == 1) CHECK(read.placement == schedule.placement);
      }
    }
    CHECK_MESSAGE(made >= 15, kind);
  }
}

// torch's group where there are fewer microbatches than ranks [schedules.py, flex_pp].
TEST_CASE("one round of all microbatches can be shorter than the pipeline") {
  for (const char* kind : {"interleaved-1f1b", "interleaved-zb"}) {
    for (int32_t p = 2; p <= 9; ++p) {
      for (int32_t v = 1; v <= 4; ++v) {
        for (int32_t m = 1; m <= 2 * p; ++m) {
          const Schedule schedule =
              make_schedule({.kind = kind, .ranks = p, .chunks = v, .microbatches = m, .group = m});
          CHECK(findings(schedule).empty());
          CHECK(highest(timeline(schedule, {}).peak_activations) <= m);
        }
      }
    }
  }
}

TEST_CASE("hanayo takes no longer than flushing between parts, and holds no more than 1F1B") {
  for (const int32_t p : {2, 3, 4, 6}) {
    for (const int32_t chunks : {2, 4, 6, 10}) {
      for (const int32_t half : {2, 3, 4, 6, 9, 12}) {
        CAPTURE(p);
        CAPTURE(chunks);
        CAPTURE(half);
        const ScheduleRequest request{
            .kind = "hanayo", .ranks = p, .chunks = chunks, .microbatches = 2 * half};
        const Timeline whole = timeline(make_schedule(request), {});
        for (const int32_t parts : {2, chunks > 2 && 2 * half % p == 0 ? 2 * half / p : 1}) {
          ScheduleRequest part = request;
          part.microbatches /= parts;
          CHECK(whole.makespan <= parts * timeline(make_schedule(part), {}).makespan);
        }
        for (const double peak : whole.peak_activations) CHECK(peak <= std::min(p, 2 * half));
      }
    }
  }
}

TEST_CASE(
    "of one wave hanayo idles as long however many microbatches there are, of more not much "
    "longer") {
  for (const int32_t p : {2, 3, 4, 5, 8}) {
    for (const int32_t rounds : {1, 2, 5, 9}) {
      CAPTURE(p);
      CAPTURE(rounds);
      const auto idle = [&](int32_t chunks, int32_t microbatches) {
        const Timeline times = timeline(
            make_schedule(
                {.kind = "hanayo", .ranks = p, .chunks = chunks, .microbatches = microbatches}),
            {});
        CHECK(highest(times.peak_activations) <= p);
        return times.makespan - 3 * chunks * microbatches;
      };
      CHECK(idle(2, rounds * p) <= 4 * (p - 1) + (p > 5 ? 1 : 0));
      CHECK(idle(2, rounds * p + 1) <= 4 * (p - 1) + 2);
      // 1F1B idles for 3 chunks (p - 1).
      for (const int32_t chunks : {4, 8})
        CHECK(idle(chunks, rounds * p) <= (chunks == 4 ? 12 : 16) * (p - 1));
    }
  }
}

TEST_CASE("hanayo's bubble is no larger than its paper's ratio at N = P") {
  for (const int32_t p : {4, 8}) {
    for (const int32_t waves : {1, 2, 4}) {
      const Timeline times = timeline(
          make_schedule({.kind = "hanayo", .ranks = p, .chunks = 2 * waves, .microbatches = p}),
          {});
      CHECK(times.bubble <= (2. * p - 2) / (3. * p * waves + p - 1) + .002);
      CHECK(highest(times.peak_activations) <= p);
    }
  }
}

TEST_CASE("any round of an interleaved schedule from p microbatches on") {
  for (const char* kind : {"interleaved-1f1b", "interleaved-zb"}) {
    for (const int32_t group : {4, 5, 6, 8, 12}) {
      CAPTURE(kind);
      CAPTURE(group);
      const Schedule schedule = make_schedule(
          {.kind = kind, .ranks = 4, .chunks = 3, .microbatches = 2 * group + 4, .group = group});
      CHECK(findings(schedule).empty());
    }
  }
}

TEST_CASE("what a kind cannot take says what it can") {
  const auto error = [](const ScheduleRequest& request) {
    return mw::test::thrown_by([&] { make_schedule(request); });
  };
  CHECK(error({.kind = "chimera", .ranks = 5, .microbatches = 4}) ==
        "schedule chimera: ranks=5 must be even; use 4 or 6");
  CHECK(error({.kind = "chimera", .ranks = 12, .microbatches = 4, .pairs = 4}) ==
        "schedule chimera: pairs=4 must divide half of ranks=12; use 1, 2, 3, 6");
  CHECK(error({.kind = "dualpipe", .ranks = 5, .microbatches = 9}) ==
        "schedule dualpipe: ranks=5 must be even; use 4 or 6\n"
        "schedule dualpipe: microbatches=9 must be even and at least 2 x ranks=10; use 10");
  CHECK(error({.kind = "dualpipe-v", .ranks = 4, .microbatches = 7}) ==
        "schedule dualpipe-v: microbatches=7 must be at least 2 x ranks=8");
  CHECK(error({.kind = "pipedream-2bw", .ranks = 4, .microbatches = 3}) ==
        "schedule pipedream-2bw: microbatches=3 must be at least ranks=4: with fewer, those of a "
        "third step would be under way on weights of a third version");
  CHECK(error({.kind = "zb-v", .ranks = 4, .chunks = 3, .microbatches = 8}) ==
        "schedule zb-v: chunks=3 must be 2");
  CHECK(error({.kind = "hanayo", .ranks = 4, .chunks = 3, .microbatches = 8}) ==
        "schedule hanayo: chunks=3 must be a multiple of 2");
  CHECK(error({.kind = "1f1b", .ranks = 4, .microbatches = 8, .pairs = 2, .memory_limit = 3}) ==
        "schedule 1f1b: has no pairs, an option of chimera, chimera-doubling, chimera-halving\n"
        "schedule 1f1b: has no memory limit, an option of zb-auto");
  CHECK(error({.kind = "zb-auto", .ranks = 4, .microbatches = 8, .memory_limit = .5}) ==
        "schedule zb-auto: the memory limit of 0.5 microbatches does not hold one; use at least 1");
  // Between I and W a microbatch may hold more than before.
  CHECK(error({.kind = "zb-auto",
               .ranks = 4,
               .microbatches = 8,
               .memory_limit = 1,
               .costs = {.mb = 2, .mw = 3}}) ==
        "schedule zb-auto: the memory limit of 1 microbatches does not hold one; use at least 1.5");
  CHECK(error({.kind = "interleaved-1f1b", .ranks = 4, .microbatches = 14, .group = 6}) ==
        "schedule interleaved-1f1b: group=6 leaves 2 of microbatches=14 to the last round, which "
        "must have at least ranks=4 of them");
}

TEST_CASE("a schedule says what it needs of whoever runs it") {
  const auto words = [](const char* kind, int32_t m = 8) {
    return describe(needs(make_schedule({.kind = kind, .ranks = 4, .microbatches = m})));
  };
  using Words = std::vector<std::string>;
  CHECK(words("1f1b").empty());
  CHECK(words("interleaved-1f1b").empty());
  CHECK(words("zb-h1") == Words{"input and weight gradients apart"});
  CHECK(words("zb-v") == Words{"input and weight gradients apart", "a folded placement"});
  CHECK(words("looped-bfs") == Words{"backwards in another order than the microbatches'"});
  CHECK(words("chimera") == Words{"stages on several ranks"});
  CHECK(words("pipedream-2bw") == Words{"weights of an older step"});
  CHECK(words("hanayo") == Words{"a folded placement"});
  CHECK(words("seq-1f1b") == Words{"slices of sequences"});
  CHECK(words("chimera-doubling") ==
        Words{"stages on several ranks", "several microbatches in one action"});
  CHECK(words("dualpipe") == Words{"input and weight gradients apart", "stages on several ranks",
                                   "a forward beside a backward"});
}
