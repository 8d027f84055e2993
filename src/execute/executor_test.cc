#include "execute/executor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "execute/test_allocations.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using cluster::Mesh;
using ir::AxisGroup;
using ir::CollectiveAttrs;
using ir::Holders;
using ir::OpKind;
using pipeline::Command;
using pipeline::PortKind;
using pipeline::Program;

const Loader no_loads = [](const std::string&, int32_t, RankId, const ir::TensorType&, void*) {};

// Whether `text` has the parts in this order.
bool contains(const std::string& text, const std::vector<std::string>& parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    at = text.find(part, at);
    if (at == std::string::npos) {
      MESSAGE("missing '" << part << "' in: " << text);
      return false;
    }
    at += part.size();
  }
  return true;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

float* state(Executor& executor, int rank, const std::string& name) {
  return static_cast<float*>(
      executor.state_data(RankId(rank), executor.find_state(RankId(rank), name)));
}

// Two pipeline ranks, three microbatches of 4 numbers. Rank 0 doubles what it loads twice (a
// workspace value between) and sends it; rank 1 adds what it receives to the state "sum", in place.
Program two_stages(int slots = 2) {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 2}});
  program.microbatches = 3;
  const ir::TensorType type = f32({4});
  FragmentBuilder f0("F stage 0");
  f0.output(f0.scale(f0.scale(f0.input("x", type, PortKind::kData), 2), 2), "y");
  FragmentBuilder f1("F stage 1");
  const ValueId sum = f1.input("sum", type, PortKind::kState);
  const ValueId y = f1.input("y", type);
  const ValueId updated = f1.op(OpKind::kAccumulate, ir::NoAttrs{}, {sum, y}, {type})[0];
  f1.alias(updated, sum);
  f1.output(updated, "sum", PortKind::kState);
  program.fragments = {f0.build(), f1.build()};
  program.channels = {{"y 0->1", 0, 1, type, slots}};
  program.ranks.resize(2);
  RankBuilder r0(program.ranks[0]), r1(program.ranks[1]);
  r1.stage = 1;
  const BufferId x = r0.arena("x", type);
  const BufferId total = r1.state("sum", type);
  for (int m = 0; m < 3; ++m) {
    const BufferId out = r0.slot("y", type, 0, m % slots);
    const BufferId in = r1.slot("y", type, 0, m % slots);
    r0.load("x", x, m);
    r0.message(Command::Kind::kAcquire, 0, m);
    r0.call(0, {x, out}, m);
    r0.message(Command::Kind::kPublish, 0, m);
    r1.message(Command::Kind::kReceive, 0, m);
    r1.call(1, {total, in}, m);
    r1.message(Command::Kind::kRelease, 0, m);
  }
  r0.finish(program.fragments[0].workspace);
  r1.finish(program.fragments[1].workspace);
  return program;
}

const Loader load_ramp = [](const std::string&, int32_t microbatch, RankId,
                            const ir::TensorType& type, void* data) {
  for (int64_t i = 0; i < type.elements(); ++i) {
    static_cast<float*>(data)[i] = static_cast<float>(100 * microbatch + i);
  }
};

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
  const Program train = two_stages();
  Program eval = two_stages();
  eval.name = "eval";
  FakeBackend backend;
  Executor executor({&train, &eval}, backend, {});
  executor.run(0, load_ramp);
  executor.run(1, load_ramp);
  executor.run(0, load_ramp);
  CHECK(state(executor, 1, "sum")[1] == 3 * 4 * 303);
  CHECK(executor.measured()[0].bytes_sent == Bytes(3 * 16));
  CHECK(backend.allocations == 2);  // rank 0 has no state, rank 1 no arena
}

// Every rank runs one fragment on state "x" -> state "y".
struct OneFragment {
  Program program;
  OneFragment(Mesh mesh, FragmentBuilder& fragment, const ir::TensorType& x,
              const ir::TensorType& y) {
    program.name = "train";
    program.mesh = std::move(mesh);
    program.fragments = {fragment.build()};
    program.ranks.resize(static_cast<size_t>(program.mesh.axis_size("pp")));
    for (pipeline::RankProgram& rank : program.ranks) {
      RankBuilder r(rank);
      r.stage = 0;
      const BufferId in = r.state("x", x);
      const BufferId out = r.state("y", y);
      r.call(0, {in, out});
      r.finish(program.fragments[0].workspace);
    }
  }
};

TEST_CASE("collectives over mesh axes gather, scatter and exchange any dimension") {
  // x_AB on every rank is its rank * 100 + row * 10 + column.
  struct Case {
    OpKind kind;
    CollectiveAttrs attrs;
    std::vector<int64_t> in, out;
    std::function<float(int, int64_t, int64_t)> expected;  // rank, row, column
  };
  const auto x = [](int64_t rank, int64_t row, int64_t column) {
    return static_cast<float>(rank * 100 + row * 10 + column);
  };
  const AxisGroup tp{{"tp"}}, dp{{"dp"}}, both{{"dp", "tp"}};
  CollectiveAttrs dim0{tp, ir::Reduction::kSum, 0, 0, 0}, dim1{tp, ir::Reduction::kSum, 1, 0, 0};
  const auto with = [](CollectiveAttrs attrs, ir::DeviceGroup group) {
    attrs.group = std::move(group);
    return attrs;
  };
  CollectiveAttrs rows_to_columns = dim1, columns_to_rows = dim0, same = dim1;
  rows_to_columns.concat_dim = 0;
  columns_to_rows.concat_dim = 1;
  same.concat_dim = 1;
  CollectiveAttrs moved = with(dim0, both);
  moved.from = {"dp"};
  moved.to = {"tp"};
  CollectiveAttrs largest = dim0;
  largest.op = ir::Reduction::kMax;
  // Ranks 2d + t: tp peers of r are r - r % 2 and that + 1, dp peers r % 2 and that + 2.
  const std::vector<Case> cases = {
      {OpKind::kAllReduce,
       dim0,
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x(r & ~1, i, j) + x(r | 1, i, j); }},
      {OpKind::kAllReduce,
       largest,
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x(r | 1, i, j); }},
      {OpKind::kAllReduce,
       with(dim0, dp),
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x(r & 1, i, j) + x(r | 2, i, j); }},
      {OpKind::kAllReduce,
       with(dim0, both),
       {2, 4},
       {2, 4},
       [&](int, int64_t i, int64_t j) { return 600 + 4 * x(0, i, j); }},
      {OpKind::kAllReduce,
       with(dim0, AxisGroup{{"cp"}}),
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x(r, i, j); }},
      {OpKind::kAllGather,
       dim0,
       {2, 4},
       {4, 4},
       [&](int r, int64_t i, int64_t j) { return x((r & ~1) + i / 2, i % 2, j); }},
      {OpKind::kAllGather,
       dim1,
       {2, 4},
       {2, 8},
       [&](int r, int64_t i, int64_t j) { return x((r & ~1) + j / 4, i, j % 4); }},
      {OpKind::kAllGather,
       with(dim1, AxisGroup{{"tp", "dp"}}),
       {2, 4},
       {2, 16},
       [&](int, int64_t i, int64_t j) {
         const int64_t k = j / 4;
         return x(k / 2 + 2 * (k % 2), i, j % 4);
       }},
      {OpKind::kReduceScatter,
       dim0,
       {2, 4},
       {1, 4},
       [&](int r, int64_t, int64_t j) { return x(r & ~1, r & 1, j) + x(r | 1, r & 1, j); }},
      {OpKind::kReduceScatter,
       dim1,
       {2, 4},
       {2, 2},
       [&](int r, int64_t i, int64_t j) {
         return x(r & ~1, i, (r & 1) * 2 + j) + x(r | 1, i, (r & 1) * 2 + j);
       }},
      {OpKind::kAllToAll,
       rows_to_columns,
       {2, 4},
       {4, 2},
       [&](int r, int64_t i, int64_t j) { return x((r & ~1) + i / 2, i % 2, (r & 1) * 2 + j); }},
      {OpKind::kAllToAll,
       columns_to_rows,
       {2, 4},
       {1, 8},
       [&](int r, int64_t, int64_t j) { return x((r & ~1) + j / 4, r & 1, j % 4); }},
      {OpKind::kAllToAll,
       same,
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x((r & ~1) + j / 2, i, (r & 1) * 2 + j % 2); }},
      // From over dp to over tp: rank 2d + t has shard d and gets shard t.
      {OpKind::kPermute,
       moved,
       {2, 4},
       {2, 4},
       [&](int r, int64_t i, int64_t j) { return x(2 * (r & 1) + r / 2, i, j); }},
  };
  for (const Case& c : cases) {
    CAPTURE(ir::op_name(c.kind));
    CAPTURE(to_string(ir::Attributes(c.attrs)));
    FragmentBuilder fragment("F");
    fragment.output(
        fragment.collective(c.kind, c.attrs, fragment.input("x", f32(c.in)), f32(c.out)), "y");
    const OneFragment one(Mesh({{"dp", 2}, {"tp", 2}}), fragment, f32(c.in), f32(c.out));
    FakeBackend backend;
    Executor executor({&one.program}, backend, {});
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < 8; ++i) state(executor, r, "x")[i] = x(r, i / 4, i % 4);
    }
    executor.run(0, no_loads);
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < c.out[0] * c.out[1]; ++i) {
        CHECK(state(executor, r, "y")[i] == c.expected(r, i / c.out[1], i % c.out[1]));
      }
    }
  }
}

TEST_CASE(
    "a list of tensors is reduced in one operation, in place where results lie over operands") {
  FragmentBuilder fragment("F");
  const ValueId x = fragment.input("x", f32({2}), PortKind::kState);
  const ValueId y = fragment.input("y", f32({3}), PortKind::kState);
  const auto sums = fragment.op(OpKind::kAllReduce,
                                CollectiveAttrs{AxisGroup{{"dp"}}, ir::Reduction::kSum, 0, 0, 0},
                                {x, y}, {f32({2}), f32({3})});
  fragment.alias(sums[0], x);
  fragment.alias(sums[1], y);
  fragment.output(sums[0], "x", PortKind::kState);
  fragment.output(sums[1], "y", PortKind::kState);
  const OneFragment one(Mesh({{"dp", 4}}), fragment, f32({2}), f32({3}));
  FakeBackend backend;
  Executor executor({&one.program}, backend, {});
  for (int r = 0; r < 4; ++r) {
    std::fill_n(state(executor, r, "x"), 2, static_cast<float>(r));
    std::fill_n(state(executor, r, "y"), 3, static_cast<float>(10 * r));
  }
  executor.run(0, no_loads);
  for (int r = 0; r < 4; ++r) {
    CHECK(state(executor, r, "x")[1] == 6);
    CHECK(state(executor, r, "y")[2] == 60);
    CHECK(executor.measured()[0].bytes_sent == Bytes(30));  // 2 * 3/4 of 20 bytes
  }
}

TEST_CASE(
    "the holders of a state reduce it across pipeline ranks with the same other coordinates") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 3}, {"dp", 2}});
  FragmentBuilder fragment("REDUCE_GRAD");
  const ValueId x = fragment.input("tbl.grad", f32({2}), PortKind::kState);
  const ValueId sum = fragment.collective(
      OpKind::kAllReduce, {Holders{"tbl.grad"}, ir::Reduction::kSum, 0, 0, 0}, x, f32({2}));
  fragment.alias(sum, x);
  fragment.output(sum, "tbl.grad", PortKind::kState);
  program.fragments = {fragment.build()};
  program.ranks.resize(3);
  for (const int p : {0, 2}) {
    RankBuilder r(program.ranks[static_cast<size_t>(p)]);
    r.call(0, {r.state("tbl.grad", f32({2}))});
  }
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (const int r : {0, 1, 4, 5}) state(executor, r, "tbl.grad")[0] = static_cast<float>(1 << r);
  executor.run(0, no_loads);
  for (const int r : {0, 4}) CHECK(state(executor, r, "tbl.grad")[0] == 17);
  for (const int r : {1, 5}) CHECK(state(executor, r, "tbl.grad")[0] == 34);
  CHECK(!executor.find_state(RankId(2), "tbl.grad").valid());
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
  r.call(0, {view});
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  for (int rank = 0; rank < 4; ++rank) std::fill_n(state(executor, rank, "flat"), 5, 1.0f);
  executor.run(0, no_loads);
  for (int rank = 0; rank < 4; ++rank) {
    const float* values = state(executor, rank, "flat");
    const std::vector<float> first = {1, 10, 10, 1, 1}, second = {1, 1, 1, 10, 10};
    CHECK(std::vector<float>(values, values + 5) == (rank < 2 ? first : second));
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

TEST_CASE("a kernel that throws ends all ranks within a second and the error names the place") {
  Program program = two_stages();
  program.mesh = Mesh({{"pp", 2}, {"dp", 2}});
  FakeBackend backend;
  std::atomic<int> calls{0};
  backend.on(OpKind::kAccumulate, [&](const FakeBackend::Call& call) {
    if (call.rank == RankId(3) && ++calls == 2) throw RunError("out of luck");
  });
  Executor executor({&program}, backend, {});
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(
      executor.run(0, load_ramp),
      "rank 3 (pp=1, dp=1), train run 0, command 4 call 'F stage 1' (1F1), microbatch 1, "
      "op 0 accumulate '%2': out of luck",
      RunError);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK_THROWS_AS(executor.run(0, load_ramp), CheckFailure);
}

TEST_CASE("an error of the input keeps its findings, each with its place") {
  const Program program = two_stages();
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  try {
    executor.run(
        0, [](const std::string&, int32_t microbatch, RankId, const ir::TensorType&, void*) {
          if (microbatch == 2)
            throw Error(std::vector<std::string>{"data.bin: too short", "data.idx: missing"});
        });
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.findings().size() == 2);
    CHECK(error.findings()[1] ==
          "rank 0 (pp=0), train run 0, command 8 load 'x' (0F2), microbatch 2: data.idx: missing");
  }
}

TEST_CASE("an op without a kernel is an error of the construction") {
  FragmentBuilder fragment("F");
  fragment.output(
      fragment.op(OpKind::kErf, ir::NoAttrs{}, {fragment.input("x", f32({1}))}, {f32({1})})[0],
      "y");
  const OneFragment one(Mesh({{"dp", 2}}), fragment, f32({1}), f32({1}));
  FakeBackend backend;
  const std::string error = error_of([&] { Executor({&one.program}, backend, {}); });
  CHECK(contains(error,
                 {"rank ", "(dp=",
                  "preparing: fragment 'F', op 0: op erf: the fake backend has no kernel for it"}));
}

TEST_CASE("the watchdog names rank, instruction, peer and microbatch of a stall") {
  // Rank 1 keeps the slot of message 0: rank 0 waits for it for ever.
  Program program = two_stages(1);
  std::vector<Command>& commands = program.ranks[1].commands;
  commands.erase(commands.begin() + 2, commands.end());
  FakeBackend backend;
  ExecutorOptions options;
  options.stall_seconds = 0.2;
  Executor executor({&program}, backend, options);
  const std::string error = error_of([&] { executor.run(0, load_ramp); });
  CHECK(contains(error,
                 {"no rank has made progress for 0.2", "rank 0 (pp=0), train run 0, command 5 ",
                  "message 1 of channel 'y 0->1' (0F1), microbatch 1, peer rank 1", "waits",
                  "channel 0", "rank 1 (pp=1), train run 0: has ended its program"}));
}

TEST_CASE("a rank that waits while others work is no stall") {
  const Program program = two_stages();
  FakeBackend backend;
  backend.on(OpKind::kScale, [](const FakeBackend::Call&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  });
  ExecutorOptions options;
  options.stall_seconds = 0.15;  // all six take longer, no one does
  Executor executor({&program}, backend, options);
  CHECK_NOTHROW(executor.run(0, load_ramp));
}

TEST_CASE("members that run different collectives are told so") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 2}});
  for (const int64_t n : {2, 3}) {
    FragmentBuilder fragment("F");
    const ValueId x = fragment.input("g", f32({n}));
    fragment.output(fragment.collective(OpKind::kAllReduce,
                                        {Holders{"g"}, ir::Reduction::kSum, 0, 0, 0}, x, f32({n})),
                    "y");
    program.fragments.push_back(fragment.build());
  }
  program.ranks.resize(2);
  for (int p = 0; p < 2; ++p) {
    RankBuilder r(program.ranks[static_cast<size_t>(p)]);
    const BufferId g = r.state("g", f32({p + 2}));
    r.call(p, {g, r.state("y", f32({p + 2}))});
  }
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  const std::string error = error_of([&] { executor.run(0, no_loads); });
  CHECK(contains(
      error, {"command 0 call 'F'", "op 0 all_reduce '%1', peer rank", "all_reduce sum f32 [2]"}));
}

TEST_CASE("a group that a member never calls is a failed check, not a hang") {
  Program program;
  program.name = "train";
  program.mesh = Mesh({{"pp", 2}});
  FragmentBuilder fragment("F");
  const ValueId x = fragment.input("x", f32({2}));
  fragment.output(
      fragment.collective(OpKind::kAllReduce, {AxisGroup{{"pp"}}, ir::Reduction::kSum, 0, 0, 0}, x,
                          f32({2})),
      "y");
  program.fragments = {fragment.build()};
  program.ranks.resize(2);
  RankBuilder r(program.ranks[0]);
  const BufferId in = r.state("x", f32({2}));
  r.call(0, {in, r.state("y", f32({2}))});
  FakeBackend backend;
  const std::string error = error_of([&] { Executor({&program}, backend, {}); });
  CHECK(contains(error, {"of the group ranks 0, 1 only rank 0 run collectives in it"}));
}

TEST_CASE("check_finite names the first op whose result is not finite") {
  const Program program = two_stages();
  FakeBackend backend;
  ExecutorOptions options;
  options.check_finite = true;
  backend.on(OpKind::kScale, [](const FakeBackend::Call& call) {
    for (int64_t i = 0; i < 4; ++i) call.out()[i] = call.in(0)[i];
    if (call.in(0)[0] == 100) call.out()[2] = std::numeric_limits<float>::infinity();
  });
  Executor executor({&program}, backend, options);
  CHECK_THROWS_WITH_AS(
      executor.run(0, load_ramp),
      "rank 0 (pp=0), train run 0, command 6 call 'F stage 0' (0F1), microbatch 1, op 0 scale "
      "'%1': "
      "'%1' is inf at element 2 of f32[4], the first number of this rank that is not finite",
      RunError);
}

TEST_CASE("a traced run has a span for every instruction and an arrow for every message") {
  const Program program = two_stages();
  FakeBackend backend;
  Executor executor({&program}, backend, {});
  trace::Trace trace;
  executor.run(0, load_ramp);
  executor.run(0, load_ramp, &trace);
  executor.run(0, load_ramp, &trace);
  CHECK(trace.dropped == 0);
  CHECK(trace.producer == "execute");
  CHECK(trace.program_hash == pipeline::program_hash(program));
  CHECK(trace.spans.size() == 2 * (3 * 5 + 3 * 3 + 2));
  std::multiset<int64_t> out, in;
  Bytes sent;
  for (const trace::Span& span : trace.spans) {
    CHECK(span.start.value >= 0);
    if (span.flow_out >= 0) out.insert(span.flow_out);
    if (span.flow_in >= 0) in.insert(span.flow_in);
    if (span.category == trace::Category::kStep) sent += span.bytes;
    CHECK(!trace.name(span).empty());
    if (trace.name(span) == "scale") CHECK(span.category == trace::Category::kCompute);
  }
  CHECK(out == in);
  CHECK(std::set<int64_t>(out.begin(), out.end()).size() == 6);
  CHECK(sent == Bytes(2 * 48));
}

TEST_CASE("a command with too few buffers is a failed check") {
  Program program = two_stages();
  program.ranks[0].commands[2].buffers.pop_back();
  FakeBackend backend;
  CHECK_THROWS_AS(Executor({&program}, backend, {}), CheckFailure);
}

}  // namespace
}  // namespace mw::execute
