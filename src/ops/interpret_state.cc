#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/interpret_families.h"
#include "ops/update_ops.h"

namespace mw::ops {
namespace {

using ir::FlatAttrs;
using ir::OpKind;

bool view(const Call& call) {
  const int64_t offset = call.op.as<ir::ViewAttrs>().offset;
  std::copy_n(call.in(0).begin() + offset, call.out().size(), call.out().begin());
  return true;
}

bool assemble(const Call& call) {
  call.out() = call.in(0);
  const std::vector<int64_t>& offsets = call.op.as<ir::AssembleAttrs>().offsets;
  for (size_t i = 0; i < offsets.size(); ++i) {
    std::copy(call.in(i + 1).begin(), call.in(i + 1).end(), call.out().begin() + offsets[i]);
  }
  return true;
}

// The segment that the element of a whole flat group lies in; null in the padding.
const ir::Segment* segment_at(const std::vector<ir::Segment>& group, int64_t element) {
  for (const ir::Segment& segment : group) {
    if (element >= segment.begin && element < segment.end) return &segment;
  }
  return nullptr;
}

// Of the axes that split the flat view, or of the others (Segment::counted_at_origin_of).
bool at_origin(const Call& call, const ir::Segment& segment, bool of_shard_axes) {
  const ir::Axes& shards = call.op.as<FlatAttrs>().shard_axes;
  return std::all_of(segment.counted_at_origin_of.begin(), segment.counted_at_origin_of.end(),
                     [&](const Name axis) {
                       const bool splits =
                           std::find(shards.begin(), shards.end(), axis) != shards.end();
                       return splits != of_shard_axes || call.context.index({axis}) == 0;
                     });
}

int64_t shard_index(const Call& call, const FlatAttrs& attrs) {
  return attrs.shard_axes.empty() ? 0 : call.context.index(attrs.shard_axes);
}

// Group by group the sums of squares over the blocks of the local shard.
bool norm_blocks(const Call& call) {
  const FlatAttrs& attrs = call.op.as<FlatAttrs>();
  size_t block = 0;
  for (size_t g = 0; g < call.operands.size(); ++g) {
    const int64_t local = call.in_type(g).dim(0), first = shard_index(call, attrs) * local;
    for (int64_t i = 0; i < local; ++i) {
      const ir::Segment* segment = segment_at(attrs.groups[g], first + i);
      if (segment == nullptr || !segment->counts || !at_origin(call, *segment, false)) continue;
      call.out()[block + static_cast<size_t>(i / kNormBlock)] +=
          std::pow(call.in(g)[static_cast<size_t>(i)], 2);
    }
    block += static_cast<size_t>(local / kNormBlock);
  }
  return true;
}

// The blocks come shard by shard, in each group by group; they are added parameter by parameter in
// the order of elements.
bool norm_parameters(const Call& call) {
  const FlatAttrs& attrs = call.op.as<FlatAttrs>();
  const int64_t shards = attrs.shard_axes.empty() ? 1 : call.context.size(attrs.shard_axes);
  int64_t blocks_per_shard = 0;
  for (const int64_t elements : attrs.group_elements)
    blocks_per_shard += elements / kNormBlock / shards;
  int64_t group_start = 0;
  for (size_t g = 0; g < attrs.groups.size(); ++g) {
    const int64_t local = attrs.group_elements[g] / kNormBlock / shards;
    for (int64_t block = 0; block < local * shards; ++block) {
      const ir::Segment* segment = segment_at(attrs.groups[g], block * kNormBlock);
      if (segment == nullptr || !at_origin(call, *segment, true)) continue;
      const int64_t at = block / local * blocks_per_shard + group_start + block % local;
      call.out()[static_cast<size_t>(segment->parameter)] += call.in(0)[static_cast<size_t>(at)];
    }
    group_start += local;
  }
  return true;
}

// As torch.nn.utils.clip_grad_norm_ where the norm is more than max_norm, else 1; a norm that is
// not finite gives the scale NaN, and with that adamw leaves weights and moments as they are.
double clip_scale(double norm, double max_norm) {
  if (!std::isfinite(norm)) return std::nan("");
  return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1;
}

bool clip(const Call& call) {
  double squares = 0;
  for (const double x : call.in(0)) squares += x;
  const double norm = std::sqrt(squares);
  call.out(0)[0] = norm;
  call.out(1)[0] = clip_scale(norm, call.op.as<FlatAttrs>().max_norm);
  return true;
}

// The squares of all pipeline ranks -> norm, scale, whether some rank's own scale is another.
bool validate(const Call& call) {
  const double max_norm = call.op.as<FlatAttrs>().max_norm;
  size_t ranks = 0;
  while (call.in_type(ranks).rank() == 1) ++ranks;
  double all = 0;
  for (size_t r = 0; r < ranks; ++r)
    for (const double x : call.in(r)) all += x;
  const double norm = std::sqrt(all), scale = clip_scale(norm, max_norm);
  bool amended = false;
  for (size_t r = 0; r < ranks; ++r) {
    double own = 0;
    for (const double x : call.in(r)) own += x;
    const double used = clip_scale(std::sqrt(own), max_norm);
    amended =
        amended || std::isnan(used) != std::isnan(scale) || (!std::isnan(scale) && used != scale);
  }
  call.out(0)[0] = norm;
  call.out(1)[0] = scale;
  call.out(2)[0] = amended ? 1 : 0;
  call.out(3)[0] = 0;
  for (size_t i = ranks; i < call.op.operands.size(); ++i) call.out(3)[0] += call.in(i)[0];
  return true;
}

// weight, grad, m, v, scale, lr, step -> weight, m, v [Loshchilov, Hutter 2019]; step counts
// from 1. With the scale that a step used and what there was before it: amended (update_ops.h).
bool adamw(const Call& call) {
  const FlatAttrs& attrs = call.op.as<FlatAttrs>();
  const double scale = call.in(4)[0], lr = call.in(5)[0], step = call.in(6)[0];
  const int64_t first = shard_index(call, attrs) * call.in_type(0).dim(0);
  const double correct_m = 1 - std::pow(attrs.beta1, step),
               correct_v = 1 - std::pow(attrs.beta2, step);
  const bool amends = call.op.operands.size() == kAmendOperands;
  const bool stays = amends && (scale == call.in(7)[0] ||
                                (!std::isfinite(scale) && !std::isfinite(call.in(7)[0])));
  const std::array<size_t, 3> before =
      amends && !stays ? std::array<size_t, 3>{8, 9, 10} : std::array<size_t, 3>{0, 2, 3};
  for (size_t i = 0; i < call.out().size(); ++i) {
    if (!std::isfinite(scale) || stays) {
      for (size_t k = 0; k < 3; ++k) call.out(k)[i] = call.in(before[k])[i];
      continue;
    }
    const ir::Segment* segment = segment_at(attrs.groups[0], first + static_cast<int64_t>(i));
    const double g = call.in(1)[i] * scale;
    const double m = attrs.beta1 * call.in(before[1])[i] + (1 - attrs.beta1) * g;
    const double v = attrs.beta2 * call.in(before[2])[i] + (1 - attrs.beta2) * g * g;
    const double decay = segment != nullptr && segment->decay ? 1 - lr * attrs.weight_decay : 1;
    call.out(0)[i] = call.in(before[0])[i] * decay -
                     lr / correct_m * m / (std::sqrt(v) / std::sqrt(correct_v) + attrs.epsilon);
    call.out(1)[i] = m;
    call.out(2)[i] = v;
  }
  return true;
}

// The device's part of a dimension; zeros behind the end.
bool shard_slice(const Call& call) {
  const ir::CollectiveAttrs& attrs = call.op.as<ir::CollectiveAttrs>();
  const ir::AxisGroup* group = std::get_if<ir::AxisGroup>(&attrs.group);
  MW_CHECK(group != nullptr, "shard_slice over the holders of a state");
  const size_t dim = static_cast<size_t>(attrs.dim);
  const int64_t first = call.context.index(group->axes) * call.out_type().dims[dim].size;
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    Index from = index;
    from[dim] += first;
    if (from[dim] < call.in_type(0).dims[dim].size) {
      call.out()[at] = call.in(0)[static_cast<size_t>(place(call.in_type(0), from))];
    }
  });
  return true;
}

bool pad_mask(const Call& call) {
  const ir::PadMaskAttrs& attrs = call.op.as<ir::PadMaskAttrs>();
  const size_t dim = static_cast<size_t>(attrs.dim);
  const int64_t first = call.offset(attrs.offset, call.out_type().dims[dim].size);
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    const bool padding =
        attrs.offset.global_size > 0 && first + index[dim] >= attrs.offset.global_size;
    call.out()[at] = padding ? attrs.value : call.in(0)[at];
  });
  return true;
}

bool trim(const Call& call) {
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    call.out()[at] = call.in(0)[static_cast<size_t>(place(call.in_type(0), index))];
  });
  return true;
}

}  // namespace

bool interpret_state(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kZero: return true;
    case OpKind::kCopy: call.out() = call.in(0); return true;
    case OpKind::kView: return view(call);
    case OpKind::kAssemble: return assemble(call);
    case OpKind::kNormBlocks: return norm_blocks(call);
    case OpKind::kNormParameters: return norm_parameters(call);
    case OpKind::kClip: return clip(call);
    case OpKind::kValidate: return validate(call);
    case OpKind::kAdamW: return adamw(call);
    case OpKind::kShardSlice: return shard_slice(call);
    case OpKind::kPadMask: return pad_mask(call);
    case OpKind::kTrim: return trim(call);
    default: return false;
  }
}

}  // namespace mw::ops
