// What a fragment does to accumulators: which bytes of which state it adds to, clears or replaces,
// and which gradients the optimizer takes. Private to room pipeline.
#pragma once

#include <algorithm>
#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/axes.h"
#include "pipeline/program.h"

namespace mw::pipeline {

// Elements of an accumulator in its flat group: all data-parallel shards of a split flat buffer
// together, else what the rank has.
inline int64_t flat_elements(const ir::TensorType& local, const ir::TensorType& global,
                             const sharding::Sharding& sharding) {
  const bool split = global.rank() == 1 && sharding.dims.size() == 1 && !sharding.dims[0].empty() &&
                     std::all_of(sharding.dims[0].begin(), sharding.dims[0].end(),
                                 [](std::string_view axis) { return is_data_axis(axis); });
  return split ? global.dim(0) : local.elements();
}

// Elements [begin, end) of a state: of the flat buffer of all shards together if it is split.
struct ElementRange {
  int64_t begin = 0, end = 0;
  friend auto operator<=>(const ElementRange&, const ElementRange&) = default;
};

// What an input port that is an updated state goes through in one call.
struct StateEffect {
  enum class Kind : uint8_t { kNone, kAdded, kCleared, kReplaced } kind = Kind::kNone;
  std::vector<ElementRange> added;  // kAdded, disjoint; empty: the value stays or is reduced
};

// What an op reads of a state, or adds to it, as one value.
struct StatePart {
  int32_t op = 0;
  size_t port = 0;  // input
  ElementRange range;
};

// One sum over the holders of a state, and what this rank adds to it.
struct HolderSum {
  int32_t op = 0;
  std::string state;
  std::vector<size_t> ports;  // inputs
  std::vector<size_t> sums;   // of AccumulationInfo::holder_sums, earlier ones
  bool other = false;         // also what comes from no state and is not zero
};

// Outputs of a fragment, as indices of Fragment::outputs, that keep what it takes to make a step of
// adamw again: copies of its operands, and the squares that its scale comes of.
struct Kept {
  size_t weight = 0, gradient = 0, moment = 0, variance = 0, squares = 0;
};

// One adamw op.
struct Optimized {
  int32_t op = 0;
  std::optional<Kept> kept;  // of one that is made with the norm of this pipeline rank alone
  std::vector<size_t> weights, gradients;  // input ports that it takes directly
  std::vector<size_t> sums;          // of AccumulationInfo::holder_sums, that it takes directly
  std::vector<ElementRange> ranges;  // of the parameters in the group
  std::vector<int32_t> parameters;
  std::vector<ir::Axes> at_origin;  // [parameter] over which the norm counts it on one rank alone
  int32_t all_parameters = 0;
};

struct AccumulationInfo {
  std::vector<StateEffect> effects;  // [input port]
  std::vector<StatePart> parts;
  std::vector<Optimized> optimized;
  std::vector<HolderSum> holder_sums;  // in order
  std::vector<std::string> findings;   // one contribution that is added twice
};

// REQUIRES: the fragment has no structure findings.
AccumulationInfo make_accumulation_info(const Fragment& fragment, const cluster::Mesh& mesh);

}  // namespace mw::pipeline
