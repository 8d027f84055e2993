// Slices of sequences (Seq1F1B, Sun 2024): the graph of one slice becomes that of all slices of a
// microbatch, one after the other.
//
// B batch, S sequence of a slice, T sequence up to the end of a slice, H heads, D head dim
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"

namespace mw::transform {

// The forward graph `graph` of one slice, `slices` times; all read the same parameters. A layer l
// of the module becomes the layers l + slice * layers, so that a stage can be cut into slices.
// Data inputs with a sequence get that of all slices, of which each takes its part, and the
// attention of a slice reads the keys and values of the slices before it, too. The result
// "loss_sum" is the sum over the slices; there are no other outputs. Throws Error for an attention
// that is not causal.
void unroll_slices(ir::Module& module, const std::string& graph, int32_t slices);

// After autodiff of such a graph: a parameter's gradients in all slices of a layer are added to one
// accumulator. Each slice of the graph updates it, so what is cut from the graph must hold one
// slice of a layer.
void merge_slices(ir::Module& module, const std::string& graph, int32_t slices);

// The state that takes the sum "loss_sum" of all slices in one update gets that of each slice in an
// update of its own, so that no slice waits for the loss of another.
void spread_loss(ir::Graph& graph, StateId state);

}  // namespace mw::transform
