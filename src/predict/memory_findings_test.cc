// The nearest change of a plan that fits, where the limit is just what that change needs.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "predict/predict.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

namespace {

Bytes needed(Request request, const std::string& plan) {
  request.plan = compile::parse_plan(plan);
  return mw::predict::predict(request).needed();
}
std::string findings(Request request, const std::string& plan, Bytes limit) {
  request.plan = compile::parse_plan(plan);
  request.cluster.device.memory = limit;
  const Prediction p = mw::predict::predict(request);
  if (p.too_full().empty()) return "all fits";
  return memory_findings(request, p);
}

// The change is the one that is named where the device has what the plan `fits` needs.
struct Case {
  const char *plan, *fits, *change;
};
void check_changes(const std::vector<Case>& cases, const Request& request = small()) {
  for (const Case& c : cases) {
    CAPTURE(std::string(c.plan));
    CAPTURE(std::string(c.fits));
    const std::string text = findings(request, c.plan, needed(request, c.fits));
    CAPTURE(text);
    CHECK(text.find("; the nearest change that fits, with a step of ") != std::string::npos);
    CHECK(text.ends_with(": " + std::string(c.change)));
  }
}

}  // namespace

TEST_CASE("the nearest change that fits is one that takes no time, or the least of those that do") {
  check_changes({
      {"tp=4,microbatches=2", "tp=4,sp,regather,microbatches=2", "recompute=full"},
      {"tp=4,sp,microbatches=2", "tp=4,sp,regather,microbatches=2", "regather"},
      {"pp=4,schedule=gpipe,microbatches=16", "pp=4,microbatches=16", "schedule=1f1b"},
      {"pp=2,schedule=looped-bfs,chunks=2,microbatches=16", "pp=2,microbatches=16",
       "schedule=1f1b,chunks=1"},
      {"pp=2,schedule=interleaved-1f1b,chunks=2,group=4,microbatches=16", "pp=2,microbatches=16",
       "schedule=1f1b,chunks=1 (without group)"},
      {"pp=4,schedule=chimera,pairs=2,microbatches=16", "pp=4,microbatches=16",
       "schedule=1f1b (without pairs)"},
      {"pp=4,schedule=seq-1f1b,slices=2,microbatches=2", "pp=4,recompute=full,microbatches=16",
       "recompute=full,microbatches=16"},
      {"tp=4,pp=4,schedule=zb-h2,microbatches=16", "tp=4,pp=4,schedule=zb-h2,sp,microbatches=16",
       "schedule=1f1b"},
      {"pp=4,schedule=zb-auto,memory_limit=8,microbatches=16", "pp=4,microbatches=16",
       "schedule=1f1b (without memory_limit)"},
      {"pp=4,schedule=zb-auto,memory_limit=8,costs=1:1:1,microbatches=16", "pp=4,microbatches=16",
       "schedule=1f1b (without memory_limit, costs)"},
      {"pp=2,schedule=gpipe,microbatches=16",
       "pp=2,schedule=gpipe,recompute=selective,microbatches=16", "schedule=v-half"},
      {"pp=4,schedule=zb-h1,post_validation,microbatches=16", "pp=4,schedule=zb-h1,microbatches=16",
       "post_validation=false"},
      {"dp=4,pp=2,post_validation,microbatches=4",
       "dp=4,pp=2,zero=1,recompute=selective,microbatches=4",
       "post_validation=false,zero=1,recompute=selective"},
      {"cp=4,microbatches=16", "cp=4,zero=1,microbatches=16", "zero=1"},
      {"cp=4,microbatches=16", "cp=4,recompute=full,microbatches=16", "zero=1"},
      {"dp=2,microbatches=1", "dp=2,microbatches=2", "microbatches=2"},
      {"cp=4,microbatches=16,recompute=full", "cp=4,zero=3,recompute=full,microbatches=16",
       "zero=3"},
      {"dp=4,microbatches=4", "dp=4,zero=1,recompute=selective,microbatches=4",
       "zero=1,recompute=selective"},
      {"dp=4,zero=3,recompute=full,microbatches=4",
       "dp=4,zero=3,recompute=full,microbatches=4,prefetch_mb=0", "prefetch_mb=0"},
      {"dp=4,zero=1,microbatches=2", "dp=4,zero=3,recompute=full,microbatches=4,prefetch_mb=0",
       "zero=3,recompute=full,microbatches=4,prefetch_mb=0"},
      {"dp=4,microbatches=4", "dp=4,zero=1,recompute=full,microbatches=4", "zero=1,recompute=full"},
      {"dp=4,microbatches=4", "dp=4,zero=3,recompute=full,microbatches=4", "zero=3,recompute=full"},
      {"dp=4,microbatches=2", "dp=4,zero=3,recompute=full,microbatches=4",
       "zero=3,recompute=full,microbatches=4"},
      {"dp=4,microbatches=4", "dp=4,zero=3,recompute=selective,microbatches=4",
       "zero=2,recompute=full"},
      // Of one sequence each it takes none.
      {"dp=4,pp=2,schedule=chimera-halving,microbatches=2",
       "dp=4,pp=2,schedule=chimera-halving,zero=3,recompute=full,microbatches=2",
       "zero=3,recompute=full"},
      {"dp=4,microbatches=4,recompute=full", "dp=4,zero=3,recompute=full,microbatches=4", "zero=3"},
      {"dp=4,microbatches=2,recompute=full", "dp=4,zero=3,recompute=full,microbatches=4",
       "zero=3,microbatches=4"},
      {"dp=4,microbatches=4,zero=2,recompute=full", "dp=4,zero=3,recompute=full,microbatches=4",
       "zero=3"},
      {"dp=2,pp=2,schedule=gpipe,microbatches=4", "dp=2,pp=2,zero=1,recompute=full,microbatches=8",
       "schedule=1f1b,zero=1,recompute=full,microbatches=8"},
      {"microbatches=1", "microbatches=16,recompute=full", "recompute=full,microbatches=16"},
      {"microbatches=16", "microbatches=16,recompute=full", "recompute=full"},
      {"dp=2,microbatches=1", "dp=2,microbatches=8", "zero=1,recompute=selective,microbatches=2"},
      {"dp=4,microbatches=1", "dp=4,microbatches=2,zero=1", "zero=1,microbatches=2"},
  });
}

TEST_CASE("no change is named that the stack's engine does not run, unless the plan has it too") {
  Request request = small();
  const std::vector<Case> selective = {{"dp=4,microbatches=4,recompute=selective",
                                        "dp=4,zero=1,recompute=selective,microbatches=4",
                                        "zero=1"}};
  const char* fits = "dp=4,zero=1,recompute=selective,microbatches=4";
  check_changes({{"dp=4,microbatches=4", fits, "zero=1,recompute=selective"}}, request);
  check_changes(selective, request);
  request.cluster.stack.lacking = {cluster::Lacking::kSelective};
  check_changes({{"dp=4,microbatches=4", fits, "zero=1,recompute=full"}}, request);
  check_changes(selective, request);
}

TEST_CASE("no other change of one key that fits makes the step shorter") {
  // Of every key the values that are tried, the nearest first.
  const std::vector<std::vector<std::string>> keys = {
      {"sp", "sp,regather"},
      {"zero=1", "zero=2", "zero=3"},
      {"recompute=selective", "recompute=selective-op", "recompute=full"},
      {"microbatches=4", "microbatches=8"}};
  const std::string plan = "tp=2,dp=2,", own = "microbatches=2";
  const auto all_of = [&](const std::string& change) {
    const bool other = change.find("microbatches") != std::string::npos;
    return plan + (other ? "" : own + ",") + change;
  };
  Request request = small();
  const auto step = [&](const std::string& text) {
    request.plan = compile::parse_plan(text);
    return mw::predict::predict(request).step.value;
  };
  for (const auto& limits : keys) {
    for (const std::string& limit : limits) {
      CAPTURE(limit);
      const Bytes memory = needed(request, all_of(limit));
      const std::string text = findings(request, plan + own, memory);
      if (text == "all fits") continue;
      REQUIRE(text.find("; the nearest change that fits, with a step of ") != std::string::npos);
      const std::string named = text.substr(text.rfind(": ") + 2);
      CAPTURE(named);
      CHECK(needed(request, all_of(named)) <= memory);
      const double taken = step(all_of(named));
      for (const auto& values : keys) {
        for (const std::string& value : values) {
          if (needed(request, all_of(value)) > memory) continue;
          CHECK(taken <= step(all_of(value)));
          break;
        }
      }
    }
  }
}

TEST_CASE("another schedule is proposed for stages that are named where it has the same ones") {
  check_changes({
      {"pp=2,layers=3:1,schedule=gpipe,microbatches=16", "pp=2,layers=3:1,microbatches=16",
       "schedule=1f1b"},
      {"pp=2,layers=1:3,schedule=chimera,pairs=1,microbatches=16",
       "pp=2,layers=1:3,microbatches=16", "schedule=1f1b (without pairs)"},
      {"pp=2,layers=1:1:1:1,schedule=looped-bfs,chunks=2,microbatches=16",
       "pp=2,layers=1:1:1:1,schedule=looped-bfs,chunks=2,recompute=full,microbatches=16",
       "schedule=v-half"},
      {"dp=2,pp=2,layers=2:2,schedule=gpipe,microbatches=4",
       "dp=2,pp=2,zero=1,recompute=full,microbatches=8",
       "schedule=1f1b,zero=1,recompute=full,microbatches=8"},
  });
}

TEST_CASE("experts are divided over as few ranks as do, and over no more than a node's") {
  Request request = small();
  request.model = models::parse_config(
      R"({"model_type": "mixtral", "vocab_size": 256, "max_position_embeddings": 64,
          "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 8,
          "num_experts_per_tok": 2})",
      "small.json");
  request.cluster.links[0].devices = 4;
  request.cluster.links.push_back(request.cluster.links[0]);
  request.cluster.links[1].devices = 0;
  check_changes(
      {
          {"dp=8,zero=1,microbatches=2", "dp=8,zero=1,ep=2,microbatches=2", "ep=2"},
          {"dp=8,zero=1,microbatches=2", "dp=8,zero=1,ep=4,microbatches=2", "ep=4"},
          // Over eight it would do by itself.
          {"dp=8,zero=1,microbatches=2", "dp=8,zero=1,ep=8,microbatches=2", "zero=3,ep=4"},
          {"dp=8,ep=2,recompute=full,microbatches=2",
           "dp=8,ep=2,zero=3,recompute=full,microbatches=2", "zero=2,ep=4"},
      },
      request);
  request.cluster.links.pop_back();  // no nodes
  request.cluster.links[0].devices = 16;
  check_changes({{"dp=8,zero=1,microbatches=2", "dp=8,zero=1,ep=8,microbatches=2", "ep=8"}},
                request);
}

TEST_CASE("sequence parallelism is taken back where the rest fits without it") {
  check_changes({
      {"tp=2,dp=2,microbatches=8", "tp=2,dp=2,zero=1,recompute=full,microbatches=8", "zero=3"},
      {"tp=2,dp=2,microbatches=4,recompute=full", "tp=2,dp=2,zero=3,recompute=full,microbatches=8",
       "zero=3,microbatches=8"},
      {"tp=2,dp=2,zero=2,microbatches=8,recompute=full",
       "tp=2,dp=2,zero=3,recompute=full,microbatches=8", "zero=3"},
  });
}

TEST_CASE("where no change fits it is said how many ranks are too full, and what is left") {
  struct Case {
    const char* plan;
    int64_t cores;
    const char *begins, *more, *ends;
  };
  const std::string kLeft =
      "; no recomputation, 1f1b, sharding of the optimizer, sequence "
      "parallelism or smaller microbatches make it fit: ";
  for (const Case& c : std::vector<Case>{
           {"microbatches=2", 0, "memory: pipeline rank 0 needs ", "",
            "more stages (pp) or tensor parallelism (tp)"},
           {"pp=2,microbatches=2", 0, "memory: pipeline rank 0 needs ", "; 1 more is too full",
            "more stages (pp) or tensor parallelism (tp)"},
           {"pp=4,microbatches=4", 0, "memory: pipeline rank 0 needs ", "; 3 more are too full",
            "more stages (pp) or tensor parallelism (tp)"},
           {"pp=4,layers=1:1:1:1,schedule=gpipe,post_validation,microbatches=4", 0,
            "memory: pipeline rank 3 needs ", "; 3 more are too full",
            "more stages (pp) or tensor parallelism (tp)"},
           {"pp=2,microbatches=2", 2, "memory: 2 ranks need ", "",
            "a smaller model, or more memory"},
           {"dp=2,microbatches=2", 2, "memory: 2 ranks need ", "", "fewer ranks (dp)"}}) {
    CAPTURE(std::string(c.plan));
    Request request = small();
    request.cluster.cores = c.cores;
    const std::string text = findings(request, c.plan, Bytes(1000));
    CAPTURE(text);
    CHECK(text.starts_with(c.begins));
    CHECK(text.ends_with(std::string(c.more) + kLeft + c.ends));
    if (*c.more == '\0') CHECK(text.find(" too full") == std::string::npos);
  }
}
