#include "cost/attention_time.h"

#include <utility>

namespace mw::cost {
namespace {

// Of queries by keys, or of scores by values [Dao 2023, FlashAttention-2, section 4.1].
constexpr double kAttentionProducts = 2, kAttentionGradProducts = 5;
// Unfused attention with dropout moves its scores this often, and each time a byte of mask
// [Korthikanti 2022, section 4.1 counts what is kept: softmax, its dropout and the mask]. Forward:
// product out 1, softmax in and out 2, dropout in and out 2, product in 1. Backward: dropout's
// output in 1, two products' gradients out and in 3, dropout 2, softmax 3.
constexpr double kScoresForward = 6, kScoresBackward = 9;
// Kernels of unfused attention, as PyTorch issues them: products, scale and softmax, dropout, and
// the transpositions around them.
constexpr double kUnfusedOpsForward = 6, kUnfusedOpsBackward = 10;
// What no softmax kernel takes (takes_softmax_kernel) PyTorch does in f32: scale, mask and softmax
// are kernels of their own, and half precision is cast to f32 and back. Bytes a score less those of
// the kernel, and kernels more than it. Forward: cast 2 + 4, scale 4 + 4, mask 4 + 1 + 4, softmax 4
// + 4, cast 4 + 2, for 2 + 2; backward: cast 2 + 4, softmax 4 + 4 + 4, mask 4 + 1 + 4, scale 4 + 4,
// cast 4 + 2, for 2 + 2 + 2. In f32 without the casts, for twice the kernel's bytes [counted from
// NVIDIA/Megatron-LM megatron/model/fused_softmax.py, forward_torch_softmax, from memory].
struct TorchSoftmax {
  double forward, backward, kernels;
};
constexpr TorchSoftmax kHalfSoftmax = {.forward = 37 - 4, .backward = 41 - 6, .kernels = 4};
constexpr TorchSoftmax kF32Softmax = {.forward = 25 - 8, .backward = 29 - 12, .kernels = 2};
// Megatron-LM's kernel gives a warp a row, or two of at most so many keys, and a block four warps,
// of heads that lie behind one another; it has half precision and more than so many keys.
constexpr int64_t kTwoRowsAWarp = 128, kWarps = 4, kFewestKeys = 16;

// What attention's softmax costs beside what a kernel of it does; zeros where there is one.
TorchSoftmax torch_softmax(const cluster::Attained& attained, const OpWork& work) {
  if (!attained.blocked_softmax || takes_softmax_kernel(work.shape, work.dtype)) return {0, 0, 0};
  return work.dtype == DType::kF32 ? kF32Softmax : kHalfSoftmax;
}

// Heads lie behind one another in a row, and kernels for tensor cores want 16 bytes for each to
// begin at; others multiply as fast as in f32, as BLOOM's trials with heads of 108 elements did
// (docs/validation/deepspeed.md#heads-of-108-elements).
bool takes_tensor_cores(int64_t head, DType dtype) {
  return dtype == DType::kF32 || head * dtype_size(dtype) % 16 == 0;
}

}  // namespace

bool takes_softmax_kernel(const ProductShape& scores, DType dtype) {
  const int64_t heads = scores.n <= kTwoRowsAWarp ? 2 * kWarps : kWarps;
  return dtype != DType::kF32 && scores.batch % heads == 0 && scores.n > kFewestKeys &&
         scores.m % 4 == 0 && scores.n % 4 == 0;
}

double attention_efficiency(const cluster::Attained& attained, const OpWork& work) {
  const double of_forward = work.backward ? attained.attention_grad_fraction : 1;
  const double half =
      work.backward ? attained.attention_grad_half_keys : attained.attention_half_keys;
  const double share = attained.attention_fraction * of_forward;
  if (half == 0) return share;
  const double products = work.backward ? kAttentionGradProducts : kAttentionProducts;
  const ProductShape& s = work.shape;
  const double a_key = 2 * products * static_cast<double>(s.batch * s.m * s.k);
  const double keys = work.flops / a_key;  // that a query sees, on average
  return share * keys / (keys + half);
}

UnfusedTime unfused_attention(const cluster::Device& device, const OpWork& work, double peak) {
  const ProductShape scores = work.shape;
  ProductShape values = scores;
  std::swap(values.n, values.k);
  const double square = static_cast<double>(scores.batch) * static_cast<double>(scores.m) *
                        static_cast<double>(scores.n);
  const double product = 2 * square * static_cast<double>(scores.k);
  if (!takes_tensor_cores(scores.k, work.dtype)) peak = matrix_peak(device, DType::kF32).value;
  const double along = product / (peak * product_efficiency(device, scores)),
               across = product / (peak * product_efficiency(device, values));
  const double arithmetic = work.backward ? along + 3 * across : along + across;
  const double one = static_cast<double>(dtype_size(work.dtype));
  const TorchSoftmax more = torch_softmax(device.attained, work);
  const double a_score =
      work.backward ? one * kScoresBackward + more.backward : one * kScoresForward + more.forward;
  const double bytes = square * (1 + a_score) * device.attained.score_traffic;
  return {.seconds = arithmetic + memory_time(device, bytes, 2 * one * square) +
                     memory_time(device, work.bytes, work.bytes),
          .kernels = (work.backward ? kUnfusedOpsBackward : kUnfusedOpsForward) + more.kernels};
}

}  // namespace mw::cost
