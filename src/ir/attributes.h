// Attributes of ops: one struct a family, held in a variant. A struct has only what shape
// inference, the sharding rule, the cost and the kernel read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/name.h"
#include "ir/op_kind.h"

namespace mw::ir {

class Cursor;

enum class Reduction : uint8_t { kSum, kMax, kMin };

// Mesh axes by name, major first. Symbolic: nothing here depends on how many devices an axis has.
using Axes = Names;
using DimAxes = absl::InlinedVector<Axes, 4>;  // [dimension]

// All devices that differ only along `axes` of their stage's mesh.
struct AxisGroup {
  Axes axes;
  friend bool operator==(const AxisGroup&, const AxisGroup&) = default;
};
// All devices that hold a copy of a state, derived from the placement (tied embeddings, pipeline
// replicas), and that differ besides only along `axes` of their stage's mesh.
struct Holders {
  std::string state;
  Axes axes{};
  friend bool operator==(const Holders&, const Holders&) = default;
};
using DeviceGroup = std::variant<AxisGroup, Holders>;

struct NoAttrs {
  friend bool operator==(const NoAttrs&, const NoAttrs&) = default;
};
struct ConstantAttrs {  // every element is `value`
  double value = 0;
  friend bool operator==(const ConstantAttrs&, const ConstantAttrs&) = default;
};
struct ScaleAttrs {  // y = x * factor
  double factor = 1;
  friend bool operator==(const ScaleAttrs&, const ScaleAttrs&) = default;
};
struct CompareAttrs {
  enum class Direction : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe } direction = Direction::kEq;
  friend bool operator==(const CompareAttrs&, const CompareAttrs&) = default;
};
// transpose: permutation; broadcast: the result's dimension of each operand dimension
struct DimsAttrs {
  std::vector<int> dims;
  friend bool operator==(const DimsAttrs&, const DimsAttrs&) = default;
};
struct SliceAttrs {  // [start, limit) of every dimension, by stride
  std::vector<int64_t> start, limit, stride;
  friend bool operator==(const SliceAttrs&, const SliceAttrs&) = default;
};
struct PadAttrs {  // zeros before and after every dimension
  std::vector<int64_t> low, high;
  friend bool operator==(const PadAttrs&, const PadAttrs&) = default;
};
struct ConcatAttrs {
  int dim = 0;
  friend bool operator==(const ConcatAttrs&, const ConcatAttrs&) = default;
};
struct ReduceAttrs {
  Reduction op = Reduction::kSum;
  std::vector<int> dims;  // ascending; they disappear
  friend bool operator==(const ReduceAttrs&, const ReduceAttrs&) = default;
};
// A product in einsum form with one letter a dimension: lhs "bsk", rhs "nk", out "bsn". A letter
// that is in lhs and rhs but not in out is contracted.
struct DotAttrs {
  std::string lhs, rhs, out;
  friend bool operator==(const DotAttrs&, const DotAttrs&) = default;
};
struct ConvAttrs {  // x_NCHW, w_OIHW; symmetric padding
  std::vector<int64_t> stride{1, 1}, padding{0, 0};
  // H, W of x, for the input gradient; kernel size for the weight gradient.
  std::vector<int64_t> input_size;
  friend bool operator==(const ConvAttrs&, const ConvAttrs&) = default;
};
struct GeluAttrs {
  bool tanh_approximation = false;  // "gelu_new" of GPT-2
  friend bool operator==(const GeluAttrs&, const GeluAttrs&) = default;
};
struct NormAttrs {
  double epsilon = 1e-5;
  friend bool operator==(const NormAttrs&, const NormAttrs&) = default;
};
// The angles of pairs that turn slowly are divided by `factor`: of those that turn less than
// low_turns times in `positions` positions, of those up to high_turns in part. No positions: of
// all pairs. transformers' rope_type "llama3" and "linear".
struct RopeScaling {
  double factor = 1, low_turns = 0, high_turns = 0;
  int64_t positions = 0;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};
struct RopeAttrs {
  double theta = 10000;
  int64_t head_dim = 0;
  RopeScaling scaling;
  friend bool operator==(const RopeAttrs&, const RopeAttrs&) = default;
};
// Where a shard's first index lies in the global dimension. The partitioner writes it for ops whose
// result depends on global indices (embedding, cross_entropy, dropout, padding masks): offset =
// index of this device along `axes` * local size.
struct ShardOffset {
  Axes axes;
  int64_t global_size = 0;  // 0: the dimension is whole
  friend bool operator==(const ShardOffset&, const ShardOffset&) = default;
};
struct AttentionAttrs {
  double scale = 1;
  bool causal = true;
  bool packed = false;  // one operand qkv_BS3HD instead of three; otherwise q_BSHD, k_BSKD, v_BSKD
  double dropout = 0;
  std::string site;  // RNG site of the dropout
  ShardOffset heads;
  // Context parallelism: of T keys in all, the queries are this device's part. Else the last.
  ShardOffset queries;
  int64_t window = 0;  // causal: of this many keys up to the query's own; 0: all
  friend bool operator==(const AttentionAttrs&, const AttentionAttrs&) = default;
};
struct EmbeddingAttrs {
  int64_t vocab = 0;  // global rows of the table
  ShardOffset rows;
  friend bool operator==(const EmbeddingAttrs&, const EmbeddingAttrs&) = default;
};
struct CrossEntropyAttrs {
  int64_t vocab = 0;  // global columns that count; columns beyond are padding
  ShardOffset columns;
  friend bool operator==(const CrossEntropyAttrs&, const CrossEntropyAttrs&) = default;
};
struct DropoutAttrs {
  double rate = 0;
  std::string site;
  int64_t features = 0;  // global size of the last dimension(s) behind batch and sequence
  ShardOffset feature;
  friend bool operator==(const DropoutAttrs&, const DropoutAttrs&) = default;
};
// Of a mixture of experts.
struct MoeAttrs {
  int64_t experts = 1, top_k = 1;  // top_k: experts that a token goes to
  bool sigmoid = false;            // scores are sigmoids of the logits, else exponentials
  double scale = 1;                // a token's gates add up to it
  friend bool operator==(const MoeAttrs&, const MoeAttrs&) = default;
};
// Initial values by global index, so that they are the same under every layout.
struct RandomAttrs {
  enum class Distribution : uint8_t { kNormal, kUniform } distribution = Distribution::kNormal;
  double mean = 0, scale = 1;  // normal: standard deviation; uniform: [mean - scale, mean + scale)
  std::string site;
  std::vector<int64_t> global_sizes;
  std::vector<ShardOffset> offsets;  // one a dimension
  friend bool operator==(const RandomAttrs&, const RandomAttrs&) = default;
};
struct CollectiveAttrs {
  DeviceGroup group;
  Reduction op = Reduction::kSum;
  // all_gather, reduce_scatter, shard_slice, all_to_all: the dimension that becomes sharded / whole
  int dim = 0;
  int concat_dim = 0;       // all_to_all: the dimension that becomes whole (dim becomes sharded)
  int64_t global_size = 0;  // size of `dim` without padding
  // permute: the axes that `dim` is split over before and behind, as many shards; whole shards move
  // between the devices of the group, which has the axes of both.
  Axes from = {}, to = {};
  friend bool operator==(const CollectiveAttrs&, const CollectiveAttrs&) = default;
};
// Elements of `dim` whose global index is at least the global size become `value`.
struct PadMaskAttrs {
  int dim = 0;
  double value = 0;
  ShardOffset offset;
  friend bool operator==(const PadMaskAttrs&, const PadMaskAttrs&) = default;
};
struct ViewAttrs {  // a tensor inside a flat buffer, at this element
  int64_t offset = 0;
  friend bool operator==(const ViewAttrs&, const ViewAttrs&) = default;
};
struct AssembleAttrs {  // offsets of the parts, in elements
  std::vector<int64_t> offsets;
  friend bool operator==(const AssembleAttrs&, const AssembleAttrs&) = default;
};
// A range of a flat parameter group that holds one parameter.
struct Segment {
  int64_t begin = 0, end = 0;  // elements, without the padding to the norm block
  int32_t parameter = 0;       // index in the module's parameter order
  bool decay = true;
  bool counts = true;  // false: another device (tp replica, second holder) counts it for the norm
  // The norm counts it only where the index along each of these axes is 0.
  Axes counted_at_origin_of;
  friend bool operator==(const Segment&, const Segment&) = default;
};
// norm_blocks, norm_parameters, adamw: the layout of the flat group(s) they work on
struct FlatAttrs {
  std::vector<std::vector<Segment>> groups;
  std::vector<int64_t> group_elements;  // padded size of each group, all shards together
  Axes shard_axes;         // ZeRO: the flat view is split over these axes; empty: whole
  int32_t parameters = 0;  // number of parameters of the module
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, max_norm = 0;
  friend bool operator==(const FlatAttrs&, const FlatAttrs&) = default;
};

using Attributes =
    std::variant<NoAttrs, ConstantAttrs, ScaleAttrs, CompareAttrs, DimsAttrs, SliceAttrs, PadAttrs,
                 ConcatAttrs, ReduceAttrs, DotAttrs, ConvAttrs, GeluAttrs, NormAttrs, RopeAttrs,
                 AttentionAttrs, EmbeddingAttrs, CrossEntropyAttrs, DropoutAttrs, MoeAttrs,
                 RandomAttrs, CollectiveAttrs, PadMaskAttrs, ViewAttrs, AssembleAttrs, FlatAttrs>;

// "{lhs=bsk, rhs=nk, out=bsn}"; empty for NoAttrs. Round-trips through parse_attributes.
std::string to_string(const Attributes& attributes);
// Reads what to_string wrote of the struct that `prototype` holds; fields that are not there keep
// its values. Throws Error that says what was expected.
Attributes parse_attributes(std::string_view text, Attributes prototype);
Attributes read_attributes(Cursor& cursor, Attributes prototype);

// "dot", "norm", "collective", …: the struct's name. parse_family gives its default values.
std::string_view family(const Attributes& attributes);
std::optional<Attributes> parse_family(std::string_view name);
// The struct that ops of this kind usually have; only then the text form leaves out the family's
// name.
Attributes usual_attributes(OpKind kind);

}  // namespace mw::ir
