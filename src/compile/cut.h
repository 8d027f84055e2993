// Cutting the whole graph into one global graph a stage, by layer tag.
#pragma once

#include <vector>

#include "compile/plan.h"
#include "ir/graph.h"

namespace mw::compile {

// A value that crosses from one stage to another, directly, however many stages lie between.
struct Crossing {
  ValueId value;          // of the stage's graph
  ValueId whole;          // of the whole graph: the same on both sides
  StageId peer;           // where it goes, or comes from
  bool backward = false;  // made by the backward pass
  bool carried = false;   // to or from another slice of the same stage
};

struct StageGraph {
  StageId stage;
  ir::Graph graph;                 // global shapes, forward and backward of the stage's layers
  ValueIds whole;                  // [value] -> value of the whole graph
  std::vector<Crossing> receives;  // inputs of the graph
  std::vector<Crossing> sends;     // one for every receiving stage; not among graph.outputs
  ValueIds results;                // outputs of the whole graph that this stage makes
};

// Ops without a layer are cloned into every stage that uses them. REQUIRES: the whole graph's
// layers are those of the plan.
std::vector<StageGraph> cut(const ir::Graph& whole, const std::vector<int32_t>& stage_of_layer,
                            int32_t stages);

}  // namespace mw::compile
