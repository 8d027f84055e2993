// State, the update and the local ops that go with collectives.
#include <algorithm>

#include "base/error.h"
#include "field_ops.h"
#include "ops/update_ops.h"

namespace mw::field {
namespace {

using ir::FlatAttrs;
using ir::OpKind;

bool assemble(const Call& call) {
  call.out() = call.in(0);
  const auto& offsets = call.op.as<ir::AssembleAttrs>().offsets;
  for (size_t i = 0; i < offsets.size(); ++i)
    std::copy(call.in(i + 1).begin(), call.in(i + 1).end(), call.out().begin() + offsets[i]);
  return true;
}

const ir::Segment* segment_of(const std::vector<ir::Segment>& group, int64_t element) {
  const auto it = std::find_if(group.begin(), group.end(), [&](const ir::Segment& segment) {
    return segment.begin <= element && element < segment.end;
  });
  return it == group.end() ? nullptr : &*it;
}

int64_t first_element(const Call& call, size_t operand) {
  const ir::Axes& axes = call.op.as<FlatAttrs>().shard_axes;
  return axes.empty() ? 0 : call.device.index(axes) * call.in_type(operand).dim(0);
}

// Each of the axes that split the flat view, or of the others.
bool at_origin(const Call& call, const ir::Segment& segment, bool of_shard_axes) {
  const ir::Axes& shards = call.op.as<FlatAttrs>().shard_axes;
  for (const auto& axis : segment.counted_at_origin_of) {
    const bool splits = std::find(shards.begin(), shards.end(), axis) != shards.end();
    if (splits == of_shard_axes && call.device.index({axis}) != 0) return false;
  }
  return true;
}

// A block of every group of this shard after the other, each the sum of its squares that count.
bool norm_blocks(const Call& call) {
  const auto& attrs = call.op.as<FlatAttrs>();
  size_t block = 0;
  for (size_t g = 0; g < call.operands.size(); ++g) {
    const int64_t first = first_element(call, g);
    for (size_t i = 0; i < call.in(g).size(); ++i) {
      const ir::Segment* segment = segment_of(attrs.groups[g], first + static_cast<int64_t>(i));
      const bool counts = segment != nullptr && segment->counts && at_origin(call, *segment, false);
      Num& sum = call.out()[block + i / ops::kNormBlock];
      if (counts) sum = add(sum, mul(call.in(g)[i], call.in(g)[i]));
    }
    block += call.in(g).size() / ops::kNormBlock;
  }
  return true;
}

// From the blocks of all shards, shard after shard, to the parameters.
bool norm_parameters(const Call& call) {
  const auto& attrs = call.op.as<FlatAttrs>();
  const int64_t shards = call.device.mesh.group_size(attrs.shard_axes);
  size_t at = 0;
  for (int64_t shard = 0; shard < shards; ++shard) {
    for (size_t g = 0; g < attrs.groups.size(); ++g) {
      const int64_t blocks = attrs.group_elements[g] / ops::kNormBlock / shards;
      for (int64_t b = 0; b < blocks; ++b, ++at) {
        const ir::Segment* segment =
            segment_of(attrs.groups[g], (shard * blocks + b) * ops::kNormBlock);
        if (segment == nullptr || !at_origin(call, *segment, true)) continue;
        Num& sum = call.out()[static_cast<size_t>(segment->parameter)];
        sum = add(sum, call.in(0)[at]);
      }
    }
  }
  return true;
}

Num total(const std::vector<uint64_t>& numbers) {
  Num sum = 0;
  for (const Num x : numbers) sum = add(sum, x);
  return sum;
}

bool clip(const Call& call) {
  call.out(0)[0] = hash(Function::kSqrt, total(call.in(0)));
  call.out(1)[0] = clip_factor(total(call.in(0)), call.op.as<FlatAttrs>().max_norm);
  return true;
}

// First the squares of all pipeline ranks, then losses.
bool validate(const Call& call) {
  const double max_norm = call.op.as<FlatAttrs>().max_norm;
  Num squares = 0, losses = 0;
  for (const Array& operand : call.operands) {
    Num& sum = operand.type.rank() == 1 ? squares : losses;
    sum = add(sum, total(operand.values));
  }
  const Num factor = clip_factor(squares, max_norm);
  call.out(0)[0] = hash(Function::kSqrt, squares);
  call.out(1)[0] = factor;
  call.out(2)[0] = std::any_of(call.operands.begin(), call.operands.end(), [&](const Array& of) {
    return of.type.rank() == 1 && clip_factor(total(of.values), max_norm) != factor;
  });
  call.out(3)[0] = losses;
  return true;
}

// weight, gradient, m, v, scale, lr, step[, used scale, weight, m and v before]
bool adamw(const Call& call) {
  const auto& attrs = call.op.as<FlatAttrs>();
  const bool amends = call.operands.size() == ops::kAmendOperands;
  const bool stays = amends && call.in(4)[0] == call.in(7)[0];
  const int64_t first = first_element(call, 0);
  for (size_t i = 0; i < call.out().size(); ++i) {
    Moments before{call.in(0)[i], call.in(2)[i], call.in(3)[i]};
    if (!stays) {
      if (amends) before = {call.in(8)[i], call.in(9)[i], call.in(10)[i]};
      const ir::Segment* segment = segment_of(attrs.groups[0], first + static_cast<int64_t>(i));
      before = adamw_step(attrs, before, call.in(1)[i], call.in(4)[0], call.in(5)[0], call.in(6)[0],
                          segment != nullptr && segment->decay);
    }
    call.out(0)[i] = before.weight;
    call.out(1)[i] = before.m;
    call.out(2)[i] = before.v;
  }
  return true;
}

// Zeros behind the end.
bool shard_slice(const Call& call) {
  const auto& attrs = call.op.as<ir::CollectiveAttrs>();
  const auto dim = static_cast<size_t>(attrs.dim);
  const int64_t first =
      call.device.index(std::get<ir::AxisGroup>(attrs.group).axes) * call.out_type().dims[dim].size;
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    Index from = index;
    from[dim] += first;
    if (from[dim] < call.in_type(0).dims[dim].size)
      call.out()[at] = call.in(0)[place(call.in_type(0), from)];
  });
  return true;
}

bool pad_mask(const Call& call) {
  const auto& attrs = call.op.as<ir::PadMaskAttrs>();
  const auto dim = static_cast<size_t>(attrs.dim);
  const int64_t size = attrs.offset.global_size,
                first = call.first(attrs.offset, call.out_type().dims[dim].size);
  for_each(call.out_type(), [&](const Index& index, size_t at) {
    const bool padding = size > 0 && first + index[dim] >= size;
    call.out()[at] = padding ? from_double(attrs.value) : call.in(0)[at];
  });
  return true;
}

}  // namespace

Num clip_factor(Num squares, double max_norm) {
  return max_norm > 0 ? hash(Function::kClip, squares, from_double(max_norm)) : 1;
}

// AdamW with decoupled weight decay [Loshchilov, Hutter 2019].
Moments adamw_step(const FlatAttrs& attrs, const Moments& before, Num gradient, Num scale, Num lr,
                   uint64_t step, bool decay) {
  const Num beta1 = from_double(attrs.beta1), beta2 = from_double(attrs.beta2);
  const Num g = mul(gradient, scale);
  Moments after;
  after.m = add(mul(beta1, before.m), mul(sub(1, beta1), g));
  after.v = add(mul(beta2, before.v), mul(sub(1, beta2), mul(g, g)));
  const Num m = div(after.m, sub(1, power(beta1, step)));
  const Num root = hash(Function::kSqrt, div(after.v, sub(1, power(beta2, step))));
  const Num kept = decay ? sub(1, mul(lr, from_double(attrs.weight_decay))) : 1;
  after.weight =
      sub(mul(before.weight, kept), mul(lr, div(m, add(root, from_double(attrs.epsilon)))));
  return after;
}

bool evaluate_state(const Call& call) {
  switch (call.op.kind) {
    case OpKind::kZero: return true;
    case OpKind::kCopy: call.out() = call.in(0); return true;
    case OpKind::kView: {
      const auto from = call.in(0).begin() + call.op.as<ir::ViewAttrs>().offset;
      std::copy_n(from, call.out().size(), call.out().begin());
      return true;
    }
    case OpKind::kAssemble: return assemble(call);
    case OpKind::kNormBlocks: return norm_blocks(call);
    case OpKind::kNormParameters: return norm_parameters(call);
    case OpKind::kClip: return clip(call);
    case OpKind::kValidate: return validate(call);
    case OpKind::kAdamW: return adamw(call);
    case OpKind::kShardSlice: return shard_slice(call);
    case OpKind::kPadMask: return pad_mask(call);
    case OpKind::kTrim:
      for_each(call.out_type(), [&](const Index& index, size_t at) {
        call.out()[at] = call.in(0)[place(call.in_type(0), index)];
      });
      return true;
    default: return false;
  }
}

}  // namespace mw::field
