// Schedules that are handed to the compiler: backwards split into I and W, stages folded over the
// ranks. They keep the bits of 1F1B where every stage takes its microbatches in order.
#include <doctest/doctest.h>

#include <algorithm>

#include "training.h"

namespace mw {
namespace {

using equivalence::bit_difference;
using equivalence::Net;
using equivalence::Trained;
using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Schedule;

Schedule of_plan(const compile::Plan& plan) {
  pipeline::ScheduleRequest request;
  request.kind = plan.schedule;
  request.ranks = static_cast<int32_t>(plan.pp);
  request.chunks = static_cast<int32_t>(plan.chunks);
  request.microbatches = static_cast<int32_t>(plan.microbatches);
  return pipeline::make_schedule(request);
}

// Every B of a microbatch for which `splits` becomes I, and W `delay` actions later (at the end of
// the rank's list: behind it), in the order of the microbatches.
template <typename Splits>
Schedule with_split(Schedule schedule, size_t delay, Splits splits) {
  schedule.name += " split";
  for (auto& actions : schedule.ranks) {
    std::vector<Action> made;
    std::vector<std::pair<size_t, Action>> waiting;  // from when on
    const auto flush = [&](bool all) {
      while (!waiting.empty() && (all || waiting.front().first <= made.size())) {
        made.push_back(waiting.front().second);
        waiting.erase(waiting.begin());
      }
    };
    for (Action action : actions) {
      flush(false);
      if (action.kind == ActionKind::kB && splits(action)) {
        action.kind = ActionKind::kI;
        made.push_back(action);
        action.kind = ActionKind::kW;
        waiting.emplace_back(made.size() + delay, action);
      } else {
        // A whole backward adds to the same accumulators: what is before it in order goes first.
        if (action.kind == ActionKind::kB) flush(true);
        made.push_back(action);
      }
    }
    flush(true);
    actions = std::move(made);
  }
  return schedule;
}

// Stages 0 … p-1 down the ranks and p … 2p-1 back; all forwards, then all backwards with I first.
Schedule folded(int32_t ranks, int32_t microbatches) {
  Schedule schedule;
  schedule.name = "folded";
  schedule.microbatches = microbatches;
  schedule.placement.ranks = ranks;
  for (int32_t r = 0; r < ranks; ++r) schedule.placement.rank_of_stage.push_back(r);
  for (int32_t r = ranks; r-- > 0;) schedule.placement.rank_of_stage.push_back(r);
  schedule.ranks.resize(static_cast<size_t>(ranks));
  const int32_t stages = 2 * ranks;
  for (int32_t r = 0; r < ranks; ++r) {
    auto& actions = schedule.ranks[static_cast<size_t>(r)];
    const auto add = [&](ActionKind kind, int32_t stage, int32_t microbatch) {
      Action action;
      action.kind = kind;
      action.stage = StageId(stage);
      action.first = microbatch;
      actions.push_back(action);
    };
    for (int32_t m = 0; m < microbatches; ++m) {
      add(ActionKind::kF, r, m);
      add(ActionKind::kF, stages - 1 - r, m);
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      add(ActionKind::kI, stages - 1 - r, m);
      add(ActionKind::kI, r, m);
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      add(ActionKind::kW, r, m);
      add(ActionKind::kW, stages - 1 - r, m);
    }
  }
  return schedule;
}

const auto kAll = [](const Action&) { return true; };
const auto kOdd = [](const Action& action) { return action.first % 2 == 1; };

void check_splits(const Net& net, const std::string& text) {
  CAPTURE(net.name);
  CAPTURE(text);
  const compile::Plan plan = compile::parse_plan(text);
  const Trained whole = equivalence::train(net, plan);
  const Schedule schedule = of_plan(plan);
  for (const size_t delay : {0, 2, 1000}) {
    for (const bool some : {false, true}) {
      const Schedule split =
          some ? with_split(schedule, delay, kOdd) : with_split(schedule, delay, kAll);
      CAPTURE(delay);
      CAPTURE(some);
      REQUIRE(pipeline::findings(split).empty());
      CHECK(bit_difference(equivalence::train(net, plan, {&split}), whole) == "");
    }
  }
}

TEST_CASE("a backward split into I and W trains to the bits of B") {
  const Net gpt = equivalence::small_gpt();
  check_splits(gpt, "pp=2,microbatches=4");
  check_splits(gpt, "pp=4,microbatches=8");
  check_splits(gpt, "dp=2,pp=2,microbatches=4,zero=1,recompute=selective");
  check_splits(gpt, "tp=2,pp=2,microbatches=4,recompute=full");
  check_splits(gpt, "dp=2,pp=2,chunks=2,microbatches=4,zero=3");
  check_splits(gpt, "dp=2,tp=2,pp=2,microbatches=4,sp,zero=2");
  check_splits(equivalence::small_gpt(0.1), "pp=2,microbatches=4,recompute=full");
}

TEST_CASE("stages folded over the ranks train to the bits of the looped ones") {
  for (const std::string text :
       {"pp=2,chunks=2,microbatches=4", "dp=2,pp=2,chunks=2,microbatches=2,zero=2"}) {
    CAPTURE(text);
    const compile::Plan plan = compile::parse_plan(text);
    const Net gpt = equivalence::small_gpt();
    const Schedule schedule = folded(2, static_cast<int32_t>(plan.microbatches));
    REQUIRE(pipeline::findings(schedule).empty());
    CHECK(bit_difference(equivalence::train(gpt, plan, {&schedule}),
                         equivalence::train(gpt, plan)) == "");
  }
}

TEST_CASE(
    "I, W and B of one stage are fragments of their own; each sends and saves what its readers "
    "need") {
  const compile::Plan plan = compile::parse_plan("pp=2,microbatches=4");
  const Schedule split = with_split(of_plan(plan), 1, kOdd);
  const Net gpt = equivalence::small_gpt();
  const ir::Module model = gpt.build(4);
  const compile::CompiledPlan compiled = equivalence::compiled(gpt, model, plan, {&split});
  std::map<ActionKind, int> fragments;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) ++fragments[fragment.kind];
  for (const ActionKind kind : {ActionKind::kF, ActionKind::kI, ActionKind::kW, ActionKind::kB})
    CHECK(fragments[kind] == 2);
  // One ring for activations and one for gradients, whoever sends them.
  CHECK(compiled.train.channels.size() == 2);
}

TEST_CASE("a schedule that does not fit the plan is refused with all that is wrong") {
  const compile::Plan plan = compile::parse_plan("pp=2,microbatches=4");
  Schedule schedule = of_plan(compile::parse_plan("pp=4,microbatches=2"));
  schedule.ranks[0][0].slice = 1;
  schedule.slices = 2;
  const Net gpt = equivalence::small_gpt();
  try {
    equivalence::train(gpt, plan, {&schedule});
    FAIL("accepted");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    CHECK(text.find("has 4 stages on 4 pipeline ranks, the plan 2 on 2") != std::string::npos);
    CHECK(text.find("has 2 microbatches, the plan 4") != std::string::npos);
    CHECK(text.find("has 2 slices of a sequence, the plan 1") != std::string::npos);
  }
}

}  // namespace
}  // namespace mw
