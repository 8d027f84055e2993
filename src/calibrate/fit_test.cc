#include "calibrate/fit.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "calibrate/test_runs.h"
#include "calibrate/validate.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

cluster::Profile stack(double matrix_fraction) {
  cluster::Profile profile;
  profile.name = profile.software = profile.stack.name = "stack";
  profile.device = "A100";
  profile.constants = {{"matrix_fraction", matrix_fraction, 0, 0, "fit"}};
  return profile;
}

// Rows of models of several widths whose times are the simulator's own at that share of the peak.
std::vector<Run> simulated_rows(double matrix_fraction) {
  Machines machines = a100();
  machines.profiles = {stack(matrix_fraction)};
  std::vector<Run> rows;
  for (const int64_t hidden : {1024, 2048, 4096}) {
    rows.push_back(gpt(4, hidden, 16, 1024, 8192, 4));
    rows.back().software = "stack";
    rows.back().use = "fit";
    rows.back().source = hidden == 1024 ? "one paper" : "another";
  }
  const std::vector<Comparison> compared = validate(rows, machines, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(compared[i].reason.empty());
    rows[i].value = compared[i].predicted;
  }
  return rows;
}

Fitter fitter(const std::vector<Run>& rows, const std::vector<CollectiveRow>& collectives = {},
              std::vector<std::string> constants = {"matrix_fraction"}) {
  std::vector<const Run*> pointers;
  for (const Run& run : rows) pointers.push_back(&run);
  FitOptions options;
  options.constants = std::move(constants);
  return {pointers, collectives, a100(), stack(0.9), options};
}

}  // namespace

TEST_CASE("a fit finds the constant that made the times") {
  const std::vector<Run> rows = simulated_rows(0.5);
  const Fitter of_rows = fitter(rows);
  CHECK(of_rows.skipped().empty());
  const Fit fit = of_rows.fit();
  REQUIRE(fit.constants.size() == 1);
  CHECK(fit.constants[0].start == mw::test::close_to(0.9));
  CHECK(fit.constants[0].value == mw::test::close_to(0.5).epsilon(0.005));
  CHECK(fit.constants[0].determined);
  CHECK(fit.constants[0].low < fit.constants[0].value);
  CHECK(fit.deviation < 0.005);
  for (const Residual& residual : fit.residuals) CHECK(std::abs(residual.error) < 0.005);
  // What is left out is predicted as well; of one source, too.
  for (const cluster::LeftOut& out : left_out(of_rows)) CHECK(out.mean < 0.01);
}

TEST_CASE("a fit tries what a row leaves open as validate does") {
  std::vector<Run> rows = simulated_rows(0.5);
  for (Run& run : rows) {
    run.recompute = "unknown";  // all fit without, which is faster: the times were of full
    run.micro_batch = 0;
  }
  Machines machines = a100();
  const Fit fit = fitter(rows).fit();
  machines.profiles = {stack(fit.constants[0].value)};
  const std::vector<Comparison> compared = validate(rows, machines, 1);
  for (const Residual& residual : fit.residuals) {
    const auto i = static_cast<size_t>(residual.run - rows.data());
    CHECK(residual.error == mw::test::close_to(compared[i].error).epsilon(1e-6));
  }
}

TEST_CASE("rows of which a fit can know nothing are left out, and say why") {
  std::vector<Run> rows = simulated_rows(0.5);
  rows.push_back(rows[0]);
  rows.back().metric = "place";
  rows.push_back(rows[0]);
  rows.back().gpus = 3;
  rows.push_back(rows[0]);
  rows.back().dp = 4;
  rows.back().gpus = 4;
  rows.back().zero = 1;
  rows.back().micro_batch = 3;
  rows.push_back(rows[0]);
  rows.back().gpus = rows.back().pp = 2;
  rows.back().schedule = "pipedream-2bw";
  rows.push_back(rows[0]);  // two stages a rank and 4 layers: stages of none
  rows.back().gpus = rows.back().pp = 4;
  rows.back().schedule = "dualpipe-v";
  const Fitter of_rows = fitter(rows);
  std::vector<std::string> why;
  for (const Skipped& skipped : of_rows.skipped()) why.push_back(skipped.why);
  REQUIRE(why.size() == 5);
  CHECK(why[0] == "tells a place and no time");
  CHECK(why[1] == "tp*pp*dp=1*1*1 is not the 3 devices");
  CHECK(why[2] == "a batch of 4 is no multiple of dp 4 x microbatch 3");
  CHECK(why[3] == "its step runs into the next, of which a fit knows nothing");
  CHECK(why[4].find("plan: ") != std::string::npos);
  CHECK(of_rows.sources().size() == 3);
  CHECK(of_rows.fit().constants[0].value == mw::test::close_to(0.5).epsilon(0.005));
}

TEST_CASE("kernels are a source of their own, and a constant that no row needs stays") {
  std::vector<CollectiveRow> kernels;
  for (int64_t bytes = 1 << 20; bytes <= 1 << 28; bytes *= 4) {
    // A ring of 8 at 50 GB/s: 2 * 7/8 * bytes.
    kernels.push_back({1, 8, Bytes(bytes), 1.75 * static_cast<double>(bytes) / 50e9 * 1e6});
  }
  const Fit fit = fitter({}, kernels, {"node_bus_fraction", "matrix_fraction"}).fit();
  CHECK_FALSE(fit.constants[1].determined);
  CHECK(fit.constants[1].value == mw::test::close_to(fit.constants[1].start));
  CHECK(fit.residuals.size() == kernels.size());
}

TEST_CASE("a table of kernels is checked by line") {
  const std::string header = "device,collective,nodes,ranks,bytes,time_us\n";
  const std::vector<CollectiveRow> rows =
      parse_collectives(header +
                            "A100-SXM,all_reduce,2,16,1024,5\nV100,all_reduce,1,8,1024,5\n"
                            "A100-SXM,all_to_all,1,8,1024,5\n",
                        "k.csv", "A100-SXM-80GB");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].nodes == 2);
  CHECK(rows[0].ranks == 16);
  CHECK_THROWS_WITH_AS(
      parse_collectives(header + "A100-SXM,all_reduce,0.4,8,1024,5\nA100-SXM,foo,3,8,0,-1\n",
                        "k.csv", "A100-SXM-80GB"),
      "k.csv:2: nodes: must be an integer of at least 1, is \"0.4\"\n"
      "k.csv:3: collective: must be one of all_reduce, all_gather, reduce_scatter, broadcast, "
      "all_to_all, sendrecv, is \"foo\"\n"
      "k.csv:3: bytes: must be an integer of at least 1, is \"0\"\n"
      "k.csv:3: ranks: must be a multiple of the 3 nodes, is \"8\"\n"
      "k.csv:3: time_us: must be a positive number, is \"-1\"",
      Error);
  CHECK_THROWS_WITH_AS(parse_collectives(header, "k.csv", "A100"), "k.csv: has no rows", Error);
  CHECK_THROWS_WITH_AS(
      parse_collectives(header + ",all_reduce,1,1,9223372036854775807,inf\n"
                                 "A100,all_reduce,1,99999999999,8,1e-300\n",
                        "k.csv", "A100"),
      "k.csv:2: device: must be that of a cluster, or how it begins, is \"\"\n"
      "k.csv:2: ranks: must be an integer of at least 2, is \"1\"\n"
      "k.csv:2: bytes: must be at most 1125899906842624, is \"9223372036854775807\"\n"
      "k.csv:2: time_us: must be from 1e-12 to 1e+12, is \"inf\"\n"
      "k.csv:3: ranks: must be at most 1048576, is \"99999999999\"\n"
      "k.csv:3: time_us: must be from 1e-12 to 1e+12, is \"1e-300\"",
      Error);
}
