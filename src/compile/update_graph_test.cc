#include "compile/update_graph.h"

#include <doctest/doctest.h>

#include "compile/compile.h"
#include "partition/test_nets.h"

namespace mw::compile {
namespace {

// Elements that the update's collectives of a kind take at once, in the order of the program.
std::vector<std::vector<int64_t>> collectives(const std::string& plan, ir::OpKind kind) {
  const ir::Module model = partition::test::gpt_net({.blocks = 3});
  ModelShape shape;
  shape.global_batch = 64;
  const CompiledPlan compiled = compile({model, &model, parse_plan(plan), shape, {}});
  std::vector<std::vector<int64_t>> found;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    if (fragment.kind != pipeline::ActionKind::kUpdate) continue;
    for (const ir::Op& op : fragment.graph.ops) {
      if (op.kind != kind) continue;
      std::vector<int64_t> elements;
      const bool gathers = kind == ir::OpKind::kAllGather;
      for (const ValueId v : gathers ? op.results : op.operands)
        elements.push_back(fragment.graph.type(v).elements());
      found.push_back(std::move(elements));
    }
  }
  return found;
}

TEST_CASE("a bucket of no size is a layer: gradients last layer first, weights first layer first") {
  const auto reduced = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  auto gathered = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kAllGather);
  REQUIRE(reduced.size() > 3);
  for (const auto& bucket : reduced) CHECK(bucket.size() == 1);
  gathered.erase(gathered.begin());  // of the norm's sums
  CHECK(gathered == std::vector(reduced.rbegin(), reduced.rend()));
}

TEST_CASE("small layers share a bucket, in the order of the layers") {
  const auto apart = collectives("dp=2,zero=1,bucket_mb=0", ir::OpKind::kReduceScatter);
  const auto together = collectives("dp=2,zero=1", ir::OpKind::kReduceScatter);
  REQUIRE(together.size() == 1);
  REQUIRE(together[0].size() == apart.size());
  for (size_t g = 0; g < apart.size(); ++g) CHECK(together[0][g] == apart[apart.size() - 1 - g][0]);
}

}  // namespace
}  // namespace mw::compile
