// What is printed of rows and of fits that are made by hand.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/json.h"
#include "base/test_close_to.h"
#include "calibrate/fit.h"
#include "calibrate/test_runs.h"
#include "calibrate/validate.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

Comparison compared(double error, const char* use) {
  Comparison c;
  c.run = gpt(2, 64, 4, 64, 128, 4);
  c.run.source = "A paper; table 1";
  c.run.use = use;
  c.published = 2;
  c.predicted = 2 * (1 + error);
  c.error = error;
  c.predicted_GiB = 12;
  return c;
}
// The line that begins so, words one space apart; "": there is none.
std::string line_of(const std::string& text, const std::string& begin) {
  const size_t at = text.find("\n" + begin);
  if (at == std::string::npos) return "";
  std::string line;
  for (const char c : text.substr(at + 1, text.find('\n', at + 1) - at - 1)) {
    if (c != ' ' || line.empty() || line.back() != ' ') line += c;
  }
  return line;
}

}  // namespace

TEST_CASE("rows that are fitted on, compared, assumed, places and not simulated are told apart") {
  std::vector<Comparison> rows = {compared(0.1, "fit"), compared(-0.2, "check"),
                                  compared(0.3, "check"), compared(0, "check"),
                                  compared(0, "check")};
  rows[0].run.memory_GiB = 10;
  rows[2].assumed = "microbatch 1";
  rows[3].published = 0;
  rows[4].reason = "no such device";
  rows[4].run.memory_GiB = 10;
  const std::string text = to_text(rows, false);
  CHECK(line_of(text, "rows that profiles are fitted on") ==
        "rows that profiles are fitted on 1 10.0 % +10.0 % +10.0 % ");
  CHECK(line_of(text, "rows that are only compared") ==
        "rows that are only compared 1 20.0 % -20.0 % -20.0 % ");
  CHECK(line_of(text, "rows of which something is assumed") ==
        "rows of which something is assumed 1 30.0 % +30.0 % +30.0 % ");
  CHECK(line_of(text, "1 row is not simulated") == "1 row is not simulated");
  CHECK(text.find("published   10.0 predicted   12.0  +20.0 %\n") != std::string::npos);
}

TEST_CASE("a row's JSON has its step and memory, and what is known of one that is not simulated") {
  std::vector<Comparison> rows = {compared(0.1, "fit"), compared(0, "check")};
  rows[1].reason = "no such device";
  rows[1].run.value = 7;
  const JsonArray list = to_json(rows).as_array("rows");
  REQUIRE(list.size() == 2);
  CHECK(list[0].at("predicted", "row").as_number("row") == mw::test::close_to(2.2));
  CHECK(list[0].at("predicted_memory_GiB", "row").as_number("row") == 12);
  CHECK(list[1].at("published", "row").as_number("row") == 7);
  CHECK(list[1].at("reason", "row").as_string("row") == "no such device");
}

TEST_CASE(
    "a row that is not understood is printed by its cells; one that publishes nothing says so") {
  std::vector<Comparison> rows = {compared(0, "check"), compared(0, "check")};
  rows[0].run.line = 7;
  rows[0].run.findings = {"pp: must be a number"};
  rows[0].run.columns = {{"tp", "2"}, {"pp", "two"}, {"dp", ""}, {"gpus", "x"}, {"value", "3"}};
  rows[0].run.gpus = 0;
  rows[0].run.metric = "sequences_per_s";
  rows[0].run.global_batch = 0;
  rows[0].reason = "pp: must be a number";
  rows[1].run.value = rows[1].published = 0;
  const std::string text = to_text(rows);
  CHECK(line_of(text, "  GPT ") ==
        " GPT tp=2 pp=two ? x A100 check not simulated: line 7: pp: must be a number");
  CHECK(text.find("published   nothing predicted") != std::string::npos);
  CHECK(line_of(text, "1 row is not simulated") == "1 row is not simulated");
  const JsonArray list = to_json(rows).as_array("rows");
  REQUIRE(list.size() == 2);
  CHECK(list[0].at("reason", "row").as_string("row") == "pp: must be a number");
  CHECK(list[1].at("reason", "row").as_string("row") ==
        "value: is empty; nothing is published to compare with");
  CHECK(list[1].at("predicted", "row").as_number("row") == 2);
  for (const Json& row : list) {
    CHECK(row.at("published", "row").is_null());
    CHECK(row.at("error", "row").is_null());
  }
}

TEST_CASE("a fitted profile has what its rows determine, its error and what they cover") {
  std::vector<Run> runs(3, gpt(2, 128, 4, 64, 128, 4));
  runs[1].hidden = 64;
  runs[1].dp = runs[1].micro_batch = 0;  // left open
  runs[2].hidden = 96;
  runs[2].dp = 8;
  runs[2].zero = 2;
  KernelRow kernel;
  Fit fit;
  fit.deviation = 0.04;
  fit.constants = {{"launch_us", 1, 3, 2, 4, true}, {"host_op_us", 1, 9, 8, 10, false}};
  fit.residuals = {{&runs[0], nullptr, nullptr, 0.1},
                   {&runs[1], nullptr, nullptr, -0.3},
                   {&runs[2], nullptr, nullptr, 0.2},
                   {nullptr, nullptr, &kernel, 0.5}};
  const cluster::Profile profile =
      fitted_profile({}, fit, {}, {.runs = {"runs.csv"}, .kernels = "k.csv"});
  REQUIRE(profile.constants.size() == 1);
  CHECK(profile.constants[0].name == "launch_us");
  CHECK(profile.constants[0].value == 3);
  CHECK(profile.constants[0].low == 2);
  CHECK(profile.constants[0].high == 4);
  CHECK(profile.stack.error == 0.04);
  CHECK(profile.source.starts_with(
      "fitted by meshwright calibrate on 3 rows of runs.csv and 1 kernels of k.csv: launch_us"));
  const auto range = [&](const std::string& name) {
    for (const cluster::Stack::Range& one : profile.stack.measured) {
      if (one.name == name) return std::pair(one.least, one.most);
    }
    return std::pair(-1.0, -1.0);
  };
  CHECK(range("hidden") == std::pair(64.0, 128.0));
  CHECK(range("dp") == std::pair(1.0, 8.0));
  CHECK(range("microbatch") == std::pair(1.0, 1.0));
  CHECK(range("zero") == std::pair(0.0, 2.0));
  CHECK(range("experts") == std::pair(0.0, 0.0));
  CHECK(profile.stack.precisions == std::vector<std::string>{"f16"});
  CHECK(line_of(to_text(fit, {}, false), "3 runs: mean error ") ==
        "3 runs: mean error 20.0 %, worst -30.0 %; 1 measured kernels: mean error 50.0 %, worst "
        "+50.0 %; standard deviation of the logarithm, every source alike, 0.040");
}

TEST_CASE("a layout in words has what differs from the usual") {
  const auto of = [](auto change) {
    Run run = gpt(2, 64, 4, 64, 128, 4);
    change(run);
    return layout(run);
  };
  CHECK(of([](Run&) {}) == "tp=1 pp=1 dp=1 mb=1 full");
  CHECK(of([](Run& r) { r.tp = 0, r.micro_batch = 0; }) == "any layout full");
  CHECK(of([](Run& r) { r.tp = 8, r.pp = 0, r.sp = true; }) == "tp=8 mb=1 sp full");
  CHECK(of([](Run& r) { r.cp = 2, r.ep = 4, r.vpp = 3, r.zero = 1; }) ==
        "tp=1 pp=1 dp=1 cp=2 ep=4 v=3 zero=1 mb=1 full");
  CHECK(of([](Run& r) { r.schedule = "gpipe"; }) == "tp=1 pp=1 dp=1 gpipe mb=1 full");
}

TEST_CASE("rows in words: what they assume, what does not fit, places, amendments and memory") {
  std::vector<Comparison> rows(4, compared(0.1, "fit"));
  rows[0].assumed = "microbatch 1";
  rows[0].run.memory_GiB = 10;
  rows[1].fits = false;
  rows[1].run.memory_GiB = 8;
  rows[1].run.amended = "recompute unknown: inferred";
  rows[2].published = 0;
  rows[2].run.value = 3;
  rows[3].run.source = "Another paper";
  rows[3].run.amended = rows[1].run.amended;
  rows.push_back(compared(0, "check"));
  rows[4].run.source = rows[3].run.source;
  rows[4].run.memory_GiB = 9;
  rows[4].reason = "no such device";
  const std::string text = to_text(rows);
  CHECK(text.substr(0, text.find(' ', text.find("source"))) == R"(A paper
  GPT              tp=1 pp=1 dp=1 mb=1 full                   1 x A100               fit   published    2.00 s predicted    2.20 s  +10.0 %  with microbatch 1
  GPT              tp=1 pp=1 dp=1 mb=1 full                   1 x A100               fit   published    2.00 s predicted    2.20 s  +10.0 %  beyond the device's memory
  GPT              tp=1 pp=1 dp=1 mb=1 full                   1 x A100               fit   published   place 3 predicted    2.20 s)" +
                                                                   std::string(9, ' ') + R"(
Another paper
  GPT              tp=1 pp=1 dp=1 mb=1 full                   1 x A100               fit   published    2.00 s predicted    2.20 s  +10.0 %
  GPT              tp=1 pp=1 dp=1 mb=1 full                   1 x A100               check not simulated: no such device

source)");
  CHECK(text.substr(text.find("2 rows: ")) == R"(2 rows: recompute unknown: inferred

memory of the fullest device, GiB:
  GPT                  tp=1 pp=1 dp=1 mb=1 full             published   10.0 predicted   12.0  +20.0 %
  GPT                  tp=1 pp=1 dp=1 mb=1 full             published    8.0 predicted   12.0  +50.0 %
)");
  rows[0].assumed.clear();
  rows[2].published = 3;
  // Equal predictions have no ranks.
  CHECK(line_of(to_text(rows, false), "A paper") == "A paper 3 10.0 % +10.0 % +10.0 % ");
  rows[0].predicted = 2.1;
  rows[0].published = 1.9;
  CHECK(line_of(to_text(rows, false), "A paper") == "A paper 3 10.0 % +10.0 % +10.0 % 0.866");
}

TEST_CASE("what a profile's fit left out is told of rows that were simulated") {
  Machines machines = a100();
  cluster::Profile profile;
  profile.name = "the stack on A100";
  profile.device = "A100";
  profile.software = "stack";
  profile.left_out = {{"a paper", 2, 0.04, -0.05}};
  machines.profiles = {profile};
  std::vector<Comparison> rows = {compared(0.1, "fit"), compared(0.2, "fit")};
  for (Comparison& c : rows) c.run.software = "stack";
  const std::string text = left_out_text(rows, machines);
  CHECK(text.find("\nthe stack on A100\n") == text.rfind("\nthe stack on A100\n"));
  CHECK(line_of(text, "  a paper") == " a paper 2 4.0 % -5.0 %");
  for (Comparison& c : rows) c.reason = "no such device";
  CHECK(left_out_text(rows, machines) == "");
  CHECK(
      to_json(std::vector<Summary>{{"a paper", 2, 0.25, -0.125, -0.5, 1}}).dump() ==
      R"([{"source":"a paper","rows":2,"mean":0.25,"bias":-0.125,"worst":-0.5,"rank_correlation":1.0}])");
}

TEST_CASE("a fit in words: constants, residuals of every kind, and what was left out") {
  Run run = gpt(2, 64, 4, 128, 128, 4);
  run.line = 7;
  run.pp = 2;
  run.source = "A paper; table 1";
  CollectiveRow collective;
  collective.ranks = 8;
  collective.nodes = 2;
  collective.bytes = Bytes(1 << 20);
  KernelRow kernel;
  kernel.kernel = "product";
  kernel.sizes = "2 x 3 x 4, bf16";
  kernel.time_us = 12.5;
  Fit fit;
  fit.deviation = 0.25;
  fit.constants = {{"launch_us", 1, 3, 2, 4, true}, {"host_op_us", 5, 9, 8, 10, false}};
  fit.residuals = {{&run, nullptr, nullptr, -0.1},
                   {nullptr, &collective, nullptr, 0.2},
                   {nullptr, nullptr, &kernel, -0.4}};
  CHECK(to_text(fit, {{"every fifth run", 1, 0.02, -0.03}, {"a paper", 2, 0.04, 0.05}}) ==
        R"(constant                      start     fitted   95 % interval
launch_us                         1          3   2 to 4
host_op_us                        5          -   no row depends on it

residuals:
  GPT                tp=1 pp=2 dp=1 mb=1 batch 4      -10.0 %
  all_reduce of 1.00 MiB on 8 ranks of 2 nodes  +20.0 %
  product         2 x 3 x 4, bf16                                      12.5 us  -40.0 %

1 runs: mean error 10.0 %, worst -10.0 %; 2 measured kernels: mean error 30.0 %, worst -40.0 %; standard deviation of the logarithm, every source alike, 0.250

left out of the fit, then predicted:
  every fifth run                                                             1 row:  mean   2.0 %, worst   -3.0 %
  a paper                                                                     2 rows: mean   4.0 %, worst   +5.0 %
)");
  CHECK(to_text(std::vector<Skipped>{{&run, "tells no time"}}) ==
        "not fitted on: line 7, GPT (A paper): tells no time\n");
  cluster::Profile before;
  before.source = "measured; before: nothing";
  before.constants = {{"launch_us", 1, 1, 1, "guess"}};
  const auto fitted = [&] {
    return fitted_profile(before, fit, {}, {.runs = {"a.csv", "b.csv"}, .kernels = "k.csv"});
  };
  CHECK(fitted().source ==
        "fitted by meshwright calibrate on 1 rows of a.csv, b.csv and 1 all-reduces of k.csv and 1 "
        "kernels of k.csv: launch_us; before: measured; before: nothing");
  CHECK(fitted().constants[0].value == 3);
  CHECK(fitted().stack.error == 0.25);
  run.gpus = 16;
  run.dp = 8;
  std::string covered;
  for (const cluster::Stack::Range& range : fitted().stack.measured)
    covered += fmt::format("{} {} ", range.name, range.least);
  CHECK(covered ==
        "hidden 64 sequence 128 microbatch 1 devices 16 tp 1 pp 2 dp 8 cp 1 zero 0 experts 0 ");
  before.stack.error = 0.5;
  fit.residuals.erase(fit.residuals.begin());
  CHECK(fitted().stack.error == 0.5);  // kernels alone say nothing of steps
  CHECK(fitted().stack.measured.empty());
}
