#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/fs.h"
#include "base/test_close_to.h"
#include "compile/plan.h"
#include "predict/coarse.h"
#include "predict/predict.h"

using namespace mw;
using namespace mw::predict;

namespace {

// 16 blocks of Llama 8B on H100s under PyTorch's engines.
Request llama(const std::string& profile) {
  FileSystem& fs = posix_fs();
  const std::string root = MW_SOURCE_DIR, file = root + "/models/llama3-8b.json";
  Request request;
  request.model = models::parse_config(fs.read_file(file), file);
  request.model.layers = 16;
  request.seq_len = 4096;
  request.cluster = cluster::load_cluster(fs, "dgx-h100", {root + "/clusters"}, profile);
  request.options = simulate::options_of(request.cluster.stack);
  request.options.order_hash = request.options.program_hash = false;
  request.global_batch = 128;
  return request;
}

double estimated_over_predicted(Request request, const std::string& plan) {
  request.plan = compile::parse_plan(plan);
  Coarse coarse(request);
  REQUIRE(coarse.has_order(request.plan));
  const Estimate estimate = coarse.estimate(request.plan), least = coarse.least(request.plan);
  CHECK(least.peak <= estimate.peak);
  return static_cast<double>(estimate.peak.value) /
         static_cast<double>(predict::predict(request).needed().value);
}

}  // namespace

TEST_CASE("what PyTorch's processes hold is estimated as far as blocks, logits and messages go") {
  const Request request = llama("torch");
  for (const char* plan :
       {"dp=4,zero=3,microbatches=8", "dp=4,tp=2,sp,zero=1,microbatches=16", "tp=8,microbatches=32",
        "dp=8,zero=2,microbatches=4,recompute=full", "pp=4,microbatches=32",
        "pp=8,dp=2,microbatches=32,recompute=full,zero=1",
        "pp=2,tp=4,microbatches=32,schedule=gpipe",
        "pp=4,chunks=2,microbatches=32,schedule=interleaved-1f1b,dp=2,zero=1",
        "pp=4,microbatches=32,schedule=looped-bfs,chunks=2,dp=4,zero=3,recompute=full",
        "pp=4,microbatches=32,schedule=zb-h1,tp=2", "pp=4,microbatches=32,schedule=dualpipe,tp=2",
        "pp=4,microbatches=16,schedule=chimera,tp=2,dp=2",
        "pp=4,chunks=2,microbatches=32,schedule=zb-v,dp=2,zero=1",
        "pp=8,chunks=2,microbatches=64,schedule=hanayo,tp=2,sp"}) {
    CAPTURE(std::string(plan));
    CHECK(estimated_over_predicted(request, plan) == mw::test::close_to(1).epsilon(0.15));
  }
}

TEST_CASE("slices of sequences hold what the program's plan of memory says, as without PyTorch") {
  for (const char* profile : {"torch", "megatron"}) {
    CHECK(estimated_over_predicted(llama(profile), "pp=4,microbatches=16,schedule=seq-1f1b,tp=2") ==
          mw::test::close_to(1).epsilon(0.1));
  }
}

TEST_CASE("in 2.6 the last stage keeps all logits, twice as many at the end, and what it sent") {
  Request request = llama("torch");
  const auto peak = [&](const std::string& plan) {
    request.plan = compile::parse_plan(plan);
    return static_cast<double>(Coarse(request).memory(request.plan).peak.value);
  };
  // Of one sequence on a rank, in two bytes.
  const auto logits = static_cast<double>(4096 * request.model.vocab_size * 2),
             boundary = 4096.0 * 4096 * 2;
  request.global_batch = 128;
  const double few = peak("pp=4,microbatches=128,recompute=full");
  request.global_batch = 256;
  const double many = peak("pp=4,microbatches=256,recompute=full");
  CHECK(many - few == mw::test::close_to(128 * boundary));  // buffers to receive into
  request.cluster.stack.torch_2_6 = true;
  const double many_old = peak("pp=4,microbatches=256,recompute=full");
  request.global_batch = 128;
  const double few_old = peak("pp=4,microbatches=128,recompute=full");
  CHECK(many_old - few_old == mw::test::close_to(128 * (2 * logits + 2 * boundary)));
}
