// Collectives and the local ops that go with them. They have no sharding rule: they are what the
// partitioner puts where rules disagree. Result types are declared, since sizes of groups are not
// known here; what can be checked is.
#include "ops/family.h"

namespace mw::ops {
namespace {

using ir::CollectiveAttrs;
using ir::OpKind;

// Result i has the dtype and, but for the dimensions of which `changes` is true, the dimensions of
// operand i.
template <typename Changes>
TypeList check_pairs(const ir::Op& op, Types operands, Types declared, Changes changes) {
  require_declared(op, declared, operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const ir::TensorType &x = operands[i], &y = declared[i];
    bool fits = x.dtype == y.dtype && x.rank() == y.rank();
    for (int d = 0; fits && d < x.rank(); ++d) {
      fits = changes(d) || x.dims[static_cast<size_t>(d)] == y.dims[static_cast<size_t>(d)];
    }
    if (!fits) reject(op, "x {} does not become {}", ir::to_string(x), ir::to_string(y));
  }
  return {declared.begin(), declared.end()};
}

TypeList infer_same(const ir::Op&, Types operands, Types) {
  return {operands.begin(), operands.end()};
}

// Shards move as they are.
TypeList infer_permute(const ir::Op& op, Types operands, Types) {
  const CollectiveAttrs& attrs = op.as<CollectiveAttrs>();
  require_min_rank(op, "x", operands[0], attrs.dim + 1);
  if (attrs.from.empty() || attrs.to.empty())
    reject(op, "needs the axes that dim {} is split over before and behind", attrs.dim);
  return {operands[0]};
}

TypeList infer_dim(const ir::Op& op, Types operands, Types declared) {
  const int dim = op.as<CollectiveAttrs>().dim;
  for (const ir::TensorType& x : operands) require_min_rank(op, "x", x, dim + 1);
  return check_pairs(op, operands, declared, [&](int d) { return d == dim; });
}

TypeList infer_two_dims(const ir::Op& op, Types operands, Types declared) {
  const CollectiveAttrs& attrs = op.as<CollectiveAttrs>();
  if (attrs.dim == attrs.concat_dim) reject(op, "dim and concat_dim are both {}", attrs.dim);
  return check_pairs(op, operands, declared,
                     [&](int d) { return d == attrs.dim || d == attrs.concat_dim; });
}

TypeList infer_trim(const ir::Op& op, Types operands, Types declared) {
  TypeList results = check_pairs(op, operands, declared, [](int) { return true; });
  for (int d = 0; d < results[0].rank(); ++d) {
    if (results[0].dim(d) > operands[0].dim(d)) {
      reject(op, "x {} is smaller than the result {}", ir::to_string(operands[0]),
             ir::to_string(results[0]));
    }
  }
  return results;
}

TypeList infer_pad_mask(const ir::Op& op, Types operands, Types) {
  require_min_rank(op, "x", operands[0], op.as<ir::PadMaskAttrs>().dim + 1);
  return {operands[0]};
}

// What the device reads and writes at its ends; the time on the links is the cost room's.
OpCost cost_moved(const ir::Op&, Types operands, Types results) {
  return {.bytes = tensor_bytes(operands) + tensor_bytes(results)};
}

OpCost cost_result_twice(const ir::Op&, Types, Types results) {
  return {.bytes = 2 * tensor_bytes(results)};
}

}  // namespace

void register_collectives(Registry& registry) {
  registry.add({.kind = OpKind::kAllReduce,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_same,
                .cost = cost_moved,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kAllGather,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_dim,
                .cost = cost_moved});
  registry.add({.kind = OpKind::kReduceScatter,
                .min_operands = 1,
                .max_operands = -1,
                .infer = infer_dim,
                .cost = cost_moved});
  registry.add({.kind = OpKind::kAllToAll,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_two_dims,
                .cost = cost_moved});
  registry.add({.kind = OpKind::kPermute,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_permute,
                .cost = cost_moved});
  registry.add({.kind = OpKind::kShardSlice,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_dim,
                .cost = cost_result_twice});
  registry.add({.kind = OpKind::kPadMask,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_pad_mask,
                .cost = cost_moved,
                .in_place_operand = 0});
  registry.add({.kind = OpKind::kTrim,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_trim,
                .cost = cost_result_twice});
  registry.add({.kind = OpKind::kCopy,
                .min_operands = 1,
                .max_operands = 1,
                .infer = infer_same,
                .cost = cost_moved});
}

}  // namespace mw::ops
