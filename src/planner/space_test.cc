#include "planner/space.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "pipeline/schedule_kind.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::planner;

namespace {

std::vector<int64_t> tensor_ways(const Request& request, int64_t devices) {
  std::set<int64_t> ways;
  for (const Layout& layout : layouts(request, devices)) ways.insert(layout.tp);
  return {ways.begin(), ways.end()};
}

}  // namespace

TEST_CASE("tp divides the heads, and the key heads or they it, and leaves experts whole rows") {
  struct Case {
    int64_t heads, kv_heads, experts, top_k, seq_len;
    std::vector<int64_t> ways;
  };
  for (const Case& c : std::vector<Case>{{8, 8, 0, 0, 64, {1, 2, 4, 8}},
                                         {8, 2, 0, 0, 64, {1, 2, 4, 8}},
                                         {8, 1, 0, 0, 64, {1, 2, 4, 8}},
                                         {24, 12, 0, 0, 64, {1, 2, 3, 4, 6, 12, 24}},
                                         {24, 6, 0, 0, 64, {1, 2, 3, 6, 12, 24}},  // not 4, not 8
                                         // 64 / tp tokens, each for two of the experts.
                                         {8, 8, 32, 2, 64, {1, 2, 4}},
                                         {8, 8, 128, 2, 64, {1}},
                                         {8, 8, 8, 2, 64, {1, 2, 4, 8}},
                                         {8, 8, 8, 8, 60, {1, 2, 4}}}) {
    CAPTURE(c.heads);
    CAPTURE(c.kv_heads);
    CAPTURE(c.experts);
    Request request;
    predict::Request& base = request.base = predict::test::small();
    base.model.heads = c.heads;
    base.model.kv_heads = c.kv_heads;
    base.model.mixture.experts = c.experts;
    base.model.mixture.top_k = c.top_k;
    base.seq_len = c.seq_len;
    base.global_batch = 48;
    CHECK(tensor_ways(request, 48) == c.ways);
  }
}

TEST_CASE("pp deals the blocks evenly or to places of up to a quarter more") {
  struct Case {
    int64_t layers;
    std::vector<int64_t> depths;
  };
  for (const Case& c : std::vector<Case>{{8, {1, 2, 3, 4, 5, 8}},  // 9 and 10 places
                                         {9, {1, 2, 3, 5, 9}},     // 7 would be 14
                                         {4, {1, 2, 4}}}) {
    CAPTURE(c.layers);
    Request request;
    request.base = predict::test::small();
    request.base.model.layers = c.layers;
    request.base.model.heads = request.base.model.kv_heads = 1;
    request.base.global_batch = 5040;
    std::set<int64_t> depths;
    for (const Layout& layout : layouts(request, 2520)) depths.insert(layout.pp);
    CHECK(std::vector<int64_t>(depths.begin(), depths.end()) == c.depths);
  }
}

TEST_CASE("chunks divide a rank's blocks, or are two") {
  struct Case {
    int64_t layers, pp;
    std::set<int64_t> chunks;
  };
  for (const Case& c : std::vector<Case>{{12, 2, {1, 2, 3, 6}},
                                         {10, 2, {1, 2, 5}},
                                         {9, 2, {1, 2}},  // 5 chunks of 2 ranks are more than 9
                                         {4, 4, {1}},
                                         {7, 4, {1}}}) {
    CAPTURE(c.layers);
    CAPTURE(c.pp);
    Request request;
    request.base = predict::test::small();
    request.base.model.layers = c.layers;
    std::set<int64_t> chunks;
    compile::Plan plan;
    plan.pp = c.pp;
    for (const Pipelining& one : pipelinings(request, plan)) chunks.insert(one.chunks);
    CHECK(chunks == c.chunks);
  }
}

TEST_CASE("what a stack's engine does not run is not in the space, unless it is named") {
  Request request;
  request.base = predict::test::small();
  const auto kinds = [&](compile::Recompute recompute) {
    compile::Plan plan;
    plan.pp = 4;
    plan.recompute = recompute;
    std::set<std::string> found;
    for (const Pipelining& one : pipelinings(request, plan)) found.insert(one.schedule);
    return found;
  };
  const auto recomputes = [&] {
    std::set<compile::Recompute> found;
    for (const compile::Plan& plan : layout_plans(request, {1, 4, 1})) found.insert(plan.recompute);
    return found;
  };
  using compile::Recompute;
  const std::set<std::string> all = kinds(Recompute::kNone);
  CHECK(all == kinds(Recompute::kFull));
  CHECK(recomputes().contains(Recompute::kSelective));
  request.base.cluster.stack.lacking = {cluster::Lacking::kSplitRecompute,
                                        cluster::Lacking::kReplicas, cluster::Lacking::kSlices,
                                        cluster::Lacking::kSelective};
  for (const std::string& kind : all) {
    CAPTURE(kind);
    const pipeline::ScheduleKind& facts = pipeline::kind_of(kind);
    const bool runs = facts.replicas == 1 && !facts.options.slices;
    CHECK(kinds(Recompute::kNone).contains(kind) == runs);
    CHECK(kinds(Recompute::kFull).contains(kind) == (runs && !facts.split_backward));
  }
  CHECK(kinds(Recompute::kFull).contains("1f1b"));
  CHECK_FALSE(recomputes().contains(Recompute::kSelective));
  // Beside what is asked for.
  request.base.cluster.stack.lacking.push_back(cluster::Lacking::kPipelines);
  CHECK_FALSE(recomputes().empty());
  CHECK(kinds(Recompute::kFull).contains("1f1b"));
  CHECK_FALSE(kinds(Recompute::kFull).contains("chimera"));
  request.only.recompute = {Recompute::kSelective};
  CHECK(recomputes().contains(Recompute::kSelective));
  request.only.schedules = {"chimera", "zb-h1"};
  CHECK(kinds(Recompute::kFull) == std::set<std::string>{"chimera", "zb-h1"});
}

TEST_CASE(
    "an engine of data parallelism alone has no other layouts, but for those that are named") {
  Request request;
  request.base = predict::test::small();
  request.base.global_batch = 8;
  const auto found = [&] {
    std::set<std::tuple<int64_t, int64_t, int64_t>> all;  // tp, pp, dp
    for (const Layout& layout : layouts(request, 8)) all.emplace(layout.tp, layout.pp, layout.dp);
    return all;
  };
  CHECK(found().size() > 3);
  request.base.cluster.stack.lacking = {cluster::Lacking::kTensor, cluster::Lacking::kPipelines};
  CHECK(found() == std::set<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 8}});
  CHECK(device_counts(request, 1, 16) == std::vector<int64_t>{1, 2, 4, 8});
  const auto zeros = [&](const Layout& layout) {
    std::set<int64_t> all;
    for (const compile::Plan& plan : layout_plans(request, layout)) all.insert(plan.zero);
    return all;
  };
  request.base.cluster.stack.lacking.push_back(cluster::Lacking::kDividedPipelines);
  CHECK(zeros({1, 2, 4}) == std::set<int64_t>{0, 1});
  CHECK(zeros({1, 1, 8}) == std::set<int64_t>{0, 1, 2, 3});
  request.only.counts["zero"] = {3};
  CHECK(zeros({1, 2, 4}) == std::set<int64_t>{3});
  request.only.counts["tp"] = {2};
  CHECK(found() == std::set<std::tuple<int64_t, int64_t, int64_t>>{{2, 1, 4}});
  CHECK(pipelinings(request, compile::parse_plan("pp=2,microbatches=4")).size() > 1);
}

TEST_CASE("interleaved kinds take rounds that their microbatches fill") {
  struct Case {
    const char* schedule;
    int64_t pp, microbatches, group;
  };
  for (const Case& c : std::vector<Case>{{"interleaved-1f1b", 4, 8, 0},
                                         {"interleaved-1f1b", 4, 10, 5},
                                         {"interleaved-zb", 16, 120, 20},
                                         {"interleaved-1f1b", 4, 9, 5},   // 5 and 4
                                         {"interleaved-1f1b", 4, 6, 0},   // fewer than twice
                                         {"interleaved-1f1b", 8, 17, 9},  // 9 and 8
                                         {"1f1b", 4, 10, 0}}) {
    CAPTURE(std::string(c.schedule));
    CAPTURE(c.microbatches);
    compile::Plan plan;
    plan.pp = c.pp;
    plan.microbatches = c.microbatches;
    plan.group = 1;
    lay({c.schedule, 2}, plan);
    CHECK(plan.group == c.group);
    CHECK(plan.schedule == c.schedule);
    CHECK(plan.chunks == 2);
  }
}

TEST_CASE("sequence parallelism is tried where tp divides the sequence, of experts nothing else") {
  struct Case {
    int64_t tp, seq_len, experts;
    bool without, with;
  };
  for (const Case& c :
       {Case{1, 64, 0, true, false}, Case{2, 64, 0, true, true}, Case{2, 63, 0, true, false},
        Case{4, 62, 0, true, false}, Case{1, 64, 8, true, false}, Case{2, 64, 8, false, true}}) {
    CAPTURE(c.tp);
    CAPTURE(c.seq_len);
    Request request;
    predict::Request& base = request.base = predict::test::small();
    base.seq_len = c.seq_len;
    base.model.mixture.experts = c.experts;
    const std::vector<compile::Plan> plans = layout_plans(request, {c.tp, 1, 1});
    for (const bool sp : {false, true}) {
      CHECK(std::any_of(plans.begin(), plans.end(), [&](const auto& plan) {
              return plan.sp == sp;
            }) == (sp ? c.with : c.without));
    }
    // Gathered again wherever there is something that would be saved otherwise.
    for (const compile::Plan& plan : plans)
      CHECK(plan.regather == (plan.sp && plan.recompute != compile::Recompute::kFull));
  }
}

TEST_CASE("selective recomputation is what the stack calls so, unless it is named") {
  using compile::Recompute;
  const auto tried = [](bool selective_op, std::vector<Recompute> named) {
    Request request;
    request.base = predict::test::small();
    request.base.cluster.stack.selective_op = selective_op;
    request.only.recompute = std::move(named);
    std::set<Recompute> kinds;
    for (const compile::Plan& plan : layout_plans(request, {1, 1, 1})) kinds.insert(plan.recompute);
    return kinds;
  };
  using Kinds = std::set<Recompute>;
  CHECK(tried(false, {}) == Kinds{Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  CHECK(tried(true, {}) == Kinds{Recompute::kNone, Recompute::kSelectiveOp, Recompute::kFull});
  for (const Recompute kind : {Recompute::kSelective, Recompute::kSelectiveOp}) {
    CHECK(tried(false, {kind}) == Kinds{kind});
    CHECK(tried(true, {kind}) == Kinds{kind});
  }
}

TEST_CASE("no plan has more units of work than one may have") {
  Request request;
  predict::Request& base = request.base = predict::test::small();
  base.global_batch = 1 << 20;
  for (const int64_t pp : {1, 4}) {
    int64_t most = 0;
    for (const compile::Plan& plan : layout_plans(request, {1, pp, 1}))
      most = std::max(most, plan.stages() * plan.microbatches);
    CHECK(most == compile::kMostUnits);
  }
}
