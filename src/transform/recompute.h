// Recomputation of activations in the backward pass, layer by layer.
#pragma once

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace mw::transform {

// Each keeps less of a layer than the one before.
enum class Recompute : uint8_t {
  kNone,
  kSelective,  // attention alone: its result and lse are not kept [Korthikanti et al. 2022]
  // What enters the layer, attention and every second product, from the first on, are kept
  // [torchtitan's selective activation checkpointing, option "op"].
  kSelectiveOp,
  kFull,  // only what enters the layer is kept [Chen et al. 2016]
};
inline constexpr std::array kRecomputes = {Recompute::kNone, Recompute::kSelective,
                                           Recompute::kSelectiveOp, Recompute::kFull};
inline constexpr std::array<std::string_view, kRecomputes.size()> kRecomputeNames = {
    "none", "selective", "selective-op", "full"};
constexpr std::string_view name_of(Recompute recompute) {
  return kRecomputeNames[static_cast<size_t>(recompute)];
}

struct RecomputeOptions {
  std::vector<Recompute> layers;  // by LayerId; a layer beyond the end is kNone
  // Logical axes that lie on several devices: a product that sums over one of them is kept by
  // kSelectiveOp, so that the devices' sum is not taken again.
  std::set<std::string> divided = {};
  // As where a checkpointed function is called anew and its result is its reader's operand
  // [Megatron-LM megatron/mpu/random.py, CheckpointFunction]. kFull: all of a layer again, also
  // what its backward pass does not read (its last product and sum). kSelective: the product behind
  // attention keeps its operand.
  bool whole = false;
};
// The same mode for every layer of the module.
RecomputeOptions recompute_all(const ir::Module& module, Recompute mode);

// Clones the layer's forward ops that its backward ops need, before the first of them, and lets
// those read the clones. A clone has work kInputGrad and the region of its layer, RegionId(layer);
// its value is named "re.<name>". Random numbers depend on counters alone, so a clone's result is
// its original's bit for bit. REQUIRES: the graph is differentiated. Returns old value id -> new
// value id.
ValueIds recompute(ir::Graph& graph, const RecomputeOptions& options);

}  // namespace mw::transform
