#include "calibrate/fit_input.h"

#include <doctest/doctest.h>

#include "base/fake_fs.h"
#include "base/text.h"
#include "calibrate/fit.h"
#include "calibrate/test_runs.h"

using namespace mw;
using namespace mw::calibrate;

namespace {

constexpr const char* kCluster =
    "name = \"box\"\nsource = \"x\"\n[device]\nname = \"A100\"\nmemory_GB = 80\n"
    "memory_GBps = 2000\nmultiprocessors = 108\n[device.peak_TFLOPs]\nf16 = 312\n"
    "[device.attained]\nmatrix_fraction = 0.5\nmemory_fraction = 0.8\nlaunch_us = 1\n"
    "host_op_us = 5\n[[link]]\nname = \"net\"\nkind = \"network\"\nlink_GBps = 25\n"
    "latency_us = 5\n";
constexpr const char* kProfile =
    "name = \"y\"\ndevice = \"A100\"\nsoftware = \"stack\"\nsource = \"z\"\n[constants]\n"
    "matrix_fraction = { value = 0.6, source = \"fit\" }\n"
    "collective_latency_us = { value = 9, source = \"fit\" }\n"
    "launch_us = { value = 2, source = \"a paper\" }\n";

// A data folder with a cluster, its profile, and tables of collectives and of kernels.
FakeFileSystem files() {
  FakeFileSystem fs;
  fs.make_directories("c/profiles");
  fs.write_file_atomically("c/box.toml", kCluster);
  fs.write_file_atomically("c/profiles/a100-stack.toml", kProfile);
  fs.write_file_atomically(
      "collectives.csv",
      "device,collective,nodes,ranks,bytes,time_us\nA100,all_reduce,2,2,1024,9\n");
  fs.write_file_atomically("kernels.csv",
                           "device,kernel,dtype,batch,m,n,k,causal,time_us\n"
                           "A100,product,f16,1,512,512,512,0,9\n");
  return fs;
}
FitRequest asked() {
  FitRequest made;
  made.cluster_folders = {"c"};
  made.machines = "c";
  return made;
}
std::vector<std::string> findings(const FitRequest& request, FakeFileSystem fs = files()) {
  Diagnostics diagnostics;
  read_fit_input(fs, request, diagnostics);
  return diagnostics.findings();
}

}  // namespace

TEST_CASE("what is fitted follows from what there is to fit on") {
  struct Case {
    const char *kernels, *profile, *cluster;
    std::vector<std::string> given, constants;
  };
  const std::vector<std::string> of_collectives = {"collective_latency_us", "node_bus_fraction",
                                                   "network_bus_fraction"};
  for (const Case& c : {Case{"collectives.csv", "", "box", {}, of_collectives},
                        {"collectives.csv", "a100-stack", "", {}, {"collective_latency_us"}},
                        {"kernels.csv", "a100-stack", "", {}, {"matrix_fraction"}},
                        {"kernels.csv", "a100-stack", "", {"launch_us"}, {"launch_us"}}}) {
    CAPTURE(c.kernels);
    CAPTURE(c.profile);
    FakeFileSystem fs = files();
    Diagnostics diagnostics;
    FitRequest request = asked();
    request.kernels = c.kernels;
    request.profile = c.profile;
    request.cluster = c.cluster;
    request.constants = c.given;
    const FitInput input = read_fit_input(fs, request, diagnostics);
    CHECK(diagnostics.findings() == std::vector<std::string>{});
    CHECK(input.constants == c.constants);
    CHECK(input.profile.device == "A100");
    CHECK(input.profile.software == (c.profile[0] == 0 ? "kernels" : "stack"));
    CHECK(input.measured.size() == 1);
    CHECK(input.machines.clusters.size() == 1);
  }
}

TEST_CASE("all that is wrong with what is asked for is told together") {
  CHECK(
      findings(asked()) ==
      std::vector<std::string>{
          "runs: are missing; give CSV files of runs, or --kernels alone",
          "--profile: is missing, and no row is marked fit; give a profile to begin with, or with "
          "--cluster a device"});
  FitRequest request = asked();
  request.kernels = "kernel.csv";
  request.profile = "a100-stack";
  request.constants = {"launch_us", "launch", "launch_us"};
  const std::vector<std::string> wrong = findings(request);
  REQUIRE(wrong.size() == 3);
  CHECK(wrong[0].starts_with("kernel.csv: does not exist"));
  CHECK(wrong[1].starts_with("--constants: unknown constant 'launch', did you mean 'launch_us'?"));
  CHECK(wrong[2] == "--constants: launch_us is there twice; name it once");
  // A software without rows that are of its device, a cluster of another one.
  FakeFileSystem fs = files();
  fs.write_file_atomically("c/profiles/b100-stack.toml", replace_all(kProfile, "A100", "B100"));
  fs.write_file_atomically(
      "c/other.toml", replace_all(replace_all(kCluster, "\"box\"", "\"other\""), "A100", "B100"));
  request = asked();
  request.kernels = "kernels.csv";
  request.profile = "stack";
  CHECK(findings(request, fs) ==
        std::vector<std::string>{
            "--profile: 'stack' is the software of a100-stack, b100-stack; name one of them"});
  request.profile = "a100-stack";
  CHECK(findings(request, fs) == std::vector<std::string>{});
  request.cluster = "other";
  CHECK(
      findings(request, fs).front() ==
      "--cluster: other is of B100, and c/profiles/a100-stack.toml of A100; leave out --cluster or "
      "--profile");
}

TEST_CASE("so many constants are fitted at most") {
  FitRequest request = asked();
  request.kernels = "kernels.csv";
  request.profile = "a100-stack";
  for (const cluster::ConstantInfo& info : cluster::constant_infos().first(kMostConstants))
    request.constants.emplace_back(info.name);
  CHECK(findings(request) == std::vector<std::string>{});
  request.constants.emplace_back(cluster::constant_infos()[kMostConstants].name);
  CHECK(findings(request) ==
        std::vector<std::string>{"13 constants are too many to fit; at most 12"});
}

TEST_CASE("rows of large models may be left out of a fit, and are only compared then") {
  FitInput input;
  input.machines = a100();
  input.profile.device = "A100";
  input.profile.software = "stack";
  take_profile(input.profile, input.machines);
  input.runs = {gpt(2, 64, 4, 64, 128, 4), gpt(48, 8192, 64, 64, 128, 4),
                gpt(2, 64, 4, 64, 128, 4)};
  for (Run& run : input.runs) run.use = "fit", run.software = "stack";
  input.runs[2].use = "check";
  const FitRows all = fit_rows(input, 0), small = fit_rows(input, 1);
  CHECK(all.fitted == std::vector<const Run*>{&input.runs[0], &input.runs[1]});
  CHECK(all.larger.empty());
  CHECK(small.fitted == std::vector<const Run*>{&input.runs[0]});
  REQUIRE(small.larger.size() == 1);
  CHECK(small.larger[0].use == "check");
}
