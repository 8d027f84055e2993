#include "pipeline/schedule.h"

#include <algorithm>

#include <set>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "pipeline/schedule_timeline.h"

using namespace mw;
using namespace mw::pipeline;

// What torch.distributed.pipelining 2.13 generates for 4 ranks and 8 microbatches (1F1B with its
// last row repaired).
static const char* const kTorchGPipe =
    "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0B0,0B1,0B2,0B3,0B4,0B5,0B6,0B7\r\n"
    "1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,1B0,1B1,1B2,1B3,1B4,1B5,1B6,1B7\r\n"
    "2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,2B0,2B1,2B2,2B3,2B4,2B5,2B6,2B7\r\n"
    "3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,3B0,3B1,3B2,3B3,3B4,3B5,3B6,3B7\r\n";
static const char* const kTorch1F1B =
    "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\r\n"
    "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\r\n"
    "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\r\n"
    "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\r\n";
static const char* const kTorchInterleaved =
    "0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,,,,,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,0B1,,"
    "0B2,,0B3,,4B4,,"
    "4B5,,4B6,,4B7,,0B4,,0B5,,0B6,,0B7\r\n"
    ",1F0,1F1,1F2,1F3,5F0,5F1,5F2,5F3,,,,1F4,5B0,1F5,5B1,1F6,5B2,1F7,5B3,5F4,1B0,5F5,1B1,5F6,1B2,"
    "5F7,1B3,,5B4,,5B5"
    ",,5B6,,5B7,,1B4,,1B5,,1B6,,1B7\r\n"
    ",,2F0,2F1,2F2,2F3,6F0,6F1,,,6F2,6B0,6F3,6B1,2F4,6B2,2F5,6B3,2F6,2B0,2F7,2B1,6F4,2B2,6F5,2B3,"
    "6F6,6B4,6F7,6B5,,"
    "6B6,,6B7,,2B4,,2B5,,2B6,,2B7\r\n"
    ",,,3F0,3F1,3F2,3F3,,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,7B4,"
    "7F5,7B5,7F6,7B6,"
    "7F7,7B7,,3B4,,3B5,,3B6,,3B7\r\n";
// Rank 3 as torch 2.13's Schedule1F1B itself numbers it: forwards 1 to m.
static const char* const kTorch1F1BRaw =
    "0F0,0F1,0B0,0B1\n"
    "1F1,1B0,1F2,1B1\n";

TEST_CASE("the generators make the orders that torch generates") {
  const auto same = [](const ScheduleRequest& request, const char* csv) {
    const Schedule made = make_schedule(request), torch = parse_csv(csv, "torch.csv");
    CHECK(made.placement == torch.placement);
    CHECK(made.ranks == torch.ranks);
    CHECK(made.microbatches == torch.microbatches);
  };
  same({.kind = "gpipe", .ranks = 4, .microbatches = 8}, kTorchGPipe);
  same({.kind = "1f1b", .ranks = 4, .microbatches = 8}, kTorch1F1B);
  same({.kind = "interleaved-1f1b", .ranks = 4, .chunks = 2, .microbatches = 8}, kTorchInterleaved);
}

TEST_CASE("every schedule can run, keeps microbatches ascending and survives its CSV") {
  for (const std::string kind : {"gpipe", "1f1b", "interleaved-1f1b"}) {
    for (int32_t p = 1; p <= 6; ++p) {
      for (int32_t m = 1; m <= 18; ++m) {
        for (int32_t v = 1; v <= (kind == "interleaved-1f1b" && m % p == 0 ? 3 : 1); ++v) {
          if (kind == "interleaved-1f1b" && m % p != 0) continue;
          CAPTURE(kind);
          CAPTURE(p);
          CAPTURE(m);
          CAPTURE(v);
          const Schedule schedule = make_schedule({kind, p, v, m});
          CHECK(findings(schedule).empty());
          CHECK(parse_csv(to_csv(schedule), "s.csv").ranks == schedule.ranks);
          for (const std::vector<Action>& actions : schedule.ranks) {
            CHECK(actions.size() == static_cast<size_t>(2 * m * v));
            std::vector<int32_t> next_f(static_cast<size_t>(p * v), 0), next_b = next_f;
            for (const Action& a : actions) {
              auto& next = a.kind == ActionKind::kF ? next_f : next_b;
              CHECK(a.first == next[a.stage.index()]++);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("gpipe keeps all microbatches alive, 1f1b at most p - rank of them") {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 1; m <= 20; ++m) {
      const std::vector<int32_t> gpipe = peak_in_flight(make_schedule({"gpipe", p, 1, m}));
      const std::vector<int32_t> one_f_one_b = peak_in_flight(make_schedule({"1f1b", p, 1, m}));
      for (int32_t r = 0; r < p; ++r) {
        CHECK(gpipe[static_cast<size_t>(r)] == m);
        CHECK(one_f_one_b[static_cast<size_t>(r)] == std::min(m, p - r));
      }
    }
  }
}

TEST_CASE("interleaved-1f1b keeps (v - 1) p + 2 (p - 1 - rank) + 1 chunks alive") {
  for (int32_t p = 2; p <= 6; ++p) {
    for (int32_t m = p; m <= 4 * p; m += p) {  // with one chunk it is 1f1b
      CHECK(make_schedule({"interleaved-1f1b", p, 1, m}).ranks ==
            make_schedule({"1f1b", p, 1, m}).ranks);
      for (int32_t v = 2; v <= 4; ++v) {
        const std::vector<int32_t> peak =
            peak_in_flight(make_schedule({"interleaved-1f1b", p, v, m}));
        for (int32_t r = 0; r < p; ++r) {
          CHECK(peak[static_cast<size_t>(r)] == std::min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1));
        }
      }
    }
  }
}

TEST_CASE("on one rank a schedule is gradient accumulation") {
  CHECK(to_csv(make_schedule({"1f1b", 1, 1, 3})) == "0F0,0B0,0F1,0B1,0F2,0B2\n");
  CHECK(to_csv(make_schedule({"interleaved-1f1b", 1, 2, 2})) ==
        "0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\n");
  CHECK(to_csv(make_schedule({"gpipe", 1, 1, 3})) == "0F0,0F1,0F2,0B0,0B1,0B2\n");
}

static Schedule made_of(const char* kind, int32_t chunks = 1) {
  return make_schedule({.kind = kind, .ranks = 4, .chunks = chunks, .microbatches = 8});
}

// Stages and microbatches of the actions of one kind.
static std::vector<std::pair<StageId, int32_t>> in_order(const std::vector<Action>& actions,
                                                         ActionKind kind) {
  std::vector<std::pair<StageId, int32_t>> order;
  for (const Action& action : actions) {
    if (action.kind == kind) order.emplace_back(action.stage, action.first);
  }
  return order;
}

TEST_CASE("a kind is the variant that it says it is") {
  for (const ScheduleKind* kind : listed_kinds()) {
    CAPTURE(kind->name);
    const Variant& variant = kind->variant;
    for (const char* other : {variant.one_chunk, variant.whole_backward, variant.flushed,
                              variant.less_memory, variant.same_memory})
      CHECK((other == nullptr || find_kind(other) != nullptr));
    if (variant.one_chunk != nullptr) {
      CHECK(timeline(made_of(kind->name), {}).makespan ==
            timeline(made_of(variant.one_chunk), {}).makespan);
    }
    if (variant.whole_backward != nullptr) {
      const int32_t chunks = kind->chunks.usual;
      const Schedule split = made_of(kind->name, chunks);
      const Schedule whole = made_of(variant.whole_backward, chunks);
      CHECK(needs(split).split_backward);
      CHECK(!needs(whole).split_backward);
      CHECK(split.placement == whole.placement);
      for (size_t r = 0; r < split.ranks.size(); ++r) {
        for (const auto& [apart, together] :
             {std::pair(ActionKind::kF, ActionKind::kF), {ActionKind::kI, ActionKind::kB}})
          CHECK(in_order(split.ranks[r], apart) == in_order(whole.ranks[r], together));
      }
      CHECK(timeline(split, {}).makespan < timeline(whole, {}).makespan);
    }
    if (variant.flushed != nullptr) {
      CHECK(made_of(kind->name).ranks == made_of(variant.flushed).ranks);
      CHECK(kind->weight_versions > 1);
    }
    if (variant.less_memory != nullptr) {
      const Schedule more = made_of(kind->name), less = made_of(variant.less_memory);
      CHECK(timeline(more, {}).makespan == timeline(less, {}).makespan);
      CHECK(peak_in_flight(more) > peak_in_flight(less));
    }
    if (variant.same_memory != nullptr) {
      // Of stages that are half as long.
      const int32_t chunks = kind->chunks.usual;
      const Schedule shorter = made_of(kind->name, chunks), longer = made_of(variant.same_memory);
      CHECK(timeline(shorter, {}).makespan < chunks * timeline(longer, {}).makespan);
      const std::vector<int32_t> peaks = peak_in_flight(shorter), allowed = peak_in_flight(longer);
      CHECK(*std::max_element(peaks.begin(), peaks.end()) <=
            chunks * *std::max_element(allowed.begin(), allowed.end()));
    }
    CHECK(kind->runs() == (kind->weight_versions == 1));
  }
}

TEST_CASE("with other stages a rank a kind comes to another") {
  const auto with = [](const char* kind, int64_t chunks) {
    return std::string(kind_with_chunks(kind_of(kind), chunks).name);
  };
  CHECK(with("1f1b", 1) == "1f1b");
  CHECK(with("1f1b", 3) == "interleaved-1f1b");
  CHECK(with("interleaved-1f1b", 1) == "1f1b");
  CHECK(with("gpipe", 2) == "looped-bfs");
  CHECK(with("zb-h1", 2) == "zb-h1");
  CHECK(is_usual(kind_of("interleaved-1f1b")));
  CHECK(!is_usual(kind_of("gpipe")));
  CHECK(std::string(with_split_backward(kind_of("1f1b"))->name) == "zb-h1");
  CHECK(with_split_backward(kind_of("gpipe")) == nullptr);
  CHECK(std::string(shorter_in_same_memory(kind_of("1f1b"))->name) == "zb-v");
  CHECK(shorter_in_same_memory(kind_of("zb-v")) == nullptr);
  CHECK(std::string(published_kind("zb-2p").kind->name) == "zb-auto");
  CHECK(published_kind("zb-2p").limit == 2);
  CHECK(published_kind("").limit == 0);
}

TEST_CASE("every file's kind is listed once, the oldest first, with its year") {
  const std::vector<std::string> kinds = all_schedule_kinds();
  const std::set<std::string> listed(kinds.begin(), kinds.end());
  CHECK(listed.size() == kinds.size());
  for (const char* kind :
       {"gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "chimera", "chimera-doubling",
        "chimera-halving", "zb-h1", "zb-h2", "zb-v", "zb-auto", "interleaved-zb", "v-half", "v-min",
        "hanayo", "dualpipe", "dualpipe-v", "seq-1f1b", "pipedream-2bw"}) {
    CAPTURE(std::string(kind));
    CHECK(listed.contains(kind));
  }
  for (size_t k = 1; k < kinds.size(); ++k)
    CHECK(kind_of(kinds[k - 1]).year() <= kind_of(kinds[k]).year());
  CHECK(kind_of("1f1b").year() == 2018);
  CHECK(kind_of("1f1b").period == 1);
  CHECK(kind_of("chimera").period == 2);
  CHECK(kind_of("hanayo").period == 0);
  CHECK(kind_of("looped-bfs").period == 0);
  CHECK(find_kind("1f2b") == nullptr);
  CHECK(std::string(kind_of("1f2b").name) == kUsualKind);
}

TEST_CASE("a request that cannot be met says why") {
  const auto error = [](const ScheduleRequest& request) {
    return mw::test::thrown_by([&] { make_schedule(request); });
  };
  CHECK(starts_with(
      error({"1f2b", 4, 1, 8}),
      "schedule '1f2b' is unknown, did you mean '1f1b'?; it must be one of 1f1b, gpipe, "
      "pipedream-2bw, interleaved-1f1b, chimera, "));
  CHECK(error({"1f1b", 4, -2, 0}) ==
        "schedule 1f1b: chunks=-2 must be at least 1\n"
        "schedule 1f1b: microbatches=0 must be at least 1");
  CHECK(error({"1f1b", 4, 2, 8}) ==
        "schedule 1f1b: chunks=2 must be 1: a rank hosts one stage; use interleaved-1f1b for more");
  CHECK(error({"interleaved-1f1b", 4, 2, 10}) ==
        "schedule interleaved-1f1b: microbatches=10 is not a multiple of ranks=4; use "
        "microbatches=8 or 12, or rounds of group=5");
  CHECK(
      error({"interleaved-1f1b", 4, 2, 3}) ==
      "schedule interleaved-1f1b: microbatches=3 is not a multiple of ranks=4; use microbatches=4, "
      "or rounds of group=3");
  CHECK(error({.kind = "interleaved-zb", .ranks = 4, .microbatches = 3, .group = 5}) ==
        "schedule interleaved-zb: group=5 must be microbatches=3, which are fewer than ranks=4");
  CHECK(error({.kind = "interleaved-zb", .ranks = 4, .microbatches = 4, .group = 5}) ==
        "schedule interleaved-zb: group=5 must be from ranks=4 to microbatches=4");
  CHECK(error({.kind = "interleaved-1f1b", .ranks = 4, .microbatches = 9, .group = 3}) ==
        "schedule interleaved-1f1b: group=3 must be from ranks=4 to microbatches=9");
}

TEST_CASE("options of other kinds are refused by name, and left out of a kind's own") {
  ScheduleRequest all{.kind = "gpipe",
                      .ranks = 4,
                      .chunks = 1,
                      .microbatches = 8,
                      .group = 8,
                      .slices = 3,
                      .pairs = 2,
                      .memory_limit = 5,
                      .exact = true};
  all.sync = GradientSync::kEager;
  CHECK(mw::test::thrown_by([&] { make_schedule(all); }) ==
        "schedule gpipe: has no group, an option of interleaved-1f1b, interleaved-zb\n"
        "schedule gpipe: has no slices, an option of seq-1f1b\n"
        "schedule gpipe: has no pairs, an option of chimera, chimera-doubling, chimera-halving\n"
        "schedule gpipe: has no memory limit, an option of zb-auto\n"
        "schedule gpipe: has no gradient synchronisation to choose, an option of chimera, "
        "chimera-doubling, chimera-halving, dualpipe\n"
        "schedule gpipe: has no exact order, an option of zb-auto");
  for (const ScheduleKind* kind : listed_kinds()) {
    CAPTURE(kind->name);
    all.kind = kind->name;
    all.chunks = kind->chunks.usual;
    const ScheduleRequest own = own_options(all);
    CHECK(own.chunks == (kind->chunks.most == kind->chunks.least ? 0 : all.chunks));
    CHECK(own.group == (kind->options.group ? 8 : 0));
    CHECK(own.slices == (kind->options.slices ? 3 : 0));
    CHECK(own.pairs == (kind->options.pairs ? 2 : 0));
    CHECK(own.memory_limit == (kind->options.memory_limit ? 5 : 0));
    CHECK(own.exact == kind->options.exact);
    CHECK(own.sync == (kind->options.sync ? GradientSync::kEager : GradientSync::kEnd));
    CHECK(request_findings(own).empty());
  }
  all.kind = "1f2b";
  CHECK(own_options(all).slices == 3);
}

TEST_CASE("a kind has as many replicas of a stage, and its backward apart, as it says") {
  for (const ScheduleKind* kind : listed_kinds()) {
    for (const int32_t pairs : {0, 1, 2}) {
      if (pairs > 0 && !kind->options.pairs) continue;
      const ScheduleRequest request{.kind = kind->name,
                                    .ranks = 4,
                                    .chunks = kind->chunks.usual,
                                    .microbatches = 16,
                                    .pairs = pairs};
      CAPTURE(kind->name);
      CAPTURE(pairs);
      const Schedule schedule = make_schedule(request);
      CHECK(schedule.placement.replicas() == kind->replicas * std::max(1, pairs));
      CHECK(needs(schedule).split_backward == kind->split_backward);
      CHECK(needs(schedule).slices == kind->options.slices);
    }
  }
}

TEST_CASE("an order that comes again makes every further part of it as long") {
  for (const ScheduleKind* kind : listed_kinds()) {
    for (const int32_t p : {2, 4}) {
      const int32_t part = kind->period * p;
      for (int32_t m = 3 * part; part > 0 && m < 4 * part; ++m) {
        if (!request_findings({.kind = kind->name, .ranks = p, .microbatches = m}).empty())
          continue;
        CAPTURE(kind->name);
        CAPTURE(p);
        CAPTURE(m);
        const auto makespan = [&](int32_t parts) {
          return timeline(make_schedule(
                              {.kind = kind->name, .ranks = p, .microbatches = m + parts * part}),
                          {})
              .makespan;
        };
        CHECK(makespan(2) - makespan(1) == makespan(1) - makespan(0));
      }
    }
  }
}

TEST_CASE("the shortest rounds are the shortest that are accepted") {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 1; m <= 5 * p; ++m) {
      const auto fits = [&](int32_t group) {
        return request_findings(
                   {.kind = "interleaved-1f1b", .ranks = p, .microbatches = m, .group = group})
            .empty();
      };
      int32_t shortest = 1;
      while (!fits(shortest)) ++shortest;
      CAPTURE(p);
      CAPTURE(m);
      CHECK(shortest_rounds(p, m) == shortest);
    }
  }
}

TEST_CASE("a schedule beyond all memory is refused before it is made") {
  const auto wrong = [](const ScheduleRequest& request) {
    return join(request_findings(request), "\n");
  };
  CHECK(wrong({"looped-bfs", 1000, 50, 1000}) == "");
  CHECK(wrong({"looped-bfs", 1000, 51, 1000}) ==
        "schedule looped-bfs: 1000 ranks x 51 chunks x 1000 microbatches are more than 5e+07 "
        "forwards");
  CHECK(wrong({.kind = "seq-1f1b", .ranks = 1000, .microbatches = 1000, .slices = 51}) ==
        "schedule seq-1f1b: 1000 ranks x 1 chunks x 1000 microbatches x 51 slices are more than "
        "5e+07 forwards");
}

TEST_CASE("CSV cells that are no actions are reported together") {
  const std::string rest =
      "; it must be empty, stage, one of F I W B and microbatch as in 3F7, (3F7;4B0)OVERLAP_F_B, "
      "or "
      "one of SEND_F RECV_F SEND_B RECV_B as in 3SEND_F7, or of UNSHARD RESHARD REDUCE_GRAD as in "
      "3UNSHARD";
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0X1\n1F0, 0F0xyz ,1B-1\n", "s.csv"); }) ==
        "s.csv:1: cell 2 is '0X1'" + rest + "\ns.csv:2: cell 2 is '0F0xyz'" + rest +
            "\ns.csv:2: cell 3 is '1B-1'" + rest);
  for (const std::string cell :
       {"0", "F0", "0F", "0F-1", "0F3-", "0F3-3", "0F3-2", "0F0/", "0F0^", "0F0 1", "0SEND_F",
        "0SEND_F0-1", "0UNSHARD0", "(0F0)OVERLAP_F_B", "(0F0;0B1;0F2)OVERLAP_F_B",
        "(0F0;0SEND_F0)OVERLAP_F_B", "(0F0;0B1)"}) {
    CHECK(mw::test::thrown_by([&] { parse_csv("0F0,0B0," + cell, "s.csv"); }) ==
          "s.csv:1: cell 3 is '" + cell + "'" + rest);
  }
  // A slip that is in all cells is told of a few.
  std::string lower;
  for (int rank = 0; rank < 4; ++rank) lower += "0f0,0f1,0f2,0b0,0b1,0b2\n";
  const std::string many = mw::test::thrown_by([&] { parse_csv(lower, "s.csv"); });
  CHECK(std::count(many.begin(), many.end(), '\n') == 16);
  CHECK(many.ends_with("\ns.csv: 8 more cells are of no such form"));
  CHECK(mw::test::thrown_by([] { parse_csv("", "s.csv"); }) ==
        "s.csv: is empty; it must have one line a rank");
  CHECK(mw::test::thrown_by([] { parse_csv("\n \n", "s.csv"); }) ==
        "s.csv: is empty; it must have one line a rank");
  CHECK(parse_csv("0F0,0B0\n\n\n", "s.csv").ranks.size() == 1);
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0\n,,\n", "s.csv"); }) ==
        "s.csv:2: rank 1 has no F, I, W or B; leave the line out");
}

TEST_CASE("a number that is too large for a CSV cell is said to be so") {
  struct Case {
    const char *cell, *number;
  };
  for (const Case& c : std::vector<Case>{{"0F99999999999", "99999999999"},
                                         {"99999999999F0", "99999999999"},
                                         {"0F1048576", "1048576"},
                                         {"0F0-4294967297", "4294967297"},
                                         {"0F0/4294967296", "4294967296"},
                                         {"0F0^2147483648", "2147483648"},
                                         {"2SEND_F9223372036854775808", "9223372036854775808"},
                                         {"(0F0;0B5000000000)OVERLAP_F_B", "5000000000"},
                                         {"1099511627776UNSHARD", "1099511627776"}}) {
    CHECK(mw::test::thrown_by([&] { parse_csv("0F0\n0F1," + std::string(c.cell), "s.csv"); }) ==
          "s.csv:2: cell 2 is '" + std::string(c.cell) + "'; " + c.number +
              " is too large a number; it must be below 1048576");
  }
  const std::string nines(100, '9');
  CHECK(mw::test::thrown_by([&] { parse_csv("0F" + nines, "s.csv"); }) ==
        "s.csv:1: cell 1 is '0F" + nines.substr(0, 58) + "…'; " + nines.substr(0, 60) +
            "… is too large a number; it must be below 1048576");
  CHECK(mw::test::thrown_by([] { parse_csv("0F1048575", "s.csv"); }).find("too large") ==
        std::string::npos);
}

TEST_CASE("numbers far beyond the rows are said in a line, whatever their size") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F1000000,0B1000000\n", "s.csv"); }) ==
        "s.csv: rank 0: stage 0 has no work for microbatches 0 to 999999");
  CHECK(mw::test::thrown_by([] { parse_csv("1000000F1000000\n", "s.csv"); }) ==
        "s.csv: rank 0 action 0 (1000000F1000000) makes it 1000001 stages, 1000001 microbatches "
        "and 1 slices, 1000002000001 forwards, but the rows have 1");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0,0F7,0F1048575/1048575\n1F0\n", "s.csv"); }) ==
        "s.csv: rank 0 action 3 (0F1048575/1048575) makes it 2 stages, 1048576 microbatches and "
        "1048576 slices, 2199023255552 forwards, but the rows have 4");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0\n0F1000000^1,0B0^1\n", "s.csv"); }) ==
        "s.csv: rank 1 action 0 (0F1000000^1) makes it 1 stages, 1000001 microbatches and 1 slices "
        "in 2 replicas, 1000001 forwards, but the rows have 2");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0,0F2,0B2,0F3,0B3,0F6,0B6\n", "s.csv"); }) ==
        "s.csv: rank 0: stage 0 has no work for microbatches 1, 4 to 5");
  CHECK(mw::test::thrown_by([] { parse_csv("1000000F0,1000000B0\n", "s.csv"); }) ==
        "s.csv: stages 0 to 999999 have no work for microbatch 0");
}

TEST_CASE("replicas and ranges beyond the rows are said before anything is made of them") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F0^1048575,0B0^1048575\n", "s.csv"); }) ==
        "s.csv: rank 0 action 0 is 0F0^1048575, but the replicas are 0 to 0, on as many ranks");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0\n0F1^70,0B1^70\n", "s.csv"); }) ==
        "s.csv: rank 1 action 0 is 0F1^70, but the replicas are 0 to 1, on as many ranks");
  std::string row = "0F0-1000000";
  for (int i = 0; i < 5; ++i) row += ",0F0-1000000";
  CHECK(mw::test::thrown_by([&] { parse_csv(row + "\n", "s.csv"); }) ==
        "s.csv: rank 0 action 4 (0F0-1000000) makes it more than 4194304 pieces of work");
  // Of an action of several microbatches once, of several actions up to a hundred times.
  CHECK(mw::test::thrown_by([] { parse_csv("0F0-999,0F0-999,0B0-999\n", "s.csv"); }) ==
        "s.csv: rank 0 action 1 (0F0-999) is there twice: rank 0 action 0 is 0F0-999");
  std::vector<std::string> twice, backward;
  for (int k = 0; k < 150; ++k) {
    twice.insert(twice.end(), 2, fmt::format("0F{}", k));
    backward.push_back(fmt::format("0B{}", k));
  }
  const std::string told = mw::test::thrown_by(
      [&] { parse_csv(join(twice, ",") + "," + join(backward, ",") + "\n", "s.csv"); });
  CHECK(split(told, '\n').size() == 101);
  CHECK(told.ends_with("\ns.csv: and more like these"));
}

TEST_CASE("weights are gathered where they are used, once") {
  CHECK(parse_csv("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n", "s.csv").ranks[0].size() == 2);
  CHECK(mw::test::thrown_by([] { parse_csv("0UNSHARD,0F0,0RESHARD,0B0\n", "s.csv"); }) ==
        "s.csv: rank 0 step 3 (0B0) needs its stage's weights, which UNSHARD has not gathered "
        "before it");
  CHECK(mw::test::thrown_by(
            [] { parse_csv("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n", "s.csv"); }) ==
        "s.csv: rank 0 step 1 (0UNSHARD) comes while the weights are gathered\n"
        "s.csv: rank 0 step 5 (0RESHARD) comes while the weights are not gathered");
  CHECK(mw::test::thrown_by([] {
          parse_csv(
              "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
              "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
              "s.csv");
        }) ==
        "s.csv: rank 1 step 6 (1B1) is the last of a stage whose gradients no REDUCE_GRAD reduces, "
        "as it does others'");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", "s.csv"); }) ==
        "s.csv: rank 0 step 3 (0REDUCE_GRAD) reduces gradients that were reduced before");
}

TEST_CASE("the order that torch 2.13 gives the last rank of 1F1B is refused") {
  const std::string text = mw::test::thrown_by([] { parse_csv(kTorch1F1BRaw, "raw.csv"); });
  CHECK(text.find("raw.csv: rank 1 action 1 (1B0) has no F before it on this rank") !=
        std::string::npos);
  CAPTURE(text);
  CHECK(text.find("raw.csv: rank 1 action 2 (1F2) has no B of its microbatch after it") !=
        std::string::npos);
}

TEST_CASE("I and W, overlapped pairs and idle cells pass through the CSV") {
  const std::string csv = "0F0,0F1,0I0,0W0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n";
  const Schedule schedule = parse_csv(csv, "s.csv");
  CHECK(schedule.ranks[1][1].paired_with == 2);
  CHECK(schedule.ranks[1][2].paired_with == 1);
  CHECK(to_csv(schedule) == csv);
  CHECK(parse_csv(",, 0F0 ,,0B0\n", "s.csv").ranks[0].size() == 2);
}

TEST_CASE("ranks that wait for each other are found") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "s.csv"); }) ==
        "s.csv: rank 0 waits forever at action 1 (0B0) for 1B0 of rank 1\n"
        "s.csv: rank 1 waits forever at action 0 (1F1) for 0F1 of rank 0");
  // The two of a pair begin together: a backward may not need, by way of another rank, its forward.
  CHECK(mw::test::thrown_by(
            [] { parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n", "s.csv"); }) ==
        "s.csv: rank 0 waits forever at action 2 (0B0) for 1B0 of rank 1\n"
        "s.csv: rank 1 waits forever at action 1 (1F1) for 0F1 of rank 0");
  CHECK(parse_csv("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n", "s.csv").microbatches == 2);
}

TEST_CASE("work that is missing, doubled or on another rank is found") {
  Schedule schedule = make_schedule({"1f1b", 2, 1, 2});
  schedule.ranks[0][2] = schedule.ranks[0][0];  // 0F0 0F1 0F0 0B1
  CHECK(findings(schedule) ==
        std::vector<std::string>{"rank 0 action 2 (0F0) is there twice: rank 0 action 0 is 0F0",
                                 "rank 0 action 2 (0F0) has no B of its microbatch after it"});
  schedule = make_schedule({"1f1b", 2, 1, 2});
  std::swap(schedule.ranks[0], schedule.ranks[1]);
  CHECK(findings(schedule).front() == "rank 0 action 0 is 1F0, but stage 1 is on rank 1");
  schedule = make_schedule({"1f1b", 2, 1, 2});
  schedule.ranks[1][0].paired_with = 1;
  CHECK(findings(schedule) ==
        std::vector<std::string>{
            "rank 1 action 0 (1F0) is paired with action 1, which is not paired with it"});
  schedule.ranks[1][0].paired_with = 3;
  schedule.ranks[1][3].paired_with = 0;
  CHECK(findings(schedule) ==
        std::vector<std::string>{
            "rank 1 action 0 (1F0) is paired with action 3, which is not its neighbour",
            "rank 1 action 3 (1B1) is paired with action 0, which is not its neighbour"});
}

TEST_CASE("a stage that two ranks share is on the first of them, and no replica") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F0\n0B0\n", "s.csv"); }) ==
        "s.csv: rank 1 action 0 is 0B0, but stage 0 is on rank 0\n"
        "s.csv: rank 1 action 0 (0B0) has no F before it on this rank");
  // Both microbatches go through rank 0: a replica would have a rank of its own.
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0\n1F1,1B1\n", "s.csv"); }) ==
        "s.csv: rank 2 action 0 is 1F1, but stage 1 is on rank 1\n"
        "s.csv: rank 2 action 1 is 1B1, but stage 1 is on rank 1");
}

TEST_CASE("a pair of one microbatch's forward and backward is found in joined actions, too") {
  for (const char* second : {"0B0", "0B1"}) {
    CAPTURE(second);
    const char* other = std::string_view(second) == "0B0" ? "0B1" : "0B0";
    CHECK(mw::test::thrown_by([&] {
            parse_csv(fmt::format("(0F0-1;{})OVERLAP_F_B,{}\n", second, other), "s.csv");
          }) == fmt::format("s.csv: rank 0 action 0 (0F0-1) cannot overlap with {}; a pair is a "
                            "forward and a backward of different work",
                            second));
  }
  CHECK(parse_csv("0F0-1,(0F2-3;0B0)OVERLAP_F_B,0B1,0B2,0B3\n", "s.csv").microbatches == 4);
}

TEST_CASE("slices that are missing or out of order are found, of any microbatch") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F0/0,0F0/1,0B0/1,0B0/0,0F1/0,0B1/0\n", "s.csv"); }) ==
        "s.csv: rank 0 action 5 (0B1/0) comes before slice 1 of its microbatch\n"
        "s.csv: stage 0 has 1 of the 2 slices of microbatch 1");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0B0,0F1/0,0F1/1,0B1/1,0B1/0\n", "s.csv"); })
            .starts_with("s.csv: rank 0 action 0 is 0F0, but the slices are 0 to 1\n"
                         "s.csv: rank 0 action 1 is 0B0, but the slices are 0 to 1\n"));
  Schedule whole = make_schedule({"1f1b", 1, 1, 1});
  whole.ranks[0][0].slice = 0;
  CHECK(findings(whole).front() == "rank 0 action 0 is 0F0/0, but the slices are whole sequences");
  Schedule schedule = parse_csv("0F0/0,0F0/1,0B0/1,0B0/0,0F1/0,0F1/1,0B1/1,0B1/0\n", "s.csv");
  schedule.microbatches = 1;
  CHECK(findings(schedule) ==
        std::vector<std::string>{"rank 0 action 4 is 0F1/0, but the microbatches are 0 to 0",
                                 "rank 0 action 5 is 0F1/1, but the microbatches are 0 to 0",
                                 "rank 0 action 6 is 0B1/1, but the microbatches are 0 to 0",
                                 "rank 0 action 7 is 0B1/0, but the microbatches are 0 to 0"});
}

TEST_CASE("a microbatch that goes from one replica to another is found") {
  CHECK(mw::test::thrown_by([] { parse_csv("0F0,0F1^1,0B0,0B1^1\n1F0,1B0,1F1,1B1\n", "s.csv"); }) ==
        "s.csv: rank 1 action 2 (1F1) is on replica 0, but 0F1^1 is on replica 1: a microbatch "
        "goes through one replica");
  CHECK(mw::test::thrown_by([] { parse_csv("0F0^1,0B0^1\n1F0^1,1B0^1\n", "s.csv"); }) ==
        "s.csv: no rank has work of replica 0, but the replicas are 0 to 1");
}

TEST_CASE("actions print in torch's letters, and what torch lacks is marked") {
  CHECK(to_string(Action{.kind = ActionKind::kB, .stage = StageId(3), .first = 7}) == "3B7");
  CHECK(to_string(Action{.kind = ActionKind::kUpdate, .stage = StageId()}) == "UPDATE");
  const Action superset{.stage = StageId(1), .replica = 1, .first = 4, .count = 2, .slice = 3};
  CHECK(to_string(superset) == "1F4-5/3^1");
}
