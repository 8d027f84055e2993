// Small models for the tests of passes, and their interpretation.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"
#include "ops/interpret.h"

namespace mw::transform::test {

// Layers "in", "block.0", …, "out": linear and ReLU with a bias, a skip connection from "in" to
// "out", mean squares.
ir::Module mlp(int blocks);

// One-layer GPT-2 of layers "embed", "h.0", "h.1", "head" with a tied embedding, LayerNorm, packed
// causal attention, dropout, fused bias and GELU, and cross-entropy. Sequences of `seq` tokens.
ir::Module gpt(double dropout, int64_t seq = 3, int64_t positions = 3);

// Values for the graph's inputs: weights, data and accumulators by name, the same for the same
// names in every graph.
std::vector<ops::Tensor> inputs_of(const ir::Graph& graph);
// By state name what the graph's updates are, and by value name its outputs.
std::map<std::string, ops::Tensor> outcome(const ir::Module& module, const ir::Graph& graph,
                                           const std::vector<ops::Tensor>& inputs);

ir::Graph& microbatch(ir::Module& module);
int count_ops(const ir::Graph& graph, ir::OpKind kind);

}  // namespace mw::transform::test
