// What of a graph's ops is one kernel, and what products take and cast.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "base/test_close_to.h"
#include "cost/op_time.h"

using namespace mw;
using namespace mw::cost;

namespace {

// An op without attributes; what it makes is of the type.
ValueId add_op(ir::Graph& graph, ir::OpKind kind, ValueIds operands, const ir::TensorType& type) {
  ir::Op op;
  op.kind = kind;
  op.operands = std::move(operands);
  return graph.op(graph.add_op(std::move(op), {type})).results[0];
}

}  // namespace

TEST_CASE("products are of linear layers but for the logits' and the routers', both ways") {
  ir::Graph graph;
  const ir::TensorType type = ir::make_type(DType::kBF16, {8, 8});
  const auto add = [&](ir::OpKind kind, ValueIds operands) {
    return add_op(graph, kind, std::move(operands), type);
  };
  using ir::OpKind;
  const ValueId x = graph.add_input(type, "x");
  const auto linear = [&](ValueId v) { return add(OpKind::kDot, {v, x}); };
  add(OpKind::kMoeTopK, {add(OpKind::kBiasAdd, {linear(x), x})});
  add(OpKind::kMoeTopK, {linear(x)});
  linear(add(OpKind::kMoeTopKGrad, {x}));
  const ValueId logits = linear(x);
  add(OpKind::kCrossEntropyMax, {logits});
  linear(add(OpKind::kCrossEntropyGrad, {logits}));
  add(OpKind::kBiasAdd, {linear(x), x});
  std::vector<ProductRole> roles;
  for (const ProductRole role : product_roles(graph)) {
    if (role != ProductRole::kNone) roles.push_back(role);
  }
  CHECK(roles == std::vector<ProductRole>{ProductRole::kRouter, ProductRole::kRouter,
                                          ProductRole::kRouter, ProductRole::kLogits,
                                          ProductRole::kLogits, ProductRole::kLinear});
}

TEST_CASE("a stack's one linear layer of an input is one product forward and in both gradients") {
  ir::Graph graph;
  const auto input = [&](const char* name, std::vector<int64_t> sizes) {
    return graph.add_input(ir::make_type(DType::kBF16, sizes), name);
  };
  const auto add = [&](ir::OpKind kind, ir::Attributes attrs, ir::Work work, ValueIds operands,
                       std::vector<int64_t> sizes) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.work = work;
    op.operands = std::move(operands);
    return graph.op(graph.add_op(std::move(op), {ir::make_type(DType::kBF16, sizes)})).results[0];
  };
  const auto dot = [&](const char* lhs, const char* rhs, const char* out, ir::Work work, ValueId a,
                       ValueId b, std::vector<int64_t> sizes) {
    return add(ir::OpKind::kDot, ir::DotAttrs{lhs, rhs, out}, work, {a, b}, std::move(sizes));
  };
  using ir::Work;
  const ValueId x = input("x", {64, 32}), y = input("y", {64, 32});
  const ValueId q = input("q", {48, 32}), k = input("k", {16, 32}), o = input("o", {32, 32});
  dot("bd", "hd", "bh", Work::kForward, x, q, {64, 48});
  dot("bd", "hd", "bh", Work::kForward, x, k, {64, 16});
  dot("bd", "hd", "bh", Work::kForward, y, o, {64, 32});  // of another input
  const ValueId dq = input("dq", {64, 48}), dk = input("dk", {64, 16});
  dot("bh", "bd", "hd", Work::kWeightGrad, dq, x, {48, 32});
  dot("bh", "bd", "hd", Work::kWeightGrad, dk, x, {16, 32});
  const ValueId a = dot("bh", "hd", "bd", Work::kInputGrad, dq, q, {64, 32});
  const ValueId b = dot("bh", "hd", "bd", Work::kInputGrad, dk, k, {64, 32});
  const ValueId both = add(ir::OpKind::kAdd, {}, Work::kInputGrad, {a, b}, {64, 32});
  const ValueId rest = dot("bh", "hd", "bd", Work::kInputGrad, y, o, {64, 32});
  const ValueId again = add(ir::OpKind::kAdd, {}, Work::kInputGrad, {rest, y}, {64, 32});
  graph.outputs = {both, again};
  std::vector<OpWork> works;
  for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
  works[3].adds = 10;
  works[4].adds = 20;
  find_casts(graph, works);
  fuse_linears(graph, works);
  const auto one = [](int64_t m, int64_t n, int64_t k) { return ProductShape{1, m, n, k}; };
  const auto bytes = [](double elements) { return 2 * elements; };
  CHECK(works[0].kind == OpWork::Kind::kFused);
  CHECK(works[1].shape == one(64, 64, 32));
  CHECK(works[1].flops == 2.0 * 64 * 64 * 32);
  CHECK(works[1].bytes == bytes(64 * 32 + 64 * 32 + 64 * 64));
  CHECK(works[1].operand_values == 64 * 32 + 64 * 32);
  CHECK(works[2].shape == one(64, 32, 32));
  CHECK(works[3].kind == OpWork::Kind::kFused);
  CHECK(works[4].shape == one(64, 32, 64));
  CHECK(works[4].adds == 10 + 20);
  CHECK(works[4].bytes == bytes(64 * 64 + 64 * 32 + 64 * 32));
  CHECK(works[5].kind == OpWork::Kind::kFused);
  CHECK(works[6].kind == OpWork::Kind::kFused);
  CHECK(works[7].kind == OpWork::Kind::kProduct);
  CHECK(works[7].shape == one(64, 32, 64));
  CHECK(works[7].bytes == bytes(64 * 64 + 64 * 32 + 64 * 32));
  CHECK(works[8].kind == OpWork::Kind::kProduct);  // with the residual's it is no product
  CHECK(works[9].kind == OpWork::Kind::kStream);
}

TEST_CASE("input gradients that something else reads, or that are none, are no one product") {
  enum class Case { kOne, kReadTwice, kForward };
  for (const Case c : {Case::kOne, Case::kReadTwice, Case::kForward}) {
    ir::Graph graph;
    const auto input = [&](const char* name, std::vector<int64_t> sizes) {
      return graph.add_input(ir::make_type(DType::kBF16, std::move(sizes)), name);
    };
    ValueIds parts;
    const auto add = [&](ir::OpKind kind, ir::Attributes attrs, ir::Work work, ValueIds operands) {
      ir::Op op;
      op.kind = kind;
      op.attrs = std::move(attrs);
      op.work = work;
      op.operands = std::move(operands);
      const OpId id = graph.add_op(std::move(op), {ir::make_type(DType::kBF16, {64, 32})});
      return graph.op(id).results[0];
    };
    for (const char* name : {"q", "k"}) {
      const ir::Work work = c == Case::kForward ? ir::Work::kForward : ir::Work::kInputGrad;
      parts.push_back(add(ir::OpKind::kDot, ir::DotAttrs{"bh", "hd", "bd"}, work,
                          {input("dy", {64, 48}), input(name, {48, 32})}));
    }
    graph.outputs = {add(ir::OpKind::kAdd, {}, ir::Work::kInputGrad, parts)};
    if (c == Case::kReadTwice) graph.outputs.push_back(parts[1]);
    std::vector<OpWork> works;
    for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
    find_casts(graph, works);
    fuse_linears(graph, works);
    for (size_t o = 0; o < 2; ++o)
      CHECK((works[o].kind == OpWork::Kind::kFused) == (c == Case::kOne));
    CHECK((works[2].kind == OpWork::Kind::kProduct) == (c == Case::kOne));
  }
}

TEST_CASE("layers of one input that are recomputed are no product with those before them") {
  for (const bool again : {false, true}) {
    ir::Graph graph;
    const ValueId x = graph.add_input(ir::make_type(DType::kBF16, {64, 32}), "x");
    const ValueId w = graph.add_input(ir::make_type(DType::kBF16, {16, 32}), "w");
    for (const bool second : {false, true}) {
      ir::Op op;
      op.kind = ir::OpKind::kDot;
      op.attrs = ir::DotAttrs{"bd", "hd", "bh"};
      op.work = ir::Work::kForward;
      op.operands = {x, w};
      if (again && second) op.recompute = RegionId(0);
      graph.outputs.push_back(
          graph.op(graph.add_op(std::move(op), {ir::make_type(DType::kBF16, {64, 16})}))
              .results[0]);
    }
    std::vector<OpWork> works;
    for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
    find_casts(graph, works);
    fuse_linears(graph, works);
    CHECK((works[0].kind == OpWork::Kind::kFused) == !again);
    CHECK(works[1].shape.n == (again ? 16 : 32));
  }
}

TEST_CASE("a bias that the residual's sum and something else read has its own kernel") {
  for (const bool twice : {false, true}) {
    ir::Graph graph;
    const ir::TensorType type = ir::make_type(DType::kBF16, {1000, 100});
    const auto add = [&](ir::OpKind kind, ValueIds operands) {
      return add_op(graph, kind, std::move(operands), type);
    };
    const ValueId x = graph.add_input(type, "x"), residual = graph.add_input(type, "residual");
    const ValueId bias = graph.add_input(ir::make_type(DType::kBF16, {100}), "bias");
    const ValueId biased = add(ir::OpKind::kBiasAdd, {x, bias});
    graph.outputs = {add(ir::OpKind::kAdd, {residual, biased})};
    if (twice) graph.outputs.push_back(biased);
    std::vector<OpWork> works;
    for (const ir::Op& op : graph.ops) works.push_back(work_of(graph, op));
    fuse_elementwise(graph, works);
    CHECK((works[0].kind == OpWork::Kind::kFused) == !twice);
    CHECK(works[1].bytes == (twice ? 3 * 200e3 : 3 * 200e3 + 200));
  }
}

TEST_CASE("what only fp8 products read is cast before it is gathered") {
  enum class Reader { kProducts, kAnOp, kTheOutside };
  for (const Reader reader : {Reader::kProducts, Reader::kAnOp, Reader::kTheOutside}) {
    const bool others = reader != Reader::kProducts;
    ir::Graph graph;
    const auto add = [&](ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
                         std::vector<int64_t> sizes) {
      ir::Op op;
      op.kind = kind;
      op.attrs = std::move(attrs);
      op.operands = std::move(operands);
      return graph.op(graph.add_op(std::move(op), {ir::make_type(DType::kBF16, sizes)})).results[0];
    };
    const ValueId part = graph.add_input(ir::make_type(DType::kBF16, {4, 3}), "x");
    const ValueId w = graph.add_input(ir::make_type(DType::kBF16, {5, 3}), "w");
    const ValueId dy = graph.add_input(ir::make_type(DType::kBF16, {8, 5}), "dy");
    const ValueId x =
        add(ir::OpKind::kAllGather,
            ir::CollectiveAttrs{.group = ir::AxisGroup{{"tp"}}, .global_size = 8}, {part}, {8, 3});
    add(ir::OpKind::kDot, ir::DotAttrs{"bk", "nk", "bn"}, {x, w}, {8, 5});
    add(ir::OpKind::kDot, ir::DotAttrs{"bn", "bk", "nk"}, {dy, x}, {5, 3});
    if (reader == Reader::kAnOp) add(ir::OpKind::kRelu, {}, {x}, {8, 3});
    if (reader == Reader::kTheOutside) graph.outputs = {x};
    std::vector<OpWork> works(1);
    for (size_t o = 1; o < graph.ops.size(); ++o) works.push_back(work_of(graph, graph.ops[o]));
    find_casts(graph, works);
    CHECK(works[0].gathers_narrow == !others);
    // A part of x where it lies and the whole of w; for the weight's gradient dy, and x once more,
    // read and written, in the order that sums samples.
    CHECK(works[1].new_values == (others ? 24 : 12) + 15);
    CHECK(works[1].new_layouts == (others ? 24 : 12) + 15);
    CHECK(works[2].new_values == 40);
    CHECK(works[2].new_layouts == 40 + (others ? 24 : 2 * 24));
  }
  CHECK(narrow_share(Fp8::kOff) == 1);
  CHECK(narrow_share(Fp8::kTensor) == 0.5);
  CHECK(narrow_share(Fp8::kBlock) == mw::test::close_to(0.5 * 33 / 32));
}
