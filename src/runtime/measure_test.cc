#include "runtime/measure.h"

#include <algorithm>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "base/fake_fs.h"
#include "base/test_close_to.h"
#include "cluster/hardware.h"
#include "ops/builder.h"
#include "runtime/sample_values.h"

using namespace mw;
using namespace mw::runtime;

namespace {

OpTiming product(double peak, double half_k, int64_t k) {
  OpTiming t;
  t.kind = ir::OpKind::kDot;
  t.matrix_product = true;
  t.k = k;
  t.bytes = 1e6;
  t.flops = 2e6 * static_cast<double>(k);
  t.seconds = t.flops / peak * (1 + half_k / static_cast<double>(k));
  return t;
}

}  // namespace

TEST_CASE("a machine's profile: peak and half length of products, rates of all other ops") {
  std::vector<OpTiming> products;
  for (const int64_t k : {16, 64, 256, 1024}) products.push_back(product(50e9, 32, k));
  OpTiming add;
  add.kind = ir::OpKind::kAdd;
  add.bytes = 12e6;
  add.seconds = 1e-3;
  OpTiming tiny = add;
  tiny.bytes = 12;
  tiny.seconds = 5e-7;
  const MachineProfile profile = machine_profile(products, {add, tiny, product(50e9, 32, 64)});
  CHECK(profile.peak_flops == mw::test::close_to(50e9));
  CHECK(profile.half_k == mw::test::close_to(32));
  CHECK(profile.launch == mw::test::close_to(5e-7));
  REQUIRE(profile.kernel_rates.size() == 2);
  CHECK(profile.kernel_rates[0].first == "add");
  CHECK(profile.kernel_rates[0].second == mw::test::close_to(12e9).epsilon(0.01));
  CHECK(profile.kernel_rates[1].second == mw::test::close_to(50e9).epsilon(0.01));
  CHECK(profile.memory_bandwidth > 1e8);
  CHECK(profile.messages.bandwidth > 1e6);

  const cluster::Cluster cluster = cluster::parse_cluster(to_toml(profile, "a test"), "m.toml");
  CHECK(cluster.cores == profile.cores);
  REQUIRE(cluster.device.kernel_rates.size() == 2);
  CHECK(cluster.device.kernel_rates[0].second == mw::test::close_to(12e9).epsilon(0.01));
  CHECK(cluster.links[0].kind == cluster::LinkKind::kMemory);
}

TEST_CASE("the memory that is available is the least of the machine's and its control group's") {
  FakeFileSystem fs;
  fs.make_directories("/proc");
  fs.make_directories("/sys/fs/cgroup");
  fs.write_file("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    3000 kB\n");
  CHECK(available_memory(fs) == Bytes(3000 * 1024));
  fs.write_file("/sys/fs/cgroup/memory.max", "max\n");
  fs.write_file("/sys/fs/cgroup/memory.current", "1500000\n");
  CHECK(available_memory(fs) == Bytes(3000 * 1024));
  fs.write_file("/sys/fs/cgroup/memory.max", "2000000\n");
  CHECK(available_memory(fs) == Bytes(500000));
  fs.write_file("/sys/fs/cgroup/memory.stat", "anon 1\nfile 300000\n");
  CHECK(available_memory(fs) == Bytes(800000));
}

TEST_CASE("timing a fragment takes its workspace, and memory for every value beside it") {
  pipeline::Fragment fragment;
  const ValueId a = fragment.graph.add_input(ir::make_type(DType::kF32, {10, 10}), "a");
  fragment.graph.add_input(ir::make_type(DType::kF32, {2}), "b");
  fragment.graph.add_input(ir::make_type(DType::kF32, {100}), "c");
  fragment.graph.add_input(ir::make_type(DType::kF32, {50}), "d");
  fragment.graph.add_input(ir::make_type(DType::kF32, {50}), "e");
  fragment.alias_of.resize(5);
  fragment.alias_of[2] = a;
  fragment.workspace_offset.assign(5, pipeline::Fragment::kNotPlanned);
  fragment.workspace_offset[3] = fragment.workspace_offset[4] = 128;
  CHECK(time_ops_bytes(fragment) == Bytes(400 + 64 + 128 + 200));
}

TEST_CASE(
    "kernels are timed on positions in order, indices of any row and numbers that are not zero") {
  pipeline::Fragment fragment;
  ir::Graph& graph = fragment.graph;
  const int64_t B = 3, S = 16, V = 10, D = 4, P = 20;
  const ValueId tokens = graph.add_input(ir::make_type(DType::kI32, {B, S}), "a");
  const ValueId places = graph.add_input(ir::make_type(DType::kI32, {B, S}), "b");
  const ValueId targets = graph.add_input(ir::make_type(DType::kI32, {B, S}), "c");
  const ValueId table = graph.add_input(ir::make_type(DType::kF32, {V, D}), "d");
  const ValueId place_table = graph.add_input(ir::make_type(DType::kF32, {P, D}), "e");
  const ValueId logits = graph.add_input(ir::make_type(DType::kF32, {B, S, V}), "f");
  const ValueId heads = graph.add_input(ir::make_type(DType::kF32, {B, S, 1, D}), "g");
  ops::Builder ops(graph);
  const ValueId made = ops.embedding(tokens, table);
  ops.embedding(places, place_table);
  ops.attention(heads, heads, heads, places, 1, true);
  ops.cross_entropy(logits, targets);
  const size_t count = graph.values.size();
  fragment.alias_of.resize(count);
  fragment.alias_offset.resize(count, 0);
  fragment.workspace_offset.resize(count, pipeline::Fragment::kNotPlanned);
  const SampleValues values(fragment);
  const auto ints = [&](ValueId v) {
    const auto* data = static_cast<const int32_t*>(values.at(v));
    return std::vector<int32_t>(data, data + B * S);
  };
  for (int64_t i = 0; i < B * S; ++i)
    CHECK(ints(places)[static_cast<size_t>(i)] == static_cast<int32_t>(i % S));
  for (const ValueId v : {tokens, targets}) {
    const std::vector<int32_t> rows = ints(v);
    CHECK(*std::min_element(rows.begin(), rows.end()) >= 0);
    CHECK(*std::max_element(rows.begin(), rows.end()) < V);
    CHECK(std::set<int32_t>(rows.begin(), rows.end()).size() > 5);
  }
  const auto* numbers = static_cast<const float*>(values.at(table));
  for (int64_t i = 0; i < V * D; ++i) {
    CHECK(numbers[i] > 0);
    CHECK(numbers[i] <= 0.0501F);
  }
  CHECK(static_cast<const float*>(values.at(made))[0] == 0);  // what an op makes is its to fill
}

TEST_CASE("ops are timed once, beside threads that run the same ones") {
  pipeline::Fragment fragment;
  ir::Graph& graph = fragment.graph;
  ops::Builder ops(graph);
  const ValueId a = graph.add_input(ir::make_type(DType::kF32, {8, 32}), "a");
  ops.add(ops.add(a, a), a);
  const size_t count = graph.values.size();
  fragment.alias_of.resize(count);
  fragment.alias_offset.resize(count, 0);
  fragment.workspace_offset.resize(count, pipeline::Fragment::kNotPlanned);
  for (const int beside : {0, 1, 3}) {
    CAPTURE(beside);
    const std::vector<OpTiming> timings = time_ops(fragment, cluster::Mesh(), 2, beside);
    REQUIRE(timings.size() == 2);
    for (const OpTiming& t : timings) {
      CHECK(t.kind == ir::OpKind::kAdd);
      CHECK(t.seconds > 0);
      CHECK(t.bytes == 3 * 4 * 8 * 32);
    }
  }
}
