#include "predict/stack_memory.h"

#include <doctest/doctest.h>

#include "predict/test_request.h"

using namespace mw;
using namespace mw::predict;

TEST_CASE("what a stack keeps follows from what it fuses and what its autograd saves") {
  for (int i = 0; i < 32; ++i) {
    Request request = predict::test::small();
    cluster::Stack& stack = request.cluster.stack;
    cluster::Attained& attained = request.cluster.device.attained;
    stack.autograd = (i & 1) != 0;
    stack.attention_copies = (i & 2) != 0;
    attained.fused_attention = (i & 4) != 0;
    attained.fused_elementwise = (i & 8) != 0;
    stack.dropout_masks = stack.f32_loss = (i & 16) != 0;
    stack.f32_softmax = attained.blocked_softmax = (i & 2) != 0;
    CAPTURE(i);
    const auto memory = [&](const char* plan) {
      return stack_memory(request.cluster, compile::parse_plan(plan), cost::Fp8::kOff);
    };
    const StackMemory usual = memory("dp=1");
    // Scores that go through memory are saved, and with them what is copied for them.
    CHECK(usual.scores == (stack.autograd && !attained.fused_attention));
    CHECK(usual.blocked_softmax == (usual.scores && attained.blocked_softmax));
    CHECK(usual.attention_copies == (usual.scores && stack.attention_copies));
    CHECK(usual.wide_norms == !attained.fused_elementwise);
    CHECK(usual.f32_softmax == stack.f32_softmax);
    CHECK(usual.wide_last_norm == stack.f32_loss);
    const bool eager = stack.autograd && !attained.fused_elementwise;
    CHECK(usual.copies == eager);
    CHECK(memory("recompute=full").copies == eager);
    CHECK(!memory("recompute=selective-op").copies);  // products are kept, not what attention reads
    CHECK(usual.masks == stack.dropout_masks);
    CHECK(!usual.kept_products);
    CHECK(!memory("recompute=selective").kept_products);
    CHECK(memory("recompute=selective-op").kept_products == !attained.fused_elementwise);
  }
}

TEST_CASE("no more is gathered ahead than the stack does, nor than the plan says") {
  cluster::Cluster cluster;
  compile::Plan plan;
  const auto most = [&](int64_t of_stack, int64_t of_plan) {
    cluster.stack.prefetch_mb = of_stack;
    plan.prefetch_mb = of_plan;
    return stack_plan(cluster, plan).prefetch_mb;
  };
  CHECK(most(0, 70) == 70);
  CHECK(most(4096, 70) == 70);
  CHECK(most(4096, 5000) == 4096);
  // A program is compiled so, and its step takes as long as the plan's that says it.
  Request request = predict::test::small();
  request.plan = compile::parse_plan("dp=4,microbatches=2,zero=3");
  request.plan.prefetch_mb = 0;
  const Seconds late = mw::predict::predict(request).step;
  request.plan.prefetch_mb = compile::Plan().prefetch_mb;
  const Seconds ahead = mw::predict::predict(request).step;
  CHECK(ahead < late);
  request.cluster.stack.prefetch_mb = 1;  // all of this model's layers
  CHECK(mw::predict::predict(request).step == ahead);
}
