#include "ops/op_examples.h"

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"

namespace mw::ops::test {
namespace {

using K = ir::OpKind;
using Examples = std::vector<OpExample>;

void add_primitives(Examples& e) {
  const std::string x = "f32[2,3]", positive = "f32[2,3] positive";
  e.push_back({K::kConstant, ir::ConstantAttrs{2}, {}, {x}});
  for (const K kind : {K::kAdd, K::kSub, K::kMul, K::kMax, K::kMin})
    e.push_back({kind, ir::NoAttrs{}, {x, x}});
  e.push_back({K::kDiv, ir::NoAttrs{}, {x, positive}});
  for (const K kind : {K::kNeg, K::kExp, K::kTanh, K::kErf, K::kRelu})
    e.push_back({kind, ir::NoAttrs{}, {x}});
  for (const K kind : {K::kLog, K::kSqrt, K::kRsqrt})
    e.push_back({kind, ir::NoAttrs{}, {positive}});
  e.push_back({K::kScale, ir::ScaleAttrs{-0.5}, {x}});
  e.push_back({K::kCompare, ir::CompareAttrs{ir::CompareAttrs::Direction::kLt}, {x, x}});
  e.push_back({K::kSelect, ir::NoAttrs{}, {"bool[2,3]", x, x}});
  e.push_back({K::kSelect, ir::NoAttrs{}, {"bool[]", x, x}});
  e.push_back({K::kConvert, ir::NoAttrs{}, {x}, {"bf16[2,3]"}});
  e.push_back({K::kConvert, ir::NoAttrs{}, {"i32[2] below 9"}, {"f32[2]"}});
  e.push_back({K::kRandom,
               ir::RandomAttrs{ir::RandomAttrs::Distribution::kNormal, 0, 0.02, "w", {2, 3}, {}},
               {},
               {x}});
  e.push_back({K::kRandom,
               ir::RandomAttrs{ir::RandomAttrs::Distribution::kUniform, 1, 2, "w", {2, 3}, {}},
               {"i64[] below 9"},
               {x}});
}

void add_shape_ops(Examples& e) {
  e.push_back({K::kBroadcast, ir::DimsAttrs{{1}}, {"f32[3]"}, {"f32[2,3,4]"}});
  e.push_back({K::kBroadcast, ir::DimsAttrs{{2, 0}}, {"f32[3,2]"}, {"f32[2,4,3]"}});
  e.push_back({K::kBroadcast, ir::DimsAttrs{{}}, {"f32[]"}, {"f32[2,3]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[2,12]"}, {"f32[2,3,4]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[2,3,4]"}, {"f32[6,4]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[2,1,5]"}, {"f32[2,5,1,1]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[6,4,5]"}, {"f32[4,6,5]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[12,4]"}, {"f32[3,16]"}});
  e.push_back({K::kReshape, ir::NoAttrs{}, {"f32[]"}, {"f32[1,1]"}});
  e.push_back({K::kTranspose, ir::DimsAttrs{{2, 0, 1}}, {"f32[2,3,4]"}});
  e.push_back({K::kSlice, ir::SliceAttrs{{0, 1}, {2, 3}, {1, 1}}, {"f32[2,4]"}});
  e.push_back({K::kSlice, ir::SliceAttrs{{0, 1}, {2, 7}, {1, 3}}, {"f32[2,7]"}});
  e.push_back({K::kSlice, ir::SliceAttrs{{0, 1}, {2, 8}, {1, 3}}, {"f32[2,9]"}});
  e.push_back({K::kPad, ir::PadAttrs{{0, 1}, {0, 2}}, {"f32[2,3]"}});
  e.push_back({K::kConcat, ir::ConcatAttrs{1}, {"f32[2,3]", "f32[2,1]", "f32[2,2]"}});
  e.push_back({K::kReduce, ir::ReduceAttrs{ir::Reduction::kSum, {0, 2}}, {"f32[2,3,4]"}});
  e.push_back({K::kReduce, ir::ReduceAttrs{ir::Reduction::kMax, {1}}, {"f32[2,3]"}});
  e.push_back({K::kReduce, ir::ReduceAttrs{ir::Reduction::kMin, {1}}, {"f32[2,3]"}});
}

void add_products(Examples& e) {
  e.push_back({K::kDot, ir::DotAttrs{"bsk", "nk", "bsn"}, {"f32[2,3,4]", "f32[5,4]"}});
  e.push_back({K::kDot, ir::DotAttrs{"bshd", "bthd", "bhst"}, {"f32[2,3,2,4]", "f32[2,5,2,4]"}});
  e.push_back({K::kDot, ir::DotAttrs{"k", "k", ""}, {"f32[4]", "f32[4]"}});
  e.push_back({K::kConv, ir::ConvAttrs{{1, 1}, {0, 0}, {}}, {"f32[2,3,5,4]", "f32[2,3,3,3]"}});
  e.push_back({K::kConv, ir::ConvAttrs{{2, 1}, {1, 2}, {}}, {"f32[1,2,6,4]", "f32[3,2,3,2]"}});
  e.push_back(
      {K::kConvInputGrad, ir::ConvAttrs{{1, 1}, {0, 0}, {5, 4}}, {"f32[2,2,3,2]", "f32[2,3,3,3]"}});
  e.push_back({K::kConvWeightGrad,
               ir::ConvAttrs{{1, 1}, {0, 0}, {3, 3}},
               {"f32[2,3,5,4]", "f32[2,2,3,2]"}});
}

void add_rowwise(Examples& e) {
  const std::string x = "f32[2,3,4]", d = "f32[4]", rows = "f32[2,3]", rstd = "f32[2,3] positive";
  e.push_back({K::kBiasAdd, ir::NoAttrs{}, {x, d}});
  e.push_back({K::kBiasAdd, ir::NoAttrs{}, {x, "f32[3,4]"}});
  e.push_back({K::kReluGrad, ir::NoAttrs{}, {x, x}});
  for (const bool tanh : {false, true}) {
    e.push_back({K::kGelu, ir::GeluAttrs{tanh}, {x}});
    e.push_back({K::kGeluGrad, ir::GeluAttrs{tanh}, {x, x}});
    e.push_back({K::kGeluGrad, ir::GeluAttrs{tanh}, {x, x, d}});
    e.push_back({K::kBiasGelu, ir::GeluAttrs{tanh}, {x, d}});
  }
  e.push_back({K::kSilu, ir::NoAttrs{}, {x}});
  e.push_back({K::kSiluGrad, ir::NoAttrs{}, {x, x}});
  e.push_back({K::kSwiglu, ir::NoAttrs{}, {x, x}});
  e.push_back({K::kSwigluGrad, ir::NoAttrs{}, {x, x, x}});
  e.push_back({K::kSoftmax, ir::NoAttrs{}, {x}});
  e.push_back({K::kSoftmaxGrad, ir::NoAttrs{}, {x, x}});
  e.push_back({K::kLayerNorm, ir::NormAttrs{1e-5}, {x, d, d}});
  e.push_back({K::kLayerNormInputGrad, ir::NoAttrs{}, {x, x, d, rows, rstd}});
  e.push_back({K::kLayerNormWeightGrad, ir::NoAttrs{}, {x, x, rows, rstd}});
  e.push_back({K::kRmsNorm, ir::NormAttrs{1e-6}, {x, d}});
  e.push_back({K::kRmsNormInputGrad, ir::NoAttrs{}, {x, x, d, rstd}});
  e.push_back({K::kRmsNormWeightGrad, ir::NoAttrs{}, {x, x, rstd}});
}

ir::AttentionAttrs attention(bool packed, bool causal, double dropout, int64_t window = 0) {
  ir::AttentionAttrs attrs;
  attrs.scale = 0.5;
  attrs.packed = packed;
  attrs.causal = causal;
  attrs.dropout = dropout;
  if (dropout > 0) attrs.site = "h.0.attn";
  attrs.window = window;
  return attrs;
}

void add_attention(Examples& e) {
  const std::string positions = "i32[2,3] positions", out = "f32[2,3,4,2]", lse = "f32[2,4,3]";
  const std::string qkv = "f32[2,3,3,4,2]", kv = "f32[2,3,2,2]", scalar = "i64[] below 9",
                    ids = "i64[2] below 9";
  e.push_back({K::kRopeTable, ir::RopeAttrs{10000, 4, {}}, {positions}});
  e.push_back({K::kRopeTable, ir::RopeAttrs{10000, 8, {8, 0.5, 3, 16}}, {positions}});
  e.push_back({K::kRope, ir::NoAttrs{}, {"f32[2,3,2,4]", "f32[2,3,2]", "f32[2,3,2]"}});
  e.push_back({K::kRopeGrad, ir::NoAttrs{}, {"f32[2,3,2,4]", "f32[2,3,2]", "f32[2,3,2]"}});
  for (const bool causal : {true, false}) {
    e.push_back({K::kAttention, attention(true, causal, 0), {qkv, positions}});
    e.push_back({K::kAttention, attention(false, causal, 0), {out, kv, kv, positions}});
  }
  e.push_back({K::kAttention, attention(false, true, 0), {out, out, out, positions}});
  e.push_back({K::kAttention, attention(true, true, 0.3), {qkv, positions, scalar, scalar, ids}});
  e.push_back(
      {K::kAttention, attention(false, true, 0.3), {out, kv, kv, positions, scalar, scalar, ids}});
  // The queries are the last three of five.
  const std::string longer = "f32[2,5,2,2]", longer_positions = "i32[2,5] positions";
  e.push_back({K::kAttention, attention(false, true, 0), {out, longer, longer, longer_positions}});
  e.push_back({K::kAttentionGrad,
               attention(false, true, 0),
               {out, out, longer, longer, out, lse, longer_positions}});
  e.push_back({K::kAttentionGrad, attention(true, true, 0), {out, qkv, out, lse, positions}});
  e.push_back(
      {K::kAttentionGrad, attention(false, true, 0), {out, out, kv, kv, out, lse, positions}});
  e.push_back({K::kAttentionGrad,
               attention(true, true, 0.3),
               {out, qkv, out, lse, positions, scalar, scalar, ids}});
  e.push_back({K::kAttention, attention(true, true, 0, 2), {qkv, positions}});
  e.push_back(
      {K::kAttention, attention(false, true, 0, 2), {out, longer, longer, longer_positions}});
  e.push_back({K::kAttentionGrad, attention(true, true, 0, 2), {out, qkv, out, lse, positions}});
  e.push_back({K::kAttentionGrad,
               attention(false, true, 0, 2),
               {out, out, longer, longer, out, lse, longer_positions}});
  // Values whose heads are smaller or larger, of as many heads as the queries or of half as many.
  for (const std::string size : {"1", "3"}) {
    for (const std::string heads : {"4", "2"}) {
      const std::string k = "f32[2,3," + heads + ",2]", v = "f32[2,3," + heads + "," + size + "]";
      const std::string other = "f32[2,3,4," + size + "]";
      e.push_back({K::kAttention, attention(false, true, 0), {out, k, v, positions}});
      e.push_back({K::kAttentionGrad,
                   attention(false, true, 0),
                   {other, out, k, v, other, lse, positions}});
    }
  }
}

void add_vocabulary(Examples& e) {
  const std::string tokens = "i32[2,3] below 7", targets = "i32[2,3] targets 7", rows = "f32[2,3]";
  const std::string logits = "f32[2,3,7]", padded = "f32[2,3,8]";
  ir::EmbeddingAttrs table;
  table.vocab = 7;
  e.push_back({K::kEmbedding, table, {tokens, "f32[7,4]"}});
  e.push_back({K::kEmbeddingGrad, table, {tokens, "f32[2,3,4]"}});
  ir::CrossEntropyAttrs vocab;
  vocab.vocab = 7;
  for (const std::string& x : {logits, padded}) {
    e.push_back({K::kCrossEntropyMax, vocab, {x}});
    e.push_back({K::kCrossEntropySum, vocab, {x, rows, targets}});
    e.push_back({K::kCrossEntropyLoss, vocab, {rows, "f32[2,3] positive", rows, targets, x}});
    e.push_back({K::kCrossEntropyGrad, vocab, {x, "f32[2,3] positive", targets, rows}});
  }
  ir::DropoutAttrs dropout;
  dropout.rate = 0.4;
  dropout.site = "h.0.mlp";
  dropout.features = 8;
  const std::vector<std::string> random{"i64[] below 9", "i64[] below 9", "i64[2] below 9",
                                        "i32[2,3] positions"};
  for (const char* x : {"f32[2,3,8]", "f32[2,3,4,2]"}) {
    OpExample example{K::kDropout, dropout, {x}};
    example.operands.insert(example.operands.end(), random.begin(), random.end());
    e.push_back(example);
  }
}

void add_mixture(Examples& e) {
  for (const bool sigmoid : {false, true}) {
    const ir::MoeAttrs moe{4, 2, sigmoid, sigmoid ? 2.5 : 1};
    const std::string logits = "f32[2,4,4]", gates = "f32[2,4,2]", experts = "i32[2,4,2] below 4",
                      tokens = "f32[2,4,3]", rows = "f32[4,2,2,3]";
    e.push_back({K::kMoeTopK, moe, {logits}});
    e.push_back({K::kMoeTopKGrad, moe, {gates, experts, logits}});
    if (sigmoid) continue;
    e.push_back({K::kMoeDispatch, moe, {tokens, experts}});
    e.push_back({K::kMoeDispatch, moe, {tokens, experts, gates}});
    e.push_back({K::kMoeCombine, moe, {rows, experts}});
    e.push_back({K::kMoeCombine, moe, {rows, experts, gates}});
    e.push_back({K::kMoeGateGrad, moe, {rows, tokens, experts}});
    // 3 tokens are 2 rows of each expert.
    const ir::MoeAttrs three{3, 2, sigmoid, 1};
    const std::string of_three = "i32[2,6,2] below 3", six = "f32[2,6,3]", four = "f32[3,2,4,3]";
    e.push_back({K::kMoeDispatch, three, {six, of_three}});
    e.push_back({K::kMoeCombine, three, {four, of_three, "f32[2,6,2]"}});
    e.push_back({K::kMoeGateGrad, three, {four, six, of_three}});
  }
}

void add_state_and_update(Examples& e) {
  e.push_back({K::kAccumulate, ir::NoAttrs{}, {"f32[2,3]", "f32[2,3]"}});
  e.push_back({K::kZero, ir::NoAttrs{}, {"f32[2,3]"}});
  e.push_back({K::kView, ir::ViewAttrs{2}, {"f32[10]"}, {"f32[2,3]"}});
  e.push_back({K::kAssemble, ir::AssembleAttrs{{0, 6}}, {"f32[10]", "f32[2,3]", "f32[4]"}});
  ir::FlatAttrs flat;
  flat.groups = {{{0, 300, 0, true, true, {}}, {512, 600, 1, false, true, {}}},
                 {{0, 256, 2, true, true, {}}}};
  flat.group_elements = {768, 256};
  flat.parameters = 3;
  flat.max_norm = 1;
  e.push_back({K::kNormBlocks, flat, {"f32[768]", "f32[256]"}});
  e.push_back({K::kNormParameters, flat, {"f64[4] positive"}});
  e.push_back({K::kClip, flat, {"f64[3] positive"}});
  e.push_back({K::kValidate, flat, {"f64[3] positive", "f64[3] positive", "f32[]", "f32[]"}});
  ir::FlatAttrs one = flat;
  one.groups.pop_back();
  one.group_elements.pop_back();
  one.weight_decay = 0.1;
  e.push_back({K::kAdamW,
               one,
               {"f32[768]", "f32[768]", "f32[768]", "f32[768] positive", "f32[]", "f32[] positive",
                "i64[] ones"}});
  e.push_back({K::kAdamW,
               one,
               {"f32[768]", "f32[768]", "f32[768]", "f32[768] positive", "f32[]", "f32[] positive",
                "i64[] ones", "f32[]", "f32[768]", "f32[768]", "f32[768] positive"}});
}

void add_collectives(Examples& e) {
  ir::CollectiveAttrs tp;
  tp.group = ir::AxisGroup{{"tp"}};
  tp.dim = 1;
  tp.global_size = 8;
  e.push_back({K::kAllReduce, tp, {"f32[2,4]", "f32[3]"}});
  e.push_back({K::kAllGather, tp, {"f32[2,4]"}, {"f32[2,8]"}});
  e.push_back({K::kReduceScatter, tp, {"f32[2,8]"}, {"f32[2,4]"}});
  e.push_back({K::kShardSlice, tp, {"f32[2,8]"}, {"f32[2,4]"}});
  tp.concat_dim = 0;
  e.push_back({K::kAllToAll, tp, {"f32[2,8]"}, {"f32[4,4]"}});
  ir::CollectiveAttrs moved;
  moved.group = ir::AxisGroup{{"dp", "tp"}};
  moved.from = {"dp"};
  moved.to = {"tp"};
  e.push_back({K::kPermute, moved, {"f32[2,4]"}});
  e.push_back({K::kPadMask, ir::PadMaskAttrs{1, 0, {{"tp"}, 7}}, {"f32[2,4]"}});
  e.push_back({K::kTrim, ir::NoAttrs{}, {"f32[2,4]"}, {"f32[2,3]"}});
  e.push_back({K::kCopy, ir::NoAttrs{}, {"f32[2,4]"}});
}

}  // namespace

const std::vector<OpExample>& op_examples() {
  static const Examples all = [] {
    Examples e;
    add_primitives(e);
    add_shape_ops(e);
    add_products(e);
    add_rowwise(e);
    add_attention(e);
    add_vocabulary(e);
    add_mixture(e);
    add_state_and_update(e);
    add_collectives(e);
    return e;
  }();
  return all;
}

ir::TensorType parse_type(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  const std::optional<DType> dtype = parse_dtype(text.substr(0, open));
  MW_CHECK(dtype.has_value() && close != std::string::npos, "type '{}'", text);
  ir::TensorType type{*dtype, {}};
  const std::string sizes = text.substr(open + 1, close - open - 1);
  if (sizes.empty()) return type;
  for (const std::string_view size : split(sizes, ',')) type.dims.emplace_back(*parse_int64(size));
  return type;
}

std::vector<ir::TensorType> parse_types(const std::vector<std::string>& texts) {
  std::vector<ir::TensorType> types;
  for (const std::string& text : texts) types.push_back(parse_type(text));
  return types;
}

ir::Op op_of(const OpExample& example) {
  ir::Op op;
  op.kind = example.kind;
  op.attrs = example.attrs;
  return op;
}

Tensor sample(const std::string& operand, uint64_t seed) {
  Tensor tensor = zeros(parse_type(operand));
  const std::vector<std::string_view> words = split_words(operand);
  const std::string_view word = words.size() > 1 ? words[1] : "";
  const uint32_t below = words.size() > 2 ? static_cast<uint32_t>(*parse_int64(words[2])) : 2;
  const RngKey key{seed, 0, rng_site(operand)};
  const size_t row = tensor.type.rank() > 0 ? static_cast<size_t>(tensor.type.dims.back().size) : 1;
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    double& x = tensor.values[i];
    if (word == "positions") {
      x = static_cast<double>(i % row);
    } else if (word == "ones") {
      x = 1;
    } else if (word == "positive") {
      x = 0.5 + random_uniform(key, i);
    } else if (is_floating(tensor.type.dtype)) {
      x = random_normal(key, i);
    } else {
      x = word == "targets" && i == 1 ? -100.0 : static_cast<double>(random_u32(key, i) % below);
    }
  }
  return tensor;
}

std::vector<Tensor> samples(const OpExample& example) {
  std::vector<Tensor> tensors;
  for (const std::string& operand : example.operands)
    tensors.push_back(sample(operand, tensors.size() + 1));
  return tensors;
}

}  // namespace mw::ops::test
