#include "cluster/profile.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "base/text.h"

using namespace mw;
using namespace mw::cluster;

namespace {

const std::string kProfile = R"(name = "a stack on a chip"
device = "chip"
software = "stack"
source = "by hand"
runs_that_say = ["Stack 2"]
overlap = ["grad_reduce"]
scatter_gather = true
fused_attention = false
blocked_softmax = true
gloo = true
global_sums = false
fused_elementwise = false
fused_linears = true
selective_op = true
keeps_gathered = true
f32_loss = true
f32_softmax = true
gathered_ends = true
whole_recompute = true
autograd = true
dropout_masks = true
narrow_saved = true
attention_copies = true
f16_gradients = true
gathers_late = true
copies_shards = true
torch_2_6 = true
lacks = ["interleaved", "slices"]
gradient_bytes = 2
bf16_gradient_bytes = 4
allocator = "segments"
accumulation = "autograd"
prefetch_mb = 4096
gathered_again = 0.6667
error = 0.05

[[versions]]
runs_that_say = ["an old paper"]
overlap = ["serial"]
fused_attention = true
attention_copies = false
f16_gradients = false
gradient_bytes = 8
accumulation = "buffers"
source = "its code"
constants.launch_us = { value = 3, source = "its paper" }

[constants]
host_op_us = { value = 20, low = 19, high = 21, source = "fit" }
network_bus_fraction = { value = 0.5, source = "a paper" }

[measured]
hidden = [1024, 8192]
precision = ["bf16", "fp8"]

[[left_out]]
name = "every fifth run"
runs = 7
mean = 0.04
worst = -0.11
)";

Cluster chips() {
  Cluster c;
  c.file = "chips.toml";
  c.device.name = "chip";
  c.links.resize(2);
  c.links[0].kind = LinkKind::kNvlink;
  c.links[1].kind = LinkKind::kNetwork;
  for (Link& link : c.links) link.bandwidth = link.bus_bandwidth = BytesPerSecond(100e9);
  return c;
}

std::string profile_message(const std::string& text) {
  return mw::test::thrown_by([&] { parse_profile(text, "p.toml"); });
}

}  // namespace

TEST_CASE("a profile replaces what a cluster file says of device and links") {
  Cluster c = chips();
  apply(parse_profile(kProfile, "p.toml"), c);
  CHECK(c.device.attained.host_op.value == mw::test::close_to(20e-6));
  CHECK(!c.device.attained.fused_attention);
  CHECK(c.device.attained.blocked_softmax);
  CHECK(!c.device.attained.fused_elementwise);
  CHECK(c.device.attained.fused_linears);
  CHECK(c.device.attained.gradient_bytes_of(false) == 2);
  CHECK(c.device.attained.gradient_bytes_of(true) == 4);
  CHECK(c.links[0].bus_bandwidth.value == 100e9);
  CHECK(c.links[1].bus_bandwidth.value == 50e9);
  CHECK(c.stack.name == "stack");
  CHECK(c.stack.overlap == std::vector<std::string>{"grad_reduce"});
  CHECK(c.stack.scatter_gather);
  CHECK(c.stack.f32_loss);
  CHECK(c.stack.f32_softmax);
  CHECK(c.stack.gathered_ends);
  CHECK(c.stack.whole_recompute);
  CHECK_FALSE(c.stack.global_sums);
  CHECK(c.stack.autograd);
  CHECK(c.stack.dropout_masks);
  CHECK(c.stack.narrow_saved);
  CHECK(c.stack.attention_copies);
  CHECK(c.stack.f16_gradients);
  CHECK(c.stack.gathers_late);
  CHECK(c.stack.copies_shards);
  CHECK(c.stack.allocator == Allocator::kSegments);
  CHECK(c.stack.torch_2_6);
  CHECK(c.stack.accumulation == Accumulation::kAutograd);
  CHECK(c.stack.gathered_again == 0.6667);
  CHECK(c.stack.prefetch_mb == 4096);
  REQUIRE(c.stack.measured.size() == 1);
  CHECK(c.stack.measured[0].most == 8192);
  CHECK(c.stack.precisions == std::vector<std::string>{"bf16", "fp8"});
}

TEST_CASE("a constant that is set is read back in its unit, and changes no other") {
  const std::span<const ConstantInfo> infos = constant_infos();
  for (const ConstantInfo& info : infos) {
    CAPTURE(info.name);
    const double value = std::sqrt(std::max(info.least, 1e-3) * info.most);
    Cluster c = chips();
    set_constant(c, info.name, value);
    CHECK(constant(c, info.name) == mw::test::close_to(value));
    for (const ConstantInfo& other : infos) {
      CAPTURE(other.name);
      if (other.name != info.name) CHECK(constant(c, other.name) == constant(chips(), other.name));
    }
  }
  Cluster c = chips();
  set_constant(c, "host_op_us", 20);
  set_constant(c, "message_GBps", 3);
  set_constant(c, "network_latency_us", 7);
  CHECK(c.device.attained.host_op.value == mw::test::close_to(20e-6));
  CHECK(c.device.attained.message_bandwidth.value == mw::test::close_to(3e9));
  CHECK(c.links[1].latency.value == mw::test::close_to(7e-6));
}

TEST_CASE("a version replaces what its profile says") {
  const Profile profile = parse_profile(kProfile, "p.toml");
  REQUIRE(profile.versions.size() == 1);
  Cluster c = chips();
  apply(profile, c);
  apply_version(profile.versions[0], c);
  CHECK(c.stack.overlap == std::vector<std::string>{"serial"});
  CHECK(c.device.attained.fused_attention);
  CHECK(!c.stack.attention_copies);
  CHECK(!c.stack.f16_gradients);
  CHECK(c.stack.accumulation == Accumulation::kBuffers);
  CHECK(c.device.attained.gradient_bytes_of(false) == 8);
  CHECK(c.device.attained.gradient_bytes_of(true) == 8);
  CHECK(c.device.attained.launch.value == mw::test::close_to(3e-6));
  CHECK(c.device.attained.host_op.value == mw::test::close_to(20e-6));
}

TEST_CASE("a profile that is written and read again is the same text") {
  const Profile profile = parse_profile(kProfile, "p.toml");
  CHECK(profile.runs_that_say == std::vector<std::string>{"Stack 2"});
  CHECK(profile.stack.lacking == std::vector<Lacking>{Lacking::kInterleaved, Lacking::kSlices});
  CHECK(profile.stack.lacks(Lacking::kSlices));
  CHECK_FALSE(profile.stack.lacks(Lacking::kReplicas));
  CHECK(profile.stack.selective_op);
  CHECK(profile.stack.keeps_gathered);
  REQUIRE(profile.versions.size() == 1);
  CHECK(profile.versions[0].runs_that_say == std::vector<std::string>{"an old paper"});
  CHECK(profile.versions[0].stack.overlap == std::vector<std::string>{"serial"});
  CHECK(to_toml(profile) == kProfile);
  const Profile again = parse_profile(to_toml(profile), "p.toml");
  CHECK(again.stack.accumulation == Accumulation::kAutograd);
  REQUIRE(again.versions.size() == 1);
  CHECK(again.versions[0].stack.accumulation == Accumulation::kBuffers);
}

TEST_CASE("a version's gradients are written as they are read, of both kinds of halves") {
  for (const int64_t of_f16 : {2, 4, 8}) {
    for (const int64_t of_bf16 : {2, 4, 8}) {
      CAPTURE(of_f16);
      CAPTURE(of_bf16);
      const std::string both =
          fmt::format("gradient_bytes = {}\nbf16_gradient_bytes = {}\n", of_f16, of_bf16);
      const Profile profile =
          parse_profile(replace_all(kProfile, "gradient_bytes = 8\n", both), "p.toml");
      const Profile again = parse_profile(to_toml(profile), "p.toml");
      REQUIRE(again.versions.size() == 1);
      CHECK(again.versions[0].kernels.gradient_bytes == of_f16);
      CHECK(again.versions[0].kernels.bf16_gradient_bytes == of_bf16);
    }
  }
}

TEST_CASE("constants that were not fitted are written with all their digits") {
  const std::string text =
      replace_all(replace_all(kProfile, "{ value = 0.5, source", "{ value = 0.123456789, source"),
                  "{ value = 3, source", "{ value = 2.7182818, source");
  CHECK(to_toml(parse_profile(text, "p.toml")) == text);
}

TEST_CASE("a link's constants are of its own kind, as shares of what its port carries") {
  for (const std::string kind : {"node", "network"}) {
    CAPTURE(kind);
    const size_t at = kind == "node" ? 0 : 1;
    Cluster c = chips();
    for (Link& link : c.links) link.bus_bandwidth = BytesPerSecond(80e9);
    set_constant(c, kind + "_bus_fraction", 0.5);
    CHECK(c.links[at].bus_bandwidth.value == 50e9);
    CHECK(c.links[1 - at].bus_bandwidth.value == 80e9);
    CHECK(constant(c, kind + "_bus_fraction") == 0.5);
  }
  Cluster c = chips();
  set_constant(c, "network_latency_us", 7);
  CHECK(c.links[0].latency.value == 0);
  CHECK(c.links[1].latency.value == mw::test::close_to(7e-6));
}

TEST_CASE("findings about a profile are told together; another device's is refused") {
  CHECK_THROWS_WITH_AS(
      parse_profile("name = \"x\"\ndevice = \"chip\"\nsoftware = \"s\"\nsource = \"y\"\n"
                    "lacks = [\"slices\", \"pipes\"]\n"
                    "[constants]\nhost_op = { value = 1, source = \"a\" }\n"
                    "launch_us = { value = 1, low = 2, high = 1, source = \"a\" }\n"
                    "[measured]\nsequence = [2, 1]\nhiden = [1, 2]\n",
                    "p.toml"),
      "p.toml:5: lacks: 'pipes' is not one of tensor-parallelism, pipelines, divided-pipelines, "
      "interleaved, selective, split-backward, split-recompute, replicas, slices\n"
      "p.toml:8: constants.launch_us.high: must be at least low\n"
      "p.toml:7: constants.host_op: unknown key, did you mean 'host_op_us'?\n"
      "p.toml:10: measured.sequence: must be [least, most], from 0 on\n"
      "p.toml:11: measured.hiden: unknown key, did you mean 'hidden'?",
      Error);
  Cluster c = chips();
  c.device.name = "another";
  CHECK_THROWS_WITH_AS(apply(parse_profile(kProfile, "p.toml"), c),
                       "p.toml: is of chip, but chips.toml has another", Error);
}

TEST_CASE("an unknown key is refused wherever a profile has it, and a near miss is told") {
  const std::string start = "name = \"x\"\ndevice = \"chip\"\nsoftware = \"s\"\nsource = \"y\"\n";
  const std::string version =
      "[[versions]]\nruns_that_say = [\"a\"]\noverlap = []\nsource = \"y\"\n";
  struct Case {
    std::string more, where, near;
  };
  for (const Case& one :
       std::vector<Case>{{"runs_that_sai = []", "runs_that_sai", "runs_that_say"},
                         {"overlp = []", "overlp", "overlap"},
                         {"lack = []", "lack", "lacks"},
                         {"version = 1", "version", "versions"},
                         {"constant = 1", "constant", "constants"},
                         {"measure = 1", "measure", "measured"},
                         {"left_ou = 1", "left_ou", "left_out"},
                         {version + "constant = 1", "versions[0].constant", "constants"},
                         {"[constants]\nlaunch_us = { value = 1, source = \"a\", hih = 2 }",
                          "constants.launch_us.hih", "high"},
                         {"[measured]\nprecison = []", "measured.precison", "precision"},
                         {"[[left_out]]\nname = \"a\"\nruns = 1\nmean = 0\nworst = 0\nworse = 0",
                          "left_out[0].worse", "worst"}}) {
    CAPTURE(one.where);
    CHECK(profile_message(start + one.more)
              .ends_with(": " + one.where + ": unknown key, did you mean '" + one.near + "'?"));
  }
}

TEST_CASE("what a profile says must be what it can be") {
  const std::string start = "name = \"x\"\ndevice = \"chip\"\nsoftware = \"s\"\nsource = \"y\"\n";
  const std::string launch =
      "[constants]\nlaunch_us = { source = \"a\", low = 2, high = 3, value = ";
  const std::string hidden = "[measured]\nhidden = ";
  const std::string outside =
      "p.toml:6: constants.launch_us.value: must be from low to high, 2 to 3, is ";
  const std::string ends = "p.toml:6: measured.hidden: must be [least, most], from 0 on";
  struct Case {
    std::string more, message;
  };
  for (const Case& one : std::vector<Case>{
           {launch + "2 }", "no error"},
           {launch + "1.99 }", outside + "1.99"},
           {launch + "3.01 }", outside + "3.01"},
           {"error = 100", "no error"},
           {"error = inf", "p.toml:5: error: must be a number from 0 to 100, is inf"},
           {hidden + "[0, 0]", "no error"},
           {hidden + "[1]", ends},
           {hidden + "[1, 2, 3]", ends},
           {hidden + "[-1, 2]", ends},
           {hidden + "[1, inf]", ends},
           {"[measured]\nprecision = [\"bf16\", \"int8\"]",
            "p.toml:6: measured.precision: 'int8' is not one of bf16, f16, f32, fp8, mxfp8"},
           {"runs_that_say = [\"\"]",
            "p.toml:5: runs_that_say: has an empty text, which every run says"},
           {"[[versions]]\nruns_that_say = [\"a\"]\nsource = \"y\"",
            "p.toml:5: versions[0].overlap: is missing; must be an array of strings"}}) {
    CAPTURE(one.more);
    CHECK(profile_message(start + one.more) == one.message);
  }
}
