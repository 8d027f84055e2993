// Ops on shards: attributes after localize, and that the shards' results put together are the
// whole's.
#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_close_to.h"
#include "ops/interpret.h"
#include "ops/op_def.h"
#include "ops/op_examples.h"
#include "ops/update_ops.h"

namespace mw::ops {
namespace {

constexpr int64_t kDevices = 2;

InterpretContext device(int64_t index) {
  InterpretContext context;
  context.index = [index](const ir::Axes& axes) { return axes.empty() ? 0 : index; };
  context.size = [](const ir::Axes& axes) { return axes.empty() ? 1 : kDevices; };
  return context;
}

ir::TensorType local_type(ir::TensorType type, int dim) {
  if (dim >= 0) type.dims[static_cast<size_t>(dim)] = type.dim(dim) / kDevices;
  return type;
}

// The device's part of `dim`; all of it for -1.
Tensor part(const Tensor& whole, int dim, int64_t index) {
  if (dim < 0) return whole;
  ir::Op op;
  op.kind = ir::OpKind::kShardSlice;
  ir::CollectiveAttrs attrs;
  attrs.group = ir::AxisGroup{{"tp"}};
  attrs.dim = dim;
  op.attrs = attrs;
  const std::vector<ir::TensorType> types{local_type(whole.type, dim)};
  return interpret_op(op, std::vector<Tensor>{whole}, types, device(index))[0];
}

// Which dimension of each operand and result is sharded over the devices, -1: none. With kSum or
// kMax the results that are not sharded are pending.
struct Split {
  std::vector<int> operands, results;
  enum class Pending { kNo, kSum, kMax } pending = Pending::kNo;
};

void check_shards(const test::OpExample& example, const Split& split) {
  CAPTURE(ir::op_name(example.kind));
  const ir::Op global = test::op_of(example);
  const std::vector<Tensor> operands = test::samples(example);
  LocalLayout layout;
  layout.global_operands = test::parse_types(example.operands);
  layout.global_results =
      infer(global, layout.global_operands, test::parse_types(example.declared));
  const auto place = [](const std::vector<ir::TensorType>& types, const std::vector<int>& dims,
                        std::vector<ir::DimAxes>& axes, std::vector<ir::TensorType>& locals) {
    for (size_t i = 0; i < types.size(); ++i) {
      axes.emplace_back(types[i].dims.size());
      if (dims[i] >= 0) axes.back()[static_cast<size_t>(dims[i])] = {"tp"};
      locals.push_back(local_type(types[i], dims[i]));
    }
  };
  place(layout.global_operands, split.operands, layout.operands, layout.local_operands);
  place(layout.global_results, split.results, layout.results, layout.local_results);
  ir::Op local = global;
  if (op_def(local.kind).localize != nullptr) op_def(local.kind).localize(local, layout);
  const std::vector<ir::TensorType> types =
      infer(local, layout.local_operands, layout.local_results);
  const std::vector<Tensor> whole = interpret_op(global, operands, layout.global_results);
  std::vector<std::vector<Tensor>> shards;
  for (int64_t d = 0; d < kDevices; ++d) {
    std::vector<Tensor> mine;
    for (size_t i = 0; i < operands.size(); ++i)
      mine.push_back(part(operands[i], split.operands[i], d));
    shards.push_back(interpret_op(local, mine, types, device(d)));
  }
  for (size_t r = 0; r < whole.size(); ++r) {
    for (int64_t d = 0; d < kDevices; ++d) {
      Tensor mine = shards[static_cast<size_t>(d)][r];
      const Tensor& other = shards[static_cast<size_t>(1 - d)][r];
      for (size_t i = 0; i < mine.values.size(); ++i) {
        const bool whole_here = split.results[r] < 0;
        if (split.pending == Split::Pending::kSum && whole_here) mine.values[i] += other.values[i];
        if (split.pending == Split::Pending::kMax && whole_here)
          mine.values[i] = std::max(mine.values[i], other.values[i]);
        CHECK(mine.values[i] ==
              mw::test::close_to(part(whole[r], split.results[r], d).values[i]).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("vocabulary shards of embedding and cross-entropy give the whole's results") {
  ir::EmbeddingAttrs table;
  table.vocab = 8;
  check_shards({ir::OpKind::kEmbedding, table, {"i32[2,3] below 8", "f32[8,4]"}},
               {{-1, 0}, {-1}, Split::Pending::kSum});
  check_shards({ir::OpKind::kEmbeddingGrad, table, {"i32[2,3] below 8", "f32[2,3,4]"}},
               {{-1, -1}, {0}});
  ir::CrossEntropyAttrs vocab;
  vocab.vocab = 7;  // one column is padding
  check_shards({ir::OpKind::kCrossEntropyMax, vocab, {"f32[2,3,8]"}},
               {{2}, {-1}, Split::Pending::kMax});
  check_shards(
      {ir::OpKind::kCrossEntropySum, vocab, {"f32[2,3,8]", "f32[2,3]", "i32[2,3] targets 7"}},
      {{2, -1, -1}, {-1, -1}, Split::Pending::kSum});
  check_shards({ir::OpKind::kCrossEntropyLoss,
                vocab,
                {"f32[2,3]", "f32[2,3] positive", "f32[2,3]", "i32[2,3] targets 7", "f32[2,3,8]"}},
               {{-1, -1, -1, -1, 2}, {-1, -1}});
  check_shards({ir::OpKind::kCrossEntropyGrad,
                vocab,
                {"f32[2,3,8]", "f32[2,3] positive", "i32[2,3] targets 7", "f32[2,3]"}},
               {{2, -1, -1, -1}, {2}});
}

TEST_CASE("random numbers of a shard are the whole's") {
  ir::DropoutAttrs dropout;
  dropout.rate = 0.4;
  dropout.site = "h.0.mlp";
  dropout.features = 8;
  const std::vector<std::string> flat{"f32[2,4,8]", "i64[] below 9", "i64[] below 9",
                                      "i64[2] below 99", "i32[2,4] positions"};
  for (const Split& split : {Split{{2, -1, -1, -1, -1}, {2}}, Split{{1, -1, -1, -1, 1}, {1}},
                             Split{{0, -1, -1, 0, 0}, {0}}}) {
    check_shards({ir::OpKind::kDropout, dropout, flat}, split);
  }
  std::vector<std::string> heads = flat;
  heads[0] = "f32[2,4,4,2]";
  check_shards({ir::OpKind::kDropout, dropout, heads}, {{2, -1, -1, -1, -1}, {2}});

  const ir::RandomAttrs random{ir::RandomAttrs::Distribution::kNormal, 0, 0.02, "w", {4, 6}, {}};
  check_shards({ir::OpKind::kRandom, random, {}, {"f32[4,6]"}}, {{}, {0}});
  check_shards({ir::OpKind::kRandom, random, {}, {"f32[4,6]"}}, {{}, {1}});

  ir::AttentionAttrs attention;
  attention.dropout = 0.3;
  attention.site = "h.0.attn";
  const std::vector<std::string> tail{"i32[2,3] positions", "i64[] below 9", "i64[] below 9",
                                      "i64[2] below 99"};
  std::vector<std::string> operands{"f32[2,3,4,2]", "f32[2,3,2,2]", "f32[2,3,2,2]"};
  operands.insert(operands.end(), tail.begin(), tail.end());
  check_shards({ir::OpKind::kAttention, attention, operands}, {{2, 2, 2, -1, -1, -1, -1}, {2, 1}});
  check_shards({ir::OpKind::kAttention, attention, operands}, {{0, 0, 0, 0, -1, -1, 0}, {0, 0}});
  attention.packed = true;
  operands = {"f32[2,3,4,2]", "f32[2,3,3,4,2]", "f32[2,3,4,2]", "f32[2,4,3]"};
  operands.insert(operands.end(), tail.begin(), tail.end());
  check_shards({ir::OpKind::kAttentionGrad, attention, operands},
               {{2, 3, 2, 1, -1, -1, -1, -1}, {3}});
}

TEST_CASE("a part of the queries sees the keys that it sees in the whole sequence") {
  for (const double dropout : {0.0, 0.3}) {
    for (const int64_t window : {0, 2}) {
      ir::AttentionAttrs attrs;
      attrs.dropout = dropout;
      attrs.site = "h.0.attn";
      attrs.window = window;
      const std::string q = "f32[2,4,4,2]", kv = "f32[2,4,2,2]";
      std::vector<std::string> forward{q, kv, kv, "i32[2,4] positions"},
          backward{q, q, kv, kv, q, "f32[2,4,4]", "i32[2,4] positions"};
      Split of_forward{{1, -1, -1, -1}, {1, 2}},
          of_backward{{1, 1, -1, -1, 1, 2, -1}, {1, -1, -1}, Split::Pending::kSum};
      for (auto* operands : {&forward, &backward}) {
        Split& split = operands == &forward ? of_forward : of_backward;
        for (const char* random : {"i64[] below 9", "i64[] below 9", "i64[2] below 99"}) {
          if (dropout == 0) continue;
          operands->push_back(random);
          split.operands.push_back(-1);
        }
      }
      check_shards({ir::OpKind::kAttention, attrs, forward}, of_forward);
      check_shards({ir::OpKind::kAttentionGrad, attrs, backward}, of_backward);
    }
  }
}

TEST_CASE("a slice of a shard keeps whole the dimensions that it keeps whole") {
  check_shards({ir::OpKind::kSlice, ir::SliceAttrs{{0, 1}, {4, 3}, {1, 1}}, {"f32[4,5]"}},
               {{0}, {0}});
  check_shards({ir::OpKind::kPad, ir::PadAttrs{{0, 1}, {0, 2}}, {"f32[4,5]"}}, {{0}, {0}});
  ir::Op op;
  op.kind = ir::OpKind::kSlice;
  op.attrs = ir::SliceAttrs{{0}, {2}, {1}};
  LocalLayout layout;
  layout.global_operands = {test::parse_type("f32[4]")};
  layout.local_operands = {test::parse_type("f32[2]")};
  layout.operands = {{{"tp"}}};
  CHECK_THROWS_AS(op_def(op.kind).localize(op, layout), CheckFailure);
}

TEST_CASE("norm and update of flat shards are those of the whole") {
  ir::FlatAttrs flat;
  flat.groups = {{{0, 300, 0, true, true, {}}, {512, 700, 1, false, true, {}}},
                 {{0, 512, 2, true, true, {}}}};
  flat.group_elements = {1024, 512};
  flat.parameters = 3;
  flat.weight_decay = 0.1;
  const std::vector<Tensor> grads{test::sample("f32[1024]", 1), test::sample("f32[512]", 2)};
  const auto run = [](ir::OpKind kind, const ir::FlatAttrs& attrs,
                      const std::vector<Tensor>& operands, int64_t d) {
    ir::Op op;
    op.kind = kind;
    op.attrs = attrs;
    std::vector<ir::TensorType> types;
    for (const Tensor& operand : operands) types.push_back(operand.type);
    return interpret_op(op, operands, infer(op, types), device(d));
  };
  const Tensor blocks = run(ir::OpKind::kNormBlocks, flat, grads, 0)[0];
  const Tensor squares = run(ir::OpKind::kNormParameters, flat, {blocks}, 0)[0];
  double expected = 0;
  for (int i = 0; i < 300; ++i)
    expected += grads[0].values[static_cast<size_t>(i)] * grads[0].values[static_cast<size_t>(i)];
  CHECK(squares.values[0] == mw::test::close_to(expected));

  ir::FlatAttrs sharded = flat;
  sharded.shard_axes = {"dp"};
  Tensor gathered = zeros(blocks.type);
  for (int64_t d = 0; d < kDevices; ++d) {
    const Tensor mine =
        run(ir::OpKind::kNormBlocks, sharded, {part(grads[0], 0, d), part(grads[1], 0, d)}, d)[0];
    std::copy(mine.values.begin(), mine.values.end(),
              gathered.values.begin() + d * mine.type.dim(0));
  }
  CHECK(run(ir::OpKind::kNormParameters, sharded, {gathered}, 0)[0].values == squares.values);
  flat.groups[0][1].counts = false;
  flat.groups[1][0].counted_at_origin_of = {"tp"};
  CHECK(run(ir::OpKind::kNormParameters, flat, {run(ir::OpKind::kNormBlocks, flat, grads, 1)[0]},
            1)[0]
            .values == std::vector<double>{squares.values[0], 0, 0});

  const auto adamw = [&](const ir::FlatAttrs& attrs, int64_t d, bool shard) {
    ir::FlatAttrs one = attrs;
    one.groups = {flat.groups[0]};
    one.group_elements = {1024};
    std::vector<Tensor> operands;
    for (const char* text : {"f32[1024]", "f32[1024]", "f32[1024]", "f32[1024] positive"}) {
      const Tensor whole = test::sample(text, operands.size() + 5);
      operands.push_back(shard ? part(whole, 0, d) : whole);
    }
    operands.insert(operands.end(), {Tensor{test::parse_type("f32[]"), {0.5}},
                                     Tensor{test::parse_type("f32[]"), {1e-2}},
                                     Tensor{test::parse_type("i64[]"), {3}}});
    return run(ir::OpKind::kAdamW, one, operands, d);
  };
  const std::vector<Tensor> whole = adamw(flat, 0, false);
  for (int64_t d = 0; d < kDevices; ++d) {
    const std::vector<Tensor> mine = adamw(sharded, d, true);
    for (size_t r = 0; r < 3; ++r) CHECK(mine[r].values == part(whole[r], 0, d).values);
  }
}

TEST_CASE("what counts at the origin of an axis counts once, whole or split over that axis") {
  ir::FlatAttrs attrs;
  attrs.groups = {{{0, 2 * kNormBlock, 0, true, true, {"ep"}}}};
  attrs.group_elements = {2 * kNormBlock};
  attrs.parameters = 1;
  for (const int64_t shards : {1, 2}) {
    if (shards == 2) attrs.shard_axes = {"ep"};
    const auto run = [&](ir::OpKind kind, const Tensor& operand, int64_t elements, int64_t at) {
      ir::Op op;
      op.kind = kind;
      op.attrs = attrs;
      const std::vector<ir::TensorType> types{ir::make_type(DType::kF64, {elements})};
      return interpret_op(op, std::vector<Tensor>{operand}, types, device(at))[0];
    };
    Tensor gradient = zeros(ir::make_type(DType::kF32, {2 * kNormBlock / shards}));
    std::fill(gradient.values.begin(), gradient.values.end(), 1.0);
    const Tensor first = run(ir::OpKind::kNormBlocks, gradient, 2 / shards, 0),
                 second = run(ir::OpKind::kNormBlocks, gradient, 2 / shards, 1);
    double sum = 0;
    for (int64_t at = 0; at < kDevices; ++at) {
      Tensor blocks = at == 0 ? first : second;
      if (shards == 2) {
        blocks = zeros(ir::make_type(DType::kF64, {2}));
        blocks.values = {first.values[0], second.values[0]};
      }
      sum += run(ir::OpKind::kNormParameters, blocks, 1, at).values[0];
    }
    CHECK(sum == 2.0 * kNormBlock);
  }
}

}  // namespace
}  // namespace mw::ops
