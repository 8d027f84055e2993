// What every op means, in exact arithmetic, written from the attributes' definitions alone: nothing
// here knows the kernels or the reference interpreter.
#pragma once

#include <span>
#include <vector>

#include "cluster/mesh.h"
#include "field.h"
#include "ir/graph.h"

namespace mw::field {

// Row-major; of a floating type numbers of the field, else integers.
struct Array {
  ir::TensorType type;
  std::vector<uint64_t> values;
};
Array zeros(const ir::TensorType& type);

struct Device {
  const cluster::Mesh& mesh;
  RankId rank;
  int64_t index(const ir::Axes& axes) const { return mesh.index(rank, axes); }
};

// REQUIRES: the operands have the types that the op was inferred from. Throws CheckFailure where
// the op is unknown, or is a collective.
std::vector<Array> evaluate(const ir::Op& op, std::span<const Array> operands,
                            std::span<const ir::TensorType> results, const Device& device);
// A collective of one tensor: member `me` of a group of devices takes part with `parts[me]`.
Array combine(const ir::Op& op, std::span<const Array* const> parts,
              std::span<const RankId> members, size_t me, const ir::TensorType& result,
              const cluster::Mesh& mesh);

Num clip_factor(Num squares, double max_norm);
struct Moments {
  Num weight, m, v;
};
Moments adamw_step(const ir::FlatAttrs& attrs, const Moments& before, Num gradient, Num scale,
                   Num lr, uint64_t step, bool decay);
Num random_value(const ir::RandomAttrs& attrs, uint64_t seed, uint64_t index);

// Calls visit(index, place) for every element in row-major order.
using Index = std::vector<int64_t>;
template <typename Visit>
void for_each(const ir::TensorType& type, Visit visit) {
  Index index(type.dims.size(), 0);
  const auto count = static_cast<size_t>(type.elements());
  for (size_t at = 0; at < count; ++at) {
    visit(static_cast<const Index&>(index), at);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < type.dims[d].size) break;
      index[d] = 0;
    }
  }
}
size_t place(const ir::TensorType& type, const Index& index);

// An op at work. Each family runs its ops and says whether the op is one.
struct Call {
  const ir::Op& op;
  std::span<const Array> operands;  // without an accumulator
  std::vector<Array>& results;      // zeros
  const Device& device;

  const std::vector<uint64_t>& in(size_t i) const { return operands[i].values; }
  std::vector<uint64_t>& out(size_t i = 0) const { return results[i].values; }
  const ir::TensorType& in_type(size_t i) const { return operands[i].type; }
  const ir::TensorType& out_type(size_t i = 0) const { return results[i].type; }
  int64_t first(const ir::ShardOffset& shard, int64_t local) const {
    return shard.axes.empty() ? 0 : device.index(shard.axes) * local;
  }
};
bool evaluate_composite(const Call& call);
bool evaluate_state(const Call& call);

}  // namespace mw::field
