// Flat groups: the parameters that one pipeline rank holds, laid side by side in 1-D buffers of
// their tp-local elements, each padded to the norm's block and each group to block * dp. Gradients
// and moments have the same layout. ZeRO shards these 1-D views over dp (and cp); the optimizer,
// the norm and the data-parallel reduction work on whole groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compile/local_graph.h"
#include "compile/plan.h"
#include "ir/graph.h"
#include "sharding/sharding.h"

namespace mw::compile {

// What a rank's stages need of the states, after partitioning.
struct StateUse {
  StateId state;  // of the module: a weight or a gradient accumulator
  ir::TensorType global, local;
  sharding::Sharding sharding;
};

struct GroupMember {
  StateId parameter;
  ir::TensorType global, local;
  sharding::Sharding sharding;
  int64_t offset = 0;  // elements in the group
};

// One accumulator buffer of a group. A parameter that several layers use has a group of its own and
// one accumulator a use, in model order; all other groups have one, which holds the accumulators of
// all members.
struct GroupUse {
  std::vector<StateId> accumulators;  // [member]; the use of another rank is not in the list
  StateId state;                      // flat gradient, of the extended module
};

struct FlatGroup {
  std::string name;  // "h.0", "h.0/tp" (gradients pending over tp), or a shared parameter's name
  std::vector<GroupMember> members;
  int64_t elements = 0;          // padded; all data-parallel shards together
  sharding::Axes data_axes;      // Plan::data_axes: what ZeRO shards the group over
  int64_t data_size = 1;         // their devices
  sharding::Axes model_partial;  // other axes over which the gradients are pending
  bool dp_partial = false;       // the gradients are pending over the data axes
  bool shared = false;           // its parameter is used in several layers
  std::vector<GroupUse> uses;
  StateId weight, moment, variance;  // flat states of the extended module
};

// Groups of a pipeline rank. `states` has every weight and accumulator of its stages once. Appends
// the flat states to `module`, named "weight/<group>", "grad/…", "m/…", "v/…".
std::vector<FlatGroup> make_flat_groups(const std::vector<StateUse>& states, const Plan& plan,
                                        ir::Module& module);

// The data axes, sorted, if the gradients are pending over them.
sharding::Axes data_pending(const FlatGroup& group);

// How many shards a flat state of this kind is split into over the group's data axes.
int64_t weight_shards(const Plan& plan, const FlatGroup& group);
int64_t gradient_shards(const Plan& plan, const FlatGroup& group);
int64_t moment_shards(const Plan& plan, const FlatGroup& group);

// The type of a flat state of the group, whole or as one of `shards`.
LocalGraph::Made flat_type(const FlatGroup& group, int64_t shards,
                           const sharding::Axes& partial = {});

}  // namespace mw::compile
