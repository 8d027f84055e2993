// What ZeRO's collectives of a microbatch cost, and what is held for them.
#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "predict/predict.h"
#include "predict/test_request.h"
#include "simulate/prepared.h"

using namespace mw;
using namespace mw::predict;
using mw::predict::test::small;

TEST_CASE("what FSDP2 keeps gathered is there while the gradient of the loss is taken") {
  Request request = small();
  REQUIRE(set_precision(request, "bf16"));
  const auto workspace = [&](const char* plan, bool gathered_ends) {
    request.plan = compile::parse_plan(plan);
    request.cluster.stack.f32_loss = true;
    request.cluster.stack.gathered_ends = gathered_ends;
    const Prediction p = mw::predict::predict(request);
    return p.result.ranks[0].peak.by_category.at(pipeline::Category::kWorkspace).value;
  };
  // Tied embedding and positions, the last norm: 256 x 64 + 64 x 64; 2 h. And two buffers of a
  // block each: 12 h^2 + 13 h. The last block itself the backward pass has gathered ahead.
  constexpr int64_t kElements = 256 * 64 + 64 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64;
  CHECK(workspace("dp=2,zero=3", true) - workspace("dp=2,zero=3", false) >= 2 * kElements);
  CHECK(workspace("dp=2,zero=3", true) - workspace("dp=2,zero=3", false) < 2 * kElements + 65536);
  CHECK(workspace("dp=2,zero=1", true) == workspace("dp=2,zero=1", false));
}

TEST_CASE("first passes wait for the weights that ZeRO 1's update gathers beside them") {
  // Links so slow that gathers take far longer than all computation, which alone can hide them.
  Request request = small();
  request.cluster.links[0].bandwidth = request.cluster.links[0].bus_bandwidth =
      cluster::BytesPerSecond(1e8);
  request.plan = compile::parse_plan("dp=4,zero=1,bucket_mb=0");
  for (const char* precision : {"f32", "bf16"}) {
    CAPTURE(std::string(precision));
    REQUIRE(set_precision(request, precision));
    request.options.overlap.param_gather = false;
    const Prediction behind = mw::predict::predict(request);
    request.options.overlap.param_gather = true;
    const Prediction beside = mw::predict::predict(request);
    const simulate::RankResult& rank = beside.result.ranks[0];
    CHECK(behind.step - beside.step <= rank.compute);
    CHECK(rank.waits[static_cast<size_t>(simulate::WaitReason::kGather)] > rank.compute);
    // A fit's program waits for them, too.
    simulate::Prepared prepared(compile_step(request).program, request.cluster, request.options);
    CHECK(prepared.step(request.cluster) == beside.result.step);
  }
}

TEST_CASE("a sequence that tp does not divide is gathered again, too, rather than saved") {
  Request request = small();
  const auto activations = [&](const char* plan, int64_t seq_len) {
    request.plan = compile::parse_plan(plan);
    request.seq_len = seq_len;
    return static_cast<double>(mw::predict::predict(request)
                                   .result.ranks[0]
                                   .peak.by_category.at(pipeline::Category::kActivations)
                                   .value);
  };
  CHECK(activations("tp=4,sp,regather", 63) < activations("tp=4", 63));
  CHECK(activations("tp=4,sp,regather", 63) < 1.02 * activations("tp=4,sp,regather", 64));
}

TEST_CASE("a product waits for the weights that are gathered for it, whatever else overlaps") {
  for (const char* plan : {"dp=4,zero=1,bucket_mb=0", "dp=4,zero=3", "dp=4,zero=3,recompute=full",
                           "dp=2,tp=2,sp,zero=3,microbatches=2", "dp=2,zero=2,microbatches=4",
                           "dp=2,tp=2,sp,zero=2,microbatches=2,recompute=selective"}) {
    CAPTURE(std::string(plan));
    const auto step = [&](const char* word) {
      Request request = small();
      request.plan = compile::parse_plan(plan);
      REQUIRE(simulate::set_overlap(request.options.overlap, word));
      return mw::predict::predict(request).step.value;
    };
    CHECK(step("serial") >= step("none"));
    CHECK(step("none") >= 0.95 * step("collectives"));  // that one's streams outlive a call
    CHECK(step("serial") > step("collectives"));
  }
  // Where a layer's weights are gathered behind the layer before, none of it is hidden.
  Request request = small();
  request.plan = compile::parse_plan("dp=4,zero=3");
  const auto exposed = [&](bool late) {
    request.cluster.stack.gathers_late = late;
    return mw::predict::predict(request).result.ranks[0].total_exposed_comm().value;
  };
  const double late = exposed(true), ahead = exposed(false);
  CHECK(ahead < 0.8 * late);
  request.plan = compile::parse_plan("dp=4,zero=1");
  CHECK(late > 1.5 * exposed(true));
}

TEST_CASE("copies of what is gathered and scattered lengthen computation by their bytes") {
  Request request = small();
  request.options.host = false;
  request.precision = DType::kBF16;
  const auto computing = [&](const char* plan, bool copies) {
    request.plan = compile::parse_plan(plan);
    request.cluster.stack.copies_shards = copies;
    return mw::predict::predict(request).result.ranks[0].compute.value;
  };
  const cluster::Device& device = request.cluster.device;
  const double rate = device.memory_bandwidth.value * device.attained.memory_fraction;
  const double weights = static_cast<double>(mw::predict::predict(request).parameters);
  // Weights twice, forward and backward: read and written in two bytes; the embedding, which makes
  // the logits too, once more. Gradients: read in two, written in four.
  const double more = computing("dp=4,zero=3", true) - computing("dp=4,zero=3", false);
  CHECK(more > 0.8 * weights * 14 / rate);
  CHECK(more < 1.2 * weights * 14 / rate);
  // Behind a step's update nothing is copied between computation.
  CHECK(computing("dp=4,zero=1", true) == computing("dp=4,zero=1", false));
}

TEST_CASE("one group of a layer's gradients is not waited for where another is reduced") {
  Request request = small();
  request.options.host = false;
  // Links of their own for tensor and for data parallelism.
  request.cluster.links.push_back(request.cluster.links[0]);
  request.cluster.links[0].devices = 2;
  const auto exposed = [&](const char* plan) {
    request.plan = compile::parse_plan(plan);
    return mw::predict::predict(request).result.ranks[0].exposed_comm.at("dp").value;
  };
  // With sp a layer has two groups, the second of which waits for a sum over tp first: 2.5 times as
  // much; 3.2 times if it were waited for where the first one is reduced.
  const double two = exposed("dp=2,tp=2,sp,zero=2,microbatches=4");
  const double one = exposed("dp=2,tp=2,zero=2,microbatches=4");
  CHECK(two < 2.8 * one);
}

TEST_CASE("weights are gathered in their own precision, gradients summed in the stack's") {
  Request request = small();
  request.options.host = false;
  request.options.overlap.grad_reduce = request.options.overlap.param_gather = false;
  const auto run = [&](const char* plan, DType precision, int64_t gradient_bytes) {
    request.plan = compile::parse_plan(plan);
    request.precision = precision;
    request.cluster.device.attained.gradient_bytes = gradient_bytes;
    return mw::predict::predict(request).result.ranks[0];
  };
  // ZeRO 1 sums gradients in f32 here and there; what it gathers then is half as much in bf16.
  const auto sent = [&](DType precision) {
    return static_cast<double>(run("dp=4,zero=1", precision, 4).bytes_by_group.at("dp").value);
  };
  CHECK(sent(DType::kBF16) == mw::test::close_to(0.75 * sent(DType::kF32)).epsilon(0.01));
  // What is told as sent is what is timed.
  for (const char* plan : {"dp=4,zero=1", "dp=4,zero=2"}) {
    const auto bytes = [&](int64_t gradient_bytes) {
      return static_cast<double>(
          run(plan, DType::kBF16, gradient_bytes).bytes_by_group.at("dp").value);
    };
    CHECK(bytes(2) == mw::test::close_to(2.0 / 3 * bytes(4)).epsilon(0.01));
  }
  for (const char* plan : {"dp=4,zero=1", "dp=4,zero=2,microbatches=4", "dp=4,zero=3"}) {
    CAPTURE(std::string(plan));
    const auto all = [&](DType precision, int64_t bytes) {
      return run(plan, precision, bytes).comm.at("dp").value;
    };
    CHECK(all(DType::kBF16, 2) < all(DType::kBF16, 4));
    CHECK(all(DType::kF32, 2) == all(DType::kF32, 4));  // the gradients' own precision
  }
}

TEST_CASE("gradients of bf16 weights are summed in a format of their own") {
  Request request = small();
  request.plan = compile::parse_plan("dp=4");
  request.cluster.device.attained.gradient_bytes = 2;
  const auto sent = [&](DType precision, int64_t bf16) {
    request.precision = precision;
    request.cluster.device.attained.bf16_gradient_bytes = bf16;
    return mw::predict::predict(request).result.ranks[0].bytes_by_group.at("dp");
  };
  const Bytes two = sent(DType::kF16, 0);
  CHECK(sent(DType::kF16, 4) == two);
  CHECK(sent(DType::kBF16, 0) == two);
  const Bytes four = sent(DType::kBF16, 4);
  CHECK(static_cast<double>(four.value) ==
        mw::test::close_to(2 * static_cast<double>(two.value)).epsilon(0.01));
}

TEST_CASE("weights that a stack releases behind the recomputation are gathered once more") {
  Request request = small();
  request.options.host = false;
  request.cluster.device.attained.gradient_bytes = 2;  // as what is gathered
  REQUIRE(simulate::set_overlap(request.options.overlap, "serial"));
  const auto exposed = [&](const char* plan, double again) {
    request.plan = compile::parse_plan(plan);
    request.cluster.stack.gathered_again = again;
    return mw::predict::predict(request).result.ranks[0].exposed_comm.at("dp").value;
  };
  // A block is gathered for its forward and its backward and its gradient is scattered, each about
  // as long; embedding and head are not recomputed.
  const char* full = "dp=4,zero=3,microbatches=4,recompute=full";
  const double once = exposed(full, 0), more = exposed(full, 1);
  CHECK(more > 1.2 * once);
  CHECK(more < 4.0 / 3 * once);
  CHECK(exposed(full, 0.5) == mw::test::close_to((once + more) / 2));
  for (const char* plan : {"dp=4,zero=3,microbatches=4", "dp=4,zero=3,recompute=selective",
                           "dp=4,zero=2,microbatches=4,recompute=full"}) {
    CAPTURE(std::string(plan));
    CHECK(exposed(plan, 1) == exposed(plan, 0));
  }
}

TEST_CASE("spans of ops say as many bytes as their rank sends, those gathered again too") {
  Request request = small();
  REQUIRE(set_precision(request, "bf16"));
  request.plan = compile::parse_plan("dp=4,zero=3,microbatches=4,recompute=full");
  request.options.trace = true;
  const auto told = [&](bool op_spans) {
    request.options.op_spans = op_spans;
    const Prediction p = mw::predict::predict(request);
    Bytes bytes;
    for (const trace::Span& span : p.result.trace.spans) bytes += span.bytes;
    CHECK(bytes.value == p.result.ranks[0].bytes_sent.value);
    return bytes.value;
  };
  const int64_t once = told(true);
  request.cluster.stack.gathered_again = 0.6667;
  CHECK(told(true) > once);
  CHECK(told(true) == told(false));
}

TEST_CASE("gradients are summed in f16 where weights are and the stack does so") {
  const auto gradients = [](const char* plan, const char* precision, bool narrow) {
    Request request = small();
    REQUIRE(set_precision(request, precision));
    request.plan = compile::parse_plan(plan);
    request.cluster.stack.f16_gradients = narrow;
    std::vector<int64_t> held;  // [rank]
    for (const simulate::RankResult& rank : mw::predict::predict(request).result.ranks)
      held.push_back(rank.peak.by_category.at(pipeline::Category::kGradients).value);
    return held;
  };
  for (const char* plan :
       {"dp=2,tp=2,pp=2,microbatches=4,sp,zero=1", "dp=4,zero=1,microbatches=2",
        "pp=4,microbatches=4",
        "pp=2,schedule=interleaved-1f1b,chunks=2,microbatches=4,recompute=full"}) {
    CAPTURE(std::string(plan));
    const std::vector<int64_t> wide = gradients(plan, "f16", false);
    std::vector<int64_t> narrow = gradients(plan, "f16", true);
    for (int64_t& bytes : narrow) bytes *= 2;
    CHECK(narrow == wide);
    CHECK(gradients(plan, "bf16", true) == gradients(plan, "bf16", false));
  }
}
