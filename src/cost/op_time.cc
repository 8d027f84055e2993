#include "cost/op_time.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/op_def.h"

namespace mw::cost {
namespace {

using ir::OpKind;

// Tiles that a multiprocessor computes at a time, and what a kernel with that tile reaches beside
// the largest one: its operand traffic per FLOP grows with 1/rows + 1/columns. Efficiencies of the
// small tiles are estimates (from memory of cuBLAS's heuristics), not fits.
struct Tile {
  int64_t rows, columns;
  double efficiency;
};
constexpr std::array<Tile, 6> kTiles = {{{256, 128, 1.0},
                                         {128, 256, 1.0},
                                         {128, 128, 0.97},
                                         {128, 64, 0.85},
                                         {64, 128, 0.85},
                                         {64, 64, 0.70}}};
// Filling and draining a tile's pipeline costs as much as this many elements of k. An estimate.
constexpr double kHalfK = 64;
// Fused attention's share of what the largest products reach [Dao 2023, FlashAttention-2, A100,
// head dimension 128, causal: 0.73 and 0.63 of peak at long sequences; our 0.87 of peak times
// these]. Range: sequences of 1k and longer; shorter ones reach less.
constexpr double kAttentionForward = 0.75, kAttentionBackward = 0.65;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

double efficiency_of(const cluster::Device& device, const ir::Graph& graph, const ir::Op& op) {
  if (op.kind == OpKind::kDot) return product_efficiency(device, product_shape(graph, op));
  const double fraction = device.attained.matrix_fraction;
  if (op.kind == OpKind::kAttention) return fraction * kAttentionForward;
  if (op.kind == OpKind::kAttentionGrad) return fraction * kAttentionBackward;
  return fraction;
}

}  // namespace

ProductShape product_shape(const ir::Graph& graph, const ir::Op& op) {
  MW_CHECK(op.kind == OpKind::kDot, "{} is no product", ir::op_name(op.kind));
  const auto& attrs = op.as<ir::DotAttrs>();
  const auto has = [](const std::string& letters, char letter) {
    return letters.find(letter) != std::string::npos;
  };
  ProductShape shape;
  const ir::TensorType &lhs = graph.type(op.operands[0]), &rhs = graph.type(op.operands[1]);
  for (size_t i = 0; i < attrs.lhs.size(); ++i) {
    const char letter = attrs.lhs[i];
    const int64_t size = lhs.dims[i].size;
    if (!has(attrs.out, letter)) {
      shape.k *= size;
    } else if (has(attrs.rhs, letter)) {
      shape.batch *= size;
    } else {
      shape.m *= size;
    }
  }
  for (size_t i = 0; i < attrs.rhs.size(); ++i) {
    if (!has(attrs.lhs, attrs.rhs[i])) shape.n *= rhs.dims[i].size;
  }
  return shape;
}

double product_efficiency(const cluster::Device& device, const ProductShape& shape) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const int64_t tiles =
        shape.batch * ceil_div(shape.m, tile.rows) * ceil_div(shape.n, tile.columns);
    const int64_t slots = ceil_div(tiles, device.multiprocessors) * device.multiprocessors;
    const double covered = static_cast<double>(shape.batch * shape.m * shape.n) /
                           static_cast<double>(tile.rows * tile.columns);
    best = std::max(best, covered / static_cast<double>(slots) * tile.efficiency);
  }
  const double k = static_cast<double>(shape.k);
  return best * k / (k + kHalfK) * device.attained.matrix_fraction;
}

cluster::FlopsPerSecond matrix_peak(const cluster::Device& device, DType dtype, bool tf32) {
  cluster::FlopsPerSecond peak;
  if (dtype == DType::kF32 && tf32) peak = device.peak("tf32");
  if (peak.value == 0) peak = device.peak(dtype_name(dtype));
  if (peak.value == 0 && dtype == DType::kBF16) peak = device.peak("f16");
  if (peak.value == 0 && dtype == DType::kF16) peak = device.peak("bf16");
  for (const auto& [format, other] : device.peaks) {
    if (peak.value == 0) peak = other;
  }
  return peak;
}

OpTime op_time(const cluster::Device& device, const ir::Graph& graph, const ir::Op& op, bool tf32) {
  MW_CHECK(!ir::is_collective(op.kind), "{} is a collective", ir::op_name(op.kind));
  OpTime time;
  time.host = device.attained.host_op;
  time.device = device.attained.launch;
  if (ops::op_def(op.kind).cost == nullptr) return time;
  const ops::OpCost cost = ops::cost_of(graph, op);
  time.flops = Flops(cost.flops);
  time.matrix_product = cost.matrix_product;
  double rate = device.peak("f32").value;
  if (cost.matrix_product) {
    const DType dtype = graph.type(op.operands[0]).dtype;
    rate = matrix_peak(device, dtype, tf32).value * efficiency_of(device, graph, op);
  }
  const double arithmetic = rate > 0 ? cost.flops / rate : 0;
  const double memory =
      cost.bytes / (device.memory_bandwidth.value * device.attained.memory_fraction);
  time.device += Seconds(std::max(arithmetic, memory));
  return time;
}

}  // namespace mw::cost
