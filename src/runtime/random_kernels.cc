// dropout and random: numbers by global index, on f32.
#include <algorithm>

#include "base/rng.h"
#include "kernels/dropout.h"
#include "ops/random_index.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"
#include "runtime/strided_plan.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

Prepared prepare_dropout(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const auto& attrs = c.op.as<ir::DropoutAttrs>();
  const ir::TensorType& x = c.operand(0);
  int64_t D = 1;
  for (int d = 2; d < x.rank(); ++d) D *= x.dim(d);
  kernels::DropoutSite site;
  site.key.site = rng_site(attrs.site);
  site.rate = attrs.rate;
  site.S_total = ops::kPositions;
  site.D_total = attrs.features;
  site.d_offset = c.offset(attrs.feature, D);
  return make_kernel(
      [site, S = x.dim(1), D, R = x.dim(0) * x.dim(1), threads = c.threads()](const Args& a) {
        // x, seed, step, sample_ids, positions
        kernels::DropoutSite call = site;
        call.key.seed = static_cast<uint64_t>(*a.in<int64_t>(1));
        call.key.step = static_cast<uint64_t>(*a.in<int64_t>(2));
        parallel_for(threads, R, row_grain(4 * D), [&](int64_t begin, int64_t end) {
          kernels::dropout(call, a.in(0), a.in<int64_t>(3), a.in<int32_t>(4), S, D, a.out(), begin,
                           end);
        });
      });
}

// Initial values of a shard: every run of the last dimension is a run of global indices.
struct RandomShard {
  ir::RandomAttrs::Distribution distribution = ir::RandomAttrs::Distribution::kNormal;
  float mean = 0, scale = 1;
  uint64_t site = 0;
  std::vector<int64_t> sizes, global_sizes, starts, global_strides;  // [dimension], at least one

  int64_t rows() const {
    int64_t n = 1;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) n *= sizes[d];
    return n;
  }

  // Elements behind the global end are zeros.
  void fill_row(uint64_t seed, int64_t row, float* out) const {
    const size_t last = sizes.size() - 1;
    const int64_t kept = std::clamp<int64_t>(global_sizes[last] - starts[last], 0, sizes[last]);
    int64_t index = starts[last];
    bool inside = true;
    for (size_t d = last; d-- > 0;) {
      const int64_t global = starts[d] + row % sizes[d];
      row /= sizes[d];
      inside = inside && global < global_sizes[d];
      index += global * global_strides[d];
    }
    std::fill(out + (inside ? kept : 0), out + sizes[last], 0.0f);
    if (!inside || kept == 0) return;
    const RngKey key{.seed = seed, .step = 0, .site = site};
    if (distribution == ir::RandomAttrs::Distribution::kNormal) {
      fill_normal(key, static_cast<uint64_t>(index), kept, out);
      for (int64_t i = 0; i < kept; ++i) out[i] = mean + scale * out[i];
    } else {
      for (int64_t i = 0; i < kept; ++i) {
        out[i] = mean + scale * (2 * random_uniform(key, static_cast<uint64_t>(index + i)) - 1);
      }
    }
  }
};

Prepared prepare_random(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const auto& attrs = c.op.as<ir::RandomAttrs>();
  RandomShard shard;
  shard.distribution = attrs.distribution;
  shard.mean = static_cast<float>(attrs.mean);
  shard.scale = static_cast<float>(attrs.scale);
  shard.site = rng_site(attrs.site);
  ir::TensorType global = c.result();
  for (size_t d = 0; d < global.dims.size(); ++d) {
    const int64_t local = global.dims[d].size;
    shard.sizes.push_back(local);
    shard.starts.push_back(attrs.offsets.empty() ? 0 : c.offset(attrs.offsets[d], local));
    global.dims[d].size = attrs.global_sizes[d];
    shard.global_sizes.push_back(attrs.global_sizes[d]);
  }
  shard.global_strides = strides_of(global);
  if (shard.sizes.empty()) {
    shard.sizes = shard.global_sizes = shard.global_strides = {1};
    shard.starts = {0};
  }
  const bool seeded = !c.op.operands.empty();
  return make_kernel([shard, seeded, threads = c.threads()](const Args& a) {
    const auto seed = seeded ? static_cast<uint64_t>(*a.in<int64_t>(0)) : 0;
    const int64_t row = shard.sizes.back();
    parallel_for(threads, shard.rows(), row_grain(16 * row), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) shard.fill_row(seed, r, a.out() + r * row);
    });
  });
}

}  // namespace

void register_random(KernelTable& table) {
  table.add(OpKind::kDropout, prepare_dropout);
  table.add(OpKind::kRandom, prepare_random);
}

}  // namespace mw::runtime
