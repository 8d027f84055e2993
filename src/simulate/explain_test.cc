// Sentences about results that are made by hand.
#include <doctest/doctest.h>

#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

// Four ranks, four microbatches: rank 0 has commands (acquire, call, publish) for each of its first
// forwards, the others begin with a receive.
const UnitProgram& unit() {
  static const UnitProgram made({.kind = "1f1b", .ranks = 4, .microbatches = 4}, 1, 2);
  return made;
}
Result made(const std::vector<double>& compute) {
  Result result;
  result.step = Seconds(100);
  for (const double seconds : compute) {
    RankResult rank;
    rank.compute = Seconds(seconds);
    result.ranks.push_back(rank);
  }
  result.waits.resize(compute.size());
  return result;
}
void add_wait(Result& result, size_t rank, int32_t command, double begin, double end,
              int32_t peer) {
  result.waits[rank].push_back(
      {command, WaitReason::kReceive, Seconds(begin), Seconds(end), peer, 0, Seconds(0)});
}
// The lines that have this in them.
std::vector<std::string> lines(const Result& result, const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& line : explain(result, unit().program)) {
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a rank that computes a twentieth more than the mean is named") {
  CHECK(lines(made({10, 10, 11, 9}), " than the mean of ") ==
        Lines{"stage 2 computes 11.0 s, 10 % more than the mean of 10.0 s: the others wait "
              "for it"});
  CHECK(lines(made({10, 10, 10.4, 9.6}), " than the mean of ").empty());
}

TEST_CASE("a wait fills the pipeline up to a rank's first backward, that one's own with it") {
  const auto& commands = unit().program.ranks[1].commands;
  int32_t first_backward = -1, last_forward = -1;
  for (size_t c = 0; c < commands.size(); ++c) {
    if (commands[c].kind != pipeline::Command::Kind::kCall) continue;
    const bool forward = commands[c].action.kind == pipeline::ActionKind::kF;
    if (forward) last_forward = static_cast<int32_t>(c);
    if (!forward && first_backward < 0) first_backward = static_cast<int32_t>(c);
  }
  REQUIRE(first_backward < last_forward);
  Result result = made({10, 10, 10, 10});
  add_wait(result, 1, 0, 0, 4, 0);
  add_wait(result, 1, first_backward, 10, 18, 2);
  add_wait(result, 1, first_backward + 1, 20, 24, 2);
  add_wait(result, 1, last_forward, 30, 38, 0);
  add_wait(result, 1, last_forward + 1, 50, 66, 2);
  result.ranks[1].idle = Seconds(4);
  CHECK(lines(result, "bubble: ") ==
        Lines{"bubble: 3.0 % of the step fills the pipeline (up to a rank's first backward), 5.0 % "
              "drains it (behind its last forward), 3.0 % lies between"});
}

TEST_CASE("work and messages of the critical path are told apart, and on how many ranks it lies") {
  Result result = made({10, 10, 10, 10});
  result.critical_path = {{0, Seconds(0), Seconds(20), false},
                          {0, Seconds(20), Seconds(25), true},
                          {2, Seconds(25), Seconds(95), false},
                          {2, Seconds(95), Seconds(100), true}};
  CHECK(explain(result, unit().program)[0] ==
        "of the step's 1 min 40 s, work takes 1 min 30 s on 2 of 4 pipeline ranks and 2 messages "
        "between "
        "them take 10.0 s; stage 2 does most, 1 min 10 s (70 %)");
}

TEST_CASE("a wait is in a collective, and before any other command") {
  for (const WaitReason reason : {WaitReason::kCollective, WaitReason::kSlot}) {
    Result result = made({10, 10, 10, 10});
    add_wait(result, 1, 1, 0, 4, 0);
    result.waits[1][0].reason = reason;
    CHECK(lines(result, "stage 1 waits 4.00 s ")[0].starts_with(
        reason == WaitReason::kSlot
            ? "stage 1 waits 4.00 s before F of stage 1, microbatch 0, for stage 0 to give a slot"
            : "stage 1 waits 4.00 s in F of stage 1, microbatch 0, for stage 0, the last in a"));
  }
}

TEST_CASE("an input gradient's call ends the filling as a whole backward does") {
  Result result = made({10, 10, 10, 10});
  for (size_t rank = 0; rank < 4; ++rank) {
    const auto commands = static_cast<int32_t>(unit().program.ranks[rank].commands.size());
    for (int32_t c = 0; c < commands; ++c) add_wait(result, rank, c, c, c + 0.5, 0);
  }
  pipeline::Program split = unit().program;
  for (pipeline::RankProgram& rank : split.ranks) {
    for (pipeline::Command& command : rank.commands) {
      if (command.action.kind == pipeline::ActionKind::kB)
        command.action.kind = pipeline::ActionKind::kI;
    }
  }
  CHECK(explain(result, split)[1] == explain(result, unit().program)[1]);
}

TEST_CASE("at most four waits are told") {
  Result result = made({10, 10, 10, 10});
  for (const size_t rank : {0, 1, 2}) {
    const auto begin = static_cast<double>(10 * rank);
    add_wait(result, rank, 0, begin, begin + 1, static_cast<int32_t>(rank) + 1);
    add_wait(result, rank + 1, 1, begin + 2, begin + 3, static_cast<int32_t>(rank));
    add_wait(result, rank, 2, begin + 4, begin + 5, static_cast<int32_t>(rank) + 1);
    result.waits[rank].back().reason = WaitReason::kSlot;
  }
  CHECK(explain_waits(result, unit().program).size() == 4);
}

TEST_CASE("the longest waits are told, two of a reason and direction") {
  Result result = made({10, 10, 10, 10});
  add_wait(result, 0, 3, 0, 1, 1);
  for (const size_t rank : {1, 2, 3}) {
    const auto begin = static_cast<double>(10 * rank);
    add_wait(result, rank, 0, begin, begin + 1, static_cast<int32_t>(rank) - 1);
    add_wait(result, rank, 1, begin + 2, begin + 4 + begin / 10, static_cast<int32_t>(rank) - 1);
  }
  const Lines told = lines(result, " waits ");
  REQUIRE(told.size() == 3);
  CHECK(told[0].find("stage 3 waits 6.00 s for stage 2 to send its input (2 times; the longest is "
                     "5.00 s before ") == 0);
  CHECK(told[1].find("stage 2 waits 5.00 s for stage 1 to send its input") == 0);
  CHECK(told[2].find("stage 0 waits 1.00 s before ") == 0);
}

}  // namespace mw::simulate
