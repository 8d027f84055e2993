// What is printed of rows and of fits that are made by hand.
#include <doctest/doctest.h>

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
  CHECK(line_of(text, "rows that do not say recompute or microbatch") ==
        "rows that do not say recompute or microbatch 1 30.0 % +30.0 % +30.0 % ");
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
