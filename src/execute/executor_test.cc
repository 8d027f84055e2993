#include "execute/executor.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "execute/test_allocations.h"
#include "execute/test_programs.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using cluster::Mesh;
using ir::OpKind;
using pipeline::Command;
using pipeline::PortKind;
using pipeline::Program;

TEST_CASE(
    "two stages exchange microbatches through slots, run after run, under every semantics of "
    "channels") {
  const Program program = two_stages();
  using comm::Sends;
  for (const Sends sends : {Sends::kBuffered, Sends::kRendezvous, Sends::kBlocking}) {
    FakeBackend backend;
    ExecutorOptions options;
    options.world.sends = sends;
    options.world.copying = sends != Sends::kBuffered;
    Executor executor({&program}, backend, options);
    for (int run = 1; run <= 4; ++run) {  // 3 messages in 2 slots: every other run begins at slot 1
      executor.run(0, load_ramp);
      for (int i = 0; i < 4; ++i)
        CHECK(state(executor, 1, "sum")[i] == static_cast<float>(run * 4 * (300 + 3 * i)));
    }
    CHECK(backend.prepared == 3);  // once an op of a fragment, not a call
  }
}

TEST_CASE("a run measures bytes sent, instructions and the arena's high-water mark") {
  const Program program = two_stages();
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  executor.run(0, load_ramp);
  const Measured first = executor.measured()[0];
  CHECK(first.bytes_sent == Bytes(3 * 16));
  CHECK(first.instructions == 6);
  CHECK(first.arena_peak == Bytes(64 + 16));  // x, then the workspace's one value
  CHECK(executor.measured()[1].bytes_sent == Bytes(0));
  CHECK(executor.measured()[1].instructions == 3);
  CHECK(executor.measured()[1].arena_peak == Bytes(0));
  CHECK(first.order_hash != executor.measured()[1].order_hash);
  executor.run(0, load_ramp);
  CHECK(executor.measured()[0].bytes_sent == first.bytes_sent);
  CHECK(executor.measured()[0].order_hash == first.order_hash);
}

TEST_CASE("from the second run on nothing is allocated but the run's own handful") {
  // Twenty times the commands, the same allocations.
  const auto allocations_of = [](int repeat) {
    Program program = two_stages();
    for (pipeline::RankProgram& rank : program.ranks) {
      const std::vector<Command> once = rank.commands;
      for (int k = 1; k < repeat; ++k) {
        for (Command command : once) {
          if (command.channel >= 0) command.sequence += 3 * k;
          rank.commands.push_back(command);
        }
      }
    }
    // A slot for each message of a pass, so that the buffers fit in every pass.
    for (pipeline::Channel& channel : program.channels) channel.slots = 3;
    for (pipeline::RankProgram& rank : program.ranks) {
      int message = 0;
      for (pipeline::Buffer& buffer : rank.buffers) {
        if (buffer.storage.kind == pipeline::Storage::Kind::kSlot) buffer.storage.slot = message++;
      }
    }
    FakeBackend backend;
    Executor executor({&program}, backend, {});
    executor.run(0, load_ramp);
    executor.run(0, load_ramp);
    start_counting_allocations();
    executor.run(0, load_ramp);
    return stop_counting_allocations();
  };
  CHECK(allocations_of(1) <= 8);
  CHECK(allocations_of(20) <= 8);
}

TEST_CASE("programs share states and rings") {
  Program train = two_stages();
  Program eval = two_stages();
  eval.name = "eval";
  train.ranks[0].arena = Bytes(1000);
  FakeBackend backend;
  Executor executor({&train, &eval}, backend, {});
  executor.run(0, load_ramp);
  executor.run(1, load_ramp);
  executor.run(0, load_ramp);
  CHECK(state(executor, 1, "sum")[1] == 3 * 4 * 303);
  CHECK(executor.measured()[0].bytes_sent == Bytes(3 * 16));
  CHECK(backend.allocations == 2);  // rank 0 has no state, rank 1 no arena
  CHECK(backend.allocated == Bytes(1000 + 64));
}

TEST_CASE("a view is a device's own part of a flat state") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"dp", 2}, {"tp", 2}});
  FragmentBuilder fragment("UPDATE");
  const ValueId part = fragment.input("part", f32({2}), PortKind::kState);
  const ValueId scaled = fragment.scale(part, 10);
  fragment.alias(scaled, part);
  fragment.output(scaled, "part", PortKind::kState);
  program.fragments = {fragment.build()};
  program.ranks.resize(1);
  RankBuilder r(program.ranks[0]);
  const BufferId flat = r.state("flat", f32({5}));
  const BufferId view = r.view("part", f32({2}), flat, 4, {"dp"}, 8);
  r.view("half", f32({1}), view, 0, {"tp"}, 4);
  r.call(0, {view});
  program.ranks[0].states = 3;
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (int rank = 0; rank < 4; ++rank) std::fill_n(state(executor, rank, "flat"), 5, 1.0f);
  executor.run(0, no_loads);
  for (int rank = 0; rank < 4; ++rank) {
    const float* values = state(executor, rank, "flat");
    const std::vector<float> first = {1, 10, 10, 1, 1}, second = {1, 1, 1, 10, 10};
    CHECK(std::vector<float>(values, values + 5) == (rank < 2 ? first : second));
    CHECK(state(executor, rank, "part") == values + (rank < 2 ? 1 : 3));
    CHECK(state(executor, rank, "half") == values + (rank < 2 ? 1 : 3) + rank % 2);
  }
}

TEST_CASE("an alias is an instruction that runs no kernel") {
  FragmentBuilder fragment("F");
  const ValueId x = fragment.input("x", f32({2, 2}));
  const ValueId flat = fragment.op(OpKind::kReshape, ir::NoAttrs{}, {x}, {f32({4})})[0];
  fragment.alias(flat, x);
  fragment.output(fragment.op(OpKind::kScale, ir::ScaleAttrs{3}, {flat}, {f32({4})})[0], "y");
  const OneFragment one(Mesh(), fragment, f32({2, 2}), f32({4}));
  FakeBackend backend;
  backend.on(OpKind::kReshape, [](const FakeBackend::Call&) { FAIL("an alias ran"); });
  Executor executor({&one.program}, backend, {});
  state(executor, 0, "x")[3] = 5;
  executor.run(0, no_loads);
  CHECK(state(executor, 0, "y")[3] == 15);
  CHECK(executor.measured()[0].instructions == 2);
}

TEST_CASE("a view that lies in its operand is an alias, and only that") {
  for (const int64_t offset : {1, 2}) {
    FragmentBuilder fragment("F");
    const ValueId x = fragment.input("x", f32({4}));
    const ValueId part = fragment.op(OpKind::kView, ir::ViewAttrs{2}, {x}, {f32({2})})[0];
    fragment.alias(part, x, 4 * offset);
    fragment.output(fragment.scale(part, 3), "y");
    const OneFragment one(Mesh(), fragment, f32({4}), f32({2}));
    FakeBackend backend;
    int ran = 0;
    backend.on(OpKind::kView, [&](const FakeBackend::Call&) { ++ran; });
    Executor executor({&one.program}, backend, {});
    std::copy_n(std::vector<float>{1, 2, 3, 4}.begin(), 4, state(executor, 0, "x"));
    executor.run(0, no_loads);
    CHECK(ran == (offset == 2 ? 0 : 1));
    CHECK(state(executor, 0, "y")[0] == static_cast<float>(3 * (1 + offset)));
  }
}

// What the construction says of a program that is not sound.
std::string refused(const Program& program) {
  FakeBackend backend;
  return error_of([&] { Executor({&program}, backend, {}); });
}

TEST_CASE("a command with too few or too many buffers is a failed check") {
  Program few = two_stages(), many = two_stages();
  few.ranks[0].commands[2].buffers.pop_back();
  many.ranks[0].commands[2].buffers.push_back(BufferId(0));
  CHECK(contains(refused(few), {"command 2 (F stage 0) has 1 buffers, too few"}));
  CHECK(contains(refused(many), {"command 2 (F stage 0) has 3 buffers, must be 2"}));
}

TEST_CASE("an output that lies elsewhere than in its buffer is a failed check") {
  const std::string message = "command 0 (F): output x does not lie in its buffer";
  FragmentBuilder same("F");  // the output is an input, whose bytes nobody copies
  same.output(same.input("x", f32({4})), "y");
  CHECK(contains(refused(OneFragment(Mesh(), same, f32({4}), f32({4})).program), {message}));
  FragmentBuilder alias("F");  // or lies in one
  const ValueId x = alias.input("x", f32({4}));
  const ValueId flat = alias.op(OpKind::kReshape, ir::NoAttrs{}, {x}, {f32({2, 2})})[0];
  alias.alias(flat, x);
  alias.output(flat, "y");
  CHECK(contains(refused(OneFragment(Mesh(), alias, f32({4}), f32({2, 2})).program),
                 {"output %1 does not lie in its buffer"}));
}

TEST_CASE("programs must have one mesh, and a rank program for each pipeline rank") {
  const Program train = two_stages();
  Program other = two_stages(), short_of_one = two_stages();
  other.name = "eval";
  other.mesh = Mesh({{"pp", 2}, {"dp", 1}});
  short_of_one.ranks.pop_back();
  FakeBackend backend;
  CHECK(contains(error_of([&] { Executor({&train, &other}, backend, {}); }),
                 {"program 'eval' has mesh", "the first one"}));
  CHECK(contains(refused(short_of_one), {"program 'train' has 1 rank programs for"}));
}

}  // namespace
}  // namespace mw::execute
