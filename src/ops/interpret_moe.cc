// B batch, S sequence, D model, E experts, K experts of a token, C rows of an expert and sample
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/interpret_families.h"

namespace mw::ops {
namespace {

using ir::MoeAttrs;
using ir::OpKind;

size_t at(int64_t i) { return static_cast<size_t>(i); }

// The K largest logits of a row, the earlier of equals first.
std::vector<int64_t> largest(const double* logits, int64_t E, int64_t K) {
  std::vector<int64_t> order(at(E));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  order.resize(at(K));
  return order;
}

// What a chosen expert counts before the token's are made to add up to attrs.scale.
std::vector<double> scores(const MoeAttrs& attrs, const double* logits,
                           const std::vector<int64_t>& chosen) {
  std::vector<double> made;
  for (const int64_t e : chosen) {
    made.push_back(attrs.sigmoid ? 1 / (1 + std::exp(-logits[e]))
                                 : std::exp(logits[e] - logits[chosen[0]]));
  }
  return made;
}

bool top_k(const Call& call) {
  const MoeAttrs& attrs = call.op.as<MoeAttrs>();
  const int64_t rows = call.in_type(0).elements() / attrs.experts, K = attrs.top_k;
  for (int64_t r = 0; r < rows; ++r) {
    const double* logits = call.in(0).data() + r * attrs.experts;
    const std::vector<int64_t> chosen = largest(logits, attrs.experts, K);
    const std::vector<double> s = scores(attrs, logits, chosen);
    const double sum = std::accumulate(s.begin(), s.end(), 0.0);
    for (int64_t k = 0; k < K; ++k) {
      call.out(0)[at(r * K + k)] = attrs.scale * s[at(k)] / sum;
      call.out(1)[at(r * K + k)] = static_cast<double>(chosen[at(k)]);
    }
  }
  return true;
}

// g_k = c s_k / sum s: dl_k = s'_k / s_k g_k (dg_k - sum_j dg_j g_j / c), with s'_k / s_k = 1 of an
// exponential and 1 - s_k of a sigmoid.
bool top_k_grad(const Call& call) {
  const MoeAttrs& attrs = call.op.as<MoeAttrs>();
  const int64_t rows = call.in_type(2).elements() / attrs.experts, K = attrs.top_k;
  for (int64_t r = 0; r < rows; ++r) {
    const double* logits = call.in(2).data() + r * attrs.experts;
    std::vector<int64_t> chosen;
    for (int64_t k = 0; k < K; ++k)
      chosen.push_back(static_cast<int64_t>(call.in(1)[at(r * K + k)]));
    const std::vector<double> s = scores(attrs, logits, chosen);
    const double sum = std::accumulate(s.begin(), s.end(), 0.0);
    double mean = 0;
    for (int64_t k = 0; k < K; ++k) mean += call.in(0)[at(r * K + k)] * s[at(k)] / sum;
    for (int64_t k = 0; k < K; ++k) {
      const double slope = attrs.sigmoid ? 1 - s[at(k)] : 1;
      call.out()[at(r * attrs.experts + chosen[at(k)])] =
          slope * attrs.scale * s[at(k)] / sum * (call.in(0)[at(r * K + k)] - mean);
    }
  }
  return true;
}

// Calls visit(first element of the token, first element of its row, place in gates) for every row
// that an expert has a place for.
template <typename Visit>
void for_rows(const MoeAttrs& attrs, const std::vector<double>& experts_BSK,
              const ir::TensorType& type, int64_t D, Visit visit) {
  const int64_t B = type.dim(0), S = type.dim(1), K = attrs.top_k, E = attrs.experts, C = S * K / E;
  for (int64_t b = 0; b < B; ++b) {
    std::vector<int64_t> used(at(E), 0);
    for (int64_t s = 0; s < S; ++s) {
      for (int64_t k = 0; k < K; ++k) {
        const int64_t gate = (b * S + s) * K + k;
        const auto e = static_cast<int64_t>(experts_BSK[at(gate)]);
        const int64_t c = used[at(e)]++;
        if (c < C) visit((b * S + s) * D, ((e * B + b) * C + c) * D, gate);
      }
    }
  }
}

bool rows(const Call& call) {
  const bool grad = call.op.kind == OpKind::kMoeGateGrad,
             combine = call.op.kind == OpKind::kMoeCombine;
  const size_t experts = grad ? 2 : 1;
  const int64_t D = call.in_type(0).dims.back().size;
  const bool gates = !grad && call.operands.size() > 2;
  for_rows(call.op.as<MoeAttrs>(), call.in(experts), call.in_type(experts), D,
           [&](int64_t token, int64_t row, int64_t gate) {
             const double g = gates ? call.in(2)[at(gate)] : 1;
             for (int64_t d = 0; d < D; ++d) {
               if (grad) {
                 call.out()[at(gate)] += call.in(0)[at(row + d)] * call.in(1)[at(token + d)];
               } else if (combine) {
                 call.out()[at(token + d)] += g * call.in(0)[at(row + d)];
               } else {
                 call.out()[at(row + d)] = g * call.in(0)[at(token + d)];
               }
             }
           });
  return true;
}

}  // namespace

bool interpret_moe(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kMoeTopK: return top_k(call);
    case OpKind::kMoeTopKGrad: return top_k_grad(call);
    case OpKind::kMoeDispatch:
    case OpKind::kMoeCombine:
    case OpKind::kMoeGateGrad: return rows(call);
    default: return false;
  }
}

}  // namespace mw::ops
