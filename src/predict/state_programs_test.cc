#include "predict/state_programs.h"

#include <doctest/doctest.h>

#include "base/fs.h"
#include "base/test_close_to.h"
#include "simulate/call_time.h"

using namespace mw;
using namespace mw::predict;
using pipeline::Category;

namespace {

Request request_for(const std::string& plan) {
  FileSystem& fs = posix_fs();
  const std::string root = MW_SOURCE_DIR;
  const std::string file = root + "/models/gpt-7.5b.json";
  Request request;
  request.model = models::parse_config(fs.read_file(file), file);
  request.model.layers = 16;
  request.seq_len = 512;
  request.global_batch = 64;
  request.cluster = cluster::load_cluster(fs, "selene", {root + "/clusters"});
  request.plan = compile::parse_plan(plan);
  return request;
}

// States and update of a pipeline rank of the plan's whole program.
Facts compiled_facts(const pipeline::Program& program, size_t rank,
                     const std::vector<simulate::CallTime>& times) {
  Facts facts{};
  for (const pipeline::Buffer& buffer : program.ranks[rank].buffers) {
    if (buffer.storage.kind != pipeline::Storage::Kind::kState) continue;
    const auto bytes = static_cast<double>(buffer.bytes().value);
    if (buffer.category == Category::kWeights) facts[kWeights] += bytes;
    if (buffer.category == Category::kGradients) facts[kGradients] += bytes;
    if (buffer.category == Category::kOptimizer) facts[kOptimizer] += bytes;
  }
  for (const pipeline::Command& command : program.ranks[rank].commands) {
    if (command.action.kind != pipeline::ActionKind::kUpdate) continue;
    if (command.kind != pipeline::Command::Kind::kCall) continue;
    facts[kUpdate] = times[command.fragment.index()].whole.value;
    facts[kUpdateBefore] = times[command.fragment.index()].before.value;
  }
  return facts;
}

}  // namespace

TEST_CASE("what a rank holds and updates is as in the whole model's program") {
  for (const std::string text :
       {"tp=2,pp=4,dp=4,microbatches=4", "tp=2,pp=4,dp=4,microbatches=4,zero=1,sp",
        "tp=1,pp=2,dp=8,microbatches=4,zero=2", "tp=4,pp=4,dp=2,microbatches=8,zero=3,sp",
        "tp=4,pp=1,dp=4,microbatches=2,zero=1", "tp=2,pp=4,dp=1,microbatches=8,recompute=full",
        "tp=2,pp=4,dp=4,microbatches=4,zero=2,grad_reduce=step",
        "tp=2,pp=4,dp=4,chunks=2,schedule=zb-v,microbatches=4,zero=1",
        "tp=2,pp=2,dp=4,chunks=2,schedule=v-half,microbatches=4"}) {
    CAPTURE(text);
    const Request request = request_for(text);
    const compile::Plan& plan = request.plan;
    const bool folded = plan.chunks == 2;
    const StageFacts facts =
        StatePrograms(request, folded).on(plan.dp, plan.pp, plan.dp > 1 ? plan.zero : 0);
    const pipeline::Program program = program_of(request);
    std::vector<std::vector<int32_t>> coordinates;
    for (int32_t r = 0; r < plan.pp; ++r) coordinates.push_back({r});
    const std::vector<simulate::CallTime> times =
        simulate::call_times(program, request.cluster, request.options, coordinates);
    for (int64_t r = 0; r < plan.pp; ++r) {
      CAPTURE(r);
      const bool last = folded ? r == 0 : r + 1 == plan.pp;
      // With pp=1, and where both ends are on one rank, the ends are in one sum.
      const Facts shown = facts.of(request.model.layers / plan.pp, r == 0, last && plan.pp > 1);
      const Facts compiled = compiled_facts(program, static_cast<size_t>(r), times);
      for (const Fact fact : {kWeights, kGradients, kOptimizer}) {
        CAPTURE(int{fact});
        CHECK(shown[fact] == mw::test::close_to(compiled[fact]).epsilon(1e-3));
      }
      // The ends sum a tied embedding beside the gradients of their blocks: no line in the blocks.
      const bool tied = !folded && plan.pp > 1 && (r == 0 || last);
      // A line in the blocks as far as collectives do not change their protocol with their size.
      CHECK(shown[kUpdate] == mw::test::close_to(compiled[kUpdate]).epsilon(tied ? 0.3 : 1e-2));
      if (!tied)
        CHECK(shown[kUpdateBefore] == mw::test::close_to(compiled[kUpdateBefore]).epsilon(1e-3));
    }
  }
}
