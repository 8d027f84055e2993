#include "cost/op_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/round.h"
#include "cost/attention_time.h"
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
// Bytes of scale for a value of MXFP8: one for 32 [OCP Microscaling Formats v1.0].
constexpr double kBlockScale = 1.0 / 32;
// Where elementwise ops are not fused, PyTorch runs them as several kernels, each of which reads
// its operands and writes its result; norms and rope go through f32. Bytes an element of half
// precision over those of one fused kernel, and kernels. RMSNorm: to f32 6, square 8, mean 4, scale
// 8, back 6, weight 4; its gradient: weight 4, to f32 6, scale 8, product and its sum 16, square's
// 24, mean's 8, sum of both 12, back 6. Rope: to f32 6, complex product 8, back 6 [counted from
// pytorch/torchtitan torchtitan/models/llama/model.py of 2024 and PyTorch's derivatives.yaml, from
// memory]. Range: activations that do not fit the caches.
struct Unfused {
  OpKind kind;
  double bytes, kernels;
};
constexpr std::array<Unfused, 5> kUnfused = {{{OpKind::kRmsNorm, 36.0 / 4, 6},
                                              {OpKind::kRmsNormInputGrad, 84.0 / 6, 12},
                                              {OpKind::kRmsNormWeightGrad, 8.0 / 4, 2},
                                              {OpKind::kRope, 20.0 / 4, 3},
                                              {OpKind::kRopeGrad, 20.0 / 4, 3}}};

// So do a mixture's rows. Bytes an element of half precision: a row is read and written 4 and,
// before its expert (its gradient behind it), multiplied by its gate in f32, to f32 6, product 8,
// back 6; the gate's gradient is a product 12 and its sum 4 [counted from torchtitan/models/moe.py
// of 2025, from memory]. Rows are put together in atomic sums of half precision, which take as long
// on an H100 as on an H200, whose memory is 1.4 times as fast: 0.54 to 0.63 ms for 134 million
// elements (scripts/measure_gpu_steps.py), about one a multiprocessor and clock, 256 of its FLOPs
// in f32.
constexpr double kRowBytes = 4 + 20, kGateGradBytes = 16;
constexpr double kFlopsASum = 256;
// Kernels: softmax in f32, choice, counts and order of the rows; its gradient; of rows.
constexpr double kTopKKernels = 20, kTopKGradKernels = 6;
constexpr double kRowKernels = 4, kGateGradKernels = 2, kSumKernels = 2;

bool is_loss(OpKind kind) {
  return kind == OpKind::kCrossEntropyMax || kind == OpKind::kCrossEntropySum ||
         kind == OpKind::kCrossEntropyLoss || kind == OpKind::kCrossEntropyGrad;
}

// Of the attention's result, B x S x H x V.
ProductShape attention_shape(const ir::Graph& graph, const ir::Op& op) {
  const bool backward = op.kind == OpKind::kAttentionGrad;
  const ir::TensorType& out = graph.type(backward ? op.operands[0] : op.results[0]);
  ProductShape shape;
  shape.batch = out.dim(0) * out.dim(2);
  shape.m = shape.n = out.dim(1);
  shape.k = out.dim(3);
  if (!op.as<ir::AttentionAttrs>().packed)
    shape.n = graph.type(op.operands[backward ? 2 : 1]).dim(1);
  return shape;
}

// A mixture's op in several kernels; none: it is not one.
struct RowWork {
  double bytes = 0, sums = 0, kernels = 0;
};
RowWork row_work(const OpWork& work) {
  const double rows = work.flops / 2, halves = static_cast<double>(dtype_size(work.dtype)) / 2;
  switch (work.op) {
    case OpKind::kMoeTopK: return {work.bytes, 0, kTopKKernels};
    case OpKind::kMoeTopKGrad: return {work.bytes, 0, kTopKGradKernels};
    case OpKind::kMoeGateGrad: return {kGateGradBytes * halves * rows, 0, kGateGradKernels};
    case OpKind::kMoeDispatch: return {kRowBytes * halves * rows, 0, kRowKernels};
    case OpKind::kMoeCombine: return {0, rows, kSumKernels};
    default: return {};
  }
}

double kernel_rate(const cluster::Device& device, OpKind kind) {
  for (const auto& [name, rate] : device.kernel_rates) {
    if (name == ir::op_name(kind)) return rate;
  }
  return 0;
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

double product_efficiency(const cluster::Device& device, const ProductShape& shape, double half_k) {
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
  if (half_k == 0) half_k = device.attained.product_half_k;
  return best * k / (k + half_k) * device.attained.matrix_fraction;
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

OpWork work_of(const ir::Graph& graph, const ir::Op& op, bool update) {
  MW_CHECK(!ir::is_collective(op.kind), "{} is a collective", ir::op_name(op.kind));
  OpWork work;
  work.op = op.kind;
  if (ops::op_def(op.kind).cost == nullptr) return work;
  const ops::OpCost cost = ops::cost_of(graph, op);
  work.kind = OpWork::Kind::kStream;
  work.flops = cost.flops;
  work.bytes = cost.bytes;
  work.matrix_product = cost.matrix_product;
  if (!op.operands.empty()) work.dtype = graph.type(op.operands[0]).dtype;
  if (op.kind == OpKind::kDot) {
    work.shape = product_shape(graph, op);
    work.kind = OpWork::Kind::kProduct;
  } else if (op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad) {
    work.kind = OpWork::Kind::kAttention;
    work.backward = op.kind == OpKind::kAttentionGrad;
    work.shape = attention_shape(graph, op);
  } else if (is_loss(op.kind)) {
    work.kind = OpWork::Kind::kLoss;
  } else if (update && op.kind != OpKind::kZero && op.kind != OpKind::kCopy) {
    work.kind = OpWork::Kind::kUpdate;
  }
  return work;
}

namespace {

// [value] what the loss reads and its gradient, as often as a graph has a loss.
std::vector<bool> logits_of(const ir::Graph& graph) {
  std::vector<bool> logits(graph.values.size(), false);
  for (const ir::Op& op : graph.ops) {
    if (op.kind == OpKind::kCrossEntropyMax || op.kind == OpKind::kCrossEntropySum)
      logits[op.operands[0].index()] = true;
    if (op.kind == OpKind::kCrossEntropyGrad) logits[op.results[0].index()] = true;
  }
  return logits;
}
// [value] routers' logits and their gradients: their products are in no narrower format.
std::vector<bool> routing_of(const ir::Graph& graph) {
  std::vector<bool> routing(graph.values.size(), false);
  for (const ir::Op& op : graph.ops) {
    if (op.kind == OpKind::kMoeTopK) {
      const ValueId logits = op.operands[0];
      routing[logits.index()] = true;
      const OpId made = graph.value(logits).producer;
      if (made.valid() && graph.op(made).kind == OpKind::kBiasAdd)
        routing[graph.op(made).operands[0].index()] = true;
    }
    if (op.kind == OpKind::kMoeTopKGrad) routing[op.results[0].index()] = true;
  }
  return routing;
}
bool touches(const ir::Op& op, const std::vector<bool>& values) {
  const auto has = [&](ValueId v) { return values[v.index()]; };
  return std::any_of(op.operands.begin(), op.operands.end(), has) ||
         std::any_of(op.results.begin(), op.results.end(), has);
}

}  // namespace

std::vector<ProductRole> product_roles(const ir::Graph& graph) {
  const std::vector<bool> logits = logits_of(graph), routing = routing_of(graph);
  std::vector<ProductRole> roles;
  roles.reserve(graph.ops.size());
  for (const ir::Op& op : graph.ops) {
    roles.push_back(op.kind != OpKind::kDot ? ProductRole::kNone
                    : touches(op, logits)   ? ProductRole::kLogits
                    : touches(op, routing)  ? ProductRole::kRouter
                                            : ProductRole::kLinear);
  }
  return roles;
}

namespace {

// Marks all-gathers whose result nothing but products in fp8 reads.
void find_narrow_gathers(const ir::Graph& graph, std::vector<OpWork>& works) {
  bool any = false;
  for (size_t o = 0; o < works.size(); ++o) {
    if (graph.ops[o].kind != OpKind::kAllGather) continue;
    works[o].gathers_narrow = works[o].narrows;
    any = any || works[o].narrows;
  }
  if (!any) return;
  const auto widen = [&](ValueId v) {
    const OpId made = graph.value(v).producer;
    if (made.valid()) works[made.index()].gathers_narrow = false;
  };
  for (size_t o = 0; o < works.size(); ++o) {
    if (works[o].kind == OpWork::Kind::kProduct && works[o].narrows) continue;
    for (const ValueId v : graph.ops[o].operands) widen(v);
  }
  for (const ValueId v : graph.outputs) widen(v);
}

}  // namespace

void fuse_elementwise(const ir::Graph& graph, std::vector<OpWork>& works) {
  const auto leads = [&](OpId id) {  // into another op's kernel
    if (!id.valid()) return false;
    const OpKind kind = graph.op(id).kind;
    return kind == OpKind::kBiasAdd || kind == OpKind::kDropout;
  };
  const std::vector<int32_t> readers = graph.read_counts();
  for (size_t o = 0; o < works.size(); ++o) {
    const OpKind kind = graph.ops[o].kind;
    if (kind != OpKind::kDropout && kind != OpKind::kAdd) continue;
    for (const ValueId v : graph.ops[o].operands) {
      const OpId made = graph.value(v).producer;
      if (!leads(made) || readers[v.index()] > 1 || graph.value(v).result != 0) continue;
      OpWork& before = works[made.index()];
      works[o].bytes += before.bytes - 2 * static_cast<double>(graph.type(v).bytes().value);
      works[o].flops += before.flops;
      before.kind = OpWork::Kind::kFused;
    }
  }
}

namespace {

bool is_linear(const OpWork& work) { return work.kind == OpWork::Kind::kProduct && work.narrows; }

// `of` becomes both products; `before` nothing but a part of it.
void join_products(OpWork& before, OpWork& of) {
  of.flops += before.flops;
  of.bytes += before.bytes;
  of.adds += before.adds;
  of.operand_values += before.operand_values;
  of.new_values += before.new_values;
  of.new_layouts += before.new_layouts;
  of.new_operands += before.new_operands;
  before.kind = OpWork::Kind::kFused;
}

// Products that read one value as the same operand: the layers' inputs, or the input of all behind
// their gradients.
void fuse_along_operand(const ir::Graph& graph, ir::Work which, size_t shared,
                        std::vector<OpWork>& works) {
  std::map<std::tuple<ValueId, std::string, RegionId>, size_t> last;
  for (size_t o = 0; o < works.size(); ++o) {
    const ir::Op& op = graph.ops[o];
    if (op.work != which || !is_linear(works[o])) continue;
    const auto& attrs = op.as<ir::DotAttrs>();
    const ValueId v = op.operands[shared];
    const auto [it, is_new] =
        last.try_emplace({v, shared == 0 ? attrs.lhs : attrs.rhs, op.recompute}, o);
    if (is_new) continue;
    OpWork &before = works[it->second], &now = works[o];
    it->second = o;
    int64_t ProductShape::* const grows = shared == 0 ? &ProductShape::n : &ProductShape::m;
    ProductShape alike = before.shape;
    alike.*grows = now.shape.*grows;
    if (alike != now.shape || before.dtype != now.dtype) continue;
    now.shape.*grows += before.shape.*grows;
    join_products(before, now);
    now.bytes -= static_cast<double>(graph.type(v).bytes().value);
    now.operand_values -= static_cast<double>(graph.type(v).elements());
  }
}

// Sums of input gradients that nothing else reads.
void fuse_input_gradients(const ir::Graph& graph, std::vector<OpWork>& works) {
  const std::vector<int32_t> readers = graph.read_counts();
  const auto product = [&](ValueId v) {
    const OpId made = graph.value(v).producer;
    const bool part = made.valid() && readers[v.index()] == 1 && is_linear(works[made.index()]) &&
                      graph.op(made).work == ir::Work::kInputGrad;
    return part ? &works[made.index()] : nullptr;
  };
  for (size_t o = 0; o < works.size(); ++o) {
    const ir::Op& op = graph.ops[o];
    if (op.kind != OpKind::kAdd || op.work != ir::Work::kInputGrad) continue;
    OpWork *const a = product(op.operands[0]), *const b = product(op.operands[1]);
    if (a == nullptr || b == nullptr || a->dtype != b->dtype) continue;
    ProductShape alike = a->shape;
    alike.k = b->shape.k;
    if (alike != b->shape) continue;
    OpWork sum = *b;
    sum.shape.k += a->shape.k;
    join_products(*a, sum);
    sum.bytes -= static_cast<double>(graph.type(op.results[0]).bytes().value);
    b->kind = OpWork::Kind::kFused;
    works[o] = sum;
  }
}

}  // namespace

void fuse_linears(const ir::Graph& graph, std::vector<OpWork>& works) {
  fuse_along_operand(graph, ir::Work::kForward, 0, works);
  fuse_along_operand(graph, ir::Work::kWeightGrad, 1, works);
  fuse_input_gradients(graph, works);
}

double narrow_share(Fp8 fp8) {
  constexpr double kHalf = 2;  // bytes
  switch (fp8) {
    case Fp8::kOff: return 1;
    case Fp8::kTensor: return 1 / kHalf;
    case Fp8::kBlock: return (1 + kBlockScale) / kHalf;
  }
  return 1;
}

void find_casts(const ir::Graph& graph, std::vector<OpWork>& works,
                const std::vector<CastShare>& often) {
  find_narrow_gathers(graph, works);
  std::vector<bool> cast(graph.values.size(), false);
  // And which of its dimensions are summed over, as bits, the last one's the lowest.
  std::set<std::pair<ValueId, uint64_t>> stored;
  for (size_t o = 0; o < works.size(); ++o) {
    OpWork& work = works[o];
    if (work.kind != OpWork::Kind::kProduct || !work.narrows) continue;
    const ir::Op& op = graph.ops[o];
    const auto& attrs = op.as<ir::DotAttrs>();
    for (size_t i = 0; i < 2; ++i) {
      const ValueId v = op.operands[i];
      uint64_t summed = 0;
      for (const char letter : i == 0 ? attrs.lhs : attrs.rhs)
        summed = summed << 1U | (attrs.out.find(letter) == std::string::npos ? 1U : 0U);
      const auto values = static_cast<double>(graph.type(v).elements());
      work.operand_values += values;
      const OpId made = graph.value(v).producer;
      const bool gathered = made.valid() && works[made.index()].gathers_narrow;
      // What is gathered was cast as it lay, a part on each device; another order of its
      // dimensions reads and writes it once more.
      const double own =
          gathered ? static_cast<double>(graph.type(graph.op(made).operands[0]).elements())
                   : values;
      const CastShare share = often.empty() ? CastShare() : often[v.index()];
      if (!cast[v.index()]) {
        cast[v.index()] = true;
        work.new_values += own * share.read;
        if (gathered) work.new_layouts += own;
        work.new_operands += share.read;
      }
      if (!stored.emplace(v, summed).second) continue;
      if (!gathered) {
        work.new_layouts += values * share.written;
      } else if ((summed & 1U) == 0) {
        work.new_layouts += 2 * values;
      }
    }
  }
}

namespace {

// Kernels one after the other, and what they take beside their launches.
struct Kernels {
  double count = 1, seconds = 0;
};

// The product, and the casts of what no product before it has cast: two bytes are read and one
// written for each layout (on tensor cores that want the summed dimension innermost, forward and
// backward products read a tensor in two), with a scale a tensor once more for its largest value.
// A product's fixed costs take as long as in half precision, so its half of k grows with the rate.
Kernels fp8_kernels(const cluster::Device& device, const OpWork& work, Fp8 fp8) {
  const cluster::Attained& attained = device.attained;
  const double peak = device.peak("fp8").value;
  const double faster = peak / matrix_peak(device, DType::kBF16).value;
  const double rate = peak * attained.fp8_fraction *
                      product_efficiency(device, work.shape, attained.product_half_k * faster);
  const double memory = device.memory_bandwidth.value * attained.memory_fraction;
  const bool tensor = fp8 == Fp8::kTensor;
  const double casts =
      work.new_values * (tensor ? 4 : 2) + work.new_layouts * (tensor ? 1 : 1 + kBlockScale);
  const double product = std::max(work.flops / rate, (work.bytes - work.operand_values) / memory);
  return {1 + work.new_operands * (tensor ? 2 : 1), product + casts / memory};
}

// As `meshwright profile` has measured the kernel; 0: it has not.
double measured_seconds(const cluster::Device& device, const OpWork& work) {
  const double rate = kernel_rate(device, work.op);
  if (rate <= 0) return 0;
  double amount = work.matrix_product ? work.flops : work.bytes;
  const double k = static_cast<double>(work.shape.k);
  if (work.op == OpKind::kDot) amount *= (k + device.attained.product_half_k) / k;
  return amount / rate;
}

Kernels row_kernels(const cluster::Device& device, const OpWork& work, const RowWork& rows) {
  const double f32 = device.peak("f32").value;
  const double sums = f32 > 0 ? rows.sums * kFlopsASum / f32 : 0;
  return {rows.kernels, sums + memory_time(device, rows.bytes, work.bytes)};
}

// FLOP/s in one kernel.
double arithmetic_rate(const cluster::Device& device, const OpWork& work, bool tf32) {
  if (!work.matrix_product) return device.peak("f32").value;
  const cluster::Attained& attained = device.attained;
  const double peak = matrix_peak(device, work.dtype, tf32).value;
  switch (work.kind) {
    case OpWork::Kind::kProduct: return peak * product_efficiency(device, work.shape);
    case OpWork::Kind::kLogits:
      return peak * product_efficiency(device, work.shape) * attained.logits_fraction;
    case OpWork::Kind::kAttention:
      return peak * attained.matrix_fraction * attention_efficiency(attained, work);
    default: return peak * attained.matrix_fraction;
  }
}

// Bytes that a kernel moves, over those counted.
double traffic(const cluster::Attained& attained, const OpWork& work) {
  switch (work.kind) {
    case OpWork::Kind::kLoss: return attained.loss_traffic;
    case OpWork::Kind::kUpdate: return attained.update_traffic;
    case OpWork::Kind::kGradientCopy: return attained.gradient_copy_traffic;
    default: break;
  }
  const bool activates =
      work.op == OpKind::kGelu || work.op == OpKind::kBiasGelu || work.op == OpKind::kGeluGrad;
  return activates ? attained.activation_traffic : 1;
}

// Arithmetic or bytes, whichever takes longer, in a kernel that streams through its tensors or in
// the several that an engine without fusion has.
Kernels streaming_kernels(const cluster::Device& device, const OpWork& work, bool eager,
                          bool tf32) {
  Kernels kernels;
  double bytes = work.bytes;
  for (const Unfused& unfused : kUnfused) {
    if (!eager || unfused.kind != work.op) continue;
    bytes *= unfused.bytes;
    kernels.count = unfused.kernels;
  }
  bytes *= traffic(device.attained, work);
  const double rate = arithmetic_rate(device, work, tf32);
  kernels.seconds =
      std::max(rate > 0 ? work.flops / rate : 0, memory_time(device, bytes, work.bytes));
  return kernels;
}

Kernels kernels_of(const cluster::Device& device, const OpWork& work, bool tf32, Fp8 fp8) {
  const cluster::Attained& attained = device.attained;
  if (work.kind == OpWork::Kind::kNothing) return {};
  if (const double seconds = measured_seconds(device, work); seconds > 0) return {1, seconds};
  if (fp8 != Fp8::kOff && work.kind == OpWork::Kind::kProduct && work.narrows)
    return fp8_kernels(device, work, fp8);
  const bool eager = !attained.fused_elementwise && work.kind == OpWork::Kind::kStream;
  if (const RowWork rows = row_work(work); eager && rows.kernels > 0)
    return row_kernels(device, work, rows);
  if (work.kind == OpWork::Kind::kAttention && !attained.fused_attention &&
      work.shape.n <= kUnfusedKeys) {
    const UnfusedTime unfused =
        unfused_attention(device, work, matrix_peak(device, work.dtype, tf32).value);
    return {unfused.kernels, unfused.seconds};
  }
  return streaming_kernels(device, work, eager, tf32);
}

// Without the kernel that adds its result to a sum.
OpTime own_time(const cluster::Device& device, const OpWork& work, bool tf32, Fp8 fp8) {
  OpTime time;
  if (work.kind == OpWork::Kind::kFused) return time;
  time.flops = Flops(work.flops);
  time.matrix_product = work.matrix_product;
  const Kernels kernels = kernels_of(device, work, tf32, fp8);
  time.host = Seconds(kernels.count * device.attained.host_op.value);
  time.device = Seconds(kernels.count * device.attained.launch.value + kernels.seconds);
  return time;
}

}  // namespace

double memory_time(const cluster::Device& device, double bytes, double set) {
  const double cache = static_cast<double>(device.cache.value);
  const double hit = cache > 0 && set > 0 ? std::min(1.0, cache / set) : 0;
  return bytes * (1 - hit + hit / device.attained.cache_rate) /
         (device.memory_bandwidth.value * device.attained.memory_fraction);
}

OpTime op_time(const cluster::Device& device, const OpWork& work, bool tf32, Fp8 fp8) {
  OpTime time = own_time(device, work, tf32, fp8);
  if (work.kind == OpWork::Kind::kFused || work.adds == 0) return time;
  time.host += device.attained.host_op;
  time.device += device.attained.launch + Seconds(memory_time(device, work.adds, work.adds));
  return time;
}

bool is_matrix_kernel(std::string_view op_name) {
  constexpr std::array kKinds = {OpKind::kDot,           OpKind::kConv,
                                 OpKind::kConvInputGrad, OpKind::kConvWeightGrad,
                                 OpKind::kAttention,     OpKind::kAttentionGrad};
  return std::any_of(kKinds.begin(), kKinds.end(),
                     [&](OpKind kind) { return ir::op_name(kind) == op_name; });
}

OpTime op_time(const cluster::Device& device, const ir::Graph& graph, const ir::Op& op, bool tf32) {
  return op_time(device, work_of(graph, op), tf32);
}

}  // namespace mw::cost
