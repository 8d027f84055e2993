// Coarse estimates where an update's collectives go beside calls, against the simulation.
#include <doctest/doctest.h>

#include <string>

#include "base/fs.h"
#include "base/test_close_to.h"
#include "predict/coarse.h"

using namespace mw;
using namespace mw::predict;

namespace {

// Whose profile sums gradients beside the backward pass and gathers weights beside the forward
// pass.
Request on_h100(const std::string& model) {
  const std::string root = MW_SOURCE_DIR, file = root + "/models/" + model + ".json";
  Request request;
  request.model = models::parse_config(posix_fs().read_file(file), file);
  request.seq_len = 2048;
  request.global_batch = 64;
  request.cluster = cluster::load_cluster(posix_fs(), "dgx-h100", {root + "/clusters"});
  request.options = simulate::options_of(request.cluster.stack);
  request.options.order_hash = request.options.program_hash = false;
  REQUIRE(request.options.overlap.grad_reduce);
  REQUIRE(request.options.overlap.param_gather);
  return request;
}

// And no bound is above it.
void check(Request request, const std::string& plan, double epsilon) {
  CAPTURE(request.model.source);
  CAPTURE(plan);
  request.plan = compile::parse_plan(plan);
  Coarse coarse(request);
  REQUIRE(coarse.has_order(request.plan));
  const Seconds step = coarse.step(request.plan);
  CHECK(step.value ==
        mw::test::close_to(mw::predict::predict(request).step.value).epsilon(epsilon));
  CHECK(coarse.least(request.plan).step.value <= 1.0001 * step.value);
  CHECK(coarse.least_scheduled(request.plan).step.value <= 1.0001 * step.value);
}

}  // namespace

TEST_CASE("an update's collectives beside a stage's passes, shorter than these and longer") {
  const Request request = on_h100("gpt-7.5b");
  for (const char* plan :
       {"dp=64,microbatches=1", "dp=64,microbatches=1,zero=1",
        "dp=32,tp=2,sp,microbatches=2,zero=1", "dp=16,tp=4,sp,microbatches=1,zero=1",
        "dp=16,tp=4,sp,microbatches=4,recompute=full", "dp=32,tp=2,sp,microbatches=1,zero=2"})
    check(request, plan, 0.03);
}

TEST_CASE("an update's collectives beside the passes of pipelines") {
  const Request request = on_h100("gpt-7.5b");
  for (const char* plan : {"dp=16,pp=4,microbatches=4,zero=1", "dp=8,tp=2,pp=4,sp,microbatches=8",
                           "dp=16,pp=4,microbatches=4,schedule=interleaved-1f1b,chunks=3,zero=1",
                           "dp=16,pp=4,microbatches=4,schedule=zb-h1,zero=1",
                           "dp=8,pp=4,microbatches=8,schedule=dualpipe-v,chunks=2,zero=1",
                           "dp=16,pp=2,microbatches=4,schedule=chimera,zero=1"})
    check(request, plan, 0.03);
}

TEST_CASE(
    "an update's collectives beside passes of models with large embeddings, and of mixtures") {
  check(on_h100("llama3-8b"), "dp=32,tp=2,sp,microbatches=1,zero=1", 0.03);
  check(on_h100("llama3-8b"), "dp=8,pp=4,microbatches=8,zero=1", 0.03);
  check(on_h100("mixtral-8x7b"), "dp=64,ep=8,microbatches=1,zero=1", 0.03);
  check(on_h100("mixtral-8x7b"), "dp=16,pp=4,ep=8,microbatches=4,zero=1", 0.03);
  // Tensor parallelism leaves experts' gradients pending, whose sums go before the others.
  check(on_h100("mixtral-8x7b"), "dp=16,tp=4,sp,microbatches=2,zero=1", 0.03);
  check(on_h100("moonlight-16b-a3b"), "dp=16,tp=2,sp,microbatches=1,zero=1", 0.08);
  check(on_h100("moonlight-16b-a3b"), "dp=16,tp=2,sp,microbatches=2,zero=1,recompute=full", 0.04);
}
