// Attention and rotary embedding, forward and backward, on f32.
//
// B batch, S sequence, T key sequence, H query heads, K key-value heads, D elements of a head
#include "kernels/attention.h"

#include "kernels/rope.h"
#include "ops/random_index.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

constexpr int64_t kCacheLine = 64;
int64_t aligned(int64_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

// [B, S, heads, D], contiguous; `part` of three in a packed [B, S, 3, heads, D].
struct HeadsLayout {
  int64_t S = 0, heads = 0, D = 0;
  int parts = 1, part = 0;

  template <typename T>
  kernels::Heads<T> of(T* data) const {
    const int64_t row = parts * heads * D;
    return {data + part * heads * D, S * row, row, D};
  }
};

// An attention op with everything but addresses, and where its operands stand.
struct AttentionOp {
  kernels::Attention attention;
  HeadsLayout q, k, v, out;
  int64_t first_query = 0;  // of the keys
  size_t q_operand = 0, k_operand = 0, v_operand = 0, out_operand = 0, lse_operand = 0,
         positions = 0;

  explicit AttentionOp(const OpContext& c) {
    const auto& attrs = c.op.as<ir::AttentionAttrs>();
    const bool gradient = c.op.kind == OpKind::kAttentionGrad;
    q_operand = gradient ? 1 : 0;
    k_operand = attrs.packed ? q_operand : q_operand + 1;
    v_operand = attrs.packed ? q_operand : q_operand + 2;
    out_operand = v_operand + 1;
    lse_operand = out_operand + 1;
    positions = gradient ? lse_operand + 1 : v_operand + 1;
    const ir::TensorType& q_type = c.operand(q_operand);
    const int64_t S = q_type.dim(1), D = last(q_type);
    const int64_t H = q_type.dim(q_type.rank() - 2),
                  K = attrs.packed ? H : c.operand(k_operand).dim(2);
    const int64_t T = attrs.packed ? S : c.operand(k_operand).dim(1);
    const int parts = attrs.packed ? 3 : 1;
    q = {S, H, D, parts, 0};
    k = {T, K, D, parts, attrs.packed ? 1 : 0};
    v = {T, K, D, parts, attrs.packed ? 2 : 0};
    out = {S, H, D, 1, 0};
    attention.B = q_type.dim(0);
    attention.Sq = S;
    attention.Sk = T;
    attention.position_q_stride = T;
    attention.H = H;
    attention.Hkv = K;
    attention.D = D;
    first_query = attrs.queries.axes.empty() ? T - S : c.offset(attrs.queries, S);
    attention.scale = static_cast<float>(attrs.scale);
    attention.causal = attrs.causal;
    attention.dropout.rate = attrs.dropout;
    attention.dropout.key.site = rng_site(attrs.site);
    attention.dropout.head_offset = c.offset(attrs.heads, H);
    attention.dropout.H_total = attrs.heads.global_size == 0 ? H : attrs.heads.global_size;
    attention.dropout.S_total = ops::kPositions;
  }

  // The same with the addresses of a call.
  kernels::Attention bound(const Args& a) const {
    kernels::Attention call = attention;
    call.position_k = a.in<int32_t>(positions);
    call.position_q = call.position_k + first_query;
    if (call.dropout.rate > 0) {
      call.dropout.key.seed = static_cast<uint64_t>(*a.in<int64_t>(positions + 1));
      call.dropout.key.step = static_cast<uint64_t>(*a.in<int64_t>(positions + 2));
      call.dropout.sample_id_B = a.in<int64_t>(positions + 3);
    }
    return call;
  }
};

// All keys, and values as wide as they are.
bool is_plain(const OpContext& c) {
  const auto& attrs = c.op.as<ir::AttentionAttrs>();
  const size_t k = c.op.kind == OpKind::kAttentionGrad ? 2 : 1;
  return attrs.window == 0 && (attrs.packed || last(c.operand(k)) == last(c.operand(k + 1)));
}

Prepared prepare_attention(const OpContext& c) {
  if (!c.is_f32() || !is_plain(c)) return nullptr;
  const AttentionOp op(c);
  const int64_t scratch =
      aligned(static_cast<int64_t>(kernels::attention_forward_scratch_bytes(op.attention)));
  return make_kernel(
      [op, scratch, threads = c.threads()](const Args& a) {
        const kernels::Attention call = op.bound(a);
        parallel_for(threads, call.B * call.H, 1, [&](int thread, int64_t begin, int64_t end) {
          kernels::attention_forward(call, op.q.of(a.in(op.q_operand)), op.k.of(a.in(op.k_operand)),
                                     op.v.of(a.in(op.v_operand)), op.out.of(a.out(0)), a.out(1),
                                     static_cast<char*>(a.scratch) + thread * scratch, begin, end);
        });
      },
      scratch * c.threads());
}

Prepared prepare_attention_grad(const OpContext& c) {
  if (!c.is_f32() || !is_plain(c)) return nullptr;
  const AttentionOp op(c);
  const int64_t scratch =
      aligned(static_cast<int64_t>(kernels::attention_backward_scratch_bytes(op.attention)));
  const size_t k_result = op.k_operand - op.q_operand, v_result = op.v_operand - op.q_operand;
  return make_kernel(
      [op, scratch, k_result, v_result, threads = c.threads()](const Args& a) {
        const kernels::Attention call = op.bound(a);
        parallel_for(threads, call.B * call.Hkv, 1, [&](int thread, int64_t begin, int64_t end) {
          kernels::attention_backward(call, op.q.of(a.in(op.q_operand)),
                                      op.k.of(a.in(op.k_operand)), op.v.of(a.in(op.v_operand)),
                                      op.out.of(a.in(op.out_operand)), a.in(op.lse_operand),
                                      op.out.of(a.in(0)), op.q.of(a.out(0)),
                                      op.k.of(a.out(k_result)), op.v.of(a.out(v_result)),
                                      static_cast<char*>(a.scratch) + thread * scratch, begin, end);
        });
      },
      scratch * c.threads());
}

Prepared prepare_rope_table(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const auto& attrs = c.op.as<ir::RopeAttrs>();
  std::vector<float> frequencies(static_cast<size_t>(attrs.head_dim / 2));
  kernels::rope_inverse_frequencies(attrs.theta, attrs.head_dim, frequencies.data());
  const ir::RopeScaling& scaling = attrs.scaling;
  kernels::scale_rope_frequencies(scaling.factor, scaling.low_turns, scaling.high_turns,
                                  scaling.positions, attrs.head_dim, frequencies.data());
  return make_kernel([frequencies, D = attrs.head_dim, R = c.operand(0).elements(),
                      threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(4 * D), [&](int64_t begin, int64_t end) {
      kernels::rope_table(a.in<int32_t>(0), frequencies.data(), D, a.out(0), a.out(1), begin, end);
    });
  });
}

template <auto kFunction>
Prepared prepare_rope(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const ir::TensorType& x = c.operand(0);
  const int64_t H = x.dim(2), D = x.dim(3), R = x.dim(0) * x.dim(1);
  return make_kernel([H, D, R, threads = c.threads()](const Args& a) {
    parallel_for(threads, R, row_grain(H * D), [&](int64_t begin, int64_t end) {
      kFunction(a.in(0), H * D, a.in(1), a.in(2), H, D, a.out(), H * D, begin, end);
    });
  });
}

}  // namespace

void register_attention(KernelTable& table) {
  table.add(OpKind::kAttention, prepare_attention);
  table.add(OpKind::kAttentionGrad, prepare_attention_grad);
  table.add(OpKind::kRopeTable, prepare_rope_table);
  table.add(OpKind::kRope, prepare_rope<kernels::rope>);
  table.add(OpKind::kRopeGrad, prepare_rope<kernels::rope_backward>);
}

}  // namespace mw::runtime
