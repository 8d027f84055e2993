#include "ops/builder.h"

#include "base/error.h"
#include "ops/op_def.h"

namespace mw::ops {

using ir::OpKind;

ValueIds Builder::emit(OpKind kind, ir::Attributes attrs, ValueIds operands,
                       std::vector<ir::TensorType> declared) {
  ir::Op op;
  op.kind = kind;
  op.attrs = std::move(attrs);
  op.operands = std::move(operands);
  op.work = work;
  op.layer = layer;
  op.recompute = recompute;
  std::vector<ir::TensorType> results = infer(op, operand_types(graph_, op), declared);
  const OpId id = graph_.add_op(std::move(op), std::move(results));
  return graph_.op(id).results;
}

ValueId Builder::annotate(ValueId v, const std::string& name, ir::LogicalAxes logical) {
  ir::Value& value = graph_.value(v);
  MW_CHECK(logical.empty() || static_cast<int>(logical.size()) == value.type.rank(),
           "'{}' {} gets {} logical axes", name, ir::to_string(value.type), logical.size());
  value.name = name;
  value.logical = std::move(logical);
  return v;
}

// --- primitives ---

ValueId Builder::constant(double value, ir::TensorType type) {
  return emit1(OpKind::kConstant, ir::ConstantAttrs{value}, {}, {std::move(type)});
}

ValueId Builder::unary(OpKind kind, ValueId x) { return emit1(kind, ir::NoAttrs{}, {x}); }

ValueId Builder::binary(OpKind kind, ValueId a, ValueId b) {
  return emit1(kind, ir::NoAttrs{}, {a, b});
}

ValueId Builder::scale(ValueId x, double factor) {
  return emit1(OpKind::kScale, ir::ScaleAttrs{factor}, {x});
}

ValueId Builder::compare(ir::CompareAttrs::Direction direction, ValueId a, ValueId b) {
  return emit1(OpKind::kCompare, ir::CompareAttrs{direction}, {a, b});
}

ValueId Builder::select(ValueId mask, ValueId a, ValueId b) {
  return emit1(OpKind::kSelect, ir::NoAttrs{}, {mask, a, b});
}

ValueId Builder::convert(ValueId x, DType dtype) {
  ir::TensorType result = type(x);
  result.dtype = dtype;
  return emit1(OpKind::kConvert, ir::NoAttrs{}, {x}, {std::move(result)});
}

ValueId Builder::broadcast(ValueId x, const std::vector<int64_t>& sizes, std::vector<int> dims) {
  return emit1(OpKind::kBroadcast, ir::DimsAttrs{std::move(dims)}, {x},
               {ir::make_type(type(x).dtype, sizes)});
}

ValueId Builder::reshape(ValueId x, const std::vector<int64_t>& sizes) {
  return emit1(OpKind::kReshape, ir::NoAttrs{}, {x}, {ir::make_type(type(x).dtype, sizes)});
}

ValueId Builder::transpose(ValueId x, std::vector<int> permutation) {
  return emit1(OpKind::kTranspose, ir::DimsAttrs{std::move(permutation)}, {x});
}

ValueId Builder::slice(ValueId x, std::vector<int64_t> start, std::vector<int64_t> limit) {
  std::vector<int64_t> stride(start.size(), 1);
  return emit1(OpKind::kSlice,
               ir::SliceAttrs{std::move(start), std::move(limit), std::move(stride)}, {x});
}

ValueId Builder::pad(ValueId x, std::vector<int64_t> low, std::vector<int64_t> high) {
  return emit1(OpKind::kPad, ir::PadAttrs{std::move(low), std::move(high)}, {x});
}

ValueId Builder::concat(ValueIds parts, int dim) {
  return emit1(OpKind::kConcat, ir::ConcatAttrs{dim}, std::move(parts));
}

ValueId Builder::reduce(ValueId x, ir::Reduction op, std::vector<int> dims) {
  return emit1(OpKind::kReduce, ir::ReduceAttrs{op, std::move(dims)}, {x});
}

ValueId Builder::dot(ValueId lhs, ValueId rhs, const std::string& einsum) {
  const size_t comma = einsum.find(','), arrow = einsum.find("->");
  MW_CHECK(comma != std::string::npos && arrow != std::string::npos && comma < arrow,
           "einsum \"{}\"", einsum);
  return emit1(OpKind::kDot,
               ir::DotAttrs{einsum.substr(0, comma), einsum.substr(comma + 1, arrow - comma - 1),
                            einsum.substr(arrow + 2)},
               {lhs, rhs});
}

ValueId Builder::conv(ValueId x_NCHW, ValueId w_OIHW, std::vector<int64_t> stride,
                      std::vector<int64_t> padding) {
  return emit1(OpKind::kConv, ir::ConvAttrs{std::move(stride), std::move(padding), {}},
               {x_NCHW, w_OIHW});
}

// --- composites ---

ValueId Builder::bias_add(ValueId x, ValueId bias) { return binary(OpKind::kBiasAdd, x, bias); }

ValueId Builder::gelu(ValueId x, bool tanh_approximation) {
  return emit1(OpKind::kGelu, ir::GeluAttrs{tanh_approximation}, {x});
}

ValueId Builder::bias_gelu(ValueId x, ValueId bias, bool tanh_approximation) {
  return emit1(OpKind::kBiasGelu, ir::GeluAttrs{tanh_approximation}, {x, bias});
}

ValueId Builder::silu(ValueId x) { return unary(OpKind::kSilu, x); }

ValueId Builder::swiglu(ValueId gate, ValueId up) { return binary(OpKind::kSwiglu, gate, up); }

ValueId Builder::softmax(ValueId x) { return unary(OpKind::kSoftmax, x); }

ValueId Builder::layer_norm(ValueId x_BSD, ValueId gamma_D, ValueId beta_D, double epsilon) {
  return emit1(OpKind::kLayerNorm, ir::NormAttrs{epsilon}, {x_BSD, gamma_D, beta_D});
}

ValueId Builder::rms_norm(ValueId x_BSD, ValueId gamma_D, double epsilon) {
  return emit1(OpKind::kRmsNorm, ir::NormAttrs{epsilon}, {x_BSD, gamma_D});
}

Builder::RopeTable Builder::rope_table(ValueId positions_BS, const ir::RopeAttrs& attrs) {
  const ValueIds table = emit(OpKind::kRopeTable, attrs, {positions_BS});
  return {table[0], table[1]};
}

ValueId Builder::rope(ValueId x_BSHD, RopeTable table) {
  return emit1(OpKind::kRope, ir::NoAttrs{}, {x_BSHD, table.cos, table.sin});
}

namespace {

// positions and, with dropout, what its random numbers depend on.
ValueIds with_random(ValueIds operands, ValueId positions_BS, double dropout,
                     const std::optional<Builder::Random>& random) {
  operands.push_back(positions_BS);
  if (dropout > 0) {
    MW_CHECK(random.has_value(), "attention with dropout {} needs seed, step and sample ids",
             dropout);
    operands.insert(operands.end(), {random->seed, random->step, random->sample_ids_B});
  }
  return operands;
}

ir::AttentionAttrs attention_attrs(double scale, bool causal, bool packed, double dropout,
                                   const std::string& site) {
  ir::AttentionAttrs attrs;
  attrs.scale = scale;
  attrs.causal = causal;
  attrs.packed = packed;
  attrs.dropout = dropout;
  if (dropout > 0) attrs.site = site;
  return attrs;
}

}  // namespace

ValueId Builder::attention_packed(ValueId qkv_BS3HD, ValueId positions_BS, double scale,
                                  bool causal, double dropout, const std::string& site,
                                  std::optional<Random> random) {
  return emit1(OpKind::kAttention, attention_attrs(scale, causal, true, dropout, site),
               with_random({qkv_BS3HD}, positions_BS, dropout, random));
}

ValueId Builder::attention(ValueId q_BSHD, ValueId k_BSKD, ValueId v_BSKD, ValueId positions_BS,
                           double scale, bool causal, double dropout, const std::string& site,
                           std::optional<Random> random) {
  return emit1(OpKind::kAttention, attention_attrs(scale, causal, false, dropout, site),
               with_random({q_BSHD, k_BSKD, v_BSKD}, positions_BS, dropout, random));
}

ValueId Builder::embedding(ValueId tokens_BS, ValueId table_VD) {
  ir::EmbeddingAttrs attrs;
  attrs.vocab = type(table_VD).rank() > 0 ? type(table_VD).dim(0) : 0;
  return emit1(OpKind::kEmbedding, attrs, {tokens_BS, table_VD});
}

ValueId Builder::cross_entropy(ValueId logits_BSV, ValueId targets_BS) {
  ir::CrossEntropyAttrs attrs;
  attrs.vocab = type(logits_BSV).rank() > 0 ? type(logits_BSV).dims.back().size : 0;
  const ValueId max = emit1(OpKind::kCrossEntropyMax, attrs, {logits_BSV});
  const ValueIds sums = emit(OpKind::kCrossEntropySum, attrs, {logits_BSV, max, targets_BS});
  return emit1(OpKind::kCrossEntropyLoss, attrs, {max, sums[0], sums[1], targets_BS, logits_BSV});
}

ValueId Builder::dropout(ValueId x_BSD, double rate, const std::string& site,
                         const Random& random) {
  ir::DropoutAttrs attrs;
  attrs.rate = rate;
  attrs.site = site;
  attrs.features = 1;
  for (int d = 2; d < type(x_BSD).rank(); ++d) attrs.features *= type(x_BSD).dim(d);
  return emit1(OpKind::kDropout, attrs,
               {x_BSD, random.seed, random.step, random.sample_ids_B, random.positions_BS});
}

}  // namespace mw::ops
