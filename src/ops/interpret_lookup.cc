#include <cmath>

#include "base/rng.h"
#include "ops/interpret_families.h"
#include "ops/random_index.h"

namespace mw::ops {
namespace {

using ir::OpKind;

bool embedding(const Call& call) {
  const ir::TensorType& table = call.in_type(1);
  const int64_t first = call.offset(call.op.as<ir::EmbeddingAttrs>().rows, table.dim(0)),
                D = table.dim(1);
  for (size_t t = 0; t < call.in(0).size(); ++t) {
    const int64_t row = static_cast<int64_t>(call.in(0)[t]) - first;
    if (row < 0 || row >= table.dim(0)) continue;
    for (int64_t d = 0; d < D; ++d) {
      call.out()[t * static_cast<size_t>(D) + static_cast<size_t>(d)] =
          call.in(1)[static_cast<size_t>(row * D + d)];
    }
  }
  return true;
}

bool embedding_grad(const Call& call) {
  const ir::TensorType& table = call.out_type();
  const int64_t first = call.offset(call.op.as<ir::EmbeddingAttrs>().rows, table.dim(0)),
                D = table.dim(1);
  for (size_t t = 0; t < call.in(0).size(); ++t) {
    const int64_t row = static_cast<int64_t>(call.in(0)[t]) - first;
    if (row < 0 || row >= table.dim(0)) continue;
    for (int64_t d = 0; d < D; ++d) {
      call.out()[static_cast<size_t>(row * D + d)] +=
          call.in(1)[t * static_cast<size_t>(D) + static_cast<size_t>(d)];
    }
  }
  return true;
}

// x, seed, step, sample ids, positions
bool dropout(const Call& call) {
  const ir::DropoutAttrs& attrs = call.op.as<ir::DropoutAttrs>();
  const ir::TensorType& x = call.in_type(0);
  const int64_t rows = x.dim(0) * x.dim(1), features = rows == 0 ? 0 : x.elements() / rows;
  const int64_t first = call.offset(attrs.feature, features);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = static_cast<int64_t>(call.in(3)[static_cast<size_t>(row / x.dim(1))]);
    const int64_t position = static_cast<int64_t>(call.in(4)[static_cast<size_t>(row)]);
    for (int64_t f = 0; f < features; ++f) {
      const size_t at = static_cast<size_t>(row * features + f);
      const uint64_t index = dropout_index(sample, position, first + f, attrs.features);
      call.out()[at] = call.in(0)[at] *
                       dropout_factor(attrs.rate, attrs.site, call.in(1)[0], call.in(2)[0], index);
    }
  }
  return true;
}

bool random(const Call& call) {
  const ir::RandomAttrs& attrs = call.op.as<ir::RandomAttrs>();
  const uint64_t seed = call.operands.empty() ? 0 : static_cast<uint64_t>(call.in(0)[0]);
  const RngKey key{seed, 0, rng_site(attrs.site)};
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    uint64_t global = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      const int64_t first =
          attrs.offsets.empty() ? 0 : call.offset(attrs.offsets[d], call.out_type().dims[d].size);
      global = global * static_cast<uint64_t>(attrs.global_sizes[d]) +
               static_cast<uint64_t>(first + index[d]);
    }
    const bool normal = attrs.distribution == ir::RandomAttrs::Distribution::kNormal;
    const double x = normal ? random_normal(key, global) : 2.0 * random_uniform(key, global) - 1.0;
    call.out()[at] = attrs.mean + attrs.scale * x;
  });
  return true;
}

}  // namespace

double dropout_factor(double rate, const std::string& site, double seed, double step,
                      uint64_t index) {
  const RngKey key{static_cast<uint64_t>(seed), static_cast<uint64_t>(step), rng_site(site)};
  const bool kept = static_cast<double>(random_u32(key, index)) >= std::ceil(rate * 0x1p32);
  return kept ? 1 / (1 - rate) : 0;
}

bool interpret_lookup(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kEmbedding: return embedding(call);
    case OpKind::kEmbeddingGrad: return embedding_grad(call);
    case OpKind::kDropout: return dropout(call);
    case OpKind::kRandom: return random(call);
    default: return false;
  }
}

}  // namespace mw::ops
