// The text of every error of inference.
#include <doctest/doctest.h>

#include "base/error.h"
#include "base/test_thrown_by.h"
#include "ops/builder.h"
#include "ops/op_def.h"
#include "ops/op_examples.h"

namespace mw::ops {
namespace {

using K = ir::OpKind;

std::string error_of(K kind, ir::Attributes attrs, const std::vector<std::string>& operands,
                     const std::vector<std::string>& declared = {}) {
  const test::OpExample example{kind, std::move(attrs), operands, declared};
  return mw::test::thrown_by([&] {
    infer(test::op_of(example), test::parse_types(operands), test::parse_types(declared));
  });
}

TEST_CASE("the number of operands is checked before anything else") {
  CHECK(error_of(K::kAdd, ir::NoAttrs{}, {"f32[2]"}) == "add: takes 2 operands, got 1");
  CHECK(error_of(K::kAdd, ir::NoAttrs{}, {"f32[2]", "f32[2]", "f32[2]"}) ==
        "add: takes 2 operands, got 3");
  CHECK(error_of(K::kNeg, ir::NoAttrs{}, {}) == "neg: takes 1 operand, got 0");
  CHECK(error_of(K::kConcat, ir::ConcatAttrs{}, {}) == "concat: takes at least 1 operand, got 0");
  CHECK(error_of(K::kGeluGrad, ir::GeluAttrs{}, {"f32[2]"}) ==
        "gelu_grad: takes 2 to 3 operands, got 1");
}

TEST_CASE("a declared type that is not the inferred one is an error") {
  CHECK(error_of(K::kAdd, ir::NoAttrs{}, {"f32[2]", "f32[2]"}, {"f32[3]"}) ==
        "add: result 0 is f32[2], declared as f32[3]");
  CHECK(error_of(K::kAdd, ir::NoAttrs{}, {"f32[2]", "f32[2]"}, {"f32[2]", "f32[2]"}) ==
        "add: makes 1 results, 2 are declared");
}

TEST_CASE("errors of elementwise primitives show both types") {
  CHECK(error_of(K::kAdd, ir::NoAttrs{}, {"f32[2,3]", "f32[2,4]"}) ==
        "add: rhs f32[2,4] must have the type of lhs f32[2,3]");
  CHECK(error_of(K::kMul, ir::NoAttrs{}, {"f32[2]", "bf16[2]"}) ==
        "mul: rhs bf16[2] must have the type of lhs f32[2]");
  CHECK(error_of(K::kExp, ir::NoAttrs{}, {"i32[2]"}) ==
        "exp: x i32[2] must be of a floating dtype");
  CHECK(error_of(K::kCompare, ir::CompareAttrs{}, {"f32[2]", "i32[2]"}) ==
        "compare: rhs i32[2] must have the type of lhs f32[2]");
  CHECK(error_of(K::kSelect, ir::NoAttrs{}, {"bool[2]", "f32[2]", "f32[3]"}) ==
        "select: on_false f32[3] must have the type of on_true f32[2]");
  CHECK(error_of(K::kSelect, ir::NoAttrs{}, {"f32[2]", "f32[2]", "f32[2]"}) ==
        "select: mask f32[2] must be of dtype bool");
  CHECK(error_of(K::kSelect, ir::NoAttrs{}, {"bool[3]", "f32[2]", "f32[2]"}) ==
        "select: mask bool[3] must be bool[2], the shape of on_true (or a scalar)");
  CHECK(error_of(K::kConvert, ir::NoAttrs{}, {"f32[2]"}, {"bf16[3]"}) ==
        "convert: result bf16[3] must have the dimensions of x f32[2]");
  ir::RandomAttrs offsets;
  offsets.global_sizes = {4};
  offsets.offsets = {{{"dp"}, 4}, {{"tp"}, 4}};
  CHECK(error_of(K::kRandom, offsets, {}, {"f32[2]"}) ==
        "random: global_sizes (and offsets) must have one entry for each dimension of the result "
        "f32[2]");
  CHECK(error_of(K::kRandom, ir::RandomAttrs{}, {}, {"f32[2]"}) ==
        "random: global_sizes (and offsets) must have one entry for each dimension of the result "
        "f32[2]");
}

TEST_CASE("errors of shape ops show the shapes") {
  CHECK(error_of(K::kBroadcast, ir::DimsAttrs{{1}}, {"f32[2]"}, {"f32[2,3]"}) ==
        "broadcast: x f32[2] does not fit result f32[2,3] with its dimensions at [1]; each must "
        "have the size that the "
        "result has there");
  CHECK(error_of(K::kReshape, ir::NoAttrs{}, {"f32[2,3]"}, {"f32[4]"}) ==
        "reshape: x f32[2,3] has 6 elements, the result f32[4] has 4; elements and dtype must be "
        "the same");
  CHECK(error_of(K::kReshape, ir::NoAttrs{}, {"f32[0,4]"}, {"f32[2,0]"}) ==
        "reshape: x f32[0,4] and the result f32[2,0] must have no dimension of size 0");
  CHECK(error_of(K::kTranspose, ir::DimsAttrs{{0, 0}}, {"f32[2,3]"}) ==
        "transpose: [0,0] is not a permutation of the dimensions of x f32[2,3]");
  CHECK(error_of(K::kSlice, ir::SliceAttrs{{0}, {4}, {1}}, {"f32[3]"}) ==
        "slice: [0) to [4) by [1] does not lie in x f32[3]");
  CHECK(error_of(K::kSlice, ir::SliceAttrs{{-1}, {2}, {1}}, {"f32[3]"}) ==
        "slice: [-1) to [2) by [1] does not lie in x f32[3]");
  CHECK(error_of(K::kSlice, ir::SliceAttrs{{2}, {2}, {1}}, {"f32[3]"}) ==
        "slice: [2) to [2) by [1] does not lie in x f32[3]");
  CHECK(error_of(K::kSlice, ir::SliceAttrs{{0}, {2}, {0}}, {"f32[3]"}) ==
        "slice: [0) to [2) by [0] does not lie in x f32[3]");
  CHECK(error_of(K::kPad, ir::PadAttrs{{-1}, {1}}, {"f32[3]"}) ==
        "pad: low [-1] and high [1] must be one number >= 0 for each dimension of x f32[3]");
  CHECK(error_of(K::kConcat, ir::ConcatAttrs{-1}, {"f32[2,3]"}) ==
        "concat: part f32[2,3] has no dimension -1");
  CHECK(error_of(K::kBroadcast, ir::DimsAttrs{{0, 0}}, {"f32[2,2]"}, {"f32[2,2]"})
            .starts_with("broadcast: x f32[2,2] does not fit result f32[2,2]"));
  CHECK(error_of(K::kPad, ir::PadAttrs{{0}, {-1}}, {"f32[3]"}) ==
        "pad: low [0] and high [-1] must be one number >= 0 for each dimension of x f32[3]");
  CHECK(error_of(K::kConcat, ir::ConcatAttrs{2}, {"f32[2,3]"}) ==
        "concat: part f32[2,3] has no dimension 2");
  CHECK(error_of(K::kConcat, ir::ConcatAttrs{1}, {"f32[2,3]", "f32[3,3]"}) ==
        "concat: part f32[3,3] must be like part f32[2,3] in all but dimension 1");
  CHECK(error_of(K::kConcat, ir::ConcatAttrs{1}, {"f32[2,3]", "f32[2]"}) ==
        "concat: part f32[2] must be like part f32[2,3] in all but dimension 1");
  CHECK(error_of(K::kBroadcast, ir::DimsAttrs{{-1}}, {"f32[2]"}, {"f32[2,3]"})
            .starts_with("broadcast: x f32[2] does not fit result f32[2,3]"));
  CHECK(error_of(K::kReduce, ir::ReduceAttrs{ir::Reduction::kSum, {1, 1}}, {"f32[2,3]"}) ==
        "reduce: dims [1,1] must be ascending dimensions of x f32[2,3]");
  CHECK(error_of(K::kReduce, ir::ReduceAttrs{ir::Reduction::kSum, {1, 0}}, {"f32[2,3]"}) ==
        "reduce: dims [1,0] must be ascending dimensions of x f32[2,3]");
}

TEST_CASE("errors of products name the letters") {
  CHECK(error_of(K::kDot, ir::DotAttrs{"bsk", "nk", "bsn"}, {"f32[2,3,4]", "f32[5,6]"}) ==
        "dot: lhs f32[2,3,4] and rhs f32[5,6] do not fit \"bsk,nk->bsn\": 'k' is 4 and 6");
  CHECK(error_of(K::kDot, ir::DotAttrs{"bk", "nk", "bn"}, {"f32[2,3,4]", "f32[5,4]"}) ==
        "dot: lhs f32[2,3,4] and rhs f32[5,4] do not fit \"bk,nk->bn\": lhs has another number of "
        "dimensions");
  CHECK(error_of(K::kDot, ir::DotAttrs{"bk", "k", "b"}, {"f32[3,4]", "f32[5,4]"}) ==
        "dot: lhs f32[3,4] and rhs f32[5,4] do not fit \"bk,k->b\": rhs has another number of "
        "dimensions");
  CHECK(error_of(K::kDot, ir::DotAttrs{"bk", "nk", "bn"}, {"f32[2,4]", "bf16[5,4]"}) ==
        "dot: lhs f32[2,4] and rhs bf16[5,4] do not fit \"bk,nk->bn\": the dtypes differ");
  CHECK(error_of(K::kDot, ir::DotAttrs{"bk", "nj", "bn"}, {"f32[2,4]", "f32[5,4]"}) ==
        "dot: \"bk,nj->bn\": 'k' must be a letter that stands in two of lhs, rhs and out");
  CHECK(error_of(K::kDot, ir::DotAttrs{"bb", "nb", "bn"}, {"f32[2,2]", "f32[5,2]"}) ==
        "dot: \"bb,nb->bn\" has a letter twice in \"bb\"");
  const ir::ConvAttrs conv;
  CHECK(error_of(K::kConv, conv, {"f32[2,3,4]", "f32[2,3,3,3]"}) ==
        "conv: x f32[2,3,4] must have 4 dimensions, has 3");
  CHECK(error_of(K::kConv, conv, {"f32[2,3,8,8]", "f32[2,4,3,3]"}) ==
        "conv: x f32[2,3,8,8] and w f32[2,4,3,3] must have the same dtype and number of input "
        "channels (dimension 1)");
  CHECK(error_of(K::kConv, conv, {"f32[2,3,2,8]", "f32[2,3,3,3]"}) ==
        "conv: w f32[2,3,3,3] is larger than x f32[2,3,2,8] with padding 0");
  CHECK(error_of(K::kConv, ir::ConvAttrs{{1}, {0, 0}, {}}, {"f32[2,3,8,8]", "f32[2,3,3,3]"}) ==
        "conv: needs two strides >= 1, two paddings >= 0");
  CHECK(error_of(K::kConv, ir::ConvAttrs{{1, 1}, {0, -1}, {}}, {"f32[2,3,8,8]", "f32[2,3,3,3]"}) ==
        "conv: needs two strides >= 1, two paddings >= 0");
  // (2 - 3) / 2 + 1 is no size.
  CHECK(error_of(K::kConvInputGrad, ir::ConvAttrs{{2, 2}, {0, 0}, {2, 2}},
                 {"f32[2,2,1,1]", "f32[2,3,3,3]"}) ==
        "conv_input_grad: x f32[2,3,2,2] and w f32[2,3,3,3] with stride 2 and padding 0 do not "
        "give y f32[2,2,1,1]");
  CHECK(error_of(K::kConvInputGrad, conv, {"f32[2,2,6,6]", "f32[2,3,3,3]"}) ==
        "conv_input_grad: needs two strides >= 1, two paddings >= 0 and two input sizes");
  const ir::ConvAttrs sized{{1, 1}, {0, 0}, {9, 8}};
  CHECK(error_of(K::kConvInputGrad, sized, {"f32[2,2,6,6]", "f32[2,3,3,3]"}) ==
        "conv_input_grad: x f32[2,3,9,8] and w f32[2,3,3,3] with stride 1 and padding 0 do not "
        "give y f32[2,2,6,6]");
  CHECK(error_of(K::kConvInputGrad, sized, {"f32[2,4,6,6]", "f32[2,3,3,3]"}) ==
        "conv_input_grad: dy f32[2,4,6,6] and w f32[2,3,3,3] must have the same dtype and number "
        "of output channels");
  CHECK(error_of(K::kConvWeightGrad, sized, {"f32[2,3,8,8]", "f32[1,2,6,6]"}) ==
        "conv_weight_grad: x f32[2,3,8,8] and dy f32[1,2,6,6] must have the same dtype and batch "
        "size");
  CHECK(error_of(K::kConvWeightGrad, sized, {"f32[2,3,8,8]", "bf16[2,2,6,6]"}) ==
        "conv_weight_grad: x f32[2,3,8,8] and dy bf16[2,2,6,6] must have the same dtype and batch "
        "size");
}

TEST_CASE("errors of row-wise composites show both shapes") {
  CHECK(error_of(K::kBiasAdd, ir::NoAttrs{}, {"f32[2,4]", "f32[3]"}) ==
        "bias_add: bias f32[3] must have the trailing dimensions of x f32[2,4]");
  CHECK(error_of(K::kGeluGrad, ir::GeluAttrs{}, {"f32[2]", "f32[3]"}) ==
        "gelu_grad: x f32[3] must have the type of dy f32[2]");
  CHECK(error_of(K::kGeluGrad, ir::GeluAttrs{}, {"f32[2,4]", "f32[2,4]", "f32[3]"}) ==
        "gelu_grad: bias f32[3] must have the trailing dimensions of x f32[2,4]");
  CHECK(error_of(K::kSwiglu, ir::NoAttrs{}, {"f32[2]", "f32[3]"}) ==
        "swiglu: up f32[3] must have the type of gate f32[2]");
  CHECK(error_of(K::kSoftmax, ir::NoAttrs{}, {"f32[]"}) ==
        "softmax: x f32[] must have at least 1 dimension");
  CHECK(error_of(K::kLayerNorm, ir::NormAttrs{}, {"f32[2,4]", "f32[3]", "f32[4]"}) ==
        "layer_norm: gamma f32[3] must be f32[4], the last dimension of x f32[2,4]");
  CHECK(error_of(K::kLayerNorm, ir::NormAttrs{}, {"f32[2,4]", "f32[4]", "f32[4,1]"}) ==
        "layer_norm: beta f32[4,1] must be f32[4], the last dimension of x f32[2,4]");
  CHECK(error_of(K::kLayerNormInputGrad, ir::NoAttrs{},
                 {"f32[2,4]", "f32[2,4]", "f32[4]", "f32[4]", "f32[2]"}) ==
        "layer_norm_input_grad: mean f32[4] must be f32[2], the leading dimensions of x f32[2,4]");
  CHECK(error_of(K::kRmsNormWeightGrad, ir::NoAttrs{}, {"f32[3,4]", "f32[2,4]", "f32[2]"}) ==
        "rms_norm_weight_grad: dy f32[3,4] must have the type of x f32[2,4]");
}

TEST_CASE("errors of attention and rope say what must fit what") {
  ir::AttentionAttrs attrs;
  CHECK(error_of(K::kAttention, attrs, {"f32[2,3,4,2]", "i32[2,3]"}) ==
        "attention: takes 4 operands (not packed, without dropout), got 2");
  CHECK(error_of(K::kAttention, attrs,
                 {"f32[2,3,4,2]", "f32[2,3,3,2]", "f32[2,3,3,2]", "i32[2,3]"}) ==
        "attention: the heads of k f32[2,3,3,2] must divide the heads of q f32[2,3,4,2]");
  CHECK(error_of(K::kAttention, attrs,
                 {"f32[2,3,4,2]", "f32[2,2,4,2]", "f32[2,2,4,2]", "i32[2,3]"}) ==
        "attention: k f32[2,2,4,2] must be f32[2,3,4,2], like q f32[2,3,4,2] in all but the heads "
        "and "
        "a longer sequence");
  CHECK(error_of(K::kAttention, attrs,
                 {"f32[2,3,4,2]", "f32[2,3,4,2]", "f32[2,3,4,2]", "i32[2,4]"}) ==
        "attention: positions i32[2,4] must be i32[2,3], batch and sequence of the keys");
  attrs.packed = true;
  CHECK(error_of(K::kAttention, attrs, {"f32[2,3,2,4,2]", "i32[2,3]"}) ==
        "attention: qkv f32[2,3,2,4,2] must be [batch, sequence, 3, heads, head_dim]");
  CHECK(error_of(K::kAttentionGrad, attrs,
                 {"f32[2,3,4,2]", "f32[2,3,3,4,2]", "f32[2,3,4,2]", "f32[2,3,4]", "i32[2,3]"}) ==
        "attention_grad: lse f32[2,3,4] must be f32[2,4,3], batch, heads and sequence of q");
  CHECK(error_of(K::kAttentionGrad, attrs,
                 {"f32[2,3,4,1]", "f32[2,3,3,4,2]", "f32[2,3,4,2]", "f32[2,4,3]", "i32[2,3]"}) ==
        "attention_grad: dout f32[2,3,4,1] must be f32[2,3,4,2], the attention's result");
  CHECK(error_of(K::kAttentionGrad, attrs,
                 {"f32[2,3,4,2]", "f32[2,3,3,4,2]", "f32[2,3,4]", "f32[2,4,3]", "i32[2,3]"}) ==
        "attention_grad: out f32[2,3,4] must be f32[2,3,4,2], the attention's result");
  attrs.dropout = 1;
  CHECK(
      error_of(K::kAttention, attrs, {"f32[2,3,3,4,2]", "i32[2,3]", "i64[]", "i64[]", "i64[2]"}) ==
      "attention: dropout 1 must be in [0, 1)");
  attrs.dropout = 0.5;
  CHECK(
      error_of(K::kAttention, attrs, {"f32[2,3,3,4,2]", "i32[2,3]", "i32[]", "i64[]", "i64[2]"}) ==
      "attention: seed i32[] must be i64[], a scalar");
  CHECK(
      error_of(K::kAttention, attrs, {"f32[2,3,3,4,2]", "i32[2,3]", "i64[]", "i64[1]", "i64[2]"}) ==
      "attention: step i64[1] must be i64[], a scalar");
  CHECK(
      error_of(K::kAttention, attrs, {"f32[2,3,3,4,2]", "i32[2,3]", "i64[]", "i64[]", "i64[3]"}) ==
      "attention: sample_ids i64[3] must be i64[2], one a sample");
  CHECK(error_of(K::kRopeTable, ir::RopeAttrs{10000, 3, {}}, {"i32[2,3]"}) ==
        "rope_table: head_dim 3 must be even and positive");
  CHECK(error_of(K::kRope, ir::NoAttrs{}, {"f32[2,3,2,4]", "f32[2,3,4]", "f32[2,3,2]"}) ==
        "rope: cos f32[2,3,4] must be f32[2,3,2], batch, sequence and half the head dimension of x "
        "f32[2,3,2,4]");
}

TEST_CASE("errors of vocabulary ops and dropout name the attribute that does not fit") {
  ir::EmbeddingAttrs table;
  table.vocab = 8;
  CHECK(error_of(K::kEmbedding, table, {"i32[2,3]", "f32[7,4]"}) ==
        "embedding: table f32[7,4] must have vocab=8 rows");
  CHECK(error_of(K::kEmbedding, table, {"i64[2,3]", "f32[8,4]"}) ==
        "embedding: tokens i64[2,3] must be of dtype i32");
  CHECK(error_of(K::kEmbeddingGrad, table, {"i32[2,3]", "f32[2,4,4]"}) ==
        "embedding_grad: dy f32[2,4,4] must have the dimensions of tokens i32[2,3] and one more");
  ir::CrossEntropyAttrs vocab;
  vocab.vocab = 8;
  CHECK(error_of(K::kCrossEntropyMax, vocab, {"f32[2,7]"}) ==
        "cross_entropy_max: logits f32[2,7] must have vocab=8 columns at least");
  vocab.vocab = 0;
  CHECK(error_of(K::kCrossEntropyMax, vocab, {"f32[2,7]"}) ==
        "cross_entropy_max: logits f32[2,7] must have vocab=0 columns at least");
  vocab.vocab = 7;
  CHECK(
      error_of(K::kCrossEntropyGrad, vocab, {"f32[2,7]", "f32[2]", "i32[2]", "f32[]"}) ==
      "cross_entropy_grad: dloss f32[] must be f32[2], the leading dimensions of logits f32[2,7]");
  CHECK(
      error_of(K::kCrossEntropyLoss, vocab, {"f32[2]", "f32[3]", "f32[2]", "i32[2]", "f32[2,7]"}) ==
      "cross_entropy_loss: sum f32[3] must be f32[2], the leading dimensions of logits f32[2,7]");
  CHECK(error_of(K::kCrossEntropySum, vocab, {"f32[2,7]", "f32[2]", "i32[3]"}) ==
        "cross_entropy_sum: targets i32[3] must be i32[2], the leading dimensions of logits "
        "f32[2,7]");
  ir::DropoutAttrs dropout;
  dropout.rate = 0.5;
  dropout.features = 4;
  const std::vector<std::string> operands{"f32[2,3,5]", "i64[]", "i64[]", "i64[2]", "i32[2,3]"};
  CHECK(error_of(K::kDropout, dropout, operands) ==
        "dropout: x f32[2,3,5] must have features=4 elements at a position, has 5");
  dropout.rate = 1;
  CHECK(error_of(K::kDropout, dropout, operands) == "dropout: rate 1 must be in [0, 1)");
}

TEST_CASE("errors of state ops and collectives show what does not fit") {
  CHECK(error_of(K::kAccumulate, ir::NoAttrs{}, {"f32[2]", "f32[3]"}) ==
        "accumulate: g f32[3] must have the type of accumulator f32[2]");
  CHECK(error_of(K::kView, ir::ViewAttrs{5}, {"f32[10]"}, {"f32[2,3]"}) ==
        "view: f32[2,3] at element 5 does not lie in flat f32[10]");
  CHECK(error_of(K::kView, ir::ViewAttrs{-1}, {"f32[10]"}, {"f32[2]"}) ==
        "view: f32[2] at element -1 does not lie in flat f32[10]");
  CHECK(error_of(K::kView, ir::ViewAttrs{0}, {"f32[10]"}, {"i32[2]"}) ==
        "view: i32[2] at element 0 does not lie in flat f32[10]");
  CHECK(error_of(K::kAssemble, ir::AssembleAttrs{{0}}, {"f32[10]"}) ==
        "assemble: takes 1 parts, as many as offsets, got 0");
  ir::FlatAttrs flat;
  flat.groups = {{}};
  flat.group_elements = {512};
  flat.parameters = 2;
  CHECK(error_of(K::kNormBlocks, flat, {"f32[300]"}) ==
        "norm_blocks: grad f32[300] must be a flat f32 group of whole norm blocks (256 elements)");
  CHECK(error_of(K::kNormBlocks, flat, {"f32[768]"}) ==
        "norm_blocks: grad f32[768] must be an even share of its group of 512 elements");
  CHECK(error_of(K::kNormBlocks, flat, {"f32[256]", "f32[256]"}) ==
        "norm_blocks: takes one gradient for each of 1 groups, got 2");
  CHECK(error_of(K::kNormParameters, flat, {"f64[3]"}) ==
        "norm_parameters: blocks f64[3] must be f64[2], the blocks of all groups and shards");
  CHECK(error_of(K::kClip, flat, {"f64[3]"}) ==
        "clip: squares f64[3] must be f64[2], one for each parameter");
  CHECK(error_of(K::kAdamW, flat,
                 {"f32[256]", "f32[512]", "f32[256]", "f32[256]", "f32[]", "f32[]", "i64[]"}) ==
        "adamw: grad f32[512] must have the type of weight f32[256]");
  CHECK(error_of(K::kNormBlocks, flat, {"f32[0]"}) ==
        "norm_blocks: grad f32[0] must be an even share of its group of 512 elements");
  CHECK(error_of(K::kValidate, flat, {"f64[2]", "f64[2]"}) ==
        "validate: takes squares of 2 ranks and 0 losses");
  CHECK(error_of(K::kValidate, flat, {"f32[]", "f32[]"}) ==
        "validate: takes squares of 0 ranks and 2 losses");
  CHECK(error_of(K::kValidate, flat, {"f64[3]", "f32[]"}) ==
        "validate: squares f64[3] must be f64[2], one for each parameter");
  CHECK(error_of(K::kValidate, flat, {"f64[2]", "f32[]", "f64[]"}) ==
        "validate: loss f64[] must be f32[], a scalar");
  flat.groups = {};
  CHECK(error_of(K::kAdamW, flat,
                 {"f32[256]", "f32[256]", "f32[256]", "f32[256]", "f32[]", "f32[]", "i64[]"}) ==
        "adamw: works on one flat group, got 0");
  ir::CollectiveAttrs tp;
  CHECK(error_of(K::kAllGather, tp, {"f32[2,4]"}, {"f32[4,5]"}) ==
        "all_gather: x f32[2,4] does not become f32[4,5]");
  CHECK(error_of(K::kAllToAll, tp, {"f32[2,4]"}, {"f32[4,2]"}) ==
        "all_to_all: dim and concat_dim are both 0");
  CHECK(error_of(K::kPermute, tp, {"f32[2,4]"}) ==
        "permute: needs the axes that dim 0 is split over before and behind");
  ir::CollectiveAttrs from = tp;
  from.from = {"dp"};
  CHECK(error_of(K::kPermute, from, {"f32[2,4]"}) ==
        "permute: needs the axes that dim 0 is split over before and behind");
  CHECK(error_of(K::kAllGather, tp, {"f32[2,4]"}, {"bf16[4,4]"}) ==
        "all_gather: x f32[2,4] does not become bf16[4,4]");
  CHECK(error_of(K::kPadMask, ir::PadMaskAttrs{2, 0, {}}, {"f32[2,4]"}) ==
        "pad_mask: x f32[2,4] must have at least 3 dimensions");
  CHECK(error_of(K::kTrim, ir::NoAttrs{}, {"f32[2,4]"}, {"f32[2,5]"}) ==
        "trim: x f32[2,4] is smaller than the result f32[2,5]");
}

TEST_CASE("each operand of an update is held against the weight, or must be a scalar") {
  ir::FlatAttrs flat;
  flat.groups = {{}};
  flat.group_elements = {512};
  const std::vector<std::string> fits{"f32[256]", "f32[256]", "f32[256]", "f32[256]",
                                      "f32[]",    "f32[]",    "i64[]",    "f32[]",
                                      "f32[256]", "f32[256]", "f32[256]"};
  const std::vector<std::string> names{"weight",        "grad",     "m",       "v",
                                       "scale",         "lr",       "step",    "used scale",
                                       "weight before", "m before", "v before"};
  const auto with = [&](size_t operand, const std::string& type) {
    std::vector<std::string> operands = fits;
    operands[operand] = type;
    return error_of(K::kAdamW, flat, operands);
  };
  CHECK(with(0, "f32[256]") == "no error");
  for (size_t i = 1; i < fits.size(); ++i) {
    CAPTURE(i);
    if (fits[i] == "f32[256]") {
      CHECK(with(i, "f32[512]") ==
            "adamw: " + names[i] + " f32[512] must have the type of weight f32[256]");
    } else {
      CHECK(with(i, "f64[]") == "adamw: " + names[i] + " f64[] must be " + fits[i] + ", a scalar");
    }
  }
  CHECK(error_of(K::kAdamW, flat, {fits.begin(), fits.begin() + 8}) ==
        "adamw: takes 7 operands, or 11 where it amends a step, got 8");
}

TEST_CASE("an accumulator must have the type of the result, and an op must be able to accumulate") {
  ir::Op op;
  op.kind = K::kDot;
  op.attrs = ir::DotAttrs{"bn", "bk", "nk"};
  op.accumulates = true;
  try {
    infer(op, test::parse_types({"f32[8,4]", "f32[8,5]", "f32[5,4]"}));
    CHECK(false);
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "dot: accumulator f32[5,4] must have the type of the result f32[4,5]");
  }
  op.kind = K::kAdd;
  CHECK_THROWS_AS(infer(op, test::parse_types({"f32[8]", "f32[8]", "f32[8]"})), CheckFailure);
}

TEST_CASE("errors of a mixture of experts say what must fit what") {
  ir::MoeAttrs attrs;
  attrs.experts = 4, attrs.top_k = 2;
  CHECK(error_of(K::kMoeTopK, attrs, {"f32[2,6,3]"}) ==
        "moe_top_k: logits f32[2,6,3] must have experts=4, and top_k=2 of them");
  CHECK(error_of(K::kMoeTopKGrad, attrs, {"f32[2,6,2]", "i32[2,6,2]", "f32[2]"}) ==
        "moe_top_k_grad: logits f32[2] must have 3 dimensions, has 1");
  CHECK(error_of(K::kMoeTopKGrad, attrs, {"f32[2,6,2]", "i32[2,6,2]", "f32[2,6,3]"}) ==
        "moe_top_k_grad: logits f32[2,6,3] must have experts=4, and top_k=2 of them");
  CHECK(error_of(K::kMoeDispatch, attrs, {"f32[2,6,8]", "i32[2,6,3]"}) ==
        "moe_dispatch: experts i32[2,6,3] must have top_k=2 a token");
  CHECK(error_of(K::kMoeDispatch, attrs, {"f32[2,5,8]", "i32[2,5,2]"}) ==
        "moe_dispatch: 5 tokens with top_k=2 must be a whole number of rows for each of 4 experts");
  attrs.experts = 3;  // six tokens give each of them four rows
  CHECK(error_of(K::kMoeCombine, attrs, {"f32[3,2,3,8]", "i32[2,6,2]"}) ==
        "moe_combine: rows f32[3,2,3,8] must be f32[3,2,4,8], experts, batch, rows of each");
  attrs.experts = 1;
  CHECK(error_of(K::kMoeDispatch, attrs, {"f32[2,6,8]", "i32[2,6,2]"}) ==
        "moe_dispatch: top_k=2 must be 1 to experts=1");
  attrs.top_k = 0;
  CHECK(error_of(K::kMoeDispatch, attrs, {"f32[2,6,8]", "i32[2,6,0]"}) ==
        "moe_dispatch: top_k=0 must be 1 to experts=1");
}

TEST_CASE("verify_types names the graph and the op") {
  ir::Graph graph;
  graph.name = "microbatch";
  Builder builder(graph);
  const ValueId x = graph.add_input(test::parse_type("f32[2]"), "x");
  const ValueId y = builder.add(x, x);
  verify_types(graph);
  graph.value(y).type = test::parse_type("f32[3]");
  try {
    verify_types(graph);
    CHECK(false);
  } catch (const CheckFailure& failure) {
    CHECK(std::string(failure.what())
              .find("graph 'microbatch', op 0: add: result 0 is f32[2], declared as f32[3]") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace mw::ops
