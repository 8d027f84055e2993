#include <doctest/doctest.h>

#include "base/test_close_to.h"
#include "cost/op_time.h"
#include "cost/test_ops.h"
#include "ops/builder.h"
#include "ops/op_def.h"

using namespace mw;
using namespace mw::cost;

TEST_CASE("a product's shape follows from its letters") {
  const Made made =
      make(ir::OpKind::kDot, ir::DotAttrs{"bshd", "nhd", "bsn"},
           {ir::make_type(DType::kF32, {2, 3, 4, 5}), ir::make_type(DType::kF32, {7, 4, 5})},
           ir::make_type(DType::kF32, {2, 3, 7}));
  CHECK(product_shape(made.graph, made.op) == ProductShape{.batch = 1, .m = 6, .n = 7, .k = 20});
  const Made batched =
      make(ir::OpKind::kDot, ir::DotAttrs{"bmk", "bkn", "bmn"},
           {ir::make_type(DType::kF32, {2, 3, 4}), ir::make_type(DType::kF32, {2, 4, 5})},
           ir::make_type(DType::kF32, {2, 3, 5}));
  CHECK(product_shape(batched.graph, batched.op) ==
        ProductShape{.batch = 2, .m = 3, .n = 5, .k = 4});
}

TEST_CASE("tiles and waves that are not full cost as much as full ones") {
  struct Case {
    ProductShape shape;
    double efficiency;
  };
  const double k = 8192.0 / (8192 + 64);
  const std::vector<Case> cases = {
      {{1, 2560, 1280, 8192}, k},              // 100 tiles of 256 x 128: one full wave
      {{1, 2560, 2560, 8192}, k},              // two full waves
      {{1, 2560, 640, 8192}, 0.97 * k},        // 50 large tiles, but 100 of 128 x 128
      {{4, 640, 1280, 8192}, k},               // 4 x 25 tiles of 128 x 256
      {{1, 2560, 1280, 64}, 0.5},              // short k
      {{1, 256, 128, 8192}, 0.08 * 0.70 * k},  // eight tiles of 64 x 64 on 100 multiprocessors
      {{1, 100, 60, 8192}, 6000 / 4096. / 100 * 0.7 * k},  // two tiles with edges
  };
  for (const Case& c : cases) {
    CHECK(product_efficiency(device(), c.shape) == mw::test::close_to(c.efficiency));
  }
}

TEST_CASE("an op takes the larger of arithmetic and memory, and the gap before it") {
  cluster::Device d = device();
  d.attained.launch = Seconds(2e-6);
  d.attained.host_op = Seconds(7e-6);
  // 2 * 2560 * 8192 * 1280 FLOPs at full rate.
  const Made large = product(DType::kBF16, 2560, 8192, 1280);
  const OpTime t = op_time(d, large.graph, large.op);
  CHECK(t.flops.value == 2.0 * 2560 * 8192 * 1280);
  CHECK(t.device.value ==
        mw::test::close_to(2e-6 + t.flops.value / (100e12 * 8192.0 / (8192 + 64))));
  CHECK(t.host.value == 7e-6);
  CHECK(t.matrix_product);
  // A vector times a matrix is bound by memory: 2 bytes an element.
  const Made thin = product(DType::kBF16, 1, 10000, 10000);
  CHECK(op_time(d, thin.graph, thin.op).device.value ==
        mw::test::close_to(2e-6 + 2.0 * (1e8 + 2e4) / 1e12));
  const ir::TensorType x = ir::make_type(DType::kF32, {1000, 1000});
  const Made add = make(ir::OpKind::kAdd, ir::NoAttrs{}, {x, x}, x);
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(2e-6 + 12e6 / 1e12));
}

TEST_CASE("what software reaches of the peaks is a share of both") {
  cluster::Device d = device();
  d.attained.matrix_fraction = 0.5;
  d.attained.memory_fraction = 0.25;
  const Made large = product(DType::kBF16, 2560, 8192, 1280);
  const double flops = 2.0 * 2560 * 8192 * 1280;
  CHECK(op_time(d, large.graph, large.op).device.value ==
        mw::test::close_to(flops / (0.5 * 100e12 * 8192.0 / (8192 + 64))));
  OpWork scores = attention({2, 1280, 2560, 64});
  scores.flops = 1e12;
  d.attained.attention_fraction = 0.8;
  CHECK(op_time(d, scores).device.value == mw::test::close_to(1e12 / (0.5 * 0.8 * 100e12)));
  // What is neither product nor attention computes at the peak of f32.
  OpWork stream;
  stream.kind = OpWork::Kind::kStream;
  stream.flops = 1e12;
  CHECK(op_time(d, stream).device.value == mw::test::close_to(1e12 / 10e12));
  stream.bytes = 1e12;
  CHECK(op_time(d, stream).device.value == mw::test::close_to(1e12 / (0.25 * 1e12)));
  // So do casts and operands of products in fp8.
  d.peaks.emplace_back("fp8", cluster::FlopsPerSecond(200e12));
  OpWork cast = work_of(large.graph, large.op);
  cast.operand_values = cast.new_values = cast.new_layouts = 1e9;
  cast.flops = 0;
  cast.bytes = 3e9;
  CHECK(op_time(d, cast, false, Fp8::kTensor).device.value ==
        mw::test::close_to((2e9 + 5e9) / (0.25 * 1e12)));
}

TEST_CASE("what is not fused is several kernels, each of which reads and writes") {
  cluster::Device d = device();
  d.attained.launch = Seconds(2e-6);
  d.attained.host_op = Seconds(7e-6);
  const ir::TensorType x = ir::make_type(DType::kBF16, {10, 100, 10, 100}),
                       table = ir::make_type(DType::kBF16, {10, 100, 50});
  const Made op = make(ir::OpKind::kRope, ir::NoAttrs{}, {x, table, table}, x);
  const double own = work_of(op.graph, op.op).bytes;
  CHECK(op_time(d, op.graph, op.op).device.value == mw::test::close_to(2e-6 + own / 1e12));
  d.attained.fused_elementwise = false;
  CHECK(op_time(d, op.graph, op.op).device.value == mw::test::close_to(3 * 2e-6 + 5 * own / 1e12));
  CHECK(op_time(d, op.graph, op.op).host.value == mw::test::close_to(3 * 7e-6));
  // A product is one kernel whatever attention is.
  d.attained.fused_attention = false;
  const Made made = product(DType::kBF16, 256, 256, 256);
  CHECK(op_time(d, made.graph, made.op).host.value == 7e-6);
  const Made add = make(ir::OpKind::kAdd, ir::NoAttrs{}, {x, x}, x);
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(2e-6 + 6e6 / 1e12));
}

TEST_CASE("a mixture's rows go through f32 where nothing is fused, and sums of them are atomic") {
  // 2 x 1,000 tokens of 100 values, each to two of eight experts: 400,000 values of rows.
  const ir::TensorType tokens = ir::make_type(DType::kBF16, {2, 1000, 100}),
                       rows = ir::make_type(DType::kBF16, {8, 2, 250, 100}),
                       logits = ir::make_type(DType::kBF16, {2, 1000, 8}),
                       chosen = ir::make_type(DType::kI32, {2, 1000, 2}),
                       gates = ir::make_type(DType::kBF16, {2, 1000, 2});
  const double values = 8 * 2 * 250 * 100;
  struct Case {
    ir::OpKind kind;
    std::vector<ir::TensorType> operands;
    ir::TensorType result;
    double kernels, bytes, sums;
  };
  for (const Case& c :
       {Case{ir::OpKind::kMoeDispatch, {tokens, chosen}, rows, 4, 24 * values, 0},
        Case{ir::OpKind::kMoeDispatch, {tokens, chosen, gates}, rows, 4, 24 * values, 0},
        Case{ir::OpKind::kMoeCombine, {rows, chosen, gates}, tokens, 2, 0, values},
        Case{ir::OpKind::kMoeCombine, {rows, chosen}, tokens, 2, 0, values},
        Case{ir::OpKind::kMoeGateGrad, {rows, tokens, chosen}, gates, 2, 16 * values, 0},
        Case{ir::OpKind::kMoeTopK, {logits}, gates, 20, 2.0 * 2 * 1000 * (8 + 2), 0},
        Case{ir::OpKind::kMoeTopKGrad,
             {gates, chosen, logits},
             logits,
             6,
             2.0 * 2 * 1000 * (2 + 2 * 2 + 8 + 8),
             0}}) {
    CAPTURE(ir::op_name(c.kind));
    const Made op = make(c.kind, ir::MoeAttrs{8, 2}, c.operands, c.result);
    cluster::Device d = device();
    d.attained.launch = Seconds(2e-6);
    d.attained.host_op = Seconds(7e-6);
    const OpTime fused = op_time(d, op.graph, op.op);
    CHECK(fused.device.value == mw::test::close_to(2e-6 + work_of(op.graph, op.op).bytes / 1e12));
    d.attained.fused_elementwise = false;
    const OpTime apart = op_time(d, op.graph, op.op);
    CHECK(apart.device.value ==
          mw::test::close_to(c.kernels * 2e-6 + c.bytes / 1e12 + c.sums * 256 / 10e12));
    CHECK(apart.host.value == mw::test::close_to(c.kernels * 7e-6));
  }
}

TEST_CASE("products with the vocabulary reach their share of what their shape says") {
  cluster::Device d = device();
  const Made made = product(DType::kBF16, 2560, 8192, 1280);
  OpWork work = work_of(made.graph, made.op);
  const double linear = op_time(d, work).device.value;
  d.attained.logits_fraction = 0.5;
  CHECK(op_time(d, work).device.value == linear);
  work.kind = OpWork::Kind::kLogits;
  CHECK(op_time(d, work).device.value == mw::test::close_to(2 * linear));
}

TEST_CASE("GELU of several kernels moves as many times the bytes") {
  cluster::Device d = device();
  const ir::TensorType x = ir::make_type(DType::kF32, {1000, 1000});
  const Made gelu = make(ir::OpKind::kGelu, ir::GeluAttrs{true}, {x}, x);
  d.attained.activation_traffic = 9;
  CHECK(op_time(d, gelu.graph, gelu.op).device.value == mw::test::close_to(9 * 8e6 / 1e12));
  const Made add = make(ir::OpKind::kAdd, ir::NoAttrs{}, {x, x}, x);
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(12e6 / 1e12));
  OpWork work;
  work.kind = OpWork::Kind::kStream;
  work.bytes = 1e6;
  for (const ir::OpKind kind : {ir::OpKind::kBiasGelu, ir::OpKind::kGeluGrad}) {
    work.op = kind;
    CHECK(op_time(d, work).device.value == mw::test::close_to(9e6 / 1e12));
  }
}

TEST_CASE("the loss and the update move their own multiples of the bytes") {
  cluster::Device d = device();
  d.attained.loss_traffic = 3;
  d.attained.update_traffic = 5;
  OpWork work;
  work.bytes = 1e6;
  const auto seconds = [&](OpWork::Kind kind) {
    work.kind = kind;
    return op_time(d, work).device.value;
  };
  CHECK(seconds(OpWork::Kind::kStream) == mw::test::close_to(1e6 / 1e12));
  CHECK(seconds(OpWork::Kind::kLoss) == mw::test::close_to(3e6 / 1e12));
  CHECK(seconds(OpWork::Kind::kUpdate) == mw::test::close_to(5e6 / 1e12));
}

TEST_CASE("a kernel behind an op adds its result to a sum, for the host, too") {
  cluster::Device d = device();
  d.attained.launch = Seconds(5e-6);
  d.attained.host_op = Seconds(20e-6);
  d.attained.memory_fraction = 0.5;
  const Made made = product(DType::kBF16, 4096, 4096, 4096);
  for (const Fp8 fp8 : {Fp8::kOff, Fp8::kTensor}) {
    d.peaks.emplace_back("fp8", cluster::FlopsPerSecond(200e12));
    OpWork work = work_of(made.graph, made.op);
    const OpTime alone = op_time(d, work, false, fp8);
    work.adds = 1e6;  // bytes
    const OpTime both = op_time(d, work, false, fp8);
    CHECK((both.device - alone.device).value == mw::test::close_to(5e-6 + 2e-6));
    CHECK((both.host - alone.host).value == mw::test::close_to(20e-6));
    work.kind = OpWork::Kind::kFused;  // another op's kernel has it
    CHECK(op_time(d, work, false, fp8).device.value == 0);
  }
}

TEST_CASE("a measured kernel has its rate, a product what its depth leaves of it") {
  cluster::Device d = device();
  d.attained.launch = Seconds(2e-6);
  d.kernel_rates = {{"dot", 50e12}, {"add", 0.5e12}};
  const Made made = product(DType::kBF16, 2560, 64, 1280);
  CHECK(op_time(d, made.graph, made.op).device.value ==
        mw::test::close_to(2e-6 + 2.0 * 2560 * 64 * 1280 * (64 + 64) / 64 / 50e12));
  const ir::TensorType x = ir::make_type(DType::kF32, {1000, 1000});
  const Made add = make(ir::OpKind::kAdd, ir::NoAttrs{}, {x, x}, x);
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(2e-6 + 12e6 / 0.5e12));
  // Attention's rate is one of FLOPs, whatever its bytes.
  d.kernel_rates = {{"attention", 40e12}};
  OpWork scores = attention({2, 1280, 2560, 64});
  scores.op = ir::OpKind::kAttention;
  scores.flops = 1e12;
  scores.bytes = 1e15;
  CHECK(op_time(d, scores).device.value == mw::test::close_to(2e-6 + 1e12 / 40e12));
}

TEST_CASE("what fits the cache moves at its rate, of larger operands the part that fits") {
  cluster::Device d = device();
  const ir::TensorType x = ir::make_type(DType::kF32, {1000, 1000});
  const Made add = make(ir::OpKind::kAdd, ir::NoAttrs{}, {x, x}, x);
  d.cache = Bytes(6'000'000);  // of 12 MB
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(12e6 / 1e12));
  d.attained.cache_rate = 2;
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(9e6 / 1e12));
  d.cache = Bytes(20'000'000);
  CHECK(op_time(d, add.graph, add.op).device.value == mw::test::close_to(6e6 / 1e12));
}

TEST_CASE("products run at the peak of their format") {
  const cluster::Device d = device();
  CHECK(matrix_peak(d, DType::kBF16).value == 100e12);
  CHECK(matrix_peak(d, DType::kF16).value == 100e12);
  CHECK(matrix_peak(d, DType::kF32).value == 10e12);
  CHECK(matrix_peak(d, DType::kF32, true).value == 50e12);
  CHECK(matrix_peak(d, DType::kBF16, true).value == 100e12);
  // The other half precision's where one is not listed, never a wider one.
  cluster::Device older = d;
  older.peaks = {{"f32", cluster::FlopsPerSecond(10e12)}, {"f16", cluster::FlopsPerSecond(80e12)}};
  CHECK(matrix_peak(older, DType::kBF16).value == 80e12);
  CHECK(matrix_peak(older, DType::kF32, true).value == 10e12);
  // Of other types it is the first format's.
  for (const cluster::Device& each : {d, older})
    CHECK(matrix_peak(each, DType::kF64).value == 10e12);
  older.peaks.emplace_back("bf16", cluster::FlopsPerSecond(60e12));
  CHECK(matrix_peak(older, DType::kBF16).value == 60e12);
  CHECK(matrix_peak(older, DType::kF16).value == 80e12);
}

TEST_CASE("products of linear layers in fp8 take the fp8 peak and the casts of their operands") {
  cluster::Device d = device();
  d.peaks.emplace_back("fp8", cluster::FlopsPerSecond(200e12));
  d.attained.product_half_k = 0;
  d.attained.fp8_fraction = 0.8;
  // y = x w, x [1280, 1000] and w [1000, 2560]: 100 tiles of 256 x 128, all of the slots.
  const Made made = product(DType::kBF16, 1280, 1000, 2560);
  std::vector<OpWork> works = {work_of(made.graph, made.op)};
  find_casts(made.graph, works);
  const double operands = 1280e3 + 2560e3, flops = 2.0 * 1280 * 1000 * 2560;
  CHECK(works[0].new_values == operands);
  CHECK(works[0].new_layouts == operands);
  CHECK(works[0].new_operands == 2);
  const double product_s = flops / (200e12 * 0.8);
  // Read for the largest value, read, written; or read and written with a byte of scale for 32.
  CHECK(op_time(d, works[0], false, Fp8::kTensor).device.value ==
        mw::test::close_to(product_s + operands * 5 / 1e12));
  CHECK(op_time(d, works[0], false, Fp8::kBlock).device.value ==
        mw::test::close_to(product_s + operands * (3 + 1.0 / 32) / 1e12));
  CHECK(op_time(d, works[0]).device.value == mw::test::close_to(flops / 100e12));
  // Its fixed costs are those of half precision, so half of k is twice as long at twice the peak.
  d.attained.product_half_k = 64;
  CHECK(op_time(d, works[0], false, Fp8::kTensor).device.value ==
        mw::test::close_to(product_s * (1000 + 128) / 1000 + operands * 5 / 1e12));
  // Each cast is a kernel, with a scale a tensor two; operands are read in one byte a value.
  d.attained.launch = Seconds(2e-6);
  d.attained.host_op = Seconds(7e-6);
  OpWork thin = works[0];
  thin.flops = 0;
  const double moved = (thin.bytes - operands) / 1e12;
  const OpTime tensor = op_time(d, thin, false, Fp8::kTensor),
               block = op_time(d, thin, false, Fp8::kBlock);
  CHECK(tensor.device.value == mw::test::close_to(5 * 2e-6 + moved + operands * 5 / 1e12));
  CHECK(tensor.host.value == mw::test::close_to(5 * 7e-6));
  CHECK(block.device.value ==
        mw::test::close_to(3 * 2e-6 + moved + operands * (3 + 1.0 / 32) / 1e12));
  CHECK(block.host.value == mw::test::close_to(3 * 7e-6));
  // Products with the vocabulary stay as they are.
  works[0].kind = OpWork::Kind::kLogits;
  CHECK(op_time(d, works[0], false, Fp8::kTensor).device == op_time(d, works[0]).device);
}

TEST_CASE(
    "an operand of several products is cast once, and stored once for each way it is summed") {
  ir::Graph graph;
  const auto add = [&](const char* lhs, const char* rhs, const char* out, ValueId a, ValueId b,
                       std::vector<int64_t> sizes) {
    ir::Op op;
    op.kind = ir::OpKind::kDot;
    op.attrs = ir::DotAttrs{lhs, rhs, out};
    op.operands = {a, b};
    return graph.op(graph.add_op(std::move(op), {ir::make_type(DType::kBF16, sizes)})).results[0];
  };
  const ValueId dy = graph.add_input(ir::make_type(DType::kBF16, {8, 5}), "dy");
  const ValueId w = graph.add_input(ir::make_type(DType::kBF16, {5, 3}), "w");
  const ValueId x = graph.add_input(ir::make_type(DType::kBF16, {8, 3}), "x");
  add("bn", "nk", "bk", dy, w, {8, 3});  // input gradient
  add("bn", "bk", "nk", dy, x, {5, 3});  // weight gradient
  std::vector<OpWork> works;
  for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
  find_casts(graph, works);
  CHECK(works[0].new_values == 40 + 15);
  CHECK(works[1].new_values == 24);
  CHECK(works[1].new_layouts == 40 + 24);
  CHECK(works[1].new_operands == 1);
}

TEST_CASE("what is cast in a share of a graph's runs takes that share of the reads and writes") {
  const Made made = product(DType::kBF16, 1280, 1000, 2560);
  const ir::Op& op = made.graph.ops.back();
  std::vector<OpWork> works = {work_of(made.graph, made.op)};
  std::vector<CastShare> often(made.graph.values.size());
  often[op.operands[1].index()] = {0.25, 0.5};
  find_casts(made.graph, works, often);
  CHECK(works[0].new_values == 1280e3 + 0.25 * 2560e3);
  CHECK(works[0].new_layouts == 1280e3 + 0.5 * 2560e3);
  CHECK(works[0].new_operands == 1.25);
  CHECK(works[0].operand_values == 1280e3 + 2560e3);
}

TEST_CASE("a bias, dropout and the residual's sum are one kernel where nothing else reads them") {
  for (const bool others : {false, true}) {
    ir::Graph graph;
    const ir::TensorType type = ir::make_type(DType::kBF16, {1000, 100});
    const auto add = [&](ir::OpKind kind, ir::Attributes attrs, ValueIds operands) {
      ir::Op op;
      op.kind = kind;
      op.attrs = std::move(attrs);
      op.operands = std::move(operands);
      return graph.op(graph.add_op(std::move(op), {type})).results[0];
    };
    const ValueId x = graph.add_input(type, "x"), residual = graph.add_input(type, "residual");
    const ValueId bias = graph.add_input(ir::make_type(DType::kBF16, {100}), "bias");
    const ValueId biased = add(ir::OpKind::kBiasAdd, {}, {x, bias});
    const ValueId other = add(ir::OpKind::kScale, ir::ScaleAttrs{2}, {biased});
    const ValueId sum = add(ir::OpKind::kAdd, {}, {residual, others ? other : biased});
    graph.outputs = {sum};
    if (!others) ir::drop_dead(graph);
    std::vector<OpWork> works;
    for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
    const double before = works.back().bytes;
    const double flops = works.back().flops + works[0].flops;
    CHECK(works[0].flops > 0);
    fuse_elementwise(graph, works);
    const cluster::Device d = device();
    if (others) {
      CHECK(works.back().bytes == before);
      CHECK(works[0].kind == OpWork::Kind::kStream);
    } else {
      // x, the bias and the residual are read, the sum is written.
      CHECK(works.back().bytes == 3 * 200e3 + 200);
      CHECK(works.back().flops == flops);
      CHECK(works[0].kind == OpWork::Kind::kFused);
      CHECK(op_time(d, works[0]).device.value == 0);
      CHECK(op_time(d, works[0]).host.value == 0);
    }
  }
}
