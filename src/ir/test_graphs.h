// Random graphs for the tests of ir: structurally right, with every feature of the text form.
#pragma once

#include <cmath>
#include <random>

#include <fmt/core.h>

#include "ir/graph.h"

namespace mw::ir {

inline Attributes random_attributes(std::mt19937& rng) {
  const auto number = [&](int n) { return static_cast<int64_t>(rng() % static_cast<unsigned>(n)); };
  const auto real = [&] { return std::ldexp(static_cast<double>(rng()), -20); };
  const ShardOffset offset = number(2) ? ShardOffset{{"dp", "tp"}, number(100)} : ShardOffset{};
  switch (number(22)) {
    case 0: return ConstantAttrs{-real()};
    case 1: return ScaleAttrs{real()};
    case 2: return CompareAttrs{static_cast<CompareAttrs::Direction>(number(6))};
    case 3: return DimsAttrs{number(2) ? std::vector<int>{2, 0, 1} : std::vector<int>{}};
    case 4: return SliceAttrs{{0, number(4)}, {2, 8}, {1, 1}};
    case 5: return PadAttrs{{0, 1}, {number(3), 0}};
    case 6: return ReduceAttrs{static_cast<Reduction>(number(3)), {0, 2}};
    case 7: return DotAttrs{"bsk", "nk", "bsn"};
    case 8: return ConvAttrs{{1, 2}, {number(2), 0}, {28, 28}};
    case 9: return GeluAttrs{number(2) == 1};
    case 10: return NormAttrs{1e-5};
    case 11: return RopeAttrs{500000, 64, {8, 1, 4, 8192}};
    case 12:
      return AttentionAttrs{real(),     number(2) == 1, true,   0.1,
                            "h.0.attn", offset,         offset, number(64)};
    case 13: return EmbeddingAttrs{50257, offset};
    case 14: return CrossEntropyAttrs{50257, offset};
    case 15: return DropoutAttrs{0.1, "a site with \"spaces\"", 64, offset};
    case 16:
      return RandomAttrs{RandomAttrs::Distribution::kUniform, 0, real(), "w", {4, 8}, {offset, {}}};
    case 17: return CollectiveAttrs{AxisGroup{{"tp"}}, Reduction::kMax, 1, 0, number(64)};
    case 18: {
      Holders holders{"tbl.weight"};
      if (number(2) == 1) holders.axes = {"cp", "dp"};
      return CollectiveAttrs{holders, Reduction::kSum, 0, 0, 0};
    }
    case 19: return PadMaskAttrs{1, -INFINITY, offset};
    case 20: return MoeAttrs{8, 2, number(2) == 1, real()};
    default: {
      FlatAttrs flat;
      flat.groups = {
          {Segment{0, 10, 0, true, false, {"tp"}}, Segment{256, 300, 1, false, true, {}}}, {}};
      flat.group_elements = {512, 0};
      flat.shard_axes = {"dp"};
      flat.parameters = 2;
      flat.weight_decay = 0.1;
      return flat;
    }
  }
}

inline Graph random_graph(std::mt19937& rng, const Module& module) {
  const auto number = [&](size_t n) { return static_cast<int64_t>(rng() % n); };
  const std::vector<std::string> axes = {"batch", "seq", "", "a b"};
  Graph graph;
  graph.name = "random";
  graph.add_input(TensorType(DType::kI64, {}), "count");
  for (size_t i = 0; i < module.states.size(); ++i) {
    graph.add_input(module.states[i].type, number(2) ? fmt::format("in{}", i) : "",
                    StateId(static_cast<int64_t>(i)));
  }
  const int64_t ops = 1 + number(12);
  for (int64_t i = 0; i < ops; ++i) {
    Op op;
    op.attrs = random_attributes(rng);
    op.kind = static_cast<OpKind>(number(kOpKinds));
    for (int64_t n = number(4); n > 0; --n) op.operands.emplace_back(number(graph.values.size()));
    op.work = static_cast<Work>(number(4));
    if (number(2)) op.layer = LayerId(number(module.layers.size()));
    if (number(4) == 0) op.recompute = RegionId(number(9));
    if (number(4) == 0) op.called = {GraphId(0)};
    std::vector<TensorType> results(
        static_cast<size_t>(number(3)),
        TensorType(static_cast<DType>(number(8)), {Dim(number(9)), Dim(3)}));
    if (!results.empty() && number(3) == 0) results[0].dims[1].size_value = ValueId(0);
    if (results.size() == 1 && !op.operands.empty() && number(2)) {
      results[0] = graph.type(op.operands.back());
      op.accumulates = true;
    }
    const OpId id = graph.add_op(op, results);
    for (const ValueId value : graph.op(id).results) {
      if (number(2))
        graph.value(value).name = fmt::format("{}v{}", number(5) ? "" : "7 odd ", value.value);
      if (number(2)) {
        for (int d = 0; d < graph.type(value).rank(); ++d) {
          graph.value(value).logical.push_back(axes[static_cast<size_t>(number(axes.size()))]);
        }
      }
    }
  }
  for (int64_t n = number(3); n > 0; --n) graph.outputs.emplace_back(number(graph.values.size()));
  for (size_t i = 0; i < module.states.size(); ++i) {
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (number(2) == 0 || !(graph.values[v].type == module.states[i].type)) continue;
      graph.updates.push_back({StateId(static_cast<int64_t>(i)), ValueId(static_cast<int64_t>(v))});
      break;
    }
  }
  return graph;
}

// Two layers, a weight, its gradient, and one graph to call.
inline Module small_module() {
  Module module;
  module.name = "small";
  module.layers = {{"embed", false}, {"h.0", true}};
  State weight;
  weight.name = "tbl.weight";
  weight.type = make_type(DType::kF32, {16, 4});
  weight.logical = {"vocab", ""};
  weight.init = {Init::Kind::kNormal, 0.02};
  weight.layer = LayerId(0);
  const StateId parameter = module.add_state(weight);
  State gradient;
  gradient.name = "tbl.weight.grad";
  gradient.type = weight.type;
  gradient.kind = StateKind::kGradient;
  gradient.layer = LayerId(0);
  gradient.decay = false;
  gradient.parameter = parameter;
  gradient.use = LayerId(1);
  module.add_state(gradient);
  State loss;
  loss.name = "loss";
  loss.type = TensorType(DType::kF32, {});
  loss.kind = StateKind::kMetric;
  module.add_state(loss);
  Graph body;
  body.name = "loop body";
  body.outputs = {body.add_input(TensorType(DType::kF32, {}), "x")};
  module.graphs.push_back(body);
  return module;
}

}  // namespace mw::ir
