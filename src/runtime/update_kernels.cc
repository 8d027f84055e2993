// The optimizer's ops on flat groups: norm blocks, their sums by parameter, the clipping factor
// and its validation, AdamW.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/optimizer.h"
#include "ops/update_ops.h"
#include "runtime/kernel_table.h"
#include "runtime/parallel.h"

namespace mw::runtime {
namespace {

using ir::OpKind;

static_assert(kernels::kNormBlock == ops::kNormBlock);
constexpr int64_t kBlock = kernels::kNormBlock;

int64_t shards(const OpContext& c) {
  const auto& axes = c.op.as<ir::FlatAttrs>().shard_axes;
  return axes.empty() ? 1 : c.device.mesh->group_size(axes);
}

// Whether this device is at the origin of the axes that split the flat view, or of the others
// (Segment::counted_at_origin_of).
bool at_origin(const OpContext& c, const ir::Segment& segment, bool of_shard_axes) {
  const ir::Axes& shards = c.op.as<ir::FlatAttrs>().shard_axes;
  return std::all_of(segment.counted_at_origin_of.begin(), segment.counted_at_origin_of.end(),
                     [&](const Name axis) {
                       const bool splits =
                           std::find(shards.begin(), shards.end(), axis) != shards.end();
                       return splits != of_shard_axes || c.index({axis}) == 0;
                     });
}

// A run of elements, local to the shard.
struct Run {
  int64_t begin = 0, end = 0;
};

Run local_run(const ir::Segment& segment, int64_t first, int64_t elements) {
  return {std::clamp<int64_t>(segment.begin - first, 0, elements),
          std::clamp<int64_t>(segment.end - first, 0, elements)};
}

Prepared prepare_norm_blocks(const OpContext& c) {
  const auto& attrs = c.op.as<ir::FlatAttrs>();
  struct Counted {
    size_t operand;
    int64_t first_block;  // of the operand, among all
    Run run;              // begins at a block
  };
  std::vector<Counted> counted;
  int64_t first_block = 0;
  for (size_t g = 0; g < c.op.operands.size(); ++g) {
    const int64_t elements = c.operand(g).elements();
    const int64_t first = c.index(attrs.shard_axes) * elements;
    for (const ir::Segment& segment : attrs.groups[g]) {
      MW_CHECK(segment.begin % kBlock == 0,
               "parameter {} begins at element {}, inside of a norm block", segment.parameter,
               segment.begin);
      const Run run = local_run(segment, first, elements);
      if (run.begin < run.end && segment.counts && at_origin(c, segment, false))
        counted.push_back({g, first_block, run});
    }
    first_block += elements / kBlock;
  }
  return make_kernel([counted, blocks = first_block, threads = c.threads()](const Args& a) {
    std::fill_n(a.out<double>(), blocks, 0.0);
    for (const Counted& part : counted) {
      const float* grad = a.in(part.operand) + part.run.begin;
      double* sums = a.out<double>() + part.first_block + part.run.begin / kBlock;
      const int64_t n = part.run.end - part.run.begin;
      parallel_for(threads, (n + kBlock - 1) / kBlock, kGrain / kBlock,
                   [&](int64_t begin, int64_t end) {
                     kernels::block_square_sums(grad, n, sums, begin, end);
                   });
    }
  });
}

// Blocks come as all_gather makes them: for every shard its blocks of all groups, one group after
// the other.
Prepared prepare_norm_parameters(const OpContext& c) {
  const auto& attrs = c.op.as<ir::FlatAttrs>();
  const int64_t n = shards(c);
  int64_t shard_blocks = 0;
  for (const int64_t elements : attrs.group_elements) shard_blocks += elements / n / kBlock;
  struct Part {
    int32_t parameter;
    int64_t begin, end;  // indices of blocks
  };
  std::vector<Part> parts;
  int64_t before = 0;  // blocks of earlier groups in a shard
  for (size_t g = 0; g < attrs.groups.size(); ++g) {
    const int64_t own = attrs.group_elements[g] / n / kBlock;
    for (const ir::Segment& segment : attrs.groups[g]) {
      if (!at_origin(c, segment, true)) continue;
      int64_t block = segment.begin / kBlock;
      const int64_t end = (segment.end + kBlock - 1) / kBlock;
      while (block < end) {
        const int64_t shard = block / own, next = std::min(end, (shard + 1) * own);
        const int64_t at = shard * shard_blocks + before + block % own;
        parts.push_back({segment.parameter, at, at + next - block});
        block = next;
      }
    }
    before += own;
  }
  return make_kernel([parts, count = attrs.parameters](const Args& a) {
    std::fill_n(a.out<double>(), count, 0.0);
    for (const Part& part : parts) {
      double sum = a.out<double>()[part.parameter];
      for (int64_t b = part.begin; b < part.end; ++b) sum += a.in<double>(0)[b];
      a.out<double>()[part.parameter] = sum;
    }
  });
}

struct Clipping {
  float norm = 0, scale = 1;
};

// As torch.nn.utils.clip_grad_norm_; a norm that is not finite gives the scale NaN, and with that
// adamw leaves weights and moments as they are.
Clipping clipping(double squares, double max_norm) {
  constexpr double kEpsilon = 1e-6;
  const double norm = std::sqrt(squares);
  const double scale = max_norm > 0 && norm > max_norm ? max_norm / (norm + kEpsilon) : 1.0;
  return {static_cast<float>(norm),
          std::isfinite(norm) ? static_cast<float>(scale) : std::nanf("")};
}

Prepared prepare_clip(const OpContext& c) {
  return make_kernel([count = c.operand(0).elements(),
                      max_norm = c.op.as<ir::FlatAttrs>().max_norm](const Args& a) {
    double squares = 0;
    for (int64_t p = 0; p < count; ++p) squares += a.in<double>(0)[p];
    const Clipping clip = clipping(squares, max_norm);
    *a.out(0) = clip.norm;
    *a.out(1) = clip.scale;
  });
}

// Sums by parameter first, as an all-reduce before clip makes them.
Prepared prepare_validate(const OpContext& c) {
  size_t ranks = 0;
  while (c.operand(ranks).rank() == 1) ++ranks;
  return make_kernel([ranks, operands = c.op.operands.size(), count = c.operand(0).elements(),
                      max_norm = c.op.as<ir::FlatAttrs>().max_norm](const Args& a) {
    double all = 0;
    for (int64_t p = 0; p < count; ++p) {
      double squares = a.in<double>(0)[p];
      for (size_t r = 1; r < ranks; ++r) squares += a.in<double>(r)[p];
      all += squares;
    }
    const Clipping clip = clipping(all, max_norm);
    bool amended = false;
    for (size_t r = 0; r < ranks; ++r) {
      double own = 0;
      for (int64_t p = 0; p < count; ++p) own += a.in<double>(r)[p];
      const float used = clipping(own, max_norm).scale;
      amended = amended || std::memcmp(&used, &clip.scale, sizeof(float)) != 0;
    }
    *a.out(0) = clip.norm;
    *a.out(1) = clip.scale;
    *a.out(2) = amended ? 1.0F : 0.0F;
    float loss = *a.in(ranks);
    for (size_t i = ranks + 1; i < operands; ++i) loss += *a.in(i);
    *a.out(3) = loss;
  });
}

Prepared prepare_adamw(const OpContext& c) {
  if (!c.is_f32()) return nullptr;
  const auto& attrs = c.op.as<ir::FlatAttrs>();
  struct Part {
    Run run;
    double weight_decay;
  };
  std::vector<Part> parts;
  const int64_t elements = c.operand(0).elements();
  for (const ir::Segment& segment : attrs.groups[0]) {
    const Run run = local_run(segment, c.index(attrs.shard_axes) * elements, elements);
    if (run.begin < run.end) parts.push_back({run, segment.decay ? attrs.weight_decay : 0.0});
  }
  kernels::AdamWStep step;
  step.beta1 = attrs.beta1;
  step.beta2 = attrs.beta2;
  step.eps = attrs.epsilon;
  return make_kernel([parts, step, bytes = c.operand(0).bytes().value, threads = c.threads(),
                      amends = c.op.operands.size() == ops::kAmendOperands](const Args& a) {
    // weight, grad, m, v, scale, lr, step -> weight, m, v; update_ops.h says the others.
    const bool again = amends && std::memcmp(a.in(4), a.in(7), sizeof(float)) != 0;
    bring(a.out(0), a.in(again ? 8 : 0), bytes);
    bring(a.out(1), a.in(again ? 9 : 2), bytes);
    bring(a.out(2), a.in(again ? 10 : 3), bytes);
    if (!std::isfinite(*a.in(4)) || (amends && !again)) return;
    for (const Part& part : parts) {
      kernels::AdamWStep call = step;
      call.lr = *a.in(5);
      call.step = *a.in<int64_t>(6);
      call.weight_decay = part.weight_decay;
      const int64_t from = part.run.begin;
      parallel_for(threads, part.run.end - from, kGrain, [&](int64_t begin, int64_t end) {
        kernels::adamw(call, a.in(4), a.in(1) + from, a.out(0) + from, a.out(1) + from,
                       a.out(2) + from, begin, end);
      });
    }
  });
}

}  // namespace

void register_updates(KernelTable& table) {
  table.add(OpKind::kNormBlocks, prepare_norm_blocks);
  table.add(OpKind::kNormParameters, prepare_norm_parameters);
  table.add(OpKind::kClip, prepare_clip);
  table.add(OpKind::kValidate, prepare_validate);
  table.add(OpKind::kAdamW, prepare_adamw);
}

}  // namespace mw::runtime
