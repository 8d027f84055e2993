#include "pipeline/schedule_comms.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "pipeline/test_golden.h"

using namespace mw;
using namespace mw::pipeline;
using mw::pipeline::test::golden;

static const char* const kWithComms[] = {
    "GPipe",         "1F1B",     "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
    "ZBVZeroBubble", "DualPipeV"};

TEST_CASE("torch's lowered schedules are read, are sound and survive the round trip") {
  for (const std::string name : kWithComms) {
    CAPTURE(name);
    const std::string text = golden(name + "_pp4_m8_comms.csv");
    const ParsedSchedule parsed = parse_schedule(text, name);
    const std::string written = to_csv(parsed.schedule, parsed.steps);
    CHECK(split_lines(written) == split_lines(text));
    CHECK(parse_csv(golden(name + "_pp4_m8.csv"), name).ranks == parsed.schedule.ranks);
  }
}

TEST_CASE("our lowering puts messages, gathers and reductions where torch puts them") {
  for (const std::string name : kWithComms) {
    CAPTURE(name);
    const Schedule schedule = parse_csv(golden(name + "_pp4_m8.csv"), name);
    const std::string written = to_csv(schedule, with_communication(schedule));
    CHECK(split_lines(written) == split_lines(golden(name + "_pp4_m8_comms.csv")));
  }
}

// max_active_stages of torch's _add_unshard_reshard.
TEST_CASE("three stages are gathered at a time, of as many as a rank has") {
  const Schedule schedule = make_schedule({"looped-bfs", 1, 4, 1});
  const std::string written = to_csv(schedule, with_communication(schedule));
  CHECK(written.starts_with("0UNSHARD,1UNSHARD,2UNSHARD,0F0,0RESHARD,3UNSHARD,1F0,2F0,3F0,3B0,"));
}

// The text without the cells that have one of the words.
static std::string without(const std::string& text, const std::vector<std::string>& words) {
  std::string kept;
  for (const std::string_view line : split_lines(text)) {
    std::vector<std::string_view> cells = split(line, ',');
    std::erase_if(cells, [&](std::string_view cell) {
      return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        return cell.find(word) != std::string_view::npos;
      });
    });
    kept += join(cells, ",") + "\n";
  }
  return kept;
}

// What torch has before it adds messages: _add_unshard_reshard, _add_reduce_grad, both.
TEST_CASE("an order with gathers and reductions and no message is read, and written as it was") {
  const std::vector<std::string> messages = {"SEND_", "RECV_"}, gathers = {"UNSHARD", "RESHARD"};
  for (const std::string name : kWithComms) {
    const std::string both = without(golden(name + "_pp4_m8_comms.csv"), messages);
    for (const std::string& text : {both, without(both, gathers), without(both, {"REDUCE_GRAD"})}) {
      CAPTURE(name);
      const ParsedSchedule parsed = parse_schedule(text, name);
      CHECK(to_csv(parsed.schedule, parsed.steps) == text);
      CHECK(parsed.schedule.ranks == parse_csv(golden(name + "_pp4_m8.csv"), name).ranks);
    }
  }
}

TEST_CASE("gathers and reductions of an order without messages are held to the same rules") {
  struct Case {
    const char *text, *finding;
  };
  for (const Case& c : std::vector<Case>{
           // torch 2.13's ScheduleGPipe._get_pipeline_order(), and with its idle time.
           {"0F0,0F1,0B0,0B1,0REDUCE_GRAD\n1F0,1F1,1B0,1B1,1REDUCE_GRAD\n", "no error"},
           {"0F0,0F1,,,,0B0,0B1,0REDUCE_GRAD\n,1F0,1F1,1B0,1B1,1REDUCE_GRAD\n", "no error"},
           {"0UNSHARD,0F0,0B0,0RESHARD\n1UNSHARD,1F0,1B0,1RESHARD\n", "no error"},
           {"0F0,0REDUCE_GRAD,0B0\n1F0,1B0,1REDUCE_GRAD\n",
            "s.csv: rank 0 step 2 (0B0) comes after its stage's gradients were reduced"},
           {"0UNSHARD,0F0,0B0\n1F0,1UNSHARD,1B0\n",
            "s.csv: rank 1 step 0 (1F0) needs its stage's weights, which UNSHARD has not gathered "
            "before it"},
           // Once for all that one gather is missing to.
           {"0F0,0B0,0F1,0B1,0UNSHARD,0F2,0B2,0RESHARD,0F3,0B3\n"
            "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n",
            "s.csv: rank 0 step 0 (0F0) needs its stage's weights, which UNSHARD has not gathered "
            "before it\n"
            "s.csv: rank 0 step 8 (0F3) needs its stage's weights, which UNSHARD has not gathered "
            "before it"},
           {"0F0,0B0,1REDUCE_GRAD\n1F0,1B0\n",
            "s.csv: rank 0 step 2 (1REDUCE_GRAD) is of a stage that this rank does not host\n"
            "s.csv: rank 0 step 1 (0B0) is the last of a stage whose gradients no REDUCE_GRAD "
            "reduces, as it does others'\n"
            "s.csv: rank 1 step 1 (1B0) is the last of a stage whose gradients no REDUCE_GRAD "
            "reduces, as it does others'"},
           {"0F0,0B0,7REDUCE_GRAD\n1F0,1B0\n",
            "s.csv: rank 0 step 2 (7REDUCE_GRAD) is of a stage that this rank does not host\n"
            "s.csv: rank 0 step 1 (0B0) is the last of a stage whose gradients no REDUCE_GRAD "
            "reduces, as it does others'\n"
            "s.csv: rank 1 step 1 (1B0) is the last of a stage whose gradients no REDUCE_GRAD "
            "reduces, as it does others'"},
           {"0UNSHARD^3,0F0,0B0,0RESHARD^3\n1F0,1B0\n",
            "s.csv: rank 0 step 0 (0UNSHARD^3) is of a stage that this rank does not host\n"
            "s.csv: rank 0 step 3 (0RESHARD^3) is of a stage that this rank does not host"},
           // One message, and all of them must be there.
           {"0F0,0SEND_F0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1REDUCE_GRAD\n",
            "s.csv: rank 0 step 2 (0B0) has not received what it needs before it"}}) {
    CAPTURE(std::string(c.text));
    CHECK(mw::test::thrown_by([&] { parse_csv(c.text, "s.csv"); }) == c.finding);
  }
}

TEST_CASE("every kind has a sound lowering") {
  for (const std::string& kind : all_schedule_kinds()) {
    for (const int32_t p : {1, 2, 4, 6}) {
      if (!request_findings({.kind = kind, .ranks = p, .microbatches = 2 * p}).empty()) continue;
      CAPTURE(kind);
      CAPTURE(p);
      const Schedule schedule = make_schedule({.kind = kind, .ranks = p, .microbatches = 2 * p});
      const Steps steps = with_communication(schedule);
      const std::vector<std::string> wrong = findings(schedule, steps);
      CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : wrong.front()));
      const ParsedSchedule read = parse_schedule(to_csv(schedule, steps), "s.csv");
      CHECK(read.steps == steps);
    }
  }
}

TEST_CASE("a lowering takes no longer an action where there are many") {
  const Schedule schedule = make_schedule({.kind = "1f1b", .ranks = 2, .microbatches = 100'000});
  const Steps steps = with_communication(schedule);  // minutes, were it quadratic
  CHECK(steps[0].size() == 4 * 100'000 + 3);
}

TEST_CASE("a pair begins when both of its parts have their messages") {
  const Schedule schedule = parse_csv(
      "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
      "1F0,1B0,1F1,1B1\n",
      "s.csv");
  const Steps steps = with_communication(schedule);
  CHECK(findings(schedule, steps).empty());
  CHECK(to_csv(schedule, steps) ==
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B,0SEND_F1,0RECV_B1,0B1,0REDUCE_GRAD,"
        "0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n");
}

TEST_CASE("a broken file with messages is refused with rank, step and reason") {
  const auto error = [](const char* text) {
    return mw::test::thrown_by([&] { parse_csv(text, "s.csv"); });
  };
  CHECK(error("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") == "no error");
  CHECK(error("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n") ==
        "s.csv: rank 1 step 0 (1F0) has not received what it needs before it");
  CHECK(error("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        "s.csv: rank 0 step 0 (0SEND_F0) comes before the work that makes it");
  CHECK(error("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        "s.csv: rank 1 step 0 (1RECV_F0) is sent nowhere");
  CHECK(error("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
              "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n") ==
        "s.csv: rank 1 step 0 (1RECV_F1) is received where rank 0 sends 0SEND_F0");
  // A receive is posted, as in torch; what needs it waits.
  CHECK(error("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n") == "no error");
  CHECK(error("0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n") == "no error");
  CHECK(error("0F0,0RECV_B0,0B0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        "s.csv: rank 0 step 2 (0B0) waits forever for 1SEND_B0 of rank 1\n"
        "s.csv: rank 1 step 1 (1F0) waits forever for 0SEND_F0 of rank 0");
}

TEST_CASE("a message between two stages of one rank is refused, as torch sends none") {
  const Schedule schedule = make_schedule({.kind = "hanayo", .ranks = 2, .microbatches = 1});
  std::string text = to_csv(schedule, with_communication(schedule));
  CHECK(parse_csv(text, "s.csv").ranks == schedule.ranks);
  const size_t at = text.find("1F0,") + 4;
  REQUIRE(text.substr(at).starts_with("2F0"));  // on the same rank
  text.insert(at, "1SEND_F0,2RECV_F0,");
  CHECK(mw::test::thrown_by([&] {
          parse_csv(text, "s.csv");
        }).ends_with("(1SEND_F0) is between stages of one rank, which need no message"));
}

TEST_CASE("a file with more that is wrong than anybody reads ends with a word that there is more") {
  const Schedule schedule = make_schedule({.ranks = 2, .microbatches = 300});
  std::string text = to_csv(schedule, with_communication(schedule));
  for (int k = 0; k < 300; ++k) text = replace_all(text, fmt::format(",1RECV_F{},", k), ",");
  text = replace_all(text, "1UNSHARD,1RECV_F0", "1UNSHARD");
  const std::string error = mw::test::thrown_by([&] { parse_csv(text, "s.csv"); });
  const std::vector<std::string_view> told = split(error, '\n');
  CHECK(told.size() == kMostFindings + 1);
  CHECK(told.back() == "s.csv: and more like these");
}

TEST_CASE("tags carry what torch lacks: replicas, slices, joined microbatches") {
  const auto round_trip = [](const ScheduleRequest& request) {
    const Schedule schedule = make_schedule(request);
    const Schedule read = parse_csv(to_csv(schedule), "s.csv");
    CHECK(read.placement == schedule.placement);
    CHECK(read.ranks == schedule.ranks);
    CHECK(read.slices == schedule.slices);
  };
  round_trip({.kind = "chimera", .ranks = 4, .microbatches = 8});
  round_trip({.kind = "chimera", .ranks = 8, .microbatches = 16, .pairs = 4});
  round_trip({.kind = "chimera-doubling", .ranks = 4, .microbatches = 8});
  round_trip({.kind = "dualpipe", .ranks = 4, .microbatches = 8});
  round_trip({.kind = "seq-1f1b", .ranks = 4, .microbatches = 8, .slices = 3});
}

TEST_CASE("slices out of order and microbatches on two replicas are found") {
  const auto error = [](const char* text) {
    return mw::test::thrown_by([&] { parse_csv(text, "s.csv"); });
  };
  CHECK(error("0F0/0,0F0/1,0B0/0,0B0/1\n") ==
        "s.csv: rank 0 action 2 (0B0/0) comes before slice 1 of its microbatch");
  CHECK(error("0F0,1F0^1,1B0^1,0B0\n1F0,0F0^1,1B0,0B0^1\n") ==
        "s.csv: stage 0 has microbatch 0 on replica 0 and on replica 1\n"
        "s.csv: stage 1 has microbatch 0 on replica 0 and on replica 1");
}

TEST_CASE("stages on several ranks of a file without replica tags are said to be replicas") {
  const auto note = [](const std::string& text) { return parse_schedule(text, "s.csv").note; };
  CHECK(note("0F0,0B0\n0F1,0B1\n") ==
        "s.csv: stage 0 is on ranks 0 and 1; as no cell has a replica tag, as in 0F1^1, they are "
        "taken as replicas of the weights");
  CHECK(note("0F0,0B0\n0F1,0B1\n0F2,0B2\n")
            .starts_with("s.csv: stage 0 is on ranks 0, 1 and 2; as no"));
  CHECK(note(golden("Chimera_f1_pp4_m8.csv")) ==
        "s.csv: stage 0 is on ranks 0 and 3, stage 1 on ranks 1 and 2, stage 2 on ranks 2 and 1, "
        "stage 3 on ranks 3 and 0; as no cell has a replica tag, as in 3F2^1, they are taken as "
        "replicas of the weights");
  for (const char* kind : {"chimera", "dualpipe"}) {
    const Schedule schedule = make_schedule({.kind = kind, .ranks = 4, .microbatches = 8});
    const Steps steps = with_communication(schedule);
    const ParsedSchedule read =
        parse_schedule(replace_all(to_csv(schedule, steps), "^1", ""), "s.csv");
    CHECK(read.steps == steps);
    CHECK(read.schedule.placement == schedule.placement);
  }
  CHECK(note("0F0,0B0\n0F1^1,0B1^1\n") == "");
  CHECK(note("0F0,0B0\n1F0,1B0\n") == "");
  const std::string of_ten =
      to_csv(make_schedule({.kind = "chimera", .ranks = 10, .microbatches = 2}));
  CHECK(note(of_ten) == "");
  CHECK(note(replace_all(of_ten, "^1", ""))
            .find(", stage 7 on ranks 7 and 2, and so on; as no cell") != std::string::npos);
}
