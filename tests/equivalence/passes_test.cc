// Every pass of the compiler, switched off by name: what is trained has the same bits.
#include "compile/passes.h"

#include <doctest/doctest.h>

#include <fmt/core.h>

#include "kernels/gemm.h"
#include "training.h"

namespace mw {
namespace {

using equivalence::bit_difference;
using equivalence::Net;
using equivalence::Trained;

void check_passes(const Net& net, const std::string& text) {
  CAPTURE(net.name);
  CAPTURE(text);
  const compile::Plan plan = compile::parse_plan(text);
  const Trained all = equivalence::train(net, plan);
  std::set<std::string> every;
  for (const compile::PassInfo& pass : compile::passes()) {
    const std::string name(pass.name);
    CAPTURE(name);
    every.insert(name);
    CHECK(bit_difference(equivalence::train(net, plan, {nullptr, {name}}), all) == "");
  }
  CHECK(bit_difference(equivalence::train(net, plan, {nullptr, every}), all) == "");
}

TEST_CASE("each pass switched off in turn, and all together, leave the bits of a GPT") {
  for (const std::string text :
       {"dp=1,microbatches=2", "dp=2,tp=2,pp=2,microbatches=2,sp,zero=1,recompute=selective",
        "dp=2,pp=2,chunks=2,microbatches=4,zero=3,recompute=full", "tp=2,dp=2,zero=2"}) {
    check_passes(equivalence::small_gpt(), text);
  }
  check_passes(equivalence::small_gpt(0.1), "pp=2,chunks=2,microbatches=2,recompute=full");
}

TEST_CASE("each pass switched off in turn leaves the bits of products over several chunks") {
  // 16 x 48 / 2 tokens in a weight gradient's sum, and more than one microbatch to accumulate.
  check_passes(equivalence::small_gpt(0, 48), "pp=2,microbatches=2");
  static_assert(16 * 48 / 2 > kernels::kGemmChunk);
}

TEST_CASE("each pass switched off in turn leaves the bits of a net with a weight of four layers") {
  check_passes(equivalence::shared_weight_net(4), "dp=2,pp=2,layers=2:3,microbatches=2,zero=1");
  check_passes(equivalence::shared_weight_net(4), "dp=2,pp=4,layers=1:1:1:2,microbatches=2,zero=2");
}

TEST_CASE("unknown passes are named together, with the near miss") {
  const Net net = equivalence::small_gpt();
  try {
    equivalence::train(net, compile::parse_plan("dp=1"), {nullptr, {"overlp", "xyz"}});
    FAIL("accepted");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    CHECK(text.find("unknown pass 'overlp'") != std::string::npos);
    CHECK(text.find("did you mean 'overlap'") != std::string::npos);
    CHECK(text.find("unknown pass 'xyz'") != std::string::npos);
  }
}

size_t stages_called(const pipeline::Program& program, pipeline::ActionKind kind) {
  size_t count = 0;
  for (const pipeline::Fragment& fragment : program.fragments) count += fragment.kind == kind;
  return count;
}

TEST_CASE("stages that are alike share their fragments, unless they draw random numbers") {
  const compile::Plan plan = compile::parse_plan("pp=2,chunks=2,microbatches=2");
  const auto forwards = [&](const Net& net, std::set<std::string> without) {
    const ir::Module model = net.build(8);
    const compile::CompiledPlan compiled =
        equivalence::compiled(net, model, plan, {nullptr, std::move(without)});
    return stages_called(compiled.train, pipeline::ActionKind::kF);
  };
  CHECK(forwards(equivalence::small_gpt(), {}) == 3);  // first, h.1 and h.2, last
  CHECK(forwards(equivalence::small_gpt(), {"share_stages"}) == 4);
  CHECK(forwards(equivalence::small_gpt(0.1), {}) == 4);
}

TEST_CASE("collectives have a stream an axis and weight gradients run beside them") {
  const Net net = equivalence::small_gpt();
  const ir::Module model = net.build(8);
  const compile::Plan plan = compile::parse_plan("dp=2,tp=2,pp=2,microbatches=2");
  const compile::CompiledPlan compiled = equivalence::compiled(net, model, plan);
  int beside = 0;
  for (const pipeline::Fragment& fragment : compiled.train.fragments) {
    if (fragment.kind != pipeline::ActionKind::kB) continue;
    bool under_way = false;
    for (size_t o = 0; o < fragment.graph.ops.size(); ++o) {
      const ir::Op& op = fragment.graph.ops[o];
      const pipeline::Launch& launch = fragment.launches[o];
      if (ir::is_collective(op.kind)) {
        CHECK(launch.stream.value == 3);  // pp, dp, tp
        under_way = true;
      } else {
        CHECK(launch.stream.value == 0);
        if (!launch.waits.empty()) under_way = false;
        if (under_way && op.work == ir::Work::kWeightGrad) ++beside;
      }
    }
  }
  CHECK(beside >= 8);  // two products a layer at least
  const compile::CompiledPlan plain =
      equivalence::compiled(net, model, plan, {nullptr, {"overlap"}});
  for (const pipeline::Fragment& fragment : plain.train.fragments) {
    for (const pipeline::Launch& launch : fragment.launches) CHECK(launch.stream.value == 0);
  }
}

}  // namespace
}  // namespace mw
