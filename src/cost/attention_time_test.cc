#include "cost/attention_time.h"

#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "cost/op_time.h"
#include "cost/test_ops.h"
#include "ops/builder.h"
#include "ops/op_def.h"

using namespace mw;
using namespace mw::cost;

TEST_CASE("unfused attention makes all scores of all heads, whatever the mask leaves of them") {
  const auto work = [](int64_t queries, int64_t window) {
    const auto type = [](int64_t length) {
      return ir::make_type(DType::kBF16, {2, length, 4, 64});
    };
    ir::AttentionAttrs attrs;
    attrs.window = window;
    ir::Graph graph;
    ir::Op op;
    op.kind = ir::OpKind::kAttention;
    op.attrs = attrs;
    for (const ir::TensorType& operand :
         {type(queries), type(256), type(256), ir::make_type(DType::kI32, {2, 256})})
      op.operands.push_back(graph.add_input(operand, "x"));
    const OpId id = graph.add_op(op, ops::infer(op, ops::operand_types(graph, op)));
    return work_of(graph, graph.op(id));
  };
  cluster::Device d = device();
  d.attained.fused_attention = false;
  for (const int64_t queries : {256, 128}) {
    for (const int64_t window : {0, 32}) {
      CHECK(work(queries, window).shape ==
            ProductShape{.batch = 8, .m = queries, .n = 256, .k = 64});
    }
    CHECK(op_time(d, work(queries, 32)).device == op_time(d, work(queries, 0)).device);
  }
}

TEST_CASE("attention's work is of its queries, keys and values, forward and backward") {
  // Latent attention's values are shorter than its keys; of a window or a part, keys are more than
  // queries.
  const auto type = [](int64_t length, int64_t size) {
    return ir::make_type(DType::kBF16, {2, length, 4, size});
  };
  const auto work = [](ir::OpKind kind, const std::vector<ir::TensorType>& operands) {
    const ir::AttentionAttrs attrs;
    ir::Graph graph;
    ir::Op op;
    op.kind = kind;
    op.attrs = attrs;
    for (const ir::TensorType& operand : operands)
      op.operands.push_back(graph.add_input(operand, "x"));
    const OpId id = graph.add_op(op, ops::infer(op, ops::operand_types(graph, op)));
    return work_of(graph, graph.op(id));
  };
  const ir::TensorType positions = ir::make_type(DType::kI32, {2, 256}),
                       lse = ir::make_type(DType::kF32, {2, 4, 128});
  const ProductShape shape{.batch = 8, .m = 128, .n = 256, .k = 64};
  const OpWork forward =
      work(ir::OpKind::kAttention, {type(128, 96), type(256, 96), type(256, 64), positions});
  CHECK(forward.shape == shape);
  CHECK(!forward.backward);
  const OpWork backward = work(
      ir::OpKind::kAttentionGrad,
      {type(128, 64), type(128, 96), type(256, 96), type(256, 64), type(128, 64), lse, positions});
  CHECK(backward.shape == shape);
  CHECK(backward.backward);
}

TEST_CASE("fused attention runs at its share of the peak, backward at 0.65 / 0.75 of that") {
  cluster::Device d = device();
  OpWork work = attention({2, 1280, 2560, 64});
  work.flops = 1e12;
  d.attained.attention_fraction = 0.5;
  CHECK(op_time(d, work).device.value == mw::test::close_to(1e12 / 50e12));
  work.backward = true;
  CHECK(op_time(d, work).device.value == mw::test::close_to(1e12 / 50e12 * 0.75 / 0.65));
}

TEST_CASE("fused attention reaches half where a query sees half_keys, its gradient where it says") {
  cluster::Device d = device();
  d.attained.attention_fraction = 0.5;
  d.attained.attention_half_keys = 200;
  d.attained.attention_grad_half_keys = 600;
  d.attained.attention_grad_fraction = 0.8;
  OpWork work = attention({2, 1280, 400, 64});
  // Under a causal mask a query sees half of its keys: here 200 of 400.
  work.flops = 2 * 2 * 2.0 * 1280 * 200 * 64;
  CHECK(op_time(d, work).device.value == mw::test::close_to(work.flops / (50e12 / 2)));
  work.backward = true;
  work.flops *= 2.5;
  CHECK(op_time(d, work).device.value == mw::test::close_to(work.flops / (0.8 * 50e12 / 4)));
  work.flops *= 3;
  CHECK(op_time(d, work).device.value == mw::test::close_to(work.flops / (0.8 * 50e12 / 2)));
}

TEST_CASE("unfused attention has its scores in memory, up to 4096 keys") {
  cluster::Device d = device();
  d.attained.fused_attention = false;
  d.attained.launch = Seconds(2e-6);
  d.attained.host_op = Seconds(7e-6);
  d.attained.score_traffic = 1.5;
  d.attained.cache_rate = 2;
  d.attained.product_half_k = 0;
  OpWork work = attention({2, 1280, 2560, 64});
  work.bytes = 4e6;
  const double square = 2.0 * 1280 * 2560, one_product = 2 * square * 64;
  // The scores and what is made of them: 2 * 2 bytes each. Half of that fits the cache, and all of
  // the operands.
  d.cache = Bytes(static_cast<int64_t>(2 * square));
  const double along = one_product / (100e12 * product_efficiency(d, work.shape));
  const double across = one_product / (100e12 * product_efficiency(d, {2, 1280, 64, 2560}));
  CHECK(across > 2 * along);
  for (const bool backward : {false, true}) {
    work.backward = backward;
    const double scores = square * (1 + 2 * (backward ? 9 : 6)) * 1.5;
    const double kernels = backward ? 10 : 6;
    const OpTime time = op_time(d, work);
    CHECK(time.device.value ==
          mw::test::close_to(kernels * 2e-6 + along + (backward ? 3 : 1) * across +
                             0.75 * scores / 1e12 + 0.5 * 4e6 / 1e12));
    CHECK(time.host.value == mw::test::close_to(kernels * 7e-6));
  }
  work.shape.n = 4096;
  CHECK(op_time(d, work).host.value == mw::test::close_to(10 * 7e-6));
  work.shape.n = 4097;  // the fused ones
  CHECK(op_time(d, work).host.value == mw::test::close_to(7e-6));
}

TEST_CASE("Megatron-LM's softmax kernel takes heads of all samples in whole blocks") {
  struct {
    int64_t heads, queries, keys;
    DType dtype;
    bool takes;
  } const kCases[] = {
      {4, 1024, 1024, DType::kF16, true},  {2, 1024, 1024, DType::kF16, false},
      {6, 1024, 1024, DType::kF16, false}, {12, 2048, 2048, DType::kBF16, true},
      {4, 1024, 1024, DType::kF32, false}, {4, 128, 128, DType::kF16, false},
      {8, 128, 128, DType::kF16, true},    {4, 132, 132, DType::kF16, true},
      {8, 16, 16, DType::kF16, false},     {8, 20, 20, DType::kF16, true},
      {4, 1022, 1024, DType::kF16, false}, {4, 1024, 1022, DType::kF16, false},
  };
  for (const auto& c : kCases) {
    CAPTURE(c.heads);
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    CHECK(takes_softmax_kernel({c.heads, c.queries, c.keys, 64}, c.dtype) == c.takes);
  }
}

TEST_CASE("PyTorch makes in f32 the softmax that no kernel takes") {
  cluster::Device d = device();
  d.attained.fused_attention = false;
  d.attained.launch = Seconds(2e-6);
  d.attained.host_op = Seconds(7e-6);
  d.attained.score_traffic = 1.5;
  const auto time = [&](int64_t heads, DType dtype, bool backward, bool blocked) {
    d.attained.blocked_softmax = blocked;
    OpWork work = attention({heads, 1024, 1024, 64});
    work.dtype = dtype;
    work.backward = backward;
    return op_time(d, work);
  };
  // A stack without that kernel has one that takes all.
  CHECK(time(2, DType::kBF16, false, true).device > time(2, DType::kBF16, false, false).device);
  CHECK(time(4, DType::kBF16, false, true).device == time(4, DType::kBF16, false, false).device);
  struct {
    DType dtype;
    double forward, backward, kernels;
  } const kCases[] = {{DType::kBF16, 33, 35, 4}, {DType::kF32, 17, 17, 2}};
  for (const auto& c : kCases) {
    for (const bool backward : {false, true}) {
      CAPTURE(backward);
      const OpTime usual = time(2, c.dtype, backward, false),
                   f32 = time(2, c.dtype, backward, true);
      const double bytes = (backward ? c.backward : c.forward) * 2 * 1024 * 1024 * 1.5;
      CHECK((f32.device - usual.device).value ==
            mw::test::close_to(c.kernels * 2e-6 + bytes / 1e12));
      CHECK((f32.host - usual.host).value == mw::test::close_to(c.kernels * 7e-6));
    }
  }
}

TEST_CASE("unfused attention multiplies as in f32 where heads begin at no 16 bytes") {
  cluster::Device d = device();
  d.attained.fused_attention = false;
  d.attained.product_half_k = 0;
  REQUIRE(d.peak("f32").value < d.peak("bf16").value);
  const auto time = [&](int64_t head, DType dtype) {
    OpWork work = attention({16, 4096, 4096, head});
    work.dtype = dtype;
    return op_time(d, work).device.value;
  };
  // The scores' traffic is the same; of 104 and 112 elements the products take about as long.
  const double of_head = (time(112, DType::kBF16) - time(104, DType::kBF16)) / 8;
  CHECK(time(108, DType::kBF16) >
        time(104, DType::kBF16) + 4 * of_head + 2.0 * 16 * 4096 * 4096 * 108 / d.peak("f32").value);
  CHECK(time(108, DType::kF32) < time(112, DType::kF32) * 1.0001);
  CHECK(time(2, DType::kF32) < time(4, DType::kF32) * 1.0001);
  // A device that lists no peak of f32 has one rate for both.
  const double f32 = time(108, DType::kBF16);
  d.peaks = {{"bf16", cluster::FlopsPerSecond(100e12)}};
  CHECK(time(108, DType::kBF16) < f32);
  CHECK(time(108, DType::kBF16) < time(112, DType::kBF16) * 1.01);
}
