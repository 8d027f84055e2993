// The optimizer's ops on flat groups: norm_blocks, norm_parameters, clip, validate, adamw. A flat
// group holds parameters one after the other, each from a multiple of the norm block on, split over
// attrs.shard_axes.
#include "ops/update_ops.h"

#include "ops/builder.h"
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::FlatAttrs;
using ir::OpKind;

int64_t total_blocks(const FlatAttrs& attrs) {
  int64_t elements = 0;
  for (const int64_t n : attrs.group_elements) elements += n;
  return elements / kNormBlock;
}

// The operands of validate that are squares: those in front of the first scalar.
size_t validated_ranks(Types operands) {
  size_t ranks = 0;
  while (ranks < operands.size() && operands[ranks].rank() == 1) ++ranks;
  return ranks;
}

void require_flat(const ir::Op& op, const char* name, const ir::TensorType& type) {
  if (type.dtype == DType::kF32 && type.rank() == 1 && type.dim(0) % kNormBlock == 0) return;
  reject(op, "{} {} must be a flat f32 group of whole norm blocks ({} elements)", name,
         ir::to_string(type), kNormBlock);
}

TypeList infer_norm_blocks(const ir::Op& op, Types operands, Types) {
  const FlatAttrs& attrs = op.as<FlatAttrs>();
  if (attrs.groups.size() != operands.size() || attrs.group_elements.size() != operands.size()) {
    reject(op, "takes one gradient for each of {} groups, got {}", attrs.groups.size(),
           operands.size());
  }
  int64_t elements = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    require_flat(op, "grad", operands[i]);
    if (operands[i].dim(0) < 1 || attrs.group_elements[i] % operands[i].dim(0) != 0) {
      reject(op, "grad {} must be an even share of its group of {} elements",
             ir::to_string(operands[i]), attrs.group_elements[i]);
    }
    elements += operands[i].dim(0);
  }
  return {ir::make_type(DType::kF64, {elements / kNormBlock})};
}

TypeList infer_norm_parameters(const ir::Op& op, Types operands, Types) {
  const FlatAttrs& attrs = op.as<FlatAttrs>();
  require_type(op, "blocks", operands[0], ir::make_type(DType::kF64, {total_blocks(attrs)}),
               "the blocks of all groups and shards");
  return {ir::make_type(DType::kF64, {attrs.parameters})};
}

TypeList infer_clip(const ir::Op& op, Types operands, Types) {
  const FlatAttrs& attrs = op.as<FlatAttrs>();
  require_type(op, "squares", operands[0], ir::make_type(DType::kF64, {attrs.parameters}),
               "one for each parameter");
  const ir::TensorType scalar = ir::make_type(DType::kF32, {});
  return {scalar, scalar};
}

TypeList infer_validate(const ir::Op& op, Types operands, Types) {
  const FlatAttrs& attrs = op.as<FlatAttrs>();
  const size_t ranks = validated_ranks(operands);
  if (ranks == 0 || ranks == operands.size())
    reject(op, "takes squares of {} ranks and {} losses", ranks, operands.size() - ranks);
  const ir::TensorType scalar = ir::make_type(DType::kF32, {});
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i < ranks) {
      require_type(op, "squares", operands[i], ir::make_type(DType::kF64, {attrs.parameters}),
                   "one for each parameter");
    } else {
      require_type(op, "loss", operands[i], scalar, "a scalar");
    }
  }
  return {scalar, scalar, scalar, scalar};
}

TypeList infer_adamw(const ir::Op& op, Types operands, Types) {
  const FlatAttrs& attrs = op.as<FlatAttrs>();
  if (attrs.groups.size() != 1 || attrs.group_elements.size() != 1) {
    reject(op, "works on one flat group, got {}", attrs.groups.size());
  }
  require_flat(op, "weight", operands[0]);
  require_same(op, "grad", operands[1], "weight", operands[0]);
  require_same(op, "m", operands[2], "weight", operands[0]);
  require_same(op, "v", operands[3], "weight", operands[0]);
  require_type(op, "scale", operands[4], {DType::kF32, {}}, "a scalar");
  require_type(op, "lr", operands[5], {DType::kF32, {}}, "a scalar");
  require_type(op, "step", operands[6], {DType::kI64, {}}, "a scalar");
  if (operands.size() == kAdamWOperands) return {operands[0], operands[2], operands[3]};
  if (operands.size() != kAmendOperands) {
    reject(op, "takes {} operands, or {} where it amends a step, got {}", kAdamWOperands,
           kAmendOperands, operands.size());
  }
  require_type(op, "used scale", operands[7], {DType::kF32, {}}, "a scalar");
  require_same(op, "weight before", operands[8], "weight", operands[0]);
  require_same(op, "m before", operands[9], "weight", operands[0]);
  require_same(op, "v before", operands[10], "weight", operands[0]);
  return {operands[0], operands[2], operands[3]};
}

OpCost cost_norm_blocks(const ir::Op&, Types operands, Types results) {
  double elements = 0;
  for (const ir::TensorType& type : operands) elements += static_cast<double>(type.elements());
  return {.flops = 2 * elements, .bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

OpCost cost_norm_parameters(const ir::Op&, Types operands, Types results) {
  return {.flops = static_cast<double>(operands[0].elements()),
          .bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

// Every rank's squares go into its own factor and into the one of all.
OpCost cost_validate(const ir::Op&, Types operands, Types results) {
  const auto ranks = static_cast<double>(validated_ranks(operands));
  return {.flops = 2 * ranks * static_cast<double>(operands[0].elements()),
          .bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

// Weights in half precision are written from a master copy in f32, which is read and written in
// place of their own reading.
OpCost cost_adamw(const ir::Op& op, Types operands, Types results) {
  OpCost cost = cost_streaming<14>(op, operands, results);
  const auto element = static_cast<double>(dtype_size(operands[0].dtype));
  constexpr double kMaster = sizeof(float);
  if (element < kMaster)
    cost.bytes += static_cast<double>(operands[0].elements()) * (2 * kMaster - element);
  return cost;
}

}  // namespace

void register_update_ops(Registry& registry) {
  registry.add({.kind = OpKind::kNormBlocks,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_norm_blocks,
                .cost = cost_norm_blocks});
  registry.add({.kind = OpKind::kNormParameters,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_norm_parameters,
                .cost = cost_norm_parameters});
  registry.add({.kind = OpKind::kClip,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_clip,
                .cost = cost_norm_parameters});
  registry.add({.kind = OpKind::kValidate,
                .min_operands = 2,
                .max_operands = -1,
                .infer = infer_validate,
                .cost = cost_validate});
  registry.add({.kind = OpKind::kAdamW,
                .min_operands = kAdamWOperands,
                .max_operands = kAmendOperands,
                .infer = infer_adamw,
                .cost = cost_adamw,
                .in_place_operand = 0,
                .aliases = {0, 2, 3}});
}

}  // namespace mw::ops
