// Calls that run into one another: what each rank does, in numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "execute/test_programs.h"
#include "execute/test_support.h"

namespace mw::execute {
namespace {

using cluster::Mesh;
using ir::OpKind;
using pipeline::Command;
using pipeline::PortKind;
using pipeline::Program;

enum Which { kTrain = 0, kValidate = 1, kAmend = 2 };
constexpr float kMost = 100;  // of both ranks' weights; where there is more, a step is taken back

// Each of two ranks holds a weight, to which a step adds a number. A call begins with sending the
// weights to each other; where they are too large together, the step before is amended. Rank 1 gets
// one more message that is sent before the repeat point, and in training one behind it, which it
// reads behind its own; rank 0 keeps rank 1's weight until there.
Program flow_program(Which which) {
  Program program;
  program.name = which == kTrain ? "train" : which == kValidate ? "validate" : "amend";
  program.mesh = Mesh({{"pp", 2}});
  const ir::TensorType type = f32({1});
  FragmentBuilder send("SEND"), validate("VALIDATE"), step("STEP"), undo("UNDO");
  send.output(send.op(OpKind::kCopy, ir::NoAttrs{}, {send.input("w", type)}, {type})[0], "sent");
  const auto in_place = [&](FragmentBuilder& fragment, OpKind kind, const std::string& state,
                            const std::vector<std::string>& others) {
    ValueIds operands{fragment.input(state, type, PortKind::kState)};
    for (const std::string& name : others) operands.push_back(fragment.input(name, type));
    const ValueId updated = fragment.op(kind, ir::NoAttrs{}, operands, {type})[0];
    fragment.alias(updated, operands[0]);
    fragment.output(updated, state, PortKind::kState);
  };
  in_place(validate, OpKind::kErf, "amended", {"w", "other"});
  in_place(step, OpKind::kAccumulate, "w", {"x"});
  in_place(undo, OpKind::kSub, "w", {"x"});
  program.fragments = {send.build(), validate.build(), step.build(), undo.build()};
  program.channels = {
      {"w 0->1", 0, 1, type, 2}, {"w 1->0", 1, 0, type, 2}, {"late 0->1", 0, 1, type, 2}};
  program.ranks.resize(2);
  for (int p = 0; p < 2; ++p) {
    RankBuilder r(program.ranks[static_cast<size_t>(p)]);
    r.stage = p;
    const BufferId w = r.state("w", type), amended = r.state("amended", type);
    const BufferId late = r.state("late", type), x = r.arena("x", type);
    r.finish(Bytes(0));
    if (which == kAmend) {
      r.load("x", x, 0);
      r.call(3, {w, x});
      continue;
    }
    const auto publish = [&](int channel, int sequence) {
      const BufferId slot = r.slot("sent", type, channel, sequence);
      r.message(Command::Kind::kAcquire, channel, sequence);
      r.call(0, {w, slot});
      r.message(Command::Kind::kPublish, channel, sequence);
    };
    publish(p, 0);
    if (p == 0) publish(2, 0);
    r.message(Command::Kind::kReceive, 1 - p, 0);
    r.call(1, {amended, w, r.slot("other", type, 1 - p, 0)});
    if (p == 1) r.message(Command::Kind::kRelease, 0, 0);
    pipeline::RankProgram& rank = program.ranks[static_cast<size_t>(p)];
    rank.repeatable = static_cast<int32_t>(rank.commands.size());
    rank.amended = amended;
    if (p == 0) r.message(Command::Kind::kRelease, 1, 0);
    if (which == kTrain) {
      r.load("x", x, 0);
      r.call(2, {w, x});
      if (p == 0) publish(2, 1);
    }
    for (int m = 0; p == 1 && m < (which == kTrain ? 2 : 1); ++m) {
      r.message(Command::Kind::kReceive, 2, m);
      r.call(2, {late, r.slot("late", type, 2, m)});
      r.message(Command::Kind::kRelease, 2, m);
    }
  }
  return program;
}

// What is added to the weight of a rank in a call.
float added(size_t call, int64_t rank) {
  const float numbers[] = {1, 90, 4, 95, 60, 7};
  return rank == 0 ? numbers[call] : static_cast<float>(10 * call + 2);
}

struct FlowRun {
  Program train = flow_program(kTrain), validate = flow_program(kValidate),
          amend = flow_program(kAmend);
  FakeBackend backend;
  std::unique_ptr<Executor> executor;
  std::vector<std::vector<size_t>> validated{2};  // [rank] the calls whose steps were validated
  std::vector<std::vector<int>> ended{2};         // [rank] programs
  size_t without_data = 99;                       // the call whose loads fail
  std::function<void()> behind_a_program = [] {};
  ExecutorOptions options;

  void run(size_t calls, size_t stop_behind, trace::Trace* trace = nullptr) {
    backend.on(OpKind::kErf, [](const FakeBackend::Call& call) {
      call.out()[0] = call.in(1)[0] + call.in(2)[0] > kMost ? 1 : 0;
    });
    backend.on(OpKind::kSub, [](const FakeBackend::Call& call) {
      call.out()[0] = call.in(0)[0] - call.in(1)[0];
    });
    executor = std::make_unique<Executor>(std::vector<const Program*>{&train, &validate, &amend},
                                          backend, options);
    Flow flow;
    flow.train = kTrain;
    flow.validate = kValidate;
    flow.amend = kAmend;
    flow.calls = calls;
    flow.loader = [&, calls](size_t call) {
      CHECK(call < calls);
      return
          [&, call](const std::string&, int32_t, RankId rank, const ir::TensorType&, void* data) {
            if (call == without_data) throw RunError("no data");
            *static_cast<float*>(data) = added(call, rank.value);
          };
    };
    flow.validated = [&](RankId rank, size_t call) {
      validated[rank.index()].push_back(call);
      return call != stop_behind;
    };
    flow.ended = [&](RankId rank, int program, const Measured&) {
      ended[rank.index()].push_back(program);
      behind_a_program();
    };
    executor->run(flow, trace);
  }
};

TEST_CASE("a flow validates each step once, takes back what is amended and loses no message") {
  for (const size_t calls : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(calls);
    FlowRun flow;
    flow.run(calls, calls);
    // The same, step by step. A message of rank 0's that is late has its weight before or behind.
    float w[2] = {0, 0}, late = 0;
    std::vector<int> ended;
    std::vector<size_t> validated;
    const auto validate = [&](size_t call) {
      validated.push_back(call);
      if (w[0] + w[1] <= kMost) return false;
      for (int p = 0; p < 2; ++p) w[p] -= added(call, p);
      ended.push_back(kAmend);
      return true;
    };
    for (size_t call = 0; call < calls; ++call) {
      if (call > 0) validate(call - 1);
      late += w[0];
      for (int p = 0; p < 2; ++p) w[p] += added(call, p);
      late += w[0];
      ended.push_back(kTrain);
    }
    if (!validate(calls - 1)) {
      late += w[0];
      ended.push_back(kValidate);
    }
    for (int p = 0; p < 2; ++p) {
      CHECK(state(*flow.executor, p, "w")[0] == w[p]);
      CHECK(flow.validated[static_cast<size_t>(p)] == validated);
      CHECK(flow.ended[static_cast<size_t>(p)] == ended);
    }
    CHECK(state(*flow.executor, 1, "late")[0] == late);
  }
}

TEST_CASE("a flow that is stopped has taken back the step behind which it was, and is the last") {
  for (const size_t stop : {0, 1, 2}) {  // behind a step that is kept, too large, kept
    CAPTURE(stop);
    FlowRun flow;
    flow.run(4, stop);
    // Of step 1 there is nothing left: it was amended.
    for (int p = 0; p < 2; ++p) {
      CHECK(state(*flow.executor, p, "w")[0] == (stop == 0 ? 0 : added(0, p)));
      CHECK(flow.validated[static_cast<size_t>(p)].back() == stop);
      CHECK(flow.ended[static_cast<size_t>(p)].back() == kAmend);
    }
    CHECK_THROWS_AS(flow.executor->run(kTrain, no_loads), CheckFailure);
  }
}

TEST_CASE("a step that is to be amended outside of a flow is a failed check") {
  FlowRun flow;
  flow.run(1, 1);
  CHECK_NOTHROW(flow.executor->run(kTrain, no_loads));
  for (int p = 0; p < 2; ++p) state(*flow.executor, p, "w")[0] = kMost;
  CHECK(contains(error_of([&] { flow.executor->run(kTrain, no_loads); }),
                 {"there is no step before that could be amended"}));
}

TEST_CASE("what is done between the programs of a flow is no stall, however long it takes") {
  FlowRun flow;
  flow.options.stall_seconds = 0.05;
  flow.behind_a_program = [] { std::this_thread::sleep_for(std::chrono::milliseconds(150)); };
  CHECK_NOTHROW(flow.run(2, 2));
}

TEST_CASE("a flow counts a run a call, traces the first one and keeps the last one's figures") {
  FlowRun flow;
  trace::Trace trace;
  flow.run(3, 3, &trace);
  for (const Measured& measured : flow.executor->measured())
    CHECK(measured.instructions == 5);  // of the training program, not of the validation behind it
  CHECK(trace.dropped == 0);
  CHECK(std::count_if(trace.spans.begin(), trace.spans.end(), [](const trace::Span& span) {
          return span.category == trace::Category::kStep && span.command == 0;
        }) == 2);
  CHECK(std::count_if(trace.spans.begin(), trace.spans.end(), [](const trace::Span& span) {
          return span.category == trace::Category::kStep;
        }) == 2);
  // The run behind it is the fourth.
  const Loader fails = [](const std::string&, int32_t, RankId, const ir::TensorType&, void*) {
    throw RunError("no data");
  };
  CHECK(contains(error_of([&] { flow.executor->run(kAmend, fails); }), {", amend run 3, "}));
  FlowRun broken;
  broken.without_data = 2;
  CHECK(contains(error_of([&] { broken.run(4, 4); }), {", train run 2, ", "load 'x'", "no data"}));
}

}  // namespace
}  // namespace mw::execute
