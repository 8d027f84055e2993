// Programs of plans with post-validation: sound, and refused after one edit.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/verifier.h"

namespace mw::compile::post_validation_test {
namespace {

using pipeline::Command;
using pipeline::Fragment;
using pipeline::Program;

CompiledPlan compiled(const std::string& plan) {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  ModelShape shape;
  shape.global_batch = 64;
  return compile({model, nullptr, parse_plan(plan), shape, {}});
}

std::string findings(const CompiledPlan& plan) {
  pipeline::VerifyOptions options;
  options.module = &plan.module;
  std::vector<std::string> all;
  for (const Program* program : {&plan.train, &*plan.validate, &*plan.amend}) {
    for (const std::string& finding : pipeline::verify(*program, options).findings)
      all.push_back(program->name + ": " + finding);
  }
  if (all.empty()) all = pipeline::amendment_findings(plan.train, *plan.amend);
  return join(all, "\n");
}

// The op of a kind that comes as the nth of all in the program's fragments.
ir::Op& op_of(Program& program, ir::OpKind kind, size_t nth = 0) {
  for (Fragment& fragment : program.fragments) {
    for (ir::Op& op : fragment.graph.ops) {
      if (op.kind == kind && nth-- == 0) return op;
    }
  }
  throw CheckFailure("no such op");
}

TEST_CASE("every program of a plan with post-validation is sound") {
  for (const char* plan :
       {"pp=2,microbatches=4", "pp=4,schedule=zb-h2,microbatches=8,dp=2,zero=1",
        "pp=2,schedule=zb-v,microbatches=4,tp=2,sp", "pp=2,schedule=chimera,microbatches=4",
        "pp=4,schedule=dualpipe,microbatches=8,dp=2,zero=3",
        "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,recompute=full,dp=2,zero=2",
        // Stages without blocks: what a rank sends behind its validation comes to one that has not
        // made a gradient yet.
        "pp=3,schedule=v-min,microbatches=16,layers=0:0:1:3:0:0",
        "pp=3,schedule=v-min,microbatches=16,layers=1:0:2:0:1:0"}) {
    CAPTURE(plan);
    CHECK(findings(compiled(std::string(plan) + ",post_validation")) == "");
  }
}

TEST_CASE("forwards before the first loss or gradient run again, others do not") {
  const CompiledPlan plan = compiled("pp=4,schedule=zb-h2,microbatches=8,post_validation");
  for (size_t r = 0; r < 4; ++r) {
    const pipeline::RankProgram& rank = plan.train.ranks[r];
    int64_t forwards = 0;
    for (size_t c = 0; c < static_cast<size_t>(rank.repeatable); ++c) {
      if (rank.commands[c].kind == Command::Kind::kCall &&
          rank.commands[c].action.kind == pipeline::ActionKind::kF)
        ++forwards;
    }
    // Warm-up forwards of zb-h2, 2 (p - r) - 1 [Qi 2024, section 3.2]; the last stage has a loss.
    CHECK(forwards == (r == 3 ? 0 : 2 * (4 - static_cast<int64_t>(r)) - 1));
    CHECK(plan.validate->ranks[r].repeatable ==
          static_cast<int32_t>(plan.validate->ranks[r].commands.size()));
    CHECK(plan.amend->ranks[r].repeatable == 0);
  }
}

struct Case {
  const char* name;
  std::function<void(CompiledPlan&)> edit;
  const char* finding;
};

// What rank 1 sends of its squares is another of its states.
void send_of_other(CompiledPlan& p) {
  pipeline::RankProgram& rank = p.train.ranks[1];
  for (Command& command : rank.commands) {
    if (command.kind != Command::Kind::kCall) continue;
    for (BufferId& id : command.buffers) {
      if (rank.buffers[id.index()].value != "own_norms" ||
          command.action.kind == pipeline::ActionKind::kUpdate)
        continue;
      id = BufferId(0);
    }
  }
}
// The buffer of rank 0's update that holds an output of its fragment.
BufferId& output_of(CompiledPlan& p, size_t rank, const std::string& name) {
  for (Command& command : p.train.ranks[rank].commands) {
    if (command.kind != Command::Kind::kCall ||
        command.action.kind != pipeline::ActionKind::kUpdate)
      continue;
    for (BufferId& id : command.buffers)
      if (p.train.ranks[rank].buffers[id.index()].value == name) return id;
  }
  throw CheckFailure("no such output");
}

const std::vector<Case> kCases = {
    {"the squares of some ranks",
     [](CompiledPlan& p) {
       op_of(p.train, ir::OpKind::kValidate)
           .operands.erase(op_of(p.train, ir::OpKind::kValidate).operands.begin() + 1);
     },
     "validates the squares of 1 pipeline ranks of 2"},
    {"squares that are left elsewhere",
     [](CompiledPlan& p) { output_of(p, 0, "own_norms") = BufferId(0); },
     "where nothing validates them"},
    {"squares that are sent of another state", [](CompiledPlan& p) { send_of_other(p); },
     "which no pipeline rank sent"},
    {"a copy of something else is kept",
     [](CompiledPlan& p) {
       for (Fragment& fragment : p.train.fragments) {
         if (fragment.name != "UPDATE") continue;
         std::vector<ir::Op*> copies;
         for (ir::Op& op : fragment.graph.ops)
           if (op.kind == ir::OpKind::kCopy) copies.push_back(&op);
         copies[1]->operands = copies[2]->operands;  // of the first group's moments
         return;
       }
     },
     "keeps not all that it takes to amend it"},
    {"a rank goes on where the others go back",
     [](CompiledPlan& p) { p.train.ranks[1].repeatable = 0; },
     "1 of 2 pipeline ranks may repeat commands: all go back, or none"},
    {"more is repeated than may be",
     [](CompiledPlan& p) {
       p.train.ranks[0].repeatable = static_cast<int32_t>(p.train.ranks[0].commands.size());
     },
     "may be repeated, but writes a state"},
    {"a number of commands that are none",
     [](CompiledPlan& p) { p.train.ranks[0].repeatable = 9999; },
     "may repeat its first 9999 commands of"},
    {"no state to repeat them by",
     [](CompiledPlan& p) { p.train.ranks[0].amended = BufferId(p.train.ranks[0].states); },
     "which is no state"},
    {"another state to repeat them by",
     [](CompiledPlan& p) { p.train.ranks[0].amended = BufferId(0); },
     "does not tell the buffer 0 by which commands are repeated"},
    {"squares in another order",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(p.train, ir::OpKind::kValidate);
       std::swap(op.operands[0], op.operands[1]);
     },
     "takes the squares of pipeline rank 1 for those of 0"},
    {"a rank's squares twice",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(p.train, ir::OpKind::kValidate);
       op.operands[1] = op.operands[0];
     },
     "takes the squares of pipeline rank 0 for those of 1"},
    {"nothing validates",
     [](CompiledPlan& p) {
       for (pipeline::RankProgram& rank : p.train.ranks) rank.repeatable = 0;
     },
     "too early, and nothing validates it"},
    {"a step is made again beside another",
     [](CompiledPlan& p) {
       for (Command& command : p.train.ranks[0].commands) {
         if (command.action.kind == pipeline::ActionKind::kUpdate)
           command.action.kind = pipeline::ActionKind::kRollback;
       }
     },
     "makes a step again beside other work"},
    {"moments of before in each other's place",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(*p.amend, ir::OpKind::kAdamW);
       std::swap(op.operands[9], op.operands[10]);
     },
     "is amended by no op of 'amend'"},
    {"the factors in each other's place",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(*p.amend, ir::OpKind::kAdamW, 1);
       std::swap(op.operands[4], op.operands[7]);
     },
     "amends a step that is not made"},
    {"the factor of all for the rank's own",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(*p.amend, ir::OpKind::kAdamW);
       op.operands[7] = op.operands[4];
     },
     "is amended by no op of 'amend'"},
    {"the rank's own factor for that of all",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(*p.amend, ir::OpKind::kAdamW);
       op.operands[4] = op.operands[7];
     },
     "is amended by no op of 'amend'"},
    {"the weights for the gradient",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(*p.amend, ir::OpKind::kAdamW);
       op.operands[1] = op.operands[8];
     },
     "is amended by no op of 'amend'"},
    {"a step that is clipped otherwise than it is validated",
     [](CompiledPlan& p) {
       ir::Op& op = op_of(p.train, ir::OpKind::kClip);
       std::get<ir::FlatAttrs>(op.attrs).max_norm = 0.5;
     },
     "others have max_norm=0.5"},
    {"a message is waited for that the sender may go back before",
     [](CompiledPlan& p) {
       pipeline::RankProgram& rank = p.train.ranks[0];
       const auto& commands = rank.commands;
       while (commands[static_cast<size_t>(rank.repeatable)].kind != Command::Kind::kReceive)
         ++rank.repeatable;
       ++rank.repeatable;
     },
     "may be repeated, but pipeline rank 1 may go back before it sends"},
    {"a slot is acquired twice for one message",
     [](CompiledPlan& p) {
       pipeline::RankProgram& rank = p.train.ranks[0];
       const auto acquire =
           std::find_if(rank.commands.begin() + rank.repeatable, rank.commands.end(),
                        [](const Command& c) { return c.kind == Command::Kind::kAcquire; });
       std::rotate(rank.commands.begin() + 1, acquire, acquire + 1);
       ++rank.repeatable;
     },
     "may be repeated, but its slot is published behind what may"},
    {"another weight decay",
     [](CompiledPlan& p) {
       for (Fragment& fragment : p.amend->fragments) {
         for (ir::Op& op : fragment.graph.ops) {
           if (op.kind == ir::OpKind::kAdamW) std::get<ir::FlatAttrs>(op.attrs).weight_decay = 0.5;
         }
       }
     },
     "is amended by no op of 'amend'"},
};

TEST_CASE("one edit of a program with post-validation is found") {
  const CompiledPlan sound = compiled("pp=2,microbatches=4,schedule=zb-h1,post_validation");
  for (const Case& edit : kCases) {
    CAPTURE(edit.name);
    CompiledPlan plan = sound;
    edit.edit(plan);
    const std::string found = findings(plan);
    CAPTURE(found);
    CHECK(found.find(edit.finding) != std::string::npos);
  }
}

TEST_CASE("every rank adds the losses of all, in one order") {
  const CompiledPlan sound = compiled("pp=2,schedule=chimera,microbatches=4,post_validation");
  REQUIRE(findings(sound) == "");
  CompiledPlan plan = sound;
  ir::Op& first = op_of(plan.train, ir::OpKind::kValidate);
  std::swap(first.operands[2], first.operands[3]);
  CHECK(findings(plan).find("adds losses of pipeline ranks that are not in order") !=
        std::string::npos);
  plan = sound;
  op_of(plan.train, ir::OpKind::kValidate).operands.pop_back();
  CHECK(findings(plan).find("pipeline ranks report the losses of other ranks") !=
        std::string::npos);
}

}  // namespace
}  // namespace mw::compile::post_validation_test
