#include "compile/channels.h"

#include <doctest/doctest.h>

#include <fmt/core.h>

#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/verifier.h"

namespace mw::compile {
namespace {

CompiledPlan compiled(const ir::Module& model, const std::string& plan) {
  ModelShape shape;
  shape.global_batch = 64;
  return compile({model, nullptr, parse_plan(plan), shape, {}});
}

const pipeline::Channel& channel(const pipeline::Program& program, const std::string& name) {
  for (const pipeline::Channel& c : program.channels) {
    if (c.name == name) return c;
  }
  FAIL("no channel ", name);
  return program.channels.front();
}

TEST_CASE("every crossing has a channel of its own with its ranks and its local type") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  const CompiledPlan plan = compiled(model, "dp=2,tp=2,sp,pp=4,microbatches=8");
  CHECK(plan.train.channels.size() == 6);
  for (int32_t s = 0; s < 3; ++s) {
    const pipeline::Channel& forward =
        channel(plan.train, fmt::format("h.{}.out {}->{}", s, s, s + 1));
    CHECK(forward.from == s);
    CHECK(forward.to == s + 1);
    CHECK(ir::to_string(forward.type) == "f32[2,4,8]");  // batch over dp, sequence over tp
  }
}

TEST_CASE(
    "1F1B's rings hold two values, gpipe's forward rings too, a skip as many as are under way") {
  const ir::Module model = partition::test::mlp_net({.B = 4, .blocks = 2});
  const CompiledPlan one = compiled(model, "pp=4,microbatches=8");
  CHECK(channel(one.train, "in.out 0->1").slots >= 1);
  // Stage 3 reads in.out three stages later: the values of the stages between are under way.
  CHECK(channel(one.train, "in.out 0->3").slots > channel(one.train, "block.1.out 2->3").slots);
  for (const std::string text : {"pp=4,microbatches=8", "pp=4,microbatches=8,schedule=gpipe",
                                 "pp=2,chunks=2,microbatches=8", "pp=2,microbatches=1"}) {
    CAPTURE(text);
    const CompiledPlan plan = compiled(model, text);
    for (const pipeline::Channel& c : plan.train.channels) {
      CHECK(c.slots >= 1);
      CHECK(c.slots <= plan.train.microbatches);
      CHECK(c.from != c.to);
    }
    pipeline::VerifyOptions options;
    options.module = &plan.module;
    CHECK(join(pipeline::verify(plan.train, options).findings, "\n") == "");
  }
}

TEST_CASE("slots do not follow the number of microbatches under 1F1B") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  const CompiledPlan few = compiled(model, "pp=4,microbatches=8"),
                     many = compiled(model, "pp=4,microbatches=32");
  for (const pipeline::Channel& c : few.train.channels)
    CHECK(channel(many.train, c.name).slots == c.slots);
}

TEST_CASE(
    "messages that are read in another order than they are sent in have slots from first to last") {
  const ir::Module model = partition::test::mlp_net({.B = 4, .blocks = 2});
  // The last of four is read first, and that of microbatch 0 again in its backward, last of all.
  const std::string order =
      "0F0,0F1,0F2,0F3,0B3,0B1,0B2,0B0\n"
      "1F3,1B3,1F0,1F1,1B1,1F2,1I2,1W2,1B0\n";
  const auto file = [&](const std::string&) { return order; };
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan plan =
      compile({model, nullptr, parse_plan("schedule=order.csv", "--plan", file), shape, {}});
  CHECK(channel(plan.train, "block.0.out 0->1").slots == 4);
  pipeline::VerifyOptions options;
  options.module = &plan.module;
  CHECK(join(pipeline::verify(plan.train, options).findings, "\n") == "");
  std::vector<int32_t> received, calls;
  for (const pipeline::Command& command : plan.train.ranks[1].commands) {
    if (command.kind == pipeline::Command::Kind::kReceive &&
        plan.train.channels[static_cast<size_t>(command.channel)].name == "block.0.out 0->1")
      received.push_back(command.microbatch);
    if (command.kind == pipeline::Command::Kind::kCall && command.action.stage.valid())
      calls.push_back(command.microbatch);
  }
  CHECK(received == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(calls == std::vector<int32_t>{3, 3, 0, 1, 1, 2, 2, 2, 0});
}

// What one channel holds at a time of a net of two stages, whose second stage's first product reads
// the value in its forward and for its weight gradient.
TEST_CASE(
    "slots are the most messages at a time, whether a backward takes one, two or three units") {
  struct Case {
    const char *name, *first, *second;
    int32_t slots;
  };
  for (const Case& c : std::vector<Case>{
           // B of one unit leaves room for three, of two for all.
           {"a long B", "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3", 4},
           // The value is held up to the end of W: I of one unit for four, of two for five.
           {"a long I", "0F0,0F1,0F2,0F3,0F4,0B0,0B1,0B2,0B3,0B4",
            "1F0,1I0,1W0,1F1,1I1,1W1,1F2,1I2,1W2,1F3,1I3,1W3,1F4,1I4,1W4", 5},
           {"one way and the other", "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3",
            "1F0,1B0,1F1,1I1,1W1,1F2,1B2,1F3,1I3,1W3", 2},
           // Microbatch 0 has its slot to the end, so the others have theirs in a row behind it.
           {"the oldest is the last", "0F0,0F1,0B1,0F2,0B2,0F3,0B3,0B0",
            "1F0,1F1,1B1,1F2,1B2,1F3,1B3,1B0", 4},
           // A message can be read from the unit behind the one that sent it.
           {"forwards in a row", "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0",
            "1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0", 4}}) {
    CAPTURE(c.name);
    const std::string order = fmt::format("{}\n{}\n", c.first, c.second);
    const auto file = [&](const std::string&) { return order; };
    const ir::Module model = partition::test::mlp_net({.B = 4, .blocks = 2});
    ModelShape shape;
    shape.global_batch = 60;
    const CompiledPlan plan =
        compile({model, &model, parse_plan("schedule=order.csv", "--plan", file), shape, {}});
    CHECK(channel(plan.train, "block.0.out 0->1").slots == c.slots);
    // In evaluation one is written while the one before is read.
    CHECK(channel(*plan.eval, "block.0.out 0->1").slots == 2);
  }
}

TEST_CASE("stages on one rank hand values over without a channel") {
  const ir::Module model = partition::test::mlp_net({.blocks = 2});
  // Stages 0 and 2 are on rank 0, 1 and 3 on rank 1: in.out goes 0->1 and 0->3.
  const CompiledPlan plan = compiled(model, "pp=2,chunks=2,microbatches=2");
  for (const pipeline::Channel& c : plan.train.channels) CHECK(c.from != c.to);
  const CompiledPlan gathered = compiled(model, "pp=1,chunks=4,microbatches=2");
  CHECK(gathered.train.channels.empty());
}

TEST_CASE("init has no channels, evaluation only the forward ones") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  ModelShape shape;
  shape.global_batch = 4;
  const CompiledPlan plan = compile({model, &model, parse_plan("pp=2,microbatches=4"), shape, {}});
  CHECK(plan.init.channels.empty());
  REQUIRE(plan.eval.has_value());
  CHECK(plan.eval->channels.size() == 1);
  CHECK(plan.train.channels.size() == 2);
}

}  // namespace
}  // namespace mw::compile
