// What ranks load, keep and let go of in their programs.
#include <doctest/doctest.h>

#include <map>

#include "compile/compile.h"
#include "partition/test_nets.h"

namespace mw::compile::lower_test {
namespace {

using pipeline::ActionKind;
using pipeline::Command;

CompiledPlan compiled(const std::string& plan, bool offsets = true) {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  ModelShape shape;
  shape.global_batch = 64;
  CompileRequest request{model, nullptr, parse_plan(plan), shape, {}};
  request.offsets = offsets;
  return compile(request);
}

TEST_CASE(
    "a scalar is loaded once a step, a batch once a microbatch for every stage that reads it") {
  const CompiledPlan plan = compiled("pp=2,chunks=2,microbatches=4");
  for (size_t r = 0; r < 2; ++r) {
    CAPTURE(r);
    const pipeline::RankProgram& rank = plan.train.ranks[r];
    std::map<std::string, int> loads;
    for (const Command& command : rank.commands) {
      if (command.kind != Command::Kind::kLoad) continue;
      ++loads[command.name.str()];
      const bool scalar = rank.buffers[command.buffers[0].index()].type().rank() == 0;
      CHECK((command.microbatch < 0) == scalar);
    }
    for (const std::string name : {"loss_scale", "lr", "step_number"}) {
      if (loads.contains(name)) CHECK(loads.at(name) == 1);
    }
    CHECK(loads.at("loss_scale") == 1);
    CHECK(loads.at("positions") == 8);  // in both stages
  }
}

TEST_CASE("a slot is released in the action that read it last, right behind its command") {
  const CompiledPlan plan = compiled("pp=4,microbatches=8,schedule=zb-h1");
  for (const pipeline::RankProgram& rank : plan.train.ranks) {
    for (size_t c = 0; c < rank.commands.size(); ++c) {
      const Command& release = rank.commands[c];
      if (release.kind != Command::Kind::kRelease) continue;
      size_t before = c;
      while (rank.commands[before].kind == Command::Kind::kRelease) --before;
      CHECK(rank.commands[before].action == release.action);
      const auto& read = rank.commands[before].buffers;
      CHECK(std::find(read.begin(), read.end(), release.buffers[0]) != read.end());
    }
  }
}

TEST_CASE("the update is of all microbatches; what is saved for the backward are activations") {
  const CompiledPlan plan = compiled("pp=2,microbatches=4");
  for (const pipeline::RankProgram& rank : plan.train.ranks) {
    std::map<pipeline::Category, int> buffers;
    for (const pipeline::Buffer& buffer : rank.buffers) ++buffers[buffer.category];
    CHECK(buffers[pipeline::Category::kActivations] > 0);
    for (const Command& command : rank.commands) {
      if (command.action.kind != ActionKind::kUpdate) continue;
      CHECK(command.action.first == 0);
      CHECK(command.action.count == 4);
    }
  }
}

TEST_CASE("without offsets ranks have no arenas, and the same commands") {
  const CompiledPlan with = compiled("pp=2,microbatches=4"),
                     without = compiled("pp=2,microbatches=4", false);
  for (size_t r = 0; r < 2; ++r) {
    CHECK(with.train.ranks[r].arena.value > 0);
    CHECK(without.train.ranks[r].arena.value == 0);
    CHECK(with.train.ranks[r].commands.size() == without.train.ranks[r].commands.size());
  }
}

}  // namespace
}  // namespace mw::compile::lower_test
