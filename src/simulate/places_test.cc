// What a program's place on a cluster makes of it, by hand: computations one second each, a byte a
// second.
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "simulate/prepared.h"
#include "simulate/test_programs.h"

namespace mw::simulate {
namespace {

using mw::test::close_to;
using pipeline::ActionKind;
using pipeline::Category;
using Kind = pipeline::Command::Kind;

const ir::DeviceGroup kTp = ir::AxisGroup{{"tp"}};
const ir::DeviceGroup kDp = ir::AxisGroup{{"dp"}};

pipeline::Buffer buffer(const std::string& name, Category category, int64_t elements,
                        pipeline::Storage::Kind storage) {
  pipeline::Buffer made;
  made.value = name;
  const ir::TensorType type = ir::make_type(DType::kF32, {elements});
  made.layout = {type, type, sharding::replicated(1)};
  made.category = category;
  made.storage.kind = storage;
  return made;
}

// Rank 0 sends 8 bytes to rank 1, three devices each, all of which have them.
pipeline::Program sends_whole() {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}, {"tp", 3}});
  program.channels = {{"y", 0, 1, ir::make_type(DType::kF32, {2}), 1}};
  program.fragments = {sequence("F", ActionKind::kF, "c", kTp)};
  program.ranks.resize(2);
  program.ranks[1].buffers = {buffer("y", Category::kBoundary, 2, pipeline::Storage::Kind::kSlot)};
  program.ranks[1].buffers[0].storage.channel = 0;
  program.ranks[0].commands = {call_of(0), message_of(Kind::kAcquire, 0, 0),
                               message_of(Kind::kPublish, 0, 0)};
  program.ranks[1].commands = {message_of(Kind::kReceive, 0, 0), call_of(0)};
  return program;
}

TEST_CASE("a whole value is sent in parts and gathered, one that is split is not") {
  pipeline::Program program = sends_whole();
  const cluster::Cluster c = unit_cluster(0, 1);
  CHECK(simulate(program, c).step.value == 1 + 8 + 1);
  Options options;
  options.scatter_gather = true;
  // A third of 8 bytes is 3 bytes; the gather moves 2 / 3 of 8 bytes.
  const Result scattered = simulate(program, c, options);
  CHECK(scattered.step.value == close_to(1 + 3 + 16.0 / 3 + 1));
  CHECK(scattered.ranks[1].exposed_comm.at("tp").value == close_to(16.0 / 3));
  CHECK(scattered.ranks[0].bytes_by_group.at("pp").value == 3);
  program.ranks[1].buffers[0].layout.edit().sharding = sharding::parse_sharding(R"([{"tp"}])");
  CHECK(simulate(program, c, options).step.value == 1 + 8 + 1);
}

TEST_CASE("a prepared program is simulated anew at other speeds") {
  Options options;
  options.scatter_gather = true;
  pipeline::Program program = sends_whole();
  program.fragments[0] = sequence("F", ActionKind::kF, "crc", kTp);
  Prepared prepared(program, unit_cluster(0, 1), options);
  for (const double bandwidth : {1.0, 4.0, 0.5}) {
    for (const double launch : {1.0, 3.0}) {
      cluster::Cluster other = unit_cluster(0.25, bandwidth);
      other.device.attained.launch = Seconds(launch);
      // Each rank two ops and 4 / 3 of 4 bytes in four hops; 3 bytes one after the other; 16 / 3
      // bytes in two hops.
      const double by_hand = 2 * (2 * launch + 16.0 / 3 / bandwidth + 1) + 3 / bandwidth + 0.25 +
                             16.0 / 3 / bandwidth + 0.5;
      CHECK(prepared.step(other).value == close_to(by_hand));
      CHECK(simulate(program, other, options).step.value == close_to(by_hand));
    }
  }
}

TEST_CASE("a prepared program knows before which of its commands sums may start early") {
  Options options;
  options.overlap.grad_reduce = options.overlap.grad_reduce_idle = true;
  const pipeline::Program program = sends_whole();
  Prepared prepared(program, unit_cluster(0, 1), options);
  CHECK(prepared.step(unit_cluster(0, 1)).value == 1 + 8 + 1);
  CHECK(prepared.step(unit_cluster(0, 2)).value == 1 + 4 + 1);
}

TEST_CASE("a fragment takes longer on the rank whose group lies in two nodes") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 3}, {"tp", 2}});
  program.fragments = {sequence("F", ActionKind::kF, "crc", kTp)};
  program.ranks.resize(3);
  for (pipeline::RankProgram& rank : program.ranks) rank.commands = {call_of(0)};
  cluster::Cluster c = unit_cluster(0, 1);
  c.links.push_back(c.links[0]);
  c.links[0].devices = 3;
  c.links[1].bandwidth = c.links[1].bus_bandwidth = cluster::BytesPerSecond(0.5);
  const Result result = simulate(program, c);
  for (size_t r = 0; r < 3; ++r)
    CHECK(result.ranks[r].exposed_comm.at("tp").value == (r == 1 ? 8 : 4));
  CHECK(result.step.value == 10);
}

TEST_CASE("gathers behind an update are the next step's") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 1}, {"dp", 2}});
  program.fragments = {sequence("F", ActionKind::kF, "c", kDp),
                       sequence("UPDATE", ActionKind::kUpdate, "ccg", kDp, 1, 2)};
  program.ranks.resize(1);
  program.ranks[0].commands = {call_of(0), call_of(1)};
  const cluster::Cluster c = unit_cluster(0, 1);
  // Half of 8 bytes.
  program.ranks[0].commands[1].action.kind = ActionKind::kUpdate;
  const Result behind = simulate(program, c);
  CHECK(behind.step.value == 3 + 4);
  REQUIRE(!behind.ranks[0].peak.largest.empty());
  CHECK(behind.ranks[0].peak.largest[0].name == "temporaries of UPDATE, largest all_gather");
  Options options;
  options.overlap.param_gather = true;
  const Result result = simulate(program, c, options);
  CHECK(result.step.value == 3);
  CHECK(result.ranks[0].comm.at("dp").value == 4);
  CHECK(result.ranks[0].exposed_comm.empty());
}

TEST_CASE("threads share cores by all that they do, of all devices that a rank stands for") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 1}, {"dp", 4}});
  program.fragments = {chain("F", ActionKind::kF, 3)};
  program.ranks.resize(1);
  program.ranks[0].commands = {call_of(0)};
  cluster::Cluster c = unit_cluster();
  for (const auto& [cores, host, step] : {std::tuple<int64_t, double, double>{4, 0, 3},
                                          {2, 0, 3 * 4 / 2},
                                          {1, 0, 3 * 4},
                                          {2, 2, 7 * 4 / 2}}) {
    c.cores = cores;
    c.device.attained.host_op = Seconds(host);  // 2 s: an op waits for it, the last one runs 1 s
    CHECK(simulate(program, c).step.value == step);
  }
}

TEST_CASE("messages and collectives share the ports of their level") {
  // The message leaves at 1 s; from 2 s to 6 s it goes half as fast beside a sum of 4 s.
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}, {"tp", 2}});
  program.channels = {{"y", 0, 1, ir::make_type(DType::kF32, {2}), 1}};
  program.fragments = {sequence("F", ActionKind::kF, "c", kTp),
                       sequence("F", ActionKind::kF, "cr", kTp)};
  program.ranks.resize(2);
  program.ranks[0].commands = {call_of(0), message_of(Kind::kAcquire, 0, 0),
                               message_of(Kind::kPublish, 0, 0), call_of(1)};
  program.ranks[1].commands = {message_of(Kind::kReceive, 0, 0)};
  cluster::Cluster c = unit_cluster(0, 1);
  CHECK(simulate(program, c).step.value == 1 + 8 + 2);
  // An update's sums stand still instead: 1 s to 9 s, and 4 s behind it.
  program.fragments[1].kind = ActionKind::kUpdate;
  Options options;
  options.overlap.grad_reduce = true;
  const Result held = simulate(program, c, options);
  CHECK(held.waits[1][0].end.value == 9);
  CHECK(held.step.value == 9 + 4);
  // Inside nodes of two sums meet no message, which goes between nodes.
  c.links.push_back(c.links[0]);
  c.links[0].devices = 2;
  const Result apart = simulate(program, c, options);
  CHECK(apart.waits[1][0].end.value == 9);
  CHECK(apart.ranks[0].exposed_comm.at("tp").value == 4);
  CHECK(apart.ranks[0].idle.value == 9 - 6);
}

TEST_CASE("sums over the holders of any weight are one entry of exposed communication") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}});
  program.ranks.resize(2);
  for (const char* weight : {"tall", "low"}) {
    program.fragments.push_back(sequence("UPDATE", ActionKind::kUpdate, "cr", ir::Holders{weight}));
    for (pipeline::RankProgram& rank : program.ranks) {
      rank.buffers.push_back(
          buffer(weight, Category::kWeights, 1, pipeline::Storage::Kind::kState));
      ++rank.states;
      rank.commands.push_back(call_of(static_cast<int32_t>(program.fragments.size()) - 1));
    }
  }
  const Result result = simulate(program, unit_cluster(0, 1));
  CHECK(result.step.value == 2 * (1 + 4));
  for (const RankResult& rank : result.ranks) {
    REQUIRE(rank.exposed_comm.size() == 1);
    CHECK(rank.exposed_comm.at("shared weights").value == 8);
    CHECK(rank.comm.at("holders tall").value == 4);
    CHECK(rank.comm.at("holders low").value == 4);
  }
}

TEST_CASE("replicas that are summed with their data-parallel ranks are exposed along dp") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 2}, {"dp", 3}});
  program.ranks.resize(2);
  program.fragments = {sequence("UPDATE", ActionKind::kUpdate, "cr", ir::Holders{"tall", {"dp"}})};
  for (pipeline::RankProgram& rank : program.ranks) {
    rank.buffers = {buffer("tall", Category::kWeights, 1, pipeline::Storage::Kind::kState)};
    rank.states = 1;
    rank.commands = {call_of(0)};
  }
  cluster::Cluster c = unit_cluster(1);
  c.devices = 6;
  const Result result = simulate(program, c);
  CHECK(result.step.value == 1 + 2 * 5);  // a ring of six: ten hops of a second
  for (const RankResult& rank : result.ranks) {
    CHECK(rank.exposed_comm == std::map<std::string, Seconds>{{"dp", Seconds(10)}});
    CHECK(rank.collectives_by_group.at("holders tall,dp") == 1);
  }
}

TEST_CASE("a rank reserves its arenas and the slots that it receives in") {
  pipeline::Program program = sends_whole();
  program.channels[0].slots = 3;
  for (pipeline::RankProgram& rank : program.ranks) {
    rank.state_arena = Bytes(100);
    rank.arena = Bytes(50);
  }
  const Result result = simulate(program, unit_cluster(0, 1));
  CHECK(result.ranks[0].reserved == Bytes(150));
  CHECK(result.ranks[1].reserved == Bytes(150 + 3 * 8));
}

TEST_CASE("the largest tensors of the peak are in order, slots with those who receive") {
  pipeline::Program program = sends_whole();
  program.channels[0].slots = 3;
  program.fragments[0] = chain("F", ActionKind::kF, 1);
  for (pipeline::RankProgram& rank : program.ranks) {
    std::vector<pipeline::Buffer> states;
    for (const int64_t elements : {1, 9, 4, 16, 2, 25, 3, 36, 5, 49})
      states.push_back(buffer("s" + std::to_string(elements), Category::kWeights, elements,
                              pipeline::Storage::Kind::kState));
    rank.states = static_cast<int32_t>(states.size());
    states.insert(states.end(), rank.buffers.begin(), rank.buffers.end());
    rank.buffers = std::move(states);
  }
  const Result result = simulate(program, unit_cluster(0, 1));
  const auto names = [&](size_t r) {
    std::string all;
    for (const LiveTensor& tensor : result.ranks[r].peak.largest)
      all += tensor.name + " " + std::to_string(tensor.bytes.value) + "; ";
    return all;
  };
  CHECK(names(0) == "s49 196; s36 144; s25 100; s16 64; s9 36; s5 20; s4 16; s3 12; ");
  CHECK(names(1) == "s49 196; s36 144; s25 100; s16 64; s9 36; 3 slots of y 24; s5 20; s4 16; ");
}

TEST_CASE("a tensor that nobody named is told by the op and the call that make it") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 1}});
  program.fragments = {chain("F", ActionKind::kF, 2), chain("F", ActionKind::kF, 1)};
  program.ranks.resize(1);
  pipeline::RankProgram& rank = program.ranks[0];
  for (const char* name : {"%1", "x"}) {
    rank.buffers.push_back(
        buffer(name, Category::kActivations, 5, pipeline::Storage::Kind::kArena));
    rank.buffers.back().microbatch = 2;
  }
  pipeline::Fragment& fragment = program.fragments[0];
  fragment.graph.outputs = {ValueId(0), ValueId(1)};
  rank.commands = {call_of(0), call_of(1)};
  for (pipeline::Command& call : rank.commands) call.buffers = {BufferId(1), BufferId(0)};
  rank.commands[0].action.kind = ActionKind::kF;
  rank.commands[0].action.stage = StageId(0);
  rank.commands[0].action.first = 2;
  program.fragments[1].inputs.resize(2);
  const Result result = simulate(program, unit_cluster(0, 1));
  std::vector<std::string> names;
  for (const LiveTensor& tensor : result.ranks[0].peak.largest) names.push_back(tensor.name);
  REQUIRE(names.size() >= 2);
  CHECK(names[0] == "relu of F of stage 0, microbatch 2");
  CHECK(names[1] == "x#2");
}

TEST_CASE("what a rank holds may be said in place of what the program does") {
  pipeline::Program program;
  program.mesh = cluster::Mesh({{"pp", 1}});
  program.fragments = {chain("F", ActionKind::kF, 2)};
  program.ranks.resize(1);
  program.ranks[0].commands = {call_of(0), call_of(0)};
  Held held;
  held.lives.fixed[static_cast<size_t>(Category::kWeights)] = 100;
  held.lives.born = {{1, Category::kActivations, 30}};
  held.workspace = {50, 21};
  held.reserved = Bytes(1000);
  held.by_category = {{Category::kWeights, Bytes(7)}};
  held.largest = {{"w", Category::kWeights, Bytes(7)}};
  const RankResult rank = simulate(program, unit_cluster(), {}, {held}).ranks[0];
  CHECK(rank.peak.bytes.value == 100 + 30 + 21);
  CHECK(rank.peak.command == 1);
  CHECK(rank.peak.time.value == 2);
  CHECK(rank.reserved.value == 1000);
  CHECK(rank.peak.by_category == held.by_category);
  REQUIRE(rank.peak.largest.size() == 1);
  CHECK(rank.peak.largest[0].name == "w");
}

}  // namespace
}  // namespace mw::simulate
