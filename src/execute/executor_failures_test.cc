#include "execute/executor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "execute/test_programs.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using cluster::Mesh;
using ir::OpKind;
using pipeline::Command;
using pipeline::Program;

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
      "op 0 accumulate '%2' of 'sum', 'y': out of luck",
      RunError);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK_THROWS_AS(executor.run(0, load_ramp), CheckFailure);
}

TEST_CASE("a place has the calling stage's names, all microbatches of the call and the other end") {
  Program program = two_stages();
  // Two inputs, then the three values.
  program.names = {{"in 0", "in 1", "the sum", "the part", "the new sum"}};
  for (Command& command : program.ranks[1].commands) {
    if (command.kind != Command::Kind::kCall) continue;
    command.names = 0;
    command.action.count = 3;
  }
  FakeBackend backend;
  backend.on(OpKind::kAccumulate, [](const FakeBackend::Call&) { throw RunError("out of luck"); });
  Executor executor({&program}, backend, {});
  CHECK(contains(error_of([&] { executor.run(0, load_ramp); }),
                 {"rank 1 (pp=1), train run 0, command 1 call 'F stage 1' (",
                  "), microbatches 0 to 2, op 0 accumulate 'the new sum': out of luck"}));
  // Rank 0 sends nothing: rank 1 waits for it.
  Program silent = two_stages();
  silent.ranks[0].commands.clear();
  ExecutorOptions options;
  options.stall_seconds = 0.1;
  Executor waiting({&silent}, backend, options);
  CHECK(contains(error_of([&] { waiting.run(0, load_ramp); }),
                 {"rank 1 (pp=1), train run 0, command 0 ",
                  "message 0 of channel 'y 0->1' (1F0), microbatch 0, peer rank 0: "}));
}

TEST_CASE("a rank that waits for nobody ends at its next instruction when another one fails") {
  FragmentBuilder fragment("F");
  ValueId x = fragment.input("x", f32({1}));
  for (int i = 0; i < 100; ++i) x = fragment.scale(x, 2);
  fragment.output(x, "y");
  const OneFragment one(Mesh({{"dp", 2}}), fragment, f32({1}), f32({1}));
  FakeBackend backend;
  std::atomic<int> ran{0};
  backend.on(OpKind::kScale, [&](const FakeBackend::Call& call) {
    if (call.rank == RankId(1)) throw RunError("out of luck");
    ++ran;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  Executor executor({&one.program}, backend, {});
  CHECK_THROWS_AS(executor.run(0, no_loads), RunError);
  CHECK(ran < 100);
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

TEST_CASE("an op that takes long is told of, and the run goes on") {
  FragmentBuilder fragment("F");
  fragment.output(fragment.scale(fragment.input("x", f32({4})), 2), "y");
  const OneFragment one(Mesh({{"dp", 2}}), fragment, f32({4}), f32({4}));
  FakeBackend backend;
  std::atomic<int> told = 0;
  backend.on(OpKind::kScale, [&](const FakeBackend::Call& call) {
    while (call.rank == RankId(1) && told < 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  ExecutorOptions options;
  options.stall_seconds = 0.05;
  std::vector<std::string> reports;
  options.on_slow = [&](const std::string& text) {
    reports.push_back(text);
    ++told;
  };
  Executor executor({&one.program}, backend, options);
  CHECK_NOTHROW(executor.run(0, no_loads));
  REQUIRE(reports.size() >= 2);
  CHECK(contains(reports[0], {"no rank has made progress for 0.0", "rank 0 (dp=0), train run 0",
                              ": has ended its program", "rank 1 (dp=1), train run 0, command 0 ",
                              ": works, and waits for no other rank"}));
  CHECK(contains(reports[1], {"no rank has made progress for 0.1"}));
}

TEST_CASE("ranks that wait for ever behind an op that took long are a stall") {
  Program program = two_stages(1);  // as above: rank 1 keeps the slot of message 0
  std::vector<Command>& commands = program.ranks[1].commands;
  commands.erase(commands.begin() + 2, commands.end());
  FakeBackend backend;
  std::atomic<bool> told = false;
  backend.on(OpKind::kScale, [&](const FakeBackend::Call& call) {
    while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::copy(call.in(0), call.in(0) + 4, call.out());
  });
  ExecutorOptions options;
  options.stall_seconds = 0.05;
  options.on_slow = [&](const std::string&) { told = true; };
  Executor executor({&program}, backend, options);
  CHECK(contains(error_of([&] { executor.run(0, load_ramp); }),
                 {"no rank has made progress for 0.", "channel 'y 0->1' (0F1)", "waits"}));
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
      "'%1' of 'x': "
      "'%1' is inf at element 2 of f32[4], the first number of this rank that is not finite",
      RunError);
}

TEST_CASE("check_finite looks at what is loaded, too") {
  const Program program = two_stages();
  FakeBackend backend;
  ExecutorOptions options;
  options.check_finite = true;
  Executor executor({&program}, backend, options);
  const Loader load = [](const std::string&, int32_t microbatch, RankId, const ir::TensorType& type,
                         void* data) {
    std::fill_n(static_cast<float*>(data), type.elements(), microbatch == 2 ? NAN : 1.0f);
  };
  CHECK_THROWS_WITH_AS(
      executor.run(0, load),
      "rank 0 (pp=0), train run 0, command 8 load 'x' (0F2), microbatch 2: 'x' is nan at element 0 "
      "of f32[4], the first number of this rank that is not finite",
      RunError);
}

TEST_CASE("check_finite takes no offence at infinities that an op is to make") {
  FragmentBuilder fragment("F");
  const float infinity = std::numeric_limits<float>::infinity();
  const ValueId x = fragment.input("x", f32({1}));
  const ValueId never =
      fragment.op(OpKind::kConstant, ir::ConstantAttrs{-infinity}, {}, {f32({1})})[0];
  fragment.output(fragment.op(OpKind::kMax, ir::NoAttrs{}, {x, never}, {f32({1})})[0], "y");
  const OneFragment one(Mesh(), fragment, f32({1}), f32({1}));
  FakeBackend backend;
  backend.on(OpKind::kConstant, [=](const FakeBackend::Call& call) { *call.out() = -infinity; });
  backend.on(OpKind::kMax, [](const FakeBackend::Call& call) {
    *call.out() = std::max(*call.in(0), *call.in(1));
  });
  ExecutorOptions options;
  options.check_finite = true;
  Executor executor({&one.program}, backend, options);
  state(executor, 0, "x")[0] = 5;
  executor.run(0, no_loads);
  CHECK(state(executor, 0, "y")[0] == 5);
}

}  // namespace
}  // namespace mw::execute
