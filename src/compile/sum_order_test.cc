// What a rank's sums run over, and over which ranks they go on: the same whatever is recomputed and
// in which order the mesh has its axes.
#include <doctest/doctest.h>

#include <algorithm>

#include <fmt/core.h>

#include "base/text.h"
#include "compile/compile.h"
#include "partition/test_nets.h"
#include "pipeline/groups.h"

namespace mw::compile {
namespace {

using partition::test::NetSizes;

// Every product of a weight's gradient with its operands' local types and, where asked for, every
// reduction with its group; sorted.
std::vector<std::string> sums_of(const std::string& plan, const NetSizes& sizes, bool reductions) {
  const ir::Module model = partition::test::gpt_net(sizes);
  ModelShape shape;
  shape.global_batch = 16;
  shape.seq_len = sizes.S;
  const CompiledPlan compiled = compile({model, nullptr, parse_plan(plan), shape, {}});
  std::vector<std::string> sums;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    const ir::Graph& graph = fragment.graph;
    for (const ir::Op& op : graph.ops) {
      std::string line;
      if (op.kind == ir::OpKind::kDot && op.work == ir::Work::kWeightGrad) {
        line = fmt::format("{} of", op.layer.value);
        for (const ValueId v : op.operands) line += " " + ir::to_string(graph.type(v));
      } else if (reductions &&
                 (op.kind == ir::OpKind::kAllReduce || op.kind == ir::OpKind::kReduceScatter)) {
        line = "over " + pipeline::group_label(op.as<ir::CollectiveAttrs>().group);
      }
      if (!line.empty()) sums.push_back(line);
    }
  }
  std::sort(sums.begin(), sums.end());
  return sums;
}

TEST_CASE("a weight's gradient sums over the same rows whatever is recomputed") {
  // Of long sequences an activation is larger than a weight's gradient, of wide models smaller.
  for (const NetSizes& sizes :
       {NetSizes{.B = 4, .S = 64, .D = 8}, NetSizes{.B = 4, .S = 8, .D = 64}}) {
    for (const char* plan : {"tp=4,sp,microbatches=4", "tp=2,cp=2,sp,microbatches=4",
                             "dp=2,tp=2,sp,microbatches=2", "tp=4,microbatches=4"}) {
      const std::vector<std::string> kept = sums_of(plan, sizes, false);
      CHECK(kept.size() == 9);
      for (const char* again : {"selective", "full", "selective-op"}) {
        CAPTURE(plan);
        CAPTURE(again);
        CHECK(join(sums_of(std::string(plan) + ",recompute=" + again, sizes, false), "\n") ==
              join(kept, "\n"));
      }
    }
  }
}

TEST_CASE("sums over several axes are the same in every order of the mesh") {
  const NetSizes sizes{.B = 4, .S = 16};
  for (const char* plan :
       {"dp=2,cp=2,tp=2,sp,microbatches=2", "dp=2,cp=2,pp=2,microbatches=2,zero=1",
        "dp=2,cp=2,microbatches=2,zero=3", "dp=2,tp=2,pp=2,sp,microbatches=2"}) {
    const std::vector<std::string> usual = sums_of(plan, sizes, true);
    for (const char* order : {"pp-cp-dp-tp", "tp-cp-dp-pp", "pp-dp-tp-cp", "cp-tp-pp-dp"}) {
      CAPTURE(plan);
      CAPTURE(order);
      std::string own = order;
      if (parse_plan(plan).cp == 1) own.erase(own.find("cp"), 3);
      if (own.back() == '-') own.pop_back();
      CHECK(join(sums_of(fmt::format("{},order={}", plan, own), sizes, true), "\n") ==
            join(usual, "\n"));
    }
  }
}

}  // namespace
}  // namespace mw::compile
