#include "compile/replicas.h"

#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/core.h>

#include "base/error.h"
#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/groups.h"
#include "pipeline/verifier.h"

namespace mw::compile::replicas_test {
namespace {

using pipeline::ActionKind;
using pipeline::Command;

CompiledPlan compiled(const std::string& plan, int64_t global_batch = 64) {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  ModelShape shape;
  shape.global_batch = global_batch;
  return compile({model, &model, parse_plan(plan), shape, {}});
}

std::string findings(const CompiledPlan& plan) {
  pipeline::VerifyOptions options;
  options.module = &plan.module;
  return join(pipeline::verify(plan.train, options).findings, "\n");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a replica unfolds to stages of its own, a joined forward to one a microbatch") {
  const pipeline::Schedule schedule =
      pipeline::make_schedule({.kind = "chimera-doubling", .ranks = 2, .microbatches = 4});
  const pipeline::Schedule unfolded = unfold(schedule);
  CHECK(unfolded.placement.rank_of_stage == std::vector<int32_t>{0, 1, 1, 0});
  CHECK(unfolded.placement.replicas() == 1);
  CHECK(pipeline::findings(unfolded).size() == 4);  // a stage lacks the work of the other
  for (size_t r = 0; r < 2; ++r) {
    size_t forwards = 0;
    for (const pipeline::Action& action : unfolded.ranks[r]) {
      CHECK(action.count == 1);
      CHECK(action.replica == 0);
      forwards += action.kind == ActionKind::kF ? 1 : 0;
    }
    CHECK(forwards == 4);
  }
  CHECK(unfolded_name(3, 2, 1) == "1^1");
  CHECK(unfolded_name(5, 2, 4) == "1/2");
}

TEST_CASE("a replica's slices lie behind those of the replica before, and fold back") {
  pipeline::Schedule cut;
  cut.slices = 3;
  cut.placement = {.ranks = 2, .rank_of_stage = {0, 1}, .rank_of_replica = {{1, 0}}};
  cut.ranks = {{{.stage = StageId(1), .replica = 1, .slice = 2},
                {.stage = StageId(0), .replica = 0, .slice = 1},
                {.stage = StageId(1), .replica = 1, .slice = -1}},
               {}};
  const pipeline::Schedule unfolded = unfold(cut);
  CHECK(unfolded.placement.rank_of_stage ==
        std::vector<int32_t>{0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0});
  const std::vector<int32_t> stages{11, 2, 7}, replicas{1, 0, 1}, folded_stages{1, 0, 1};
  pipeline::Program program;
  program.ranks.resize(1);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(unfolded.ranks[0][i].stage == StageId(stages[i]));
    program.ranks[0].commands.emplace_back().action = unfolded.ranks[0][i];
  }
  fold(program, 2, 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(program.ranks[0].commands[i].action.stage == StageId(folded_stages[i]));
    CHECK(program.ranks[0].commands[i].action.replica == replicas[i]);
  }
}

TEST_CASE("actions of one microbatch that overlap still do when unfolded, joined ones do not") {
  pipeline::Schedule schedule;
  schedule.placement = {.ranks = 1, .rank_of_stage = {0}};
  const auto action = [](ActionKind kind, int32_t first, int32_t count, int32_t paired_with) {
    return pipeline::Action{.kind = kind,
                            .stage = StageId(0),
                            .first = first,
                            .count = count,
                            .paired_with = paired_with};
  };
  schedule.ranks = {{action(ActionKind::kF, 0, 2, 2), action(ActionKind::kF, 2, 1, 3),
                     action(ActionKind::kB, 0, 1, 0), action(ActionKind::kB, 1, 1, 1)}};
  const pipeline::Schedule unfolded = unfold(schedule);
  std::vector<int32_t> paired;
  for (const pipeline::Action& one : unfolded.ranks[0]) paired.push_back(one.paired_with);
  CHECK(paired == std::vector<int32_t>{-1, -1, 4, -1, 2});
}

TEST_CASE("a stage with two replicas is held, trained and summed on both ranks") {
  const CompiledPlan plan = compiled("pp=4,schedule=chimera,microbatches=4");
  CHECK(findings(plan) == "");
  for (size_t r = 0; r < 4; ++r) {
    std::vector<std::string> here, there;
    for (const FlatGroup& group : plan.groups[r]) here.push_back(group.name);
    for (const FlatGroup& group : plan.groups[3 - r]) there.push_back(group.name);
    CHECK(here == there);
    CHECK(!here.empty());
  }
  // The two replicas call the same fragments.
  CHECK(std::count_if(plan.train.fragments.begin(), plan.train.fragments.end(),
                      [](const auto& f) { return f.kind == ActionKind::kF; }) <= 4);
  bool seen = false;
  for (const Command& command : plan.train.ranks[0].commands) {
    seen = seen || (command.kind == Command::Kind::kCall && command.action.replica == 1 &&
                    command.action.stage == StageId(3));
  }
  CHECK(seen);
}

TEST_CASE("a sum over replicas that is forgotten is refused by the weight's name") {
  CompiledPlan plan = compiled("pp=2,schedule=chimera,microbatches=4");
  REQUIRE(findings(plan) == "");
  for (pipeline::Fragment& fragment : plan.train.fragments) {
    for (ir::Op& op : fragment.graph.ops) {
      if (op.kind != ir::OpKind::kAllReduce ||
          !std::holds_alternative<ir::Holders>(op.as<ir::CollectiveAttrs>().group))
        continue;
      op.kind = ir::OpKind::kCopy;
      op.attrs = ir::NoAttrs{};
      const std::string found = findings(plan);
      CAPTURE(found);
      CHECK(contains(found, "updates 'weight/"));
      CHECK(contains(found,
                     "which 2 pipeline ranks hold, with a gradient that is summed over "
                     "holders 0 times"));
      return;
    }
  }
  FAIL("nothing is summed over holders");
}

// The update's collectives that add up gradients: "all_reduce holders(weight/h.3, [dp]) 2", the
// number of groups last.
std::string sums_of(const CompiledPlan& plan, size_t rank) {
  const std::vector<Command>& commands = plan.train.ranks[rank].commands;
  const auto update = std::find_if(commands.begin(), commands.end(), [](const Command& command) {
    return command.kind == Command::Kind::kCall && command.action.kind == ActionKind::kUpdate;
  });
  std::vector<std::string> sums;
  const ir::Graph& graph = plan.train.fragments[update->fragment.index()].graph;
  for (const ir::Op& op : graph.ops) {
    if (op.kind != ir::OpKind::kAllReduce && op.kind != ir::OpKind::kReduceScatter) continue;
    if (graph.type(op.operands[0]).dtype != DType::kF32 || graph.type(op.operands[0]).rank() == 0)
      continue;
    sums.push_back(fmt::format("{} {} {}", ir::op_name(op.kind),
                               pipeline::group_label(op.as<ir::CollectiveAttrs>().group),
                               op.operands.size()));
  }
  return join(sums, "; ");
}

TEST_CASE("replicas are summed with their data-parallel ranks, the last stage first") {
  struct Case {
    const char* plan;
    std::string sums;  // of pipeline rank 0, which has stages 0 and 3
  };
  const std::vector<Case> cases = {{"pp=4,schedule=chimera,microbatches=4",
                                    "all_reduce holders weight/h.3 2; "
                                    "all_reduce holders weight/embed 2; "
                                    "all_reduce holders weight/words 1"},
                                   // One collective in place of two.
                                   {"dp=2,pp=4,schedule=chimera,microbatches=4",
                                    "all_reduce holders weight/h.3,dp 2; "
                                    "all_reduce holders weight/embed,dp 2; "
                                    "all_reduce holders weight/words,dp 1"},
                                   // What ZeRO leaves to a rank.
                                   {"dp=2,pp=4,schedule=chimera,microbatches=4,zero=1",
                                    "reduce_scatter dp 5; "
                                    "all_reduce holders weight/h.3 2; "
                                    "all_reduce holders weight/embed 2; "
                                    "all_reduce holders weight/words 1"},
                                   {"dp=2,pp=4,schedule=chimera,microbatches=4,zero=2",
                                    "all_reduce holders weight/h.3 2; "
                                    "all_reduce holders weight/embed 2; "
                                    "all_reduce holders weight/words 1"},
                                   {"dp=2,pp=4,schedule=chimera,microbatches=4,bucket_mb=0",
                                    "all_reduce holders weight/h.3,dp 1; "
                                    "all_reduce holders weight/h.3,dp 1; "
                                    "all_reduce holders weight/embed,dp 1; "
                                    "all_reduce holders weight/embed,dp 1; "
                                    "all_reduce holders weight/words,dp 1"}};
  for (const Case& c : cases) {
    CAPTURE(std::string(c.plan));
    const CompiledPlan plan = compiled(c.plan);
    CHECK(findings(plan) == "");
    CHECK(sums_of(plan, 0) == c.sums);
    CHECK(sums_of(plan, 3) == c.sums);
  }
}

TEST_CASE("gradients that one replica takes for others are found") {
  const CompiledPlan whole = compiled("dp=2,pp=4,schedule=chimera,microbatches=4");
  REQUIRE(whole.train.ranks[0].commands.back().fragment !=
          whole.train.ranks[3].commands.back().fragment);
  const auto summed_over = [&](const ir::Holders& holders) {
    CompiledPlan plan = whole;
    pipeline::Fragment& update =
        plan.train.fragments[plan.train.ranks[3].commands.back().fragment.index()];
    const auto op =
        std::find_if(update.graph.ops.begin(), update.graph.ops.end(), [](const ir::Op& o) {
          return o.kind == ir::OpKind::kAllReduce &&
                 std::holds_alternative<ir::Holders>(o.as<ir::CollectiveAttrs>().group);
        });
    ir::CollectiveAttrs attrs = op->as<ir::CollectiveAttrs>();
    attrs.group = holders;
    op->attrs = attrs;
    return findings(plan);
  };
  const std::string apart = summed_over({"weight/h.3"});
  CAPTURE(apart);
  CHECK(contains(apart, "must make result 0 as"));
  const std::string twice = summed_over({"weight/h.3", {"dp", "xp"}});
  CAPTURE(twice);
  CHECK(contains(twice, "works over axis 'xp', which the mesh"));
  const std::string others = summed_over({"weight/h.2", {"dp"}});
  CAPTURE(others);
  CHECK(contains(others, "to which pipeline rank 3 does not belong"));
}

TEST_CASE("a microbatch that a replica adds twice is found where the replicas are summed") {
  CompiledPlan plan = compiled("pp=2,schedule=dualpipe,microbatches=4");
  std::vector<Command>& commands = plan.train.ranks[1].commands;
  const auto last = std::find_if(commands.rbegin(), commands.rend(), [](const Command& command) {
    return command.kind == Command::Kind::kCall && command.action.kind == ActionKind::kW;
  });
  REQUIRE(last != commands.rend());
  const Command again = *last;
  commands.insert(last.base(), again);
  const std::string found = findings(plan);
  CAPTURE(found);
  CHECK(contains(found, "of pipeline rank 0 and 'grad/"));
  CHECK(contains(found, fmt::format("hold microbatch {} 2 times", again.action.first)));
}

TEST_CASE("a replica without a microbatch is an error, with how many microbatches are enough") {
  struct Case {
    std::string plan;
    int32_t microbatches, least, idle;
    std::string more = "";
  };
  const std::vector<Case> cases = {
      {"pp=2,schedule=chimera", 1, 2, 1},
      {"pp=4,schedule=chimera,pairs=2", 1, 4, 1, ", nor have 2 more"},
      {"pp=4,schedule=chimera,pairs=2", 2, 4, 2, ", nor has 1 more"},
      {"pp=4,schedule=chimera,pairs=2", 3, 4, 3},
      {"pp=2,schedule=chimera-doubling", 1, 2, 1},
      {"pp=4,schedule=chimera-doubling,pairs=2", 3, 4, 3},
      {"pp=2,schedule=chimera-halving", 1, 2, 1},
      {"pp=4,schedule=chimera-halving,pairs=2", 3, 4, 3},
  };
  for (const Case& c : cases) {
    const auto plan = [&](int32_t n) { return fmt::format("{},microbatches={}", c.plan, n); };
    const std::string text = plan(c.microbatches);
    CAPTURE(text);
    const std::string kind = parse_plan(plan(c.least)).schedule;
    const std::string expected = fmt::format(
        "--plan: schedule {}: replica {} of the stages has none of the {} "
        "microbatches{}; it takes at least {}",
        kind, c.idle, c.microbatches, c.more, c.least);
    CHECK_THROWS_WITH(compiled(text), expected.c_str());
    CHECK_THROWS_AS(compiled(plan(c.least - 1)), Error);
    CHECK(findings(compiled(plan(c.least), 2 * 3 * 4 * 7)) == "");
  }
}

TEST_CASE("where no number of microbatches is enough for all replicas fewer pairs are") {
  CHECK_THROWS_WITH(compiled("pp=1024,schedule=chimera,pairs=512,microbatches=1"),
                    doctest::Contains("nor have 1022 more; use fewer pairs"));
}

TEST_CASE("a schedule of one's own without work for a replica is an error") {
  const ir::Module model = partition::test::gpt_net({.blocks = 4});
  const pipeline::Schedule own =
      pipeline::make_schedule({.kind = "chimera", .ranks = 2, .microbatches = 1});
  Plan plan = parse_plan("pp=2,schedule=chimera,microbatches=2");
  plan.microbatches = 1;
  ModelShape shape;
  shape.global_batch = 4;
  CHECK_THROWS_WITH(compile({model, &model, plan, shape, {}, &own}),
                    "schedule chimera: replica 1 of the stages has none of the 1 microbatches; "
                    "give every replica some");
}

}  // namespace
}  // namespace mw::compile::replicas_test
