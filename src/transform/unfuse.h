// Composite ops as the several ops that a stack without fused kernels runs, before autodiff, so
// that what it saves and moves is theirs.
#pragma once

#include "ir/graph.h"

namespace mw::transform {

// swiglu(gate, up) becomes silu(gate) * up, whose gradients read what both kernels saved.
void unfuse_activations(ir::Graph& graph);

}  // namespace mw::transform
