// What calls take by hand: computations one second each, a byte a second inside a node.
#include "simulate/call_time.h"

#include <vector>

#include <doctest/doctest.h>

#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

using pipeline::ActionKind;
using Coordinates = std::vector<std::vector<int32_t>>;

const ir::DeviceGroup kTp = ir::AxisGroup{{"tp"}};
const ir::DeviceGroup kPp = ir::AxisGroup{{"pp"}};

// Two of three devices reduce 4 bytes, 2 (n - 1) / n * 4 bytes: in 4 s inside a node, in 8 s
// between nodes of three devices, which ranks 0 and 2 lie in and rank 1 does not.
cluster::Cluster nodes_of_three() {
  cluster::Cluster c = unit_cluster(0, 1);
  c.links.push_back(c.links[0]);
  c.links[0].devices = 3;
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(0.5);
  return c;
}
pipeline::Program program_of(std::vector<pipeline::Fragment> fragments, size_t ranks) {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 3}, {"tp", 2}});
  program.fragments = std::move(fragments);
  program.ranks.resize(ranks);
  return program;
}

TEST_CASE("a call's time has its collectives, its gaps and the host's lead") {
  pipeline::Program program = program_of({sequence("F", ActionKind::kF, "ccrc", kTp)}, 1);
  program.ranks[0].commands = {call_of(0)};
  cluster::Cluster c = nodes_of_three();
  CallTime time = call_times(program, c, {})[0];
  CHECK(time.whole.value == 3 + 4);
  CHECK(time.before.value == 7);
  CHECK(time.gaps.value == 0);
  CHECK(time.lead.value == 7);
  REQUIRE(!time.links.empty());
  CHECK(time.links[0].value == 4);
  // Ops are issued at 2, 4, 6 and 8 s: they run 2-3, 4-5, 6-10 and 10-11.
  c.device.attained.host_op = Seconds(2);
  time = call_times(program, c, {})[0];
  CHECK(time.whole.value == 11);
  CHECK(time.gaps.value == 2 + 1 + 1);
  CHECK(time.lead.value == 11 - 8);
  Options options;
  options.host = false;
  CHECK(call_times(program, c, options)[0].whole.value == 7);
}

TEST_CASE("computation beside a call's collectives takes longer") {
  pipeline::Program program = program_of({sequence("F", ActionKind::kF, "crcccc", kTp)}, 1);
  program.ranks[0].commands = {call_of(0)};
  Options options;
  options.overlap.collectives = true;
  // One op, the sum from 1 s to 5 s and four ops beside it, which is slower by them as well.
  CHECK(call_times(program, nodes_of_three(), options)[0].whole.value == 5);
  REQUIRE(set_slowdown(options.overlap, "tensor=1.5").empty());
  CHECK(call_times(program, nodes_of_three(), options)[0].whole.value == 1 + 4 * 1.5);
  options.overlap.tensor = false;  // it holds them up
  CHECK(call_times(program, nodes_of_three(), options)[0].whole.value == 1 + 4 + 4);
}

TEST_CASE("a call that meets other ranks knows when it first does, and waits for none") {
  pipeline::Program program =
      program_of({sequence("UPDATE", ActionKind::kUpdate, "ccrcrc", kPp)}, 3);
  for (pipeline::RankProgram& rank : program.ranks) rank.commands = {call_of(0)};
  // Three devices reduce 4 bytes: 2 * 2 / 3 of them.
  const CallTime time = call_times(program, unit_cluster(0, 1), {})[0];
  CHECK(time.before.value == 2);
  CHECK(time.whole.value == doctest::Approx(4 + 2 * 16.0 / 3));
  CHECK(time.links[0].value == doctest::Approx(2 * 16.0 / 3));
}

TEST_CASE("an update's sums and gathers that go beside other calls are not in its time") {
  pipeline::Fragment update;
  update.name = "UPDATE";
  update.kind = ActionKind::kUpdate;
  const ir::TensorType type = ir::make_type(DType::kF32, {1});
  ir::CollectiveAttrs attrs;
  attrs.group = kTp;
  ir::Op sum, step, gather;
  sum.kind = ir::OpKind::kAllReduce;
  step.kind = ir::OpKind::kRelu;
  gather.kind = ir::OpKind::kAllGather;
  sum.attrs = gather.attrs = attrs;
  ValueId last = update.graph.add_input(type, "gradient");
  pipeline::Port& gradient = update.inputs.emplace_back();
  gradient.value = last;
  gradient.kind = pipeline::PortKind::kState;
  for (ir::Op* op : {&sum, &step, &gather}) {
    op->operands = {last};
    const OpId id = update.graph.add_op(std::move(*op), {type});
    last = update.graph.op(id).results[0];
  }
  update.global_types.assign(4, type);
  update.shardings.assign(4, sharding::replicated(1));
  update.launches.resize(3);
  pipeline::plan_fragment(update);
  pipeline::Program program = program_of({update}, 1);
  program.ranks[0].commands = {call_of(0)};
  Options options;
  CallTime time = call_times(program, nodes_of_three(), options)[0];
  const double gathers = time.whole.value - 4 - 1;
  CHECK(gathers > 0);
  CHECK(time.sums.value == 0);
  CHECK(time.gathers.value == 0);
  options.overlap.grad_reduce = true;
  time = call_times(program, nodes_of_three(), options)[0];
  CHECK(time.sums.value == 4);
  CHECK(time.whole.value == 1 + gathers);
  CHECK(time.before.value == 1 + gathers);
  options.overlap.param_gather = true;
  time = call_times(program, nodes_of_three(), options)[0];
  CHECK(time.gathers.value == gathers);
  CHECK(time.whole.value == 1);
  options.overlap.grad_reduce_idle = true;  // where that is, only the whole step shows
  time = call_times(program, nodes_of_three(), options)[0];
  CHECK(time.sums.value == 0);
  CHECK(time.whole.value == 4 + 1);
}

TEST_CASE("a fragment takes what it takes on the first rank that calls it") {
  const pipeline::Fragment f = sequence("F", ActionKind::kF, "ccrc", kTp);
  pipeline::Program program = program_of({f, f, f, f}, 3);
  program.ranks[0].commands = {call_of(0)};
  program.ranks[1].commands = {call_of(0), call_of(1), call_of(3)};
  program.ranks[2].commands = {call_of(1), call_of(3)};
  const std::vector<CallTime> times = call_times(program, nodes_of_three(), {});
  CHECK(times[0].whole.value == 3 + 4);
  CHECK(times[0].links[0].value == 4);
  CHECK(times[1].whole.value == 3 + 8);
  REQUIRE(times[1].links.size() == 2);
  CHECK(times[1].links[0].value == 0);
  CHECK(times[1].links[1].value == 8);
  CHECK(times[2].whole.value == 0);  // nobody calls it
  CHECK(times[3].whole.value == 3 + 8);
}

TEST_CASE("of the places that a rank stands for the slowest counts") {
  pipeline::Program one = program_of({sequence("F", ActionKind::kF, "ccrc", kTp)}, 1);
  one.ranks[0].commands = {call_of(0)};
  pipeline::Program two = one;
  two.ranks.resize(2);
  struct Case {
    const pipeline::Program& program;
    Coordinates coordinates;
    double whole;
  };
  for (const Case& c : std::vector<Case>{{one, {{0}}, 7},
                                         {one, {{1}}, 11},
                                         {one, {{0, 1}}, 11},
                                         {one, {{1, 0}}, 11},
                                         {one, {{0, 2}}, 7},
                                         {one, {{0, 2, 1}}, 11},
                                         {two, {{2}, {1}}, 7},
                                         {two, {{1}, {0}}, 11},
                                         {two, {{0, 2}, {1, 1}}, 7}}) {
    CAPTURE(c.coordinates[0].size());
    CAPTURE(c.whole);
    CHECK(call_times(c.program, nodes_of_three(), {}, c.coordinates)[0].whole.value == c.whole);
  }
}

}  // namespace
}  // namespace mw::simulate
