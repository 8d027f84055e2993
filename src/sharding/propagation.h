// Propagation: fills in the shardings that are not given from those that are, through the ops'
// sharding rules, so that a few annotations do for a whole graph [GSPMD, Xu et al. 2021; the
// stacking of strategies follows Shardy].
//
// Given shardings are never changed. What no given sharding reaches stays whole. A `partial` is
// never chosen: a result pends over the axes of the factors that its op reduces, and of the pending
// operands that the op is linear in, as the rules say. The cost depends on the graph alone, not on
// how many devices an axis has.
//
// The result is advice: room partition holds given shardings exactly and asks of every op, for the
// others, whether another layout moves fewer bytes; where it takes one, the origin says so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/mesh.h"
#include "ir/graph.h"
#include "sharding/propagation_strategy.h"
#include "sharding/sharding.h"

namespace mw::sharding {

// Why a value lies as it does.
struct Origin {
  enum class Kind : uint8_t {
    kWhole,       // nothing says otherwise
    kAnnotation,  // of this value
    kState,       // the layout of the state that it is
    kPropagated,  // see steps
    kCheaper,     // the partitioner found a layout that moves fewer bytes than the propagated one
  };
  // One axis that came from another tensor of an op.
  struct Step {
    Name axis;
    OpId op;
    ValueId from;
    std::string_view strategy;
  };
  Kind kind = Kind::kWhole;
  std::vector<Step> steps;             // kPropagated, in the order in which they came
  std::optional<Sharding> propagated;  // kCheaper: what was not taken
};

// A decision that the rules did not force: which factor an axis splits, or, where they are one,
// over which axes it is split: as `kept_by` has it, not over `axis` as `lost_by` has it.
struct Decision {
  OpId op;
  std::string axis;
  char kept = '?', lost = '?';  // factors of the op's rule
  ValueId kept_by, lost_by;
};

struct PropagationRequest {
  const ir::Graph& graph;
  const ir::Module& module;
  const cluster::Mesh& mesh;
  // [value] given shardings, normalized on the mesh.
  std::vector<std::optional<Sharding>> given;
};

struct Propagation {
  std::vector<Sharding> shardings;  // [value], partial as its op leaves it
  std::vector<Origin> origins;      // [value]
  std::vector<Decision> decisions;  // by op
  // [op] ops that are alike share one; without factors: it has none.
  std::vector<std::shared_ptr<const ops::ShardingRule>> rules;
  int64_t visits = 0;  // of ops, by strategies
};

Propagation propagate(const PropagationRequest& request);

// In the order in which they are asked.
const std::vector<const PropagationStrategy*>& propagation_strategies();

// "annotation", "state h.0.up", "{tp} from %x through dot %y by factors".
std::string to_string(const Origin& origin, const ir::Graph& graph, ValueId value,
                      const ir::Module& module);
// One value a line: label, sharding, origin; then the decisions. REQUIRES: both lists are of the
// graph's values.
std::string to_text(const Propagation& propagation, const ir::Graph& graph,
                    const ir::Module& module);

}  // namespace mw::sharding
