#include "calibrate/fit.h"

#include <numeric>

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "calibrate/test_runs.h"
#include "calibrate/validate.h"
#include "cluster/group_shape.h"
#include "cost/collective.h"

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

Fitter fitter(const std::vector<Run>& rows, const MeasuredKernels& measured = {},
              std::vector<std::string> constants = {"matrix_fraction"}, bool bounded = false) {
  std::vector<const Run*> pointers;
  for (const Run& run : rows) pointers.push_back(&run);
  FitOptions options;
  options.constants = std::move(constants);
  options.bounded = bounded;
  return {pointers, measured, a100(), stack(0.9), options};
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

TEST_CASE("a run that is far off pulls a bounded fit no harder than one that is just off") {
  const std::vector<Run> once = simulated_rows(0.5);
  std::vector<Run> rows = once;
  for (int copies = 0; copies < 2; ++copies) rows.insert(rows.end(), once.begin(), once.end());
  for (Run& run : rows) run.source = "one paper";
  const std::vector<std::string> constants = {"matrix_fraction"};
  const auto found = [&](double times, bool bounded) {
    rows.back().value *= times;
    const double value = fitter(rows, {}, constants, bounded).fit().constants[0].value;
    rows.back().value /= times;
    return value;
  };
  // Least squares: the mean of the logarithms, about a ninth of the way.
  CHECK(found(4, false) < 0.45);
  CHECK(found(4, true) == mw::test::close_to(0.5).epsilon(0.02));
  CHECK(found(8, true) == mw::test::close_to(found(4, true)).epsilon(0.01));
  CHECK(found(1, true) == mw::test::close_to(found(1, false)).epsilon(0.005));
}

TEST_CASE("a fit finds a constant that moves the times little, far from where it begins") {
  const std::vector<Run> rows = simulated_rows(0.5);  // at an update_traffic of 1
  std::vector<const Run*> pointers;
  for (const Run& run : rows) pointers.push_back(&run);
  cluster::Profile begin = stack(0.5);
  begin.constants.push_back({"update_traffic", 0.1, 0, 0, "fit"});
  FitOptions options;
  options.constants = {"update_traffic"};
  const Fit fit = Fitter(pointers, {}, a100(), begin, options).fit();
  CHECK(fit.constants[0].start == mw::test::close_to(0.1));
  CHECK(fit.constants[0].value == mw::test::close_to(1).epsilon(1e-3));
}

TEST_CASE("rows that are fitted exactly are not sure of a constant that they do not tell") {
  // One row three times: any of many pairs of these constants makes its time.
  const std::vector<Run> rows(3, simulated_rows(0.5)[1]);
  const Fit fit = fitter(rows, {}, {"matrix_fraction", "update_traffic"}).fit();
  CHECK(fit.deviation < 1e-5);
  for (const Fitted& constant : fit.constants) {
    CAPTURE(constant.name);
    CHECK(constant.high > 1.2 * constant.value);
    CHECK(constant.low < constant.value / 1.2);
  }
}

TEST_CASE("a fit finds a constant that may be nothing, and is where the fit begins") {
  Machines machines = a100();
  machines.profiles = {stack(0.5)};
  machines.profiles[0].constants.push_back({"collective_copies", 5, 0, 0, "by hand"});
  std::vector<Run> rows;
  for (const int64_t hidden : {1024, 2048, 4096}) {
    rows.push_back(gpt(4, hidden, 16, 1024, 8192, 8));
    rows.back().software = "stack";
    rows.back().gpus = rows.back().dp = 8;
    rows.back().zero = 3;
  }
  std::vector<const Run*> pointers;
  const std::vector<Comparison> compared = validate(rows, machines, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(compared[i].reason.empty());
    rows[i].value = compared[i].predicted;
    pointers.push_back(&rows[i]);
  }
  FitOptions options;
  options.constants = {"collective_copies"};
  const Fit fit = Fitter(pointers, {}, a100(), stack(0.5), options).fit();
  CHECK(fit.constants[0].determined);
  CHECK(fit.constants[0].value == mw::test::close_to(5).epsilon(0.01));
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
  MeasuredKernels kernels;
  for (int64_t bytes = 1 << 20; bytes <= 1 << 28; bytes *= 4) {
    // A ring of 8 at 50 GB/s: 2 * 7/8 * bytes.
    kernels.collectives.push_back(
        {1, 8, Bytes(bytes), 1.75 * static_cast<double>(bytes) / 50e9 * 1e6});
  }
  const Fit fit = fitter({}, kernels, {"node_bus_fraction", "matrix_fraction"}).fit();
  CHECK_FALSE(fit.constants[1].determined);
  CHECK(fit.constants[1].value == mw::test::close_to(fit.constants[1].start));
  CHECK(fit.residuals.size() == kernels.size());
}

namespace {

const std::string kKernelHeader = "device,kernel,dtype,batch,m,n,k,causal,time_us\n";

}  // namespace

TEST_CASE("kernels are of a device, and take what their sizes say") {
  const MeasuredKernels read = parse_kernels(kKernelHeader +
                                                 "A100-SXM,product,bf16,2,512,256,128,0,30\n"
                                                 "V100,product,f16,1,512,256,128,0,30\n"
                                                 "A100-SXM,attention,bf16,8,1000,1001,64,1,30\n"
                                                 "A100-SXM,attention_grad,f16,8,1000,1001,64,0,3\n"
                                                 "A100,stream,f32,1,4096,1,1,0,30\n"
                                                 "A100,loss,bf16,1,100,1000,1,0,30\n"
                                                 "A100,update,f32,1,100,1,1,0,30\n"
                                                 "A100,product,fp8,1,512,256,128,0,30\n"
                                                 "A100,host,bf16,1,1,1,1,0,12\n"
                                                 "A100,gradient_copy,f16,1,100,8,1,0,9\n",
                                             "k.csv", "A100-SXM-80GB");
  CHECK(read.collectives.empty());
  REQUIRE(read.kernels.size() == 9);
  const auto flops = [&](size_t i) { return read.kernels[i].works[0].flops; };
  const auto bytes = [&](size_t i) {
    double sum = 0;
    for (const cost::OpWork& work : read.kernels[i].works) sum += work.bytes;
    return sum;
  };
  CHECK(flops(0) == 2.0 * 2 * 512 * 256 * 128);
  CHECK(bytes(0) == 2.0 * 2 * (512 * 128 + 256 * 128 + 512 * 256));
  CHECK(flops(1) == 4.0 * 8 * 1000 * 501.5 * 64);  // the first query sees two keys
  CHECK(flops(2) == 10.0 * 8 * 1000 * 1001 * 64);
  CHECK(bytes(1) == 2.0 * 2 * 8 * (1000 + 1001) * 64);
  CHECK(bytes(2) == 2 * bytes(1));  // and the gradients of all
  CHECK(!read.kernels[1].works[0].backward);
  CHECK(read.kernels[2].works[0].backward);
  CHECK(read.kernels[0].fp8 == cost::Fp8::kOff);
  CHECK(read.kernels[6].fp8 == cost::Fp8::kTensor);
  CHECK(bytes(3) == 4096);
  CHECK(bytes(4) == 4.0 * 2 * 100 * 1000);
  CHECK(bytes(5) == 28.0 * 100);
  CHECK(bytes(8) == 6.0 * 100);  // two read, four written
  CHECK(bytes(6) == 512 * 128 + 256 * 128 + 2 * 512 * 256);
  cluster::Device device = a100().clusters[0].device;
  device.attained.host_op = Seconds(3e-6);
  device.attained.launch = Seconds(1e-6);
  CHECK(kernel_time(device, read.kernels[7]).value == 3e-6);
  // Three kernels, each issued by the host.
  CHECK(kernel_time(device, read.kernels[4]).value == mw::test::close_to(9e-6));
}

TEST_CASE("a fit finds the constants that made the kernels' times") {
  std::string csv = kKernelHeader;
  const char* const sizes[] = {
      "product,bf16,1,8192,8192,128",      "product,bf16,1,8192,8192,1024",
      "product,bf16,1,8192,8192,8192",     "attention,bf16,64,1024,1024,128",
      "attention,bf16,64,4096,4096,128",   "attention,bf16,64,16384,16384,128",
      "stream,f32,1,1000000000,1,1",       "stream,f32,1,4000000000,1,1",
      "gradient_copy,bf16,1,600000000,8,1"};
  for (const char* size : sizes) csv += fmt::format("A100-SXM,{},0,1\n", size);
  MeasuredKernels made = parse_kernels(csv, "k.csv", "A100-SXM-80GB");
  cluster::Cluster at = a100().clusters[0];
  cluster::apply(stack(0.9), at);
  const std::vector<std::pair<std::string, double>> truth = {
      {"matrix_fraction", 0.7},     {"product_half_k", 200},   {"attention_fraction", 0.6},
      {"attention_half_keys", 300}, {"memory_fraction", 0.75}, {"gradient_copy_traffic", 1.6}};
  std::vector<std::string> names;
  for (const auto& [name, value] : truth) {
    cluster::set_constant(at, name, value);
    names.push_back(name);
  }
  for (KernelRow& row : made.kernels) row.time_us = kernel_time(at.device, row).value * 1e6;
  const Fitter of_rows = fitter({}, made, names);
  const Fit fit = of_rows.fit();
  for (size_t i = 0; i < truth.size(); ++i) {
    CAPTURE(truth[i].first);
    CHECK(fit.constants[i].value == mw::test::close_to(truth[i].second).epsilon(0.05));
  }
  REQUIRE(fit.residuals.size() == made.kernels.size());
  CHECK(fit.residuals[0].kernel != nullptr);
  const std::string text = to_text(fit, {});
  CHECK(text.find("attention       64 heads of 128, 1024 queries, 1024 keys, bf16") != text.npos);
  CHECK(text.find("9 measured kernels: mean error 0.") != text.npos);
  const cluster::Profile profile =
      fitted_profile(stack(0.9), fit, {}, {.runs = {}, .kernels = "k.csv"});
  CHECK(profile.source.find("9 kernels of k.csv: matrix_fraction") != std::string::npos);
}

TEST_CASE("rows of other collectives are counted, of other devices not") {
  const MeasuredKernels read = parse_kernels(
      "device,collective,nodes,ranks,bytes,time_us\nA100-SXM,all_reduce,1,8,1024,5\n"
      "A100-SXM,all_gather,1,8,1024,5\nA100-SXM,all_gather,1,4,1024,5\nH100-SXM,sendrecv,1,2,8,5\n",
      "k.csv", "A100-SXM-80GB");
  CHECK(read.size() == 1);
  CHECK(read.others == std::map<std::string, int64_t>{{"all_gather", 2}});
}

TEST_CASE("a table of kernels is checked by line, whichever it is of") {
  CHECK_THROWS_WITH_AS(
      parse_kernels(kKernelHeader +
                        "A100,product,f64,0,8,8,8,1,5\nA100,attention,bf16,1,9,8,8,1,5\n"
                        "A100,sort,f32,1,8,8,8,2,5\n,update,bf16,1,8,1,1,0,0\n",
                    "k.csv", "A100"),
      "k.csv:2: dtype: must be one of bf16, f16, f32, fp8, is \"f64\"\n"
      "k.csv:2: batch: must be an integer of at least 1, is \"0\"\n"
      "k.csv:2: causal: must be 0 but for attention, is \"1\"\n"
      "k.csv:3: causal: must be 0, as not every query has a key, is \"1\"\n"
      "k.csv:4: kernel: must be one of product, attention, attention_grad, stream, loss, update, "
      "host, gradient_copy, is \"sort\"\n"
      "k.csv:4: causal: must be at most 1, is \"2\"\n"
      "k.csv:5: dtype: must be one of f32, is \"bf16\"\n"
      "k.csv:5: time_us: must be a positive number, is \"0\"\n"
      "k.csv:5: device: must be that of a cluster, or how it begins, is \"\"",
      Error);
  CHECK_THROWS_WITH_AS(parse_kernels(kKernelHeader, "k.csv", "A100"), "k.csv: has no rows", Error);
  // Columns come in any order, and a spreadsheet writes a byte order mark before the first.
  const std::string first = "\xEF\xBB\xBFkernel,device,dtype,batch,m,n,k,causal,time_us\n";
  CHECK(parse_kernels(first + "product,A100,bf16,1,8,8,8,0,5\n", "k.csv", "A100").kernels.size() ==
        1);
  const std::string header = "device,collective,nodes,ranks,bytes,time_us\n";
  const std::vector<CollectiveRow> rows =
      parse_kernels(header +
                        "A100-SXM,all_reduce,2,16,1024,5\nV100,all_reduce,1,8,1024,5\n"
                        "A100-SXM,all_to_all,1,8,1024,5\n",
                    "k.csv", "A100-SXM-80GB")
          .collectives;
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].nodes == 2);
  CHECK(rows[0].ranks == 16);
  CHECK_THROWS_WITH_AS(
      parse_kernels(header + "A100-SXM,all_reduce,0.4,8,1024,5\nA100-SXM,foo,3,8,0,-1\n", "k.csv",
                    "A100-SXM-80GB"),
      "k.csv:2: nodes: must be an integer of at least 1, is \"0.4\"\n"
      "k.csv:3: collective: must be one of all_reduce, all_gather, reduce_scatter, broadcast, "
      "all_to_all, sendrecv, is \"foo\"\n"
      "k.csv:3: bytes: must be an integer of at least 1, is \"0\"\n"
      "k.csv:3: ranks: must be a multiple of the 3 nodes, is \"8\"\n"
      "k.csv:3: time_us: must be a positive number, is \"-1\"",
      Error);
  CHECK_THROWS_WITH_AS(parse_kernels(header, "k.csv", "A100"), "k.csv: has no rows", Error);
  CHECK_THROWS_WITH_AS(
      parse_kernels(header + ",all_reduce,1,1,9223372036854775807,inf\n"
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

namespace {

// Streams of so many bytes at shares of the bandwidth of 2 TB/s, and updates.
MeasuredKernels streams(const std::vector<double>& shares,
                        const std::vector<double>& updates = {}) {
  std::string csv = kKernelHeader;
  for (size_t i = 0; i < shares.size(); ++i)
    csv += fmt::format("A100-SXM,stream,f32,1,{}000000000,1,1,0,1\n", i + 1);
  for (size_t i = 0; i < updates.size(); ++i)
    csv += fmt::format("A100-SXM,update,f32,1,{}00000000,1,1,0,1\n", i + 1);
  MeasuredKernels made = parse_kernels(csv, "k.csv", "A100-SXM-80GB");
  for (size_t i = 0; i < made.kernels.size(); ++i) {
    const double share = i < shares.size() ? shares[i] : updates[i - shares.size()];
    made.kernels[i].time_us = made.kernels[i].works[0].bytes / (2e12 * share) * 1e6;
  }
  return made;
}

// Of the profile as it is, and what it says of the rows.
Fitter unfitted(const std::vector<const Run*>& runs, const MeasuredKernels& measured,
                const Machines& machines, int runs_per_source = 0) {
  FitOptions options;
  options.constants = {"memory_fraction"};
  options.iterations = 0;
  options.runs_per_source = runs_per_source;
  return {runs, measured, machines, stack(0.9), options};
}

}  // namespace

TEST_CASE("kinds of kernels weigh alike, however many rows they have") {
  // Two rows at half of the bandwidth and one at 0.8 of it: in the middle of the kinds' logarithms.
  const Fit fit = fitter({}, streams({0.5, 0.5}, {0.8}), {"memory_fraction"}).fit();
  const double middle = std::sqrt(0.5 * 0.8), off = std::log(0.8 / 0.5) / 2;
  // The prior draws it towards 0.9 by as much as its own interval makes of three e-folds.
  const double drawn = middle * std::exp(std::log(0.9 / middle) * off * off / 9 * 1.5 / 4);
  CHECK(fit.constants[0].value == mw::test::close_to(drawn).epsilon(5e-4));
  CHECK(fit.residuals[0].error == mw::test::close_to(0.5 / drawn - 1).epsilon(2e-3));
  CHECK(fit.residuals[2].error == mw::test::close_to(0.8 / drawn - 1).epsilon(2e-3));
  CHECK(fit.deviation == mw::test::close_to(off).epsilon(1e-3));
  // Weights of a half, a half and one are as many as 4 / 1.5 rows.
  const double deviation = off * std::sqrt(1.5 / 4);
  CHECK(fit.constants[0].low ==
        mw::test::close_to(drawn * std::exp(-1.96 * deviation)).epsilon(2e-3));
  CHECK(fit.constants[0].high ==
        mw::test::close_to(drawn * std::exp(1.96 * deviation)).epsilon(2e-3));
}

TEST_CASE("rows that a fit leaves out weigh nothing in their kind") {
  const Fit fit =
      fitter({}, streams({0.5, 0.9}, {0.8}), {"memory_fraction"}).fit({true, false, true});
  const double middle = std::sqrt(0.5 * 0.8);
  CHECK(fit.constants[0].value == mw::test::close_to(middle).epsilon(2e-3));
  CHECK(fit.residuals[1].error == mw::test::close_to(0.9 / middle - 1).epsilon(5e-3));
}

TEST_CASE("what a row leaves open is in a fit what fits the memory, as in validate") {
  Machines machines = a100();
  machines.profiles = {stack(0.9)};
  Run run = gpt(4, 256, 4, 512, 512, 4);
  run.software = "stack";
  const Comparison small = validate({run}, machines, 1)[0];  // one sequence, all made again
  machines.clusters[0].device.memory =
      Bytes(static_cast<int64_t>(1.001 * small.predicted_GiB * (1 << 30)));
  run.recompute = "unknown";
  run.micro_batch = 0;
  CHECK(unfitted({&run}, {}, machines).fit().residuals[0].error ==
        mw::test::close_to(small.error).epsilon(1e-9));
}

TEST_CASE("beside runs a table of kernels is one source, of however many kinds") {
  const std::vector<Run> rows = simulated_rows(0.5);
  cluster::Cluster at = a100().clusters[0];
  cluster::apply(stack(0.8), at);
  double values[2] = {};
  for (const int kinds : {1, 2}) {
    std::string csv = kKernelHeader + "A100-SXM,product,bf16,1,8192,8192,8192,0,1\n";
    if (kinds == 2) csv += "A100-SXM,attention,bf16,64,4096,4096,128,0,1\n";
    MeasuredKernels made = parse_kernels(csv, "k.csv", "A100-SXM-80GB");
    for (KernelRow& row : made.kernels) row.time_us = kernel_time(at.device, row).value * 1e6;
    values[kinds - 1] = fitter(rows, made).fit().constants[0].value;
  }
  CHECK(values[0] > 0.52);
  CHECK(values[0] < 0.78);
  CHECK(values[1] == mw::test::close_to(values[0]).epsilon(0.005));
}

TEST_CASE("a measured collective is one of the cluster's, its latency beside the algorithm's") {
  Machines nodes = a100(), cards = a100();  // cards: a network joins all devices
  for (Machines* machines : {&nodes, &cards})
    machines->clusters[0].device.attained.collective_latency = Seconds(5e-6);
  cluster::Link& outside = nodes.clusters[0].links[0];
  cluster::Link inside = outside;
  inside.kind = cluster::LinkKind::kNvlink;
  inside.devices = 8;
  inside.bandwidth = inside.bus_bandwidth = cluster::BytesPerSecond(300e9);
  outside.bandwidth = outside.bus_bandwidth = cluster::BytesPerSecond(10e9);
  nodes.clusters[0].links.insert(nodes.clusters[0].links.begin(), inside);
  Machines pairs = nodes;  // bridges join two of a node's eight
  cluster::Link bridge = inside;
  bridge.name = "bridge";
  bridge.devices = 2;
  bridge.bandwidth = bridge.bus_bandwidth = cluster::BytesPerSecond(600e9);
  pairs.clusters[0].links.insert(pairs.clusters[0].links.begin(), bridge);
  struct Case {
    const Machines& machines;
    int64_t nodes, ranks;
    std::vector<int64_t> members;
  };
  std::vector<int64_t> sixteen(16);
  std::iota(sixteen.begin(), sixteen.end(), 0);
  const std::vector<int64_t> eight(sixteen.begin(), sixteen.begin() + 8);
  for (const Case& c : {Case{nodes, 1, 8, eight},
                        {nodes, 2, 16, sixteen},
                        {nodes, 2, 2, {0, 8}},
                        {pairs, 1, 8, eight},
                        {pairs, 2, 16, sixteen},
                        {pairs, 2, 4, {0, 1, 8, 9}},
                        {cards, 1, 8, eight},
                        {cards, 4, 4, {0, 1, 2, 3}}}) {
    CAPTURE(c.nodes);
    CAPTURE(c.ranks);
    const cluster::Cluster& on = c.machines.clusters[0];
    std::vector<RankId> members;
    for (const int64_t r : c.members) members.emplace_back(r);
    const Bytes bytes(1 << 24);
    const double seconds =
        cost::collective_time(on, ir::OpKind::kAllReduce, bytes, cluster::group_shape(on, members))
            .time.value +
        5e-6;
    MeasuredKernels measured;
    measured.collectives = {{c.nodes, c.ranks, bytes, 2 * seconds * 1e6}};
    CHECK(unfitted({}, measured, c.machines).fit().residuals[0].error == mw::test::close_to(-0.5));
  }
  MeasuredKernels measured;
  measured.collectives = {{1, 16, Bytes(1 << 24), 100}};
  CHECK(mw::test::thrown_by([&] { unfitted({}, measured, nodes); })
            .ends_with(": an all-reduce was measured on 16 ranks of 1 node, and a node has 8 "
                       "devices"));
  Machines alone = nodes;
  alone.clusters[0].links.clear();
  CHECK(mw::test::thrown_by([&] {
          unfitted({}, measured, alone);
        }).ends_with(": has no [[link]], and all-reduces were measured"));
}

TEST_CASE("products in fp8 are of a device that has them") {
  const MeasuredKernels measured = parse_kernels(
      kKernelHeader + "A100,product,bf16,1,64,64,64,0,1\nA100,product,fp8,1,64,64,64,0,1\n",
      "k.csv", "A100");
  Machines machines = a100();
  machines.clusters[0].file = "box.toml";
  CHECK(mw::test::thrown_by([&] { unfitted({}, measured, machines); }) ==
        "box.toml: A100 has no fp8 products (peak_TFLOPs.fp8), and some were measured; leave their "
        "rows out");
  machines.clusters[0].device.peaks.emplace_back("fp8", cluster::FlopsPerSecond(624e12));
  CHECK(unfitted({}, measured, machines).fit().residuals.size() == 2);
}

TEST_CASE("what a fit says of rows left out is their mean error, and the worst with its sign") {
  MeasuredKernels measured = streams(std::vector<double>(10, 1.0));
  measured.kernels[2].time_us /= 1.1;
  measured.kernels[7].time_us /= 0.7;
  const std::vector<cluster::LeftOut> out = left_out(unfitted({}, measured, a100()));
  REQUIRE(out.size() == 1);  // all rows are of one source
  CHECK(out[0].name == "every fifth measured kernel");
  CHECK(out[0].runs == 2);
  CHECK(out[0].mean == mw::test::close_to(0.2));
  CHECK(out[0].worst == mw::test::close_to(-0.3));
}

TEST_CASE("of a source with many runs some are fitted on, evenly spaced") {
  std::vector<Run> rows(5, gpt(2, 64, 4, 64, 128, 4));
  std::vector<const Run*> pointers;
  for (Run& run : rows) {
    run.source = "table";
    pointers.push_back(&run);
  }
  const Fit fit = unfitted(pointers, {}, a100(), 2).fit();
  REQUIRE(fit.residuals.size() == 2);
  CHECK(fit.residuals[0].run == &rows[0]);
  CHECK(fit.residuals[1].run == &rows[2]);
}
