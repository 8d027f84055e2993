#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/fake_fs.h"
#include "base/test_close_to.h"
#include "base/test_thrown_by.h"
#include "base/text.h"
#include "cluster/group_shape.h"
#include "cluster/hardware.h"
#include "cluster/profile.h"

using namespace mw;
using namespace mw::cluster;

namespace {

constexpr const char* kBox = R"(name = "Box"
source = "a data sheet"
[device]
name = "Chip"
memory_GB = 80
memory_GBps = 2000
multiprocessors = 108
peak_TFLOPs = { f32 = 20, bf16 = 300 }
[device.attained]
matrix_fraction = 0.9
memory_fraction = 0.8
launch_us = 2
host_op_us = 10
[[link]]
name = "inside"
kind = "nvlink"
devices = 8
link_GBps = 300
bus_GBps = 235
latency_us = 6
[[link]]
name = "net"
kind = "network"
link_GBps = 25
latency_us = 10
)";

std::string message_of(const std::string& text) {
  return mw::test::thrown_by([&] { parse_cluster(text, "box.toml"); });
}

std::vector<int64_t> ways(const Mesh& mesh, const Names& axes) {
  return group_shape(parse_cluster(kBox, "box.toml"), mesh, RankId(0), axes).ways;
}

}  // namespace

TEST_CASE("a cluster file's units are taken from its keys") {
  const Cluster box = parse_cluster(kBox, "box.toml");
  CHECK(box.device.peak("bf16").value == 300e12);
  CHECK(box.device.peak("fp8").value == 0);
  CHECK(box.device.memory.value == 80'000'000'000);
  CHECK(box.device.memory_bandwidth.value == 2000e9);
  CHECK(box.device.attained.host_op.value == mw::test::close_to(10e-6));
  CHECK(box.device.source == "a data sheet");
  REQUIRE(box.links.size() == 2);
  CHECK(box.links[0].bus_bandwidth.value == 235e9);
  CHECK(box.links[1].bus_bandwidth.value == 25e9);
  CHECK(box.links[1].devices == 0);
  CHECK((Bytes(50'000'000'000) / box.links[1].bandwidth).value == 2);
  std::string text = replace_all(kBox, "memory_GB = 80", "memory_GB = 80\ncache_MB = 40");
  text = replace_all(text, "[device.attained]",
                     "kernel_G_per_s = { dot = 250000 }\n[device.attained]\n"
                     "collective_latency_us = 3");
  const Device device = parse_cluster(text, "box.toml").device;
  CHECK(device.cache == Bytes(40'000'000));
  CHECK(device.kernel_rates == std::vector<std::pair<std::string, double>>{{"dot", 250e12}});
  CHECK(device.attained.collective_latency.value == mw::test::close_to(3e-6));
}

TEST_CASE("a device may have other names") {
  CHECK(parse_cluster(kBox, "box.toml").device.also.empty());
  const auto called = [](const char* also) {
    return replace_all(kBox, "memory_GB = 80", fmt::format("memory_GB = 80\nalso = {}", also));
  };
  CHECK(parse_cluster(called(R"(["Chip 80", "the chip"])"), "box.toml").device.also ==
        std::vector<std::string>{"Chip 80", "the chip"});
  CHECK(message_of(called("\"the chip\"")) ==
        "box.toml:6: device.also: must be an array of strings, is \"the chip\"");
}

TEST_CASE("a link of longer latency than NCCL's constants are of has longer hops") {
  const auto hops = [](const char* latency) {
    const std::string text = replace_all(kBox, "latency_us = 10", latency);
    return parse_cluster(text, "box.toml").links[1].hop_factor;
  };
  CHECK(hops("latency_us = 1") == 1);
  CHECK(hops("latency_us = 14") == 1);
  CHECK(hops("latency_us = 70") == mw::test::close_to(5.0));
  CHECK(parse_cluster(kBox, "box.toml").links[0].hop_factor == 1);
  std::string bridges = replace_all(kBox, "\"nvlink\"", "\"pcie\"");
  bridges = replace_all(bridges, "latency_us = 6\n", "latency_us = 25\n");
  CHECK(parse_cluster(bridges, "box.toml").links[0].hop_factor == mw::test::close_to(2.5));
}

TEST_CASE("a node is the largest unit that no network joins") {
  Cluster box = parse_cluster(kBox, "box.toml");
  CHECK(box.node() == &box.links[0]);
  CHECK(box.node_devices() == 8);
  Link rack = box.links[1];
  rack.devices = 32;
  box.links.insert(box.links.begin() + 1, rack);
  CHECK(box.node_devices() == 8);
  box.links[0].devices = 1;  // boards of one device
  CHECK(box.node() == nullptr);
  box.links.erase(box.links.begin());
  CHECK(box.node() == nullptr);
  CHECK(box.node_devices() == 1);
}

TEST_CASE("two ranks are joined by the innermost level that holds both") {
  const Cluster box = parse_cluster(kBox, "box.toml");
  CHECK(box.level_between(0, 7) == 0);
  CHECK(box.level_between(7, 8) == 1);
  CHECK(box.level_between(16, 23) == 0);
}

TEST_CASE("a group crosses the levels that its ranks' order says") {
  const Mesh mesh({{"pp", 4}, {"dp", 4}, {"tp", 8}});
  CHECK(ways(mesh, {"tp"}) == std::vector<int64_t>{8, 1});
  CHECK(ways(mesh, {"dp"}) == std::vector<int64_t>{1, 4});
  CHECK(ways(mesh, {"pp"}) == std::vector<int64_t>{1, 4});
  CHECK(ways(mesh, {"dp", "tp"}) == std::vector<int64_t>{8, 4});
  const Mesh small({{"pp", 2}, {"dp", 4}, {"tp", 2}});
  CHECK(ways(small, {"dp"}) == std::vector<int64_t>{4, 1});
  CHECK(ways(small, {"pp"}) == std::vector<int64_t>{1, 2});
  const Mesh inner({{"tp", 2}, {"pp", 2}, {"dp", 16}});
  CHECK(ways(inner, {"dp"}) == std::vector<int64_t>{8, 2});
  const GroupShape pair = group_shape(parse_cluster(kBox, "box.toml"), {RankId(7), RankId(8)});
  CHECK(pair.ways == std::vector<int64_t>{1, 2});
  CHECK(pair.level() == 1);
}

TEST_CASE("groups that do not divide a node are of all shapes that their replicas have") {
  const Cluster box = parse_cluster(kBox, "box.toml");
  const Mesh mesh({{"dp", 4}, {"tp", 6}});
  const auto shapes = [&](const Names& axes, const Names& others) {
    return group_shapes(box, mesh.members(RankId(0), axes), mesh.members(RankId(0), others));
  };
  // tp: ranks 0 to 5 in a node; 6 to 11 two and four, 12 to 17 four and two; 18 to 23 in a node.
  const std::vector<GroupShape> tp = shapes({"tp"}, {"dp"});
  REQUIRE(tp.size() == 2);
  CHECK(tp[0].ways == std::vector<int64_t>{6, 1});
  CHECK(tp[0].fewest.empty());
  CHECK(tp[1].ways == std::vector<int64_t>{4, 2});
  CHECK(tp[1].fewest == std::vector<int64_t>{1, 2});
  CHECK(tp[1].fullest_unit(1) == 4);
  CHECK(tp[1].emptiest_unit(1) == 2);
  CHECK(tp[0].emptiest_unit(1) == 6);
  // dp: 0, 6, 12 and 18 in three nodes; 2, 8, 14 and 20, too, in other numbers.
  for (const GroupShape& dp : shapes({"dp"}, {"tp"})) CHECK(dp.ways == std::vector<int64_t>{2, 3});
  // Where nodes are divided, one shape stands for all.
  const Mesh even({{"dp", 64}, {"tp", 4}});
  CHECK(
      group_shapes(box, even.members(RankId(0), {"tp"}), even.members(RankId(0), {"dp"})).size() ==
      1);
  CHECK(distinct_shifts(box, even.members(RankId(0), {"dp"})) ==
        std::vector<RankId>{RankId(0), RankId(4)});
  // Pipeline hops of 6: inside a node from 0, but not from 2.
  CHECK(level_between(box, RankId(0), RankId(6), {RankId(0), RankId(1)}) == 0);
  CHECK(level_between(box, RankId(0), RankId(6), {RankId(0), RankId(1), RankId(2)}) == 1);
  CHECK(level_between(box, RankId(0), RankId(6), {RankId(2), RankId(0)}) == 1);
  // Moved by three, the second of two comes to lie in the next node.
  CHECK(group_shapes(box, {RankId(4), RankId(5)}, {RankId(0), RankId(2)}).size() == 1);
  CHECK(group_shapes(box, {RankId(4), RankId(5)}, {RankId(0), RankId(3)}).size() == 2);
}

TEST_CASE("what of a device's memory no tensor gets") {
  CHECK(parse_cluster(kBox, "box.toml").device.usable_memory() == Bytes(80'000'000'000));
  const auto with = [](const char* reserved) {
    return replace_all(kBox, "memory_GB = 80\n",
                       fmt::format("memory_GB = 80\nreserved_GB = {}\n", reserved));
  };
  const Device device = parse_cluster(with("2.8"), "box.toml").device;
  CHECK(device.memory == Bytes(80'000'000'000));
  CHECK(device.usable_memory() == Bytes(77'200'000'000));
  CHECK(message_of(with("80")) == "box.toml:6: device.reserved_GB: must be less than memory_GB");
}

TEST_CASE("on a torus a group knows its dimensions and whether they close") {
  std::string text = replace_all(kBox, "kind = \"network\"", "kind = \"torus\"\ntorus = [4, 8]");
  text = replace_all(text, "devices = 8\n", "devices = 1\n");
  const Cluster pod = parse_cluster(text, "pod.toml");
  CHECK(pod.devices == 32);
  const Mesh mesh({{"dp", 4}, {"tp", 8}});
  const GroupShape row = group_shape(pod, mesh, RankId(0), {"tp"});
  CHECK(row.torus_links() == 2);
  CHECK(row.torus_hops == 4);
  const GroupShape all = group_shape(pod, mesh, RankId(0), {"dp", "tp"});
  CHECK(all.torus_links() == 4);
  CHECK(all.torus_hops == 4 + 2);
  const GroupShape half = group_shape(pod, {RankId(0), RankId(1), RankId(2), RankId(3)});
  CHECK(half.torus_links() == 1);
  CHECK(half.torus_hops == 3);
  // Every second one of a row closes its way around, of which the others have as much.
  const auto ranks = [&](std::vector<int64_t> at) {
    std::vector<RankId> members;
    for (const int64_t rank : at) members.emplace_back(rank);
    return group_shape(pod, members);
  };
  CHECK(ranks({0, 2, 4, 6}).torus_links() == 1);
  CHECK(ranks({0, 2, 4, 6}).torus_hops == 4);
  CHECK(ranks({0, 4}).torus_links() == mw::test::close_to(0.5));
  // A line of every second one, and one that goes over the row's end.
  CHECK(ranks({0, 2, 4}).torus_links() == mw::test::close_to(0.5));
  CHECK(ranks({0, 2, 4}).torus_hops == 4);
  CHECK(ranks({0, 1, 7}).torus_links() == 1);
  CHECK(ranks({0, 1, 7}).torus_hops == 2);
  // Moved along their row or over its end: each place of the torus is one of its own.
  const std::vector<RankId> shifts = {RankId(0), RankId(1), RankId(7)};
  CHECK(distinct_shifts(pod, shifts) == shifts);
  CHECK(group_shapes(pod, {RankId(0), RankId(1)}, {RankId(0), RankId(6)}).size() == 1);
  CHECK(group_shapes(pod, {RankId(0), RankId(1)}, {RankId(0), RankId(7)}).size() == 2);
}

TEST_CASE("everything wrong with a cluster file is said at once") {
  std::string text = replace_all(kBox, "memory_GB = 80", "memory_GB = \"80\"");
  text = replace_all(text, "kind = \"network\"", "kind = \"netwrok\"");
  text = replace_all(text, "latency_us = 10", "latency = 10");
  const std::string message = message_of(text);
  CHECK(message ==
        "box.toml:5: device.memory_GB: must be a number from 1e-09 to 1000000000, is \"80\"\n"
        "box.toml:23: link[1].kind: must be \"memory\", \"nvlink\", \"pcie\", \"network\" or "
        "\"torus\", is \"netwrok\", did you mean 'network'?\n"
        "box.toml:21: link[1].latency_us: is missing; must be a number from 0 to 1000000000\n"
        "box.toml:25: link[1].latency: unknown key, did you mean 'latency_us'?");
}

TEST_CASE("an unknown key is refused wherever a cluster file has it, and a near miss is told") {
  struct Case {
    const char *was, *is, *where, *near;
  };
  for (const Case& one :
       std::vector<Case>{{"[device]\n", "[measure]\n[device]\n", "measure", "measured"},
                         {"[device]\n", "[device]\nals = 1\n", "device.als", "also"},
                         {"[device]\n", "[device]\nkernel_G_per_ = 1\n", "device.kernel_G_per_",
                          "kernel_G_per_s"},
                         {"bf16 = 300", "bf61 = 300", "device.peak_TFLOPs.bf61", "bf16"},
                         {"[device.attained]\n", "[device.attained]\nsorce = 1\n",
                          "device.attained.sorce", "source"},
                         {"bus_GBps = 235", "bus_GBs = 235", "link[0].bus_GBs", "bus_GBps"}}) {
    CAPTURE(one.where);
    CHECK(
        message_of(replace_all(kBox, one.was, one.is))
            .ends_with(fmt::format(": {}: unknown key, did you mean '{}'?", one.where, one.near)));
  }
}

TEST_CASE("figures beyond what can be counted are refused") {
  std::string text = replace_all(kBox, "memory_GB = 80", "memory_GB = inf");
  text = replace_all(text, "latency_us = 10", "latency_us = 1e300");
  CHECK(message_of(text) ==
        "box.toml:5: device.memory_GB: must be a number from 1e-09 to 1000000000, is inf\n"
        "box.toml:25: link[1].latency_us: must be a number from 0 to 1000000000, is 1e+300");
  CHECK(message_of(replace_all(kBox, "kind = \"network\"",
                               "kind = \"torus\"\ntorus = [100000, 100000]")) ==
        "box.toml:24: link[1].torus: has more than 1073741824 devices");
  CHECK(message_of(replace_all(kBox, "kind = \"network\"",
                               "kind = \"torus\"\ntorus = [1, 1, 1, 1, 1, 1, 1, 1, 1]")) ==
        "box.toml:24: link[1].torus: has 9 dimensions, must have at most 8");
  CHECK(message_of(replace_all(kBox, "kind = \"network\"", "kind = \"torus\"\ntorus = []")) ==
        "box.toml:24: link[1].torus: has no dimensions, must have one or more");
  CHECK(message_of(replace_all(kBox, "kind = \"network\"", "kind = \"torus\"\ntorus = 4")) ==
        "box.toml:24: link[1].torus: must be an array of integers, is 4");
  CHECK(message_of(replace_all(kBox, "kind = \"network\"", "kind = \"torus\""))
            .ends_with("link[1].torus: is missing; must be an array of integers"));
}

TEST_CASE("a device has a peak") {
  CHECK(message_of(replace_all(kBox, "f32 = 20, bf16 = 300", "")) ==
        "box.toml:8: device.peak_TFLOPs: must have the dense peak of a format: f32, tf32, bf16, "
        "f16, fp8, "
        "fp4");
}

TEST_CASE("one device needs no links, several do") {
  const std::string alone(kBox, std::string_view(kBox).find("[[link]]"));
  const Cluster one = parse_cluster(alone, "box.toml");
  CHECK(one.links.empty());
  CHECK(one.devices == 1);
  CHECK(message_of(fmt::format("devices = 2\n{}", alone)) ==
        "box.toml: link: must be there at least once, as [[link]]: devices is 2");
}

TEST_CASE("link levels must nest and join all") {
  CHECK(message_of(replace_all(kBox, "devices = 8\n", "")) ==
        "box.toml:14: link[0].devices: is missing: 'inside' joins all devices, so it must be the "
        "last");
  const std::string text =
      replace_all(kBox, "kind = \"network\"", "kind = \"torus\"\ntorus = [3, 4]");
  CHECK(message_of(text) ==
        "box.toml:21: link[1].devices: is 12, must be a multiple of the level inside, 8");
  CHECK(message_of(replace_all(text, "[3, 4]", "[4, 4]")) ==
        "box.toml:23: link[1].kind: is torus, and the level inside joins 8 devices; a torus joins "
        "single ones");
  std::string many = kBox;
  for (int i = 0; i < 16; ++i) {
    many += fmt::format(
        "[[link]]\nname = \"n{}\"\nkind = \"network\"\nlink_GBps = 1\nlatency_us = 1\n{}", i,
        i < 15 ? "devices = 8\n" : "");
  }
  CHECK(message_of(replace_all(many, "kind = \"network\"\nlink_GBps = 25",
                               "kind = \"network\"\ndevices = 8\nlink_GBps = 25"))
            .find("link: is there 18 times, must be at most 16") != std::string::npos);
  CHECK(message_of(replace_all(kBox, "[[link]]", "[[links]]")).find("did you mean 'link'?") !=
        std::string::npos);
  const auto pod = [](int devices) {
    const std::string all =
        replace_all(kBox, "[device]\n", fmt::format("devices = {}\n[device]\n", devices));
    return replace_all(all, "kind = \"network\"", "kind = \"network\"\ndevices = 64");
  };
  CHECK(parse_cluster(pod(64), "box.toml").devices == 64);
  CHECK(parse_cluster(replace_all(kBox, "[device]\n", "devices = 64\n[device]\n"), "b").devices ==
        64);
  CHECK(message_of(replace_all(text, "[3, 4]", "[4, 4]\ndevices = 8"))
            .starts_with("box.toml:24: link[1].torus: has 16 devices, must have the level's 8"));
  CHECK(message_of(pod(65)) ==
        "box.toml:3: devices: is 65, but the outermost link, 'net', joins 64");
}

TEST_CASE("collectives reach no more of a link than its port carries") {
  const auto with = [](const char* was, const char* is) { return replace_all(kBox, was, is); };
  CHECK(message_of(with("bus_GBps = 235", "bus_GBps = 301\nswitch_bus_GBps = 467")) ==
        "box.toml:19: link[0].bus_GBps: is 301, must be at most 300 beside link_GBps=300: a ring's "
        "bytes all go through a device's port\n"
        "box.toml:20: link[0].switch_bus_GBps: is 467, must be at most 466.667 beside "
        "link_GBps=300: a port carries what a device gives and its part of the sum");
  parse_cluster(with("bus_GBps = 235", "bus_GBps = 300\nswitch_bus_GBps = 466"), "box.toml");
  CHECK(message_of(with("bus_GBps = 235", "switch_bus_GBps = 400\nswitch_port_GBps = 301")) ==
        "box.toml:20: link[0].switch_port_GBps: is 301, must be at most 300 beside link_GBps=300: "
        "it is that port's");
  CHECK(message_of(with("bus_GBps = 235", "switch_port_GBps = 200")) ==
        "box.toml:19: link[0].switch_port_GBps: is of sums in the switch, and switch_bus_GBps says "
        "none");
  std::string memory = with("\"nvlink\"", "\"memory\"");
  parse_cluster(replace_all(memory, "bus_GBps = 235", "bus_GBps = 400"), "box.toml");
  CHECK(message_of(with("kind = \"network\"", "kind = \"network\"\nswitch_bus_GBps = 20")) ==
        "box.toml:24: link[1].switch_bus_GBps: must be of the innermost level, of kind nvlink, "
        "pcie or network: sums that its switch makes are told of no other");
  CHECK(message_of(replace_all(memory, "bus_GBps = 235", "switch_bus_GBps = 300"))
            .find("link[0].switch_bus_GBps: must be of the innermost level") != std::string::npos);
  const std::string torus = with("\"network\"", "\"torus\"\ntorus = [4, 4]\nbus_GBps = 101");
  CHECK(message_of(torus).find("link[1].bus_GBps: is 101, must be at most 100 beside "
                               "link_GBps=25: a device has two links a dimension") !=
        std::string::npos);
}

TEST_CASE("two link levels of one name are refused") {
  CHECK(message_of(replace_all(kBox, "name = \"net\"", "name = \"inside\"")) ==
        "box.toml:22: link[1].name: is 'inside' as that of another level; give each its own");
}

TEST_CASE("a cluster is found by name, and a near miss is named") {
  FakeFileSystem fs;
  fs.make_directory("clusters");
  fs.write_file("clusters/box.toml", kBox);
  CHECK(load_cluster(fs, "box", {"none", "clusters"}).name == "Box");
  CHECK(load_cluster(fs, "clusters/box.toml", {}).name == "Box");
  try {
    load_cluster(fs, "bok", {"clusters"});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "--cluster: there is no cluster 'bok', did you mean 'box'?; known are box; or give a "
          "file, x.toml");
  }
}

TEST_CASE("a cluster has the profile that its file names, or the one that is asked for, or none") {
  const auto profile = [](const std::string& software, double host) {
    return fmt::format(
        "name = \"p\"\ndevice = \"Chip\"\nsoftware = \"{}\"\nsource = \"s\"\nerror = "
        "0.1\n[constants]\n"
        "host_op_us = {{ value = {}, source = \"fit\" }}\n",
        software, host);
  };
  FakeFileSystem fs;
  fs.make_directory("clusters");
  fs.make_directory("clusters/profiles");
  fs.write_file("clusters/box.toml",
                replace_all(kBox, "[device]\n", "profile = \"box-own\"\n[device]\n"));
  fs.write_file("clusters/profiles/box-own.toml", profile("own", 20));
  fs.write_file("clusters/profiles/box-other.toml", profile("other", 30));
  const Cluster own = load_cluster(fs, "box", {"clusters"});
  CHECK(own.stack.name == "own");
  CHECK(own.stack.error == 0.1);
  CHECK(own.device.attained.host_op.value == mw::test::close_to(20e-6));
  CHECK(load_cluster(fs, "box", {"clusters"}, "box-other").stack.name == "other");
  CHECK(load_cluster(fs, "box", {"clusters"}, "other").stack.name == "other");
  // Another device's profile is no profile of the software; a file names files alone.
  fs.write_file("clusters/profiles/a-chip.toml",
                replace_all(profile("other", 40), "\"Chip\"", "\"Another\""));
  CHECK(load_cluster(fs, "box", {"clusters"}, "other").stack.name == "other");
  fs.remove("clusters/profiles/a-chip.toml");
  fs.write_file("clusters/soft.toml",
                replace_all(kBox, "[device]\n", "profile = \"other\"\n[device]\n"));
  CHECK_THROWS_AS(load_cluster(fs, "soft", {"clusters"}), Error);
  fs.remove("clusters/soft.toml");
  // A file's name goes before a software's; a software of two files is none; other files do not
  // matter.
  fs.write_file("clusters/profiles/a-broken.toml", "hello = 1");
  fs.write_file("clusters/profiles/a-own.toml", profile("box-own", 40));
  CHECK(load_cluster(fs, "box", {"clusters"}, "box-own").stack.name == "own");
  fs.write_file("clusters/profiles/a-own.toml", profile("other", 40));
  CHECK_THROWS_AS(load_cluster(fs, "box", {"clusters"}, "other"), Error);
  fs.remove("clusters/profiles/a-own.toml");
  CHECK(load_cluster(fs, "box", {"clusters"}, "other").stack.name == "other");
  fs.remove("clusters/profiles/a-broken.toml");
  CHECK(find_profile(fs, "box-other", {"nowhere", "clusters"}) ==
        "clusters/profiles/box-other.toml");
  CHECK(find_profile(fs, "mine/x.toml", {}) == "mine/x.toml");
  // A profile that lies beside the cluster file goes before that of the folders.
  fs.make_directories("ours/profiles");
  fs.write_file("ours/box.toml", fs.read_file("clusters/box.toml"));
  fs.write_file("ours/profiles/box-own.toml", profile("ours", 60));
  CHECK(load_cluster(fs, "ours/box.toml", {"clusters"}).stack.name == "ours");
  // A copy of the cluster file keeps its profile.
  fs.make_directories("mine");
  fs.write_file("mine/box.toml", fs.read_file("clusters/box.toml"));
  CHECK(load_cluster(fs, "mine/box.toml", {"clusters"}).stack.name == "own");
  CHECK(load_cluster(fs, "box", {"clusters"}, "clusters/profiles/box-other.toml").stack.name ==
        "other");
  // A version of a profile, by what its runs say.
  fs.write_file(
      "clusters/profiles/box-own.toml",
      profile("own", 20) +
          "[[versions]]\nruns_that_say = [\"arXiv:2104\", \"early\", \"both\"]\noverlap = []\n"
          "source = \"s\"\nconstants.host_op_us = { value = 50, source = \"s\" }\n"
          "[[versions]]\nruns_that_say = [\"late\", \"both\"]\noverlap = []\nsource = \"s\"\n");
  for (const char* const version :
       {"box-own:arXiv:2104", "own:early", ":early", "clusters/profiles/box-own.toml:early"}) {
    const Cluster early = load_cluster(fs, "box", {"clusters"}, version);
    CHECK(early.device.attained.host_op.value == mw::test::close_to(50e-6));
    CHECK(starts_with(early.stack.name, "own:"));
  }
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "box-own:erly"),
                       "--profile: clusters/profiles/box-own.toml has no version 'erly', did "
                       "you mean 'early'?; known are arXiv:2104, early, both, late, both",
                       Error);
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "box-other:early"),
                       "--profile: clusters/profiles/box-other.toml has no version 'early'; known "
                       "are none",
                       Error);
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "box-own:both"),
                       "--profile: clusters/profiles/box-own.toml has more than one version "
                       "'both'; known are arXiv:2104, early, both, late, both",
                       Error);
  CHECK(load_cluster(fs, "box", {"clusters"}, "own:early").stack.name == "own:early");
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "box-own:"),
                       "--profile: 'box-own:' has no version behind its colon; leave it out",
                       Error);
  CHECK(parse_profile_name("a:b/x.toml:arXiv:2104").name == "a:b/x.toml");
  CHECK(parse_profile_name("a:b/x.toml:arXiv:2104").version == "arXiv:2104");
  CHECK(parse_profile_name("a:b/x.toml").name == "a:b/x.toml");
  CHECK(parse_profile_name("a:b").version == "b");
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "none:early"),
                       "--profile: 'none:early' is a version of no profile", Error);
  const Cluster none = load_cluster(fs, "box", {"clusters"}, "none");
  CHECK(none.stack.name.empty());
  CHECK(none.device.attained.host_op.value == mw::test::close_to(10e-6));
  CHECK_THROWS_WITH_AS(load_cluster(fs, "box", {"clusters"}, "box-othr"),
                       "--profile: there is no profile 'box-othr', did you mean 'box-other'?; "
                       "known are box-other, box-own; or none",
                       Error);
  CHECK_THROWS_WITH_AS(load_cluster(fs, "bax", {"clusters"}, "box-othr"),
                       "--cluster: there is no cluster 'bax', did you mean 'box'?; known are box; "
                       "or give a file, x.toml\n"
                       "--profile: there is no profile 'box-othr', did you mean 'box-other'?; "
                       "known are box-other, box-own; or none",
                       Error);
  for (const char* const known : {"none", "x.toml", "box-own"}) {
    CHECK_THROWS_WITH_AS(load_cluster(fs, "bax", {"clusters"}, known),
                         "--cluster: there is no cluster 'bax', did you mean 'box'?; known are "
                         "box; or give a file, x.toml",
                         Error);
  }
  // What else there is of the device is told where there is no profile, or one of another.
  fs.write_file("clusters/bare.toml", kBox);
  const std::vector<std::string> both = {"box-other", "box-own"};
  CHECK(load_cluster(fs, "bare", {"clusters"}).profiles == both);
  CHECK(load_cluster(fs, "bare", {"clusters"}, "none").profiles.empty());
  CHECK(own.profiles.empty());
  fs.write_file("clusters/profiles/a-chip.toml",
                replace_all(profile("other", 40), "\"Chip\"", "\"Another\""));
  CHECK_THROWS_WITH_AS(load_cluster(fs, "bare", {"clusters"}, "a-chip"),
                       "clusters/profiles/a-chip.toml: is of Another, but clusters/bare.toml has "
                       "Chip; of that are box-other, box-own",
                       Error);
  fs.remove("clusters/profiles/a-chip.toml");
  fs.remove("clusters/bare.toml");
  fs.write_file("clusters/bad.toml",
                replace_all(kBox, "[device]\n", "profile = \"x\"\n[device]\n"));
  CHECK_THROWS_WITH_AS(
      load_cluster(fs, "bad", {"clusters"}),
      "clusters/bad.toml: there is no profile 'x'; known are box-other, box-own; or "
      "none",
      Error);
}
