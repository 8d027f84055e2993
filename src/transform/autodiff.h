// Reverse-mode differentiation of the microbatch graph, with gradient accumulators as state.
//
// Canonical order of sums (design.md, contract 9): the contributions to the gradient of a value are
// added in ascending order of the forward ops that use it (and of the operand, where one op uses it
// twice), first those of one layer, in that layer, then over layers. A weight's gradients of
// different layers are not added here: each layer has its own accumulator.
#pragma once

#include <string>

#include "ir/graph.h"

namespace mw::transform {

struct AutodiffOptions {
  std::string graph = "microbatch";
  std::string loss = "loss_sum";          // output: a floating scalar
  std::string loss_scale = "loss_scale";  // input of the loss' type: the gradient of the loss
};

// Turns forward into forward and backward. After it
//  - a gradient has the logical axes of its value, and the name "d.<name>" where that has one (a
//  weight's: "d.<parameter>" or
//    "d.<parameter>@<layer>", as its accumulator); a gradient that is that of several values has
//    the last one's;
//  - a backward op has the layer of its forward op and the work mark_work() gives it;
//  - every (parameter, layer that uses it) has a state of kind kGradient, "grad/<parameter>" or,
//  where several layers use
//    the parameter, "grad/<parameter>@<layer>", updated by kAccumulate;
//  - the state "loss" (kMetric) has the loss added;
//  - ops that nothing needs are gone.
// Throws Error where the graph, the loss or the scale is missing, an op on the way has no gradient,
// or a parameter does not reach the loss. REQUIRES: the graph is not differentiated yet.
void differentiate(ir::Module& module, const AutodiffOptions& options = {});

// Marks backward ops (work other than kForward, not recomputed) kWeightGrad iff every path from the
// op within its layer ends in an updated state, else kInputGrad. A path that leaves the layer is
// one to an input gradient: otherwise all of backward would be weight gradients, since it all ends
// in them. Checks that no op makes both.
void mark_work(ir::Graph& graph);

}  // namespace mw::transform
