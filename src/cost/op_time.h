// Time of one op on one device, without its collectives: the larger of FLOPs over what the shape
// lets the device reach and bytes over memory bandwidth, plus the gap between kernels; and the
// host's work to issue it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cluster/hardware.h"
#include "ir/graph.h"

namespace mw::cost {

// batch products of [m, k] by [k, n].
struct ProductShape {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  friend bool operator==(const ProductShape&, const ProductShape&) = default;
};
// REQUIRES: the op is a dot.
ProductShape product_shape(const ir::Graph& graph, const ir::Op& op);

// Share of the dense peak that a product of this shape reaches: matrix_fraction times the best over
// tile shapes of (elements / tile area covered) * (tiles / slots of the waves they take) *
// k / (k + product_half_k) * tile's own efficiency. Tile and wave quantization: NVIDIA, "Matrix
// multiplication background user's guide"; the other factors: see op_time.cc. Range: dense
// products, k >= 16.
// `half_k`: of k for half of it; 0: the device's.
double product_efficiency(const cluster::Device& device, const ProductShape& shape,
                          double half_k = 0);

// How the products of linear layers run in fp8, their operands cast from two bytes. Attention, the
// output layer and the router of a mixture of experts stay in half precision, as in Transformer
// Engine's and torchao's training recipes.
enum class Fp8 : uint8_t {
  kOff,
  kTensor,  // one scale a tensor, from the largest value it has now: that is read first
  kBlock    // MXFP8 [OCP Microscaling Formats v1.0]: a byte of scale for 32 values
};

struct OpTime {
  Seconds device;  // launch gap included
  Seconds host;
  Flops flops;
  bool matrix_product = false;
};

// All of an op that its time depends on, but for the device.
struct OpWork {
  enum class Kind : uint8_t {
    kNothing,       // a kernel without arithmetic or traffic to speak of
    kStream,        // reads and writes
    kGradientCopy,  // puts gradients together in their collective's type
    kProduct,       // `shape`
    kLogits,  // a product that makes logits or takes their gradient: `shape`; work_of says kProduct
    kAttention,  // shape: heads of all samples x [queries, keys], k = the head's size
    kLoss,       // reads and writes logits
    kUpdate,     // reads and writes the optimizer's state, or takes the norm of gradients
    kFused       // a part of the kernel of an op behind it (fuse_elementwise)
  };
  Kind kind = Kind::kNothing;
  ir::OpKind op = ir::OpKind::kCopy;
  bool backward = false;        // of attention
  bool matrix_product = false;  // runs on the matrix units
  DType dtype = DType::kF32;    // of operand 0
  double flops = 0, bytes = 0;  // the op's own (ops::cost_of)
  double adds = 0;  // bytes of the kernel behind it that adds its result to a sum; 0: there is none
  ProductShape shape;
  bool narrows = true;  // a product that may run in fp8, an all-gather that may carry it
  // Of an all-gather, for fp8 (find_casts): it carries fp8, as only such products read its result.
  bool gathers_narrow = false;
  // Of a product, for fp8 (find_casts): values of its two operands; those of them that no product
  // before it in the graph reads, the kernels' count of such operands, and those that no product
  // before it reads along the same dimensions (a tensor is stored once for each).
  double operand_values = 0, new_values = 0, new_layouts = 0;
  double new_operands = 0;
};
// At local shapes. `update`: the op belongs to the optimizer's step. REQUIRES: not a collective.
OpWork work_of(const ir::Graph& graph, const ir::Op& op, bool update = false);

// What an op multiplies for; of linear layers alone the products run in fp8.
enum class ProductRole : uint8_t {
  kNone,    // it is no dot
  kLinear,  // a linear layer, or the gradients of its input and its weight
  kLogits,  // makes the logits or takes their gradient
  kRouter   // of a mixture of experts
};
// By op.
std::vector<ProductRole> product_roles(const ir::Graph& graph);

// Where a stack fuses them: a bias, dropout and the sum with the residual that only read each other
// are one kernel, the last op's, which reads and writes what the chain does [Megatron-LM
// megatron/model/transformer.py, bias_dropout_add]. REQUIRES: `works` are the graph's, by op.
void fuse_elementwise(const ir::Graph& graph, std::vector<OpWork>& works);

// Where a stack has one linear layer for what this graph has as several with one input (queries,
// keys and values; gate and up): their products are one, the last op's; so are those of the input's
// gradient with their sums, and those of the weights' gradients. REQUIRES: `works` are the graph's,
// by op, after find_casts.
void fuse_linears(const ir::Graph& graph, std::vector<OpWork>& works);

// What fp8 products have to cast, by op of a graph, and what all-gathers carry cast: what only such
// products read is cast before it is gathered [torchao/float8/float8_tensor_parallel.py;
// Transformer Engine gathers what it has quantized, too]. REQUIRES: `works` are the graph's, by op.
// `often`: [value] in what share of the graph's runs a product reads the value in half precision to
// cast it, and writes a layout of it; empty: in all.
struct CastShare {
  double read = 1, written = 1;
};
void find_casts(const ir::Graph& graph, std::vector<OpWork>& works,
                const std::vector<CastShare>& often = {});
// Bytes of a value on the links once it is cast, over those of half precision.
double narrow_share(Fp8 fp8);

// `tf32`: f32 products run on tensor cores in that format. `fp8`: so do products of kind kProduct;
// the casts of their operands are part of their time.
OpTime op_time(const cluster::Device& device, const OpWork& work, bool tf32 = false,
               Fp8 fp8 = Fp8::kOff);
OpTime op_time(const cluster::Device& device, const ir::Graph& graph, const ir::Op& op,
               bool tf32 = false);
// Traffic of kernels that read and write `set` bytes each: what fits the cache was left there by
// the kernel before.
double memory_time(const cluster::Device& device, double bytes, double set);
// Whether a rate of Device::kernel_rates is of FLOPs, not of bytes.
bool is_matrix_kernel(std::string_view op_name);

// The device's peak for products of this element type; f16's where it has no bf16, and the other
// way round; where it lists neither the first of its peaks (f32, tf32, bf16, f16, fp8, fp4).
cluster::FlopsPerSecond matrix_peak(const cluster::Device& device, DType dtype, bool tf32 = false);

}  // namespace mw::cost
