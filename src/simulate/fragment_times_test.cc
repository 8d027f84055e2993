// What collectives and computation take, in whole seconds or parts that are exact.
#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "simulate/fragment_cost.h"
#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

using ir::OpKind;
using mw::test::close_to;

// A collective over four devices, 4 GB at 1 GB/s and 0.5 s a hop, and computation of 2 s behind it.
FragmentCost made(OpKind kind) {
  FragmentCost cost;
  cost.ops.resize(2);
  cost.ops[0].label = 0;
  cost.works.resize(2);
  cost.works[1].kind = cost::OpWork::Kind::kStream;
  cost.works[1].bytes = 1e9;
  FragmentCost::Collective collective;
  collective.kind = kind;
  collective.bytes = Bytes(4'000'000'000);
  collective.size = 4;
  cluster::GroupShape shape;
  shape.size = 4;
  shape.ways = {4};
  collective.shapes = {shape};
  cost.collectives_of = {collective};
  return cost;
}
cluster::Cluster seconds() {
  cluster::Cluster c = unit_cluster(0.5, 1e9);
  c.device.memory_bandwidth = cluster::BytesPerSecond(1e9);
  c.device.attained.host_op = Seconds(0.125);
  return c;
}

}  // namespace

TEST_CASE("a collective takes its ring, the stack's latency, and as often as the stack runs it") {
  cluster::Cluster c = seconds();
  FragmentCost cost = made(OpKind::kAllGather);
  set_times(cost, c, {});
  CHECK(cost.ops[0].device == close_to(3 + 1.5));
  CHECK(cost.ops[0].latency == close_to(1.5));
  CHECK(cost.ops[0].host == close_to(0.125));
  CHECK(cost.ops[1].device == close_to(2));
  c.device.attained.collective_latency = Seconds(0.25);
  c.device.attained.host_collective = Seconds(0.5);
  cost.collectives_of[0].times = 2;
  set_times(cost, c, {});
  CHECK(cost.ops[0].device == close_to(2 * 4.75));
  CHECK(cost.ops[0].latency == close_to(2 * 1.75));
  CHECK(cost.ops[0].host == close_to(2 * 0.625));
}

TEST_CASE("a stack with buckets sums the step's gradients in several all-reduces") {
  cluster::Cluster c = seconds();
  const auto takes = [&](OpKind kind, bool update, double bucket_MiB) {
    FragmentCost cost = made(kind);
    cost.update = update;
    c.device.attained.reduce_bucket = bucket_MiB;
    set_times(cost, c, {});
    return std::pair{cost.ops[0].device, cost.ops[0].latency};
  };
  // 6 s of bytes, 6 hops of half a second; 4 GB are 3,815 MiB.
  CHECK(takes(OpKind::kAllReduce, true, 0).first == close_to(6 + 3));
  CHECK(takes(OpKind::kAllReduce, true, 1000).first == close_to(6 + 4 * 3));
  CHECK(takes(OpKind::kAllReduce, true, 1000).second == close_to(4 * 3));
  CHECK(takes(OpKind::kAllReduce, true, 1700).first == close_to(6 + 2 * 3));  // nearer to two
  CHECK(takes(OpKind::kAllReduce, true, 8000).first == close_to(6 + 3));
  CHECK(takes(OpKind::kAllReduce, false, 1000).first == close_to(6 + 3));
  CHECK(takes(OpKind::kReduceScatter, true, 1000).first == close_to(3 + 1.5));
}

TEST_CASE("the threads of Gloo take all-reduces of the same devices in turn") {
  // Three sums, each with what follows it, of 1 s each but for a hop's 8 s there and back.
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"dp", 2}});
  program.fragments = {
      sequence("UPDATE", pipeline::ActionKind::kUpdate, "crcrcr", ir::AxisGroup{{"dp"}})};
  program.ranks.resize(1);
  program.ranks[0].commands = {call_of(0)};
  cluster::Cluster c = unit_cluster(8);
  c.devices = 2;
  Options options;
  options.overlap.grad_reduce = true;
  CHECK(simulate(program, c, options).step.value == close_to(1 + 3 * 16));
  c.stack.gloo = true;
  CHECK(simulate(program, c, options).step.value == close_to(1 + 2 * 16));
  options.overlap.grad_reduce = false;  // what is at the step's end goes two at a time, too
  CHECK(simulate(program, c, options).step.value == close_to(1 + 2 * 16));
}

TEST_CASE("data parallelism's parts cost a share a member and their copies") {
  cluster::Cluster c = seconds();
  c.device.attained.collective_member = Seconds(0.125);
  c.device.attained.collective_copies = 2;
  for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce}) {
    for (const bool data : {false, true}) {
      FragmentCost cost = made(kind);
      cost.collectives_of[0].of_weights = data;
      set_times(cost, c, {});
      const bool whole = kind == OpKind::kAllReduce;
      const double more = data && !whole ? 4 * 0.125 + 2 * 4 : 0;
      CHECK(cost.ops[0].device == close_to((whole ? 2 : 1) * 4.5 + more));
      CHECK(cost.ops[0].latency == close_to((whole ? 2 : 1) * 1.5 + more));
    }
  }
}

TEST_CASE("gathered weights are copied where they are read, gradients where they are made") {
  cluster::Cluster c = seconds();
  FragmentCost cost = made(OpKind::kAllGather);
  cost.collectives_of[0].copied_at = 1;
  set_times(cost, c, {});
  CHECK(cost.ops[0].device == close_to(4.5));
  CHECK(cost.ops[1].device == close_to(2 + 2 * 4));  // read and written
  cost.collectives_of[0].times = 1.5;                // every second one is gathered again
  set_times(cost, c, {});
  CHECK(cost.ops[0].device == close_to(1.5 * 4.5));
  CHECK(cost.ops[1].device == close_to(2 + 1.5 * 2 * 4));
  cost = made(OpKind::kReduceScatter);
  cost.collectives_of[0].copied_at = 1;
  cost.collectives_of[0].gradients = cost.collectives_of[0].bytes.value / 4;  // made in two bytes
  set_times(cost, c, {});
  CHECK(cost.ops[1].device == close_to(2 + 4 + 2));
  // By a kernel of its own, which the stack's constants know.
  c.device.attained.gradient_copy_traffic = 3;
  set_times(cost, c, {});
  CHECK(cost.ops[1].device == close_to(2 + 3 * (4 + 2)));
  cost = made(OpKind::kAllGather);
  cost.collectives_of[0].copied_at = 1;
  set_times(cost, c, {});
  CHECK(cost.ops[1].device == close_to(2 + 2 * 4));
}

TEST_CASE("what is gathered in fp8 goes in a byte for two") {
  const cluster::Cluster c = seconds();
  FragmentCost cost = made(OpKind::kAllGather);
  cost.works[0].gathers_narrow = true;
  Options options;
  options.fp8 = cost::Fp8::kTensor;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(1.5 + 1.5));
}

TEST_CASE("the update costs the host the step's own work alone") {
  cluster::Cluster c = seconds();
  c.device.attained.step_overhead = Seconds(3);
  FragmentCost cost = made(OpKind::kAllReduce);
  set_times(cost, c, {});
  CHECK(cost.ops[0].host == close_to(0.125));
  cost.update = true;
  set_times(cost, c, {});
  CHECK(cost.ops[0].host == 3);
  CHECK(cost.ops[1].host == 0);
  Options options;
  options.host = false;
  for (OpCost& op : cost.ops) op.host = 0;
  set_times(cost, c, options);
  CHECK(cost.ops[0].host == 0);
}

TEST_CASE("products that are made again are told with the whole square of causal attention") {
  for (const int64_t queries : {256, 128}) {  // all, or one device's of two
    for (const bool again : {false, true}) {
      const auto type = [](int64_t length) {
        return ir::make_type(DType::kBF16, {2, length, 4, 64});
      };
      ir::AttentionAttrs attrs;
      if (queries < 256) attrs.queries.axes = {"cp"};
      ir::Op op;
      op.kind = OpKind::kAttention;
      op.attrs = attrs;
      if (again) op.recompute = RegionId(0);
      pipeline::Fragment fragment;
      ir::Graph& graph = fragment.graph;
      for (const ir::TensorType& operand :
           {type(queries), type(256), type(256), ir::make_type(DType::kI32, {2, 256})})
        op.operands.push_back(graph.add_input(operand, "x"));
      graph.add_op(op, {type(queries), ir::make_type(DType::kF32, {2, 4, queries})});
      fragment.alias_of.resize(graph.values.size());
      fragment.workspace_offset.resize(graph.values.size(), -1);
      fragment.launches.resize(1);
      pipeline::Program program;
      program.mesh = cluster::Mesh({{"cp", 2}});
      program.ranks.resize(1);
      const cluster::Cluster c = seconds();
      const Options options;
      Labels labels;
      const FragmentCost cost = FragmentCoster(program, c, options, labels).cost(fragment, 0);
      const double square = 2 * 2 * 2.0 * 4 * static_cast<double>(queries) * 256 * 64;
      CHECK(cost.recomputed_flops == close_to(again ? square : 0));
      CHECK(cost.flops == close_to(square * 257 / 512));
    }
  }
}

TEST_CASE("copies and sums of parts stream as fast as the stack's kernels do") {
  cluster::Cluster c = seconds();
  c.device.attained.memory_fraction = 0.5;
  FragmentCost cost = made(OpKind::kAllGather);
  cost.collectives_of[0].copied_at = 1;
  set_times(cost, c, {});
  CHECK(cost.ops[1].device == close_to(1 + 2 * 1 + 2 * 2 * 4));
}

TEST_CASE("a ring of attention is slowed down as beside keys and values, if it is one") {
  const cluster::Cluster c = seconds();
  FragmentCost cost = made(OpKind::kAllGather);
  cost.rings = {{.attention = true, .size = 4, .computes = {1}, .collectives = {0}}};
  Options options;
  options.overlap.slowdown.fill(1);
  options.overlap.slowdown[static_cast<size_t>(Beside::kRing)] = 1.5;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5 - 1.5 + 0.5 * 1.5));
  options.overlap.ring = false;
  options.overlap.async_tp = true;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5));
}

TEST_CASE("keys and values are one message of a ring, their gradients another") {
  FragmentCost cost = made(OpKind::kAllGather);
  cost.ops[0].levels = 0b1;
  cost.ops.insert(cost.ops.end(), 3, cost.ops[0]);
  cost.works.resize(cost.ops.size());
  for (const int32_t op : {2, 3, 4}) {
    FragmentCost::Collective collective = cost.collectives_of[0];
    collective.op = op;
    if (op > 2) collective.kind = OpKind::kReduceScatter;
    cost.collectives_of.push_back(collective);
  }
  cost.rings = {{.attention = true, .size = 4, .computes = {1}, .collectives = {0, 2, 3, 4}}};
  set_times(cost, seconds(), {});
  // Three steps of half a second for each message, beside three quarters of what is computed.
  const double shown = 1 - 0.75 * cost.ops[1].device / (2 * 3 * 0.5 + 4 * 3);
  for (const size_t op : {0, 3}) {
    CHECK(cost.ops[op].latency == close_to(shown * 3 * 0.5));
    CHECK(cost.ops[op].device == close_to(shown * (3 * 0.5 + 3)));
  }
  for (const size_t op : {2, 4}) {
    CHECK(cost.ops[op].latency == 0);
    CHECK(cost.ops[op].device == close_to(shown * 3));
  }
}

TEST_CASE("a ring of attention goes over one port of a node, a gather over all that are in it") {
  // Nodes of two at 4 GB/s, 1 GB/s a device between them; 2 us of latency.
  cluster::Cluster c = seconds();
  c.links.push_back(c.links[0]);
  c.links[0].devices = 2;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(4e9);
  c.links[1].latency = Seconds(2e-6);
  FragmentCost cost = made(OpKind::kAllGather);
  cost.rings = {{.attention = true, .size = 4, .computes = {1}, .collectives = {0}}};
  cost.collectives_of[0].size = 4;
  cost.collectives_of[0].bytes = Bytes(8'000'000'000);
  cluster::GroupShape whole;
  whole.size = 4;
  whole.ways = {2, 2};
  cost.collectives_of[0].shapes = {whole};
  cost.ops[0].levels = 0b11;
  const double latency = 2e-6 + c.device.attained.collective_latency.value;
  Options options;
  options.overlap.ring = false;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device < 4);  // 3 of 4 parts at 2 GB/s, and latencies
  options.overlap.ring = true;
  set_times(cost, c, options);
  // Three parts of 2 GB at 1 GB/s, three quarters of a second of computation beside.
  CHECK(cost.ops[0].device == close_to(3 * (2 + latency) - 0.75 * cost.ops[1].device));
  // Keys that an attention made again and its gradient both read go around once for each.
  cost.rings.push_back(cost.rings[0]);
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(2 * (3 * (2 + latency) - 0.75 * cost.ops[1].device)));
  cost.rings.pop_back();
  // Inside a node, too: one part after the other.
  cost.ops[0].levels = 0b01;
  cost.collectives_of[0].shapes[0].ways = {4, 1};
  set_times(cost, c, options);
  const double inside = c.links[0].latency.value + c.device.attained.collective_latency.value;
  CHECK(cost.ops[0].device == close_to(3 * (0.5 + inside) - 0.75 * cost.ops[1].device));
}

TEST_CASE("of a link that is shared a collective takes what the fullest of its groups takes") {
  // Inside nodes of two 4 GB/s, between them 1 GB/s: by Gloo a ring of both nodes' devices takes a
  // half of the link inside (two cards of 1 GB/s), one device a node none of it.
  cluster::Cluster c = seconds();
  c.links.push_back(c.links[0]);
  c.links[0].devices = 2;
  c.links[0].bandwidth = c.links[0].bus_bandwidth = cluster::BytesPerSecond(4e9);
  c.stack.gloo = true;
  cluster::GroupShape across, whole;
  across.size = 2;
  across.ways = {1, 2};
  whole.size = 4;
  whole.ways = {2, 2};
  for (const bool first : {false, true}) {
    FragmentCost cost = made(OpKind::kAllReduce);
    cost.shared_levels = cost.ops[0].links = 0b11;
    cost.collectives_of[0].shapes = {first ? whole : across, first ? across : whole};
    set_times(cost, c, {});
    REQUIRE(cost.uses.size() == 2);
    CHECK(cost.uses[0][0] == close_to(0.5));
    CHECK(cost.uses[1][0] == 1);
    CHECK(cost.ops[0].fills == 0);
    // Where sums may be early: links of which it takes more than half.
    Options early;
    early.overlap.grad_reduce = true;
    set_times(cost, c, early);
    CHECK(cost.ops[0].fills == 0b10);
  }
}

TEST_CASE(
    "of a torus a collective takes its sides alone, of what its groups do not cross nothing") {
  cluster::Cluster c = seconds();
  c.links[0].kind = cluster::LinkKind::kTorus;
  c.links[0].torus = {4, 2};
  c.links.push_back(c.links[0]);
  c.links[1].kind = cluster::LinkKind::kNetwork;
  Options early;
  early.overlap.param_gather = true;  // that alone
  FragmentCost cost = made(OpKind::kAllGather);
  OpCost& op = cost.ops[0];
  op.levels = 0b01;
  op.links = 0b1000;
  cluster::GroupShape& shape = cost.collectives_of[0].shapes[0];
  shape.ways = {4, 1};
  shape.torus = {{4, 2, 1}};
  shape.torus_hops = 2;
  set_times(cost, c, early);
  CHECK(op.fills == 0b1000);
  // Between tori, 64 times as fast, goes a fourth of the bytes.
  op.levels = 0b11;
  op.links = 0b1010;
  cost.shared_levels = 0b1010;
  shape.size = 8;
  shape.ways = {4, 2};
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(64e9);
  set_times(cost, c, early);
  CHECK(cost.uses[1][0] == close_to(1.0 / 256));
  CHECK(cost.uses[3][0] == 1);
  CHECK(op.fills == 0b1000);
  // Neither a group of one device nor what one device sends to another.
  shape.size = 1;
  set_times(cost, c, early);
  CHECK(op.fills == 0);
  shape.size = 8;
  cost.collectives_of[0].kind = OpKind::kPermute;
  set_times(cost, c, early);
  CHECK(op.fills == 0);
}

TEST_CASE("behind the parts of a product three of four steps hide, and slow it down") {
  const cluster::Cluster c = seconds();
  FragmentCost cost = made(OpKind::kAllGather);
  cost.rings = {{.attention = false, .size = 4, .computes = {1}, .collectives = {0}}};
  Options options;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5));
  options.overlap.async_tp = true;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5 - 1.5));  // of the product's 2 s
  CHECK(cost.ops[0].latency == close_to(1.5 * 3 / 4.5));
  options.overlap.slowdown[static_cast<size_t>(Beside::kTensor)] = 1.5;
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5 - 1.5 + 0.5 * 1.5));
  // What is summed is read whole and written in its part.
  cost.rings[0].summed = Bytes(800'000'000);
  set_times(cost, c, options);
  CHECK(cost.ops[0].device == close_to(4.5 - 1.5 + 0.5 * 1.5 + 0.8 * 1.25));
  CHECK(cost.ops[0].latency == close_to(1.5 * (4.5 - 1.5 + 0.5 * 1.5) / 4.5 + 0.8 * 1.25));
}

}  // namespace mw::simulate
