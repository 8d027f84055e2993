// Builder: appends ops to a graph, inferring result types. It carries the layer, the kind of work
// and the recompute region that new ops get.
//
// B batch, S sequence, D model, H heads, K head dim (or kv heads in k_BSKD), V vocab, F ffn
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace mw::ops {

class Builder {
 public:
  explicit Builder(ir::Graph& graph) : graph_(graph) {}

  ir::Graph& graph() { return graph_; }
  const ir::TensorType& type(ValueId v) const { return graph_.type(v); }
  LayerId layer;
  ir::Work work = ir::Work::kForward;
  RegionId recompute;

  // Any op; the general way in. `declared` is for ops whose result type is not inferred.
  ValueIds emit(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
                std::vector<ir::TensorType> declared = {});
  ValueId emit1(ir::OpKind kind, ir::Attributes attrs, ValueIds operands,
                std::vector<ir::TensorType> declared = {}) {
    return emit(kind, std::move(attrs), std::move(operands), std::move(declared)).front();
  }
  // Names the value and its logical axes; returns it.
  ValueId annotate(ValueId v, const std::string& name, ir::LogicalAxes logical);

  // Primitives.
  ValueId constant(double value, ir::TensorType type);
  ValueId unary(ir::OpKind kind, ValueId x);
  ValueId binary(ir::OpKind kind, ValueId a, ValueId b);  // equal types
  ValueId add(ValueId a, ValueId b) { return binary(ir::OpKind::kAdd, a, b); }
  ValueId sub(ValueId a, ValueId b) { return binary(ir::OpKind::kSub, a, b); }
  ValueId mul(ValueId a, ValueId b) { return binary(ir::OpKind::kMul, a, b); }
  ValueId div(ValueId a, ValueId b) { return binary(ir::OpKind::kDiv, a, b); }
  ValueId scale(ValueId x, double factor);
  ValueId compare(ir::CompareAttrs::Direction direction, ValueId a, ValueId b);
  ValueId select(ValueId mask, ValueId a, ValueId b);
  ValueId convert(ValueId x, DType dtype);
  // dims[i]: the result dimension that operand dimension i becomes; the others repeat.
  ValueId broadcast(ValueId x, const std::vector<int64_t>& sizes, std::vector<int> dims);
  ValueId reshape(ValueId x, const std::vector<int64_t>& sizes);
  ValueId transpose(ValueId x, std::vector<int> permutation);
  ValueId slice(ValueId x, std::vector<int64_t> start, std::vector<int64_t> limit);
  ValueId pad(ValueId x, std::vector<int64_t> low, std::vector<int64_t> high);
  ValueId concat(ValueIds parts, int dim);
  ValueId reduce(ValueId x, ir::Reduction op, std::vector<int> dims);
  // dot(x, w, "bsk,nk->bsn")
  ValueId dot(ValueId lhs, ValueId rhs, const std::string& einsum);
  ValueId conv(ValueId x_NCHW, ValueId w_OIHW, std::vector<int64_t> stride,
               std::vector<int64_t> padding);

  // Composites.
  ValueId bias_add(ValueId x, ValueId bias);  // bias has the trailing dimensions of x
  ValueId gelu(ValueId x, bool tanh_approximation);
  ValueId bias_gelu(ValueId x, ValueId bias, bool tanh_approximation);
  ValueId relu(ValueId x) { return unary(ir::OpKind::kRelu, x); }
  ValueId silu(ValueId x);
  ValueId swiglu(ValueId gate, ValueId up);  // silu(gate) * up
  ValueId softmax(ValueId x);                // over the last dimension
  ValueId layer_norm(ValueId x_BSD, ValueId gamma_D, ValueId beta_D, double epsilon);
  ValueId rms_norm(ValueId x_BSD, ValueId gamma_D, double epsilon);
  struct RopeTable {
    ValueId cos, sin;
  };  // each f32 [B, S, head_dim / 2]
  RopeTable rope_table(ValueId positions_BS, const ir::RopeAttrs& attrs);
  ValueId rope(ValueId x_BSHD, RopeTable table);
  // The sample ids are read only with dropout > 0, together with the i64 scalars seed and step.
  struct Random {
    ValueId seed, step, sample_ids_B, positions_BS;
  };
  ValueId attention_packed(ValueId qkv_BS3HD, ValueId positions_BS, double scale, bool causal,
                           double dropout = 0, const std::string& site = "",
                           std::optional<Random> random = {});
  ValueId attention(ValueId q_BSHD, ValueId k_BSKD, ValueId v_BSKD, ValueId positions_BS,
                    double scale, bool causal, double dropout = 0, const std::string& site = "",
                    std::optional<Random> random = {});
  ValueId embedding(ValueId tokens_BS, ValueId table_VD);
  // Loss of every token [B, S]; a target of -100 gives 0. Written as four ops, so that a
  // vocabulary-sharded logits_BSV needs only collectives of O(BS).
  ValueId cross_entropy(ValueId logits_BSV, ValueId targets_BS);
  ValueId dropout(ValueId x_BSD, double rate, const std::string& site, const Random& random);

 private:
  ir::Graph& graph_;
};

}  // namespace mw::ops
