// Small fragments in the making, and what is told of the sums that they are given. For tests.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "pipeline/accumulation.h"

namespace mw::pipeline {

using ir::OpKind;

// A fragment in the making. States and values are flat; those of 16 elements over two devices of dp
// have 8 here.
struct SmallSums {
  cluster::Mesh mesh{{{"dp", 2}, {"pp", 2}}};
  Fragment fragment;

  ValueId keep(ValueId v, int64_t elements, const std::string& sharding) {
    fragment.shardings.push_back(sharding::parse_sharding(sharding));
    fragment.global_types.push_back(ir::make_type(DType::kF32, {elements}));
    return v;
  }
  ValueId input(const std::string& name, int64_t elements, StateId state,
                const std::string& sharding = "[{}]") {
    const ir::TensorType local = sharding::local_type(ir::make_type(DType::kF32, {elements}),
                                                      sharding::parse_sharding(sharding), mesh);
    fragment.inputs.push_back({PortKind::kState, ValueId(), name});
    fragment.inputs.back().value =
        keep(fragment.graph.add_input(local, name, state), elements, sharding);
    return fragment.inputs.back().value;
  }
  // The state of this name, "s0" for the first.
  ValueId state(int64_t elements, const std::string& sharding = "[{}]") {
    const StateId id(static_cast<int64_t>(states++));
    return input(fmt::format("s{}", id.value), elements, id, sharding);
  }
  ValueId data(int64_t elements, const std::string& sharding = "[{}]") {
    return input("data", elements, StateId(), sharding);
  }
  ValueIds ops(OpKind kind, ir::Attributes attrs, ValueIds operands, size_t results,
               int64_t elements, const std::string& sharding = "[{}]", bool accumulates = false) {
    ir::Op op;
    op.kind = kind;
    op.attrs = std::move(attrs);
    op.operands = std::move(operands);
    op.accumulates = accumulates;
    const ir::TensorType local = sharding::local_type(ir::make_type(DType::kF32, {elements}),
                                                      sharding::parse_sharding(sharding), mesh);
    const OpId id =
        fragment.graph.add_op(std::move(op), std::vector<ir::TensorType>(results, local));
    for (const ValueId v : fragment.graph.op(id).results) keep(v, elements, sharding);
    return fragment.graph.op(id).results;
  }
  ValueId op(OpKind kind, ir::Attributes attrs, ValueIds operands, int64_t elements,
             const std::string& sharding = "[{}]", bool accumulates = false) {
    return ops(kind, std::move(attrs), std::move(operands), 1, elements, sharding, accumulates)[0];
  }
  int64_t elements(ValueId v) const { return fragment.graph.type(v).elements(); }
  // sum + x
  ValueId add(ValueId sum, ValueId x) {
    return op(OpKind::kAccumulate, {}, {sum, x}, elements(sum));
  }
  // sum + factor * x, as one op
  ValueId add_scaled(ValueId sum, ValueId x, double factor) {
    return op(OpKind::kScale, ir::ScaleAttrs{factor}, {x, sum}, elements(sum), "[{}]", true);
  }
  ValueId add_relu(ValueId sum, ValueId x) {
    return op(OpKind::kRelu, {}, {x, sum}, elements(sum), "[{}]", true);
  }
  ValueId zero(ValueId x) { return op(OpKind::kZero, {}, {x}, elements(x)); }
  ValueId constant(double value) { return op(OpKind::kConstant, ir::ConstantAttrs{value}, {}, 16); }
  ValueId plain(ValueId x) { return op(OpKind::kScale, ir::ScaleAttrs{2}, {x}, elements(x)); }
  ValueId view(ValueId x, int64_t at, int64_t elements) {
    return op(OpKind::kView, ir::ViewAttrs{at}, {x}, elements);
  }
  ValueId assemble(ValueId flat, std::vector<int64_t> offsets, const ValueIds& parts) {
    ValueIds operands = {flat};
    operands.insert(operands.end(), parts.begin(), parts.end());
    return op(OpKind::kAssemble, ir::AssembleAttrs{std::move(offsets)}, operands, elements(flat));
  }
  // `x` added to the elements of a flat sum from this one on
  ValueId with(ValueId sum, int64_t at, ValueId x) {
    return assemble(sum, {at}, {add(view(sum, at, elements(x)), x)});
  }
  ValueId holders_sum(ValueId x) {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::Holders{"w"};
    return op(OpKind::kAllReduce, attrs, {x}, elements(x));
  }
  ValueId over(OpKind kind, const char* axis, ValueId x, int64_t elements,
               const std::string& sharding = "[{}]") {
    ir::CollectiveAttrs attrs;
    attrs.group = ir::AxisGroup{{axis}};
    return op(kind, attrs, {x}, elements, sharding);
  }
  void update(int64_t state, ValueId v) { fragment.graph.updates.push_back({StateId(state), v}); }

  int states = 0;
};

inline std::string elements_text(const ElementRange& range) {
  return fmt::format(" {}-{}", range.begin, range.end);
}

// "s0 added 0-16; part of op 1: s0 0-16", then sums over holders and findings.
inline std::string told(const SmallSums& sums) {
  const AccumulationInfo info = make_accumulation_info(sums.fragment, sums.mesh);
  std::vector<std::string> said;
  for (size_t p = 0; p < info.effects.size(); ++p) {
    const StateEffect& effect = info.effects[p];
    const std::string& name = sums.fragment.inputs[p].name;
    switch (effect.kind) {
      case StateEffect::Kind::kNone: break;
      case StateEffect::Kind::kCleared: said.push_back(name + " cleared"); break;
      case StateEffect::Kind::kReplaced: said.push_back(name + " replaced"); break;
      case StateEffect::Kind::kAdded:
        said.push_back(name + " added");
        for (const ElementRange& range : effect.added) said.back() += elements_text(range);
    }
  }
  for (const StatePart& part : info.parts) {
    said.push_back(fmt::format("op {}: {}{}", part.op, sums.fragment.inputs[part.port].name,
                               elements_text(part.range)));
  }
  for (const HolderSum& sum : info.holder_sums) {
    said.push_back(fmt::format("op {} sums {} of [{}] and sums [{}]{}", sum.op, sum.state,
                               fmt::join(sum.ports, ","), fmt::join(sum.sums, ","),
                               sum.other ? " and other" : ""));
  }
  for (const Optimized& step : info.optimized) {
    said.push_back(fmt::format("op {} steps [{}] by [{}] and sums [{}], {}", step.op,
                               fmt::join(step.weights, ","), fmt::join(step.gradients, ","),
                               fmt::join(step.sums, ","), step.kept ? "kept" : "final"));
    if (step.kept) {
      said.back() += fmt::format(" {},{},{},{},{}", step.kept->weight, step.kept->gradient,
                                 step.kept->moment, step.kept->variance, step.kept->squares);
    }
    for (size_t i = 0; i < step.ranges.size(); ++i)
      said.back() += fmt::format(", {}:{}", step.parameters[i], elements_text(step.ranges[i]));
  }
  said.insert(said.end(), info.findings.begin(), info.findings.end());
  return join(said, "; ");
}

struct SumCase {
  std::string name;
  std::function<void(SmallSums&)> make;
  std::string wanted;
};

inline void check_sums(const std::vector<SumCase>& cases) {
  for (const SumCase& c : cases) {
    SmallSums sums;
    c.make(sums);
    CAPTURE(c.name);
    CHECK(told(sums) == c.wanted);
  }
}

}  // namespace mw::pipeline
