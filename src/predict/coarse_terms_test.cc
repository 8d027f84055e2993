// Coarse estimates where one of their terms is much of a step or of its memory, against the
// simulation.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/fs.h"
#include "base/test_close_to.h"
#include "predict/coarse.h"
#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

namespace {

Request request_for(const std::string& model, int64_t layers) {
  Request request = small();
  const std::string root = MW_SOURCE_DIR, file = root + "/models/" + model + ".json";
  request.model = models::parse_config(posix_fs().read_file(file), file);
  request.model.layers = layers;
  request.cluster.device.memory = Bytes(int64_t{1} << 44);
  return request;
}

void set_bandwidth(Request& request, double bytes) {
  for (cluster::Link& link : request.cluster.links)
    link.bandwidth = link.bus_bandwidth = cluster::BytesPerSecond(bytes);
}

double in_bytes(Bytes of) { return static_cast<double>(of.value); }

struct Known {
  double step = 0, memory = 0;  // what the estimate may be off; 0: anything
};
void check(Request request, const std::string& plan, const Known& known) {
  CAPTURE(plan);
  request.plan = compile::parse_plan(plan);
  Coarse coarse(request);
  REQUIRE(coarse.has_order(request.plan));
  const Estimate estimate = coarse.estimate(request.plan);
  const Prediction prediction = mw::predict::predict(request);
  if (known.step > 0) {
    CHECK(estimate.step.value == mw::test::close_to(prediction.step.value).epsilon(known.step));
  }
  if (known.memory > 0) {
    CHECK(in_bytes(estimate.peak) ==
          mw::test::close_to(in_bytes(prediction.needed())).epsilon(known.memory));
  }
}

}  // namespace

TEST_CASE("blocks that stages do not share evenly are the first stages'") {
  Request request = small();
  request.model.layers = 5;
  for (const char* plan : {"pp=3,microbatches=8", "pp=4,microbatches=8"})
    check(request, plan, {.step = 0.01, .memory = 0.01});
}

TEST_CASE("the blocks with all keys are those at odd places of the model, not of a stage") {
  Request request = request_for("gpt-oss-120b", 4);
  request.seq_len = 16384;  // of a window of 128
  request.global_batch = 8;
  for (const char* plan : {"tp=4,sp,pp=2,layers=1:3,microbatches=8",
                           "tp=4,sp,pp=2,layers=3:1,microbatches=8", "tp=4,sp,pp=4,microbatches=8"})
    check(request, plan, {.step = 0.01, .memory = 0.01});
}

TEST_CASE("messages are slower by the part of all calls in which collectives have their port") {
  Request request = small();
  set_bandwidth(request, 1e9);
  request.model.hidden_size = 256;
  request.global_batch = 64;
  for (const char* plan : {"tp=2,pp=4,microbatches=16", "tp=2,pp=4,microbatches=16,schedule=zb-h1",
                           "tp=2,pp=4,microbatches=16,recompute=full"})
    check(request, plan, {.step = 0.04});
}

TEST_CASE("slots of gradients are held beside those of activations") {
  Request request = small();
  request.model.hidden_size = 256;
  request.global_batch = 64;
  for (const char* plan : {"tp=4,pp=4,microbatches=8", "tp=2,pp=4,microbatches=16",
                           "tp=2,pp=4,microbatches=16,recompute=full"})
    check(request, plan, {.memory = 0.01});
}

TEST_CASE("gradients that every microbatch reduces are held in parts, with ZeRO 1 too") {
  for (const char* plan : {"dp=4,zero=1,grad_reduce=microbatch,microbatches=4",
                           "dp=4,zero=0,grad_reduce=microbatch,microbatches=4",
                           "dp=4,zero=2,grad_reduce=step,microbatches=4",
                           "dp=4,pp=2,zero=1,grad_reduce=microbatch,microbatches=4"})
    check(small(), plan, {.memory = 0.01});
}

TEST_CASE("what is gathered for two blocks a stage is read off stages of two blocks") {
  Request request = small();
  request.model.layers = 8;
  request.global_batch = 64;
  for (const char* plan :
       {"dp=4,pp=4,zero=3,microbatches=4", "dp=4,pp=4,zero=3,microbatches=16,schedule=zb-h1"})
    check(request, plan, {.step = 0.01, .memory = 0.01});
}

TEST_CASE("rounds that a plan asks for are those of its estimate") {
  Request request = small();
  request.model.layers = 8;
  request.global_batch = 24;
  for (const char* plan : {"pp=4,schedule=interleaved-1f1b,chunks=2,group=6,microbatches=6",
                           "pp=4,schedule=interleaved-1f1b,chunks=2,group=12,microbatches=24",
                           "pp=2,dp=2,schedule=interleaved-zb,chunks=4,group=3,microbatches=3"})
    check(request, plan, {.step = 0.01, .memory = 0.05});
}

TEST_CASE("sums over replicas are in the format of gradients, before the norm that ranks meet in") {
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    Request request = small();
    REQUIRE(set_precision(request, narrow ? "f16" : "bf16"));
    request.cluster.stack.f16_gradients = narrow;
    request.cluster.device.attained.gradient_bytes = narrow ? 2 : 1;
    request.cluster.device.attained.bf16_gradient_bytes = 3;
    request.model.vocab_size = 1 << 14;  // tied: both ends' gradients are added up before
    set_bandwidth(request, 1e9);
    for (const char* plan :
         {"pp=2,schedule=chimera,microbatches=2", "dp=2,pp=2,schedule=chimera,microbatches=2",
          "dp=2,pp=2,schedule=chimera,microbatches=2,zero=1"})
      check(request, plan, {.step = 0.02});
  }
}

TEST_CASE("what is saved in eight bits takes as many in estimates") {
  Request request = request_for("llama3-8b", 8);
  request.cluster.stack.autograd = request.cluster.stack.narrow_saved = true;
  request.cluster.device.peaks.emplace_back("fp8", cluster::FlopsPerSecond(200e12));
  request.cluster.device.attained.fused_attention = true;
  request.seq_len = 2048;
  REQUIRE(set_precision(request, "fp8"));
  for (const char* plan :
       {"tp=4,microbatches=2", "dp=4,microbatches=1,zero=3", "dp=2,pp=4,microbatches=8",
        "dp=2,tp=2,pp=4,microbatches=4,sp,recompute=selective",
        "pp=4,microbatches=8,schedule=interleaved-zb,chunks=2",
        "pp=4,microbatches=8,schedule=zb-h2"})
    check(request, plan, {.memory = 0.03});
}

TEST_CASE("activations that a stack's kernels do not fuse are several ops in estimates, too") {
  for (const char* model : {"llama3-8b", "gpt-1.7b", "mixtral-8x7b"}) {
    CAPTURE(std::string(model));
    Request request = request_for(model, 4);
    request.seq_len = 1024;
    request.cluster.device.memory_bandwidth = cluster::BytesPerSecond(1e10);
    for (const char* plan : {"microbatches=4", "pp=2,microbatches=4,recompute=full"}) {
      request.cluster.device.attained.fused_elementwise = true;
      check(request, plan, {.step = 1e-4, .memory = 0.03});
      request.plan = compile::parse_plan(plan);
      const Seconds fused = Coarse(request).step(request.plan);
      request.cluster.device.attained.fused_elementwise = false;
      check(request, plan, {.step = 1e-4, .memory = 0.03});
      CHECK(Coarse(request).step(request.plan) > fused);
    }
  }
}

TEST_CASE("what adds gradients up takes as long in estimates, which autograd's first do not have") {
  Request request = request_for("llama3-8b", 8);
  request.cluster.device.memory_bandwidth = cluster::BytesPerSecond(1e10);
  const auto step = [&](const char* plan, cluster::Accumulation by) {
    Request other = request;
    other.plan = compile::parse_plan(plan);
    other.cluster.stack.accumulation = by;
    Coarse coarse(other);
    return std::pair(coarse.step(other.plan).value, mw::predict::predict(other).step.value);
  };
  for (const char* plan :
       {"microbatches=1", "microbatches=16", "pp=4,microbatches=2",
        "pp=2,microbatches=4,schedule=interleaved-1f1b,chunks=2",
        "pp=2,microbatches=4,schedule=zb-h1", "pp=4,microbatches=4,schedule=chimera",
        "pp=4,microbatches=8,schedule=dualpipe", "pp=4,microbatches=1,schedule=seq-1f1b,slices=2",
        "dp=2,pp=2,microbatches=4,zero=1"}) {
    CAPTURE(std::string(plan));
    const auto [buffers, in_buffers] = step(plan, cluster::Accumulation::kBuffers);
    const auto [first, kept] = step(plan, cluster::Accumulation::kAutograd);
    CHECK(buffers == mw::test::close_to(in_buffers).epsilon(0.01));
    CHECK(first == mw::test::close_to(kept).epsilon(0.01));
    CHECK(buffers - first == mw::test::close_to(in_buffers - kept).epsilon(0.03));
    CHECK(in_buffers > kept);
  }
}

TEST_CASE("bounds of memory that ranks share are those of the kind of blocks that has less") {
  Request request = request_for("deepseek-v3", 6);  // three blocks with one MLP before the others
  request.seq_len = 512;
  request.cluster.cores = 16;
  Coarse coarse(request);
  for (const char* text : {"pp=2,microbatches=8", "dp=2,pp=3,microbatches=8,zero=3",
                           "dp=2,pp=2,zero=1,microbatches=4,schedule=zb-h1"}) {
    CAPTURE(std::string(text));
    request.plan = compile::parse_plan(text);
    const double needed = in_bytes(mw::predict::predict(request).needed());
    CHECK(in_bytes(coarse.states(request.plan)) <= needed);
    CHECK(in_bytes(coarse.least(request.plan).peak) <= needed);
  }
}

TEST_CASE("a bound of memory has no more of a microbatch than two slices save") {
  Request request = small();
  request.cluster.device.attained.fused_attention = false;  // the scores are most of it
  request.cluster.stack.autograd = true;
  request.model.max_positions = request.seq_len = 2048;
  Coarse coarse(request);
  for (const char* text :
       {"pp=2,schedule=seq-1f1b,slices=2,microbatches=4", "pp=4,schedule=seq-1f1b,microbatches=1",
        "pp=4,schedule=seq-1f1b,microbatches=1,recompute=full",
        "pp=2,schedule=seq-1f1b,slices=4,microbatches=2,recompute=full"}) {
    CAPTURE(std::string(text));
    const compile::Plan plan = compile::parse_plan(text);
    const Estimate least = coarse.least(plan);
    CHECK(least.peak <= coarse.memory(plan).peak);
    CHECK(coarse.least_scheduled(plan).peak <= coarse.memory(plan).peak);
    CHECK(least.step <= coarse.step(plan));
    compile::Plan layout = plan;  // as the planner asks, for any schedule
    layout.schedule = compile::Plan().schedule;
    layout.slices = 0;
    if (plan.slices <= pipeline::kUsualSlices) {
      CHECK(coarse.least(layout).peak <= coarse.memory(plan).peak);
      CHECK(coarse.least(layout).step <= coarse.step(plan));
    }
  }
}
