// What a plan has computed again, its updates, evaluation and schedule.
#include <doctest/doctest.h>

#include <map>

#include "base/test_thrown_by.h"
#include "compile/compile.h"
#include "compile/schedule.h"
#include "partition/test_nets.h"

namespace mw::compile::whole_plan_test {
namespace {

using pipeline::ActionKind;
using pipeline::Command;

CompileRequest request_for(const ir::Module& model, const std::string& plan) {
  ModelShape shape;
  shape.global_batch = 64;
  return {model, nullptr, parse_plan(plan), shape, {}};
}

// [layer] products that are computed again.
std::map<int64_t, int> again(const std::string& plan, bool whole = false) {
  const ir::Module model = partition::test::gpt_net({.S = 16});
  CompileRequest request = request_for(model, plan);
  request.whole_recompute = whole;
  std::map<int64_t, int> products;
  for (const pipeline::Fragment& fragment : compile(request).train.fragments) {
    for (const ir::Op& op : fragment.graph.ops) {
      if (!op.recompute.valid()) continue;
      products[op.layer.value] += op.kind == ir::OpKind::kDot ? 1 : 0;
    }
  }
  return products;
}

TEST_CASE("the step arenas of all ranks take exactly so much") {
  // Of unlike chunks, whose columns are as wide as the widest.
  const ir::Module model = partition::test::gpt_net({.blocks = 19});
  CompileRequest request = request_for(model, "pp=2,schedule=zb-v,microbatches=32");
  request.shape.global_batch = 128;
  Bytes total;
  for (const pipeline::RankProgram& rank : compile(request).train.ranks) total += rank.arena;
  CHECK(total == Bytes(478080));
}

TEST_CASE("blocks are computed again, embedding and head are not") {
  using Products = std::map<int64_t, int>;
  // The last product of a block is read by no backward.
  CHECK(again("recompute=full") == Products{{1, 3}, {2, 3}});
  CHECK(again("recompute=full", true) == Products{{1, 4}, {2, 4}});
  // Of each two products the second; where tp divides what it sums over, none.
  CHECK(again("recompute=selective-op") == Products{{1, 1}, {2, 1}});
  CHECK(again("recompute=selective-op,tp=2") == Products{{1, 0}, {2, 0}});
  CHECK(again("recompute=selective-op,dp=2") == Products{{1, 1}, {2, 1}});
}

std::vector<std::string> updates(const pipeline::Program& program) {
  std::vector<std::string> texts;
  for (const pipeline::Fragment& fragment : program.fragments) {
    if (fragment.kind == ActionKind::kUpdate) texts.push_back(ir::to_text(fragment.graph));
  }
  return texts;
}

TEST_CASE("the updates alone are those of the whole program, under every ZeRO stage") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  for (const std::string plan :
       {"dp=2,pp=2,microbatches=4", "dp=2,pp=2,microbatches=4,schedule=chimera",
        "dp=2,pp=2,microbatches=4,schedule=chimera,grad_reduce=step"}) {
    const std::vector<int64_t> zero_stages{0, 1, 2, 3};
    const std::vector<CompiledPlan> alone = compile_updates(request_for(model, plan), zero_stages);
    REQUIRE(alone.size() == 4);
    for (const int64_t zero : zero_stages) {
      CAPTURE(plan);
      CAPTURE(zero);
      CompileRequest request = request_for(model, plan);
      request.plan.zero = zero;
      const CompiledPlan& one = alone[static_cast<size_t>(zero)];
      CHECK(one.plan.plan.zero == zero);
      CHECK(updates(one.train).size() == 2);
      CHECK(updates(one.train) == updates(compile(request).train));
    }
  }
}

TEST_CASE("in evaluation every slice adds its own loss") {
  ir::Module model = partition::test::gpt_net({.blocks = 2});  // of one slice
  for (ir::Value& value : model.graphs[0].values) {
    for (const char* data : {"tokens", "targets", "positions"}) {
      if (value.name == data) value.logical = {"batch", "seq"};
    }
  }
  CompileRequest request = request_for(model, "pp=2,microbatches=2,schedule=seq-1f1b,slices=4");
  request.shape.seq_len = 4 * 8;
  request.eval_model = &model;
  const CompiledPlan plan = compile(request);
  int calls = 0;
  for (const Command& command : plan.eval->ranks[1].commands) {
    if (command.kind != Command::Kind::kCall || command.action.kind != ActionKind::kF) continue;
    ++calls;
    int sums = 0;
    for (const ir::Op& op :
         plan.eval->fragments[static_cast<size_t>(command.fragment.value)].graph.ops)
      sums += op.kind == ir::OpKind::kAccumulate ? 1 : 0;
    CHECK(sums == 1);
  }
  CHECK(calls == 8);
}

TEST_CASE("a schedule that is not the plan's is refused, and what is wrong with it is said") {
  const Plan plan = parse_plan("pp=2,microbatches=4");
  const auto refused = [&](const pipeline::Schedule& schedule) {
    return test::thrown_by([&] { given_schedule(&schedule, plan); });
  };
  const auto made = [](const pipeline::ScheduleRequest& request) {
    return pipeline::make_schedule(request);
  };
  CHECK(refused(made({.kind = "1f1b", .ranks = 2, .microbatches = 4})) == "no error");
  CHECK(refused(made({.kind = "interleaved-1f1b", .ranks = 2, .chunks = 2, .microbatches = 4})) ==
        "schedule interleaved-1f1b: has 4 stages on 2 pipeline ranks, the plan 2 on 2");
  CHECK(refused(made({.kind = "seq-1f1b", .ranks = 2, .microbatches = 4, .slices = 2})) ==
        "schedule seq-1f1b: has 2 slices of a sequence, the plan 1");
  pipeline::Schedule lacks = made({.kind = "1f1b", .ranks = 2, .microbatches = 4});
  lacks.ranks[1].pop_back();
  CHECK(refused(lacks) ==
        "schedule 1f1b: rank 1 action 6 (1F3) has no B of its microbatch after it");
}

TEST_CASE("a schedule from a file validates behind its step where the plan says so") {
  const auto file = [](const std::string&) { return "0F0,0B0\n1F0,1B0\n"; };
  CHECK(!schedule_of(parse_plan("schedule=order.csv", "--plan", file)).post_validation);
  CHECK(schedule_of(parse_plan("schedule=order.csv,post_validation", "--plan", file))
            .post_validation);
}

}  // namespace
}  // namespace mw::compile::whole_plan_test
