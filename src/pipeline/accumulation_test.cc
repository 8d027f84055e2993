// What a fragment does to the sums it is given, told of small fragments.
#include "pipeline/accumulation.h"

#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "ops/update_ops.h"

namespace mw::pipeline {
namespace {

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

std::string elements_text(const ElementRange& range) {
  return fmt::format(" {}-{}", range.begin, range.end);
}

// "s0 added 0-16; part of op 1: s0 0-16", then sums over holders and findings.
std::string told(const SmallSums& sums) {
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

void check_sums(const std::vector<SumCase>& cases) {
  for (const SumCase& c : cases) {
    SmallSums sums;
    c.make(sums);
    CAPTURE(c.name);
    CHECK(told(sums) == c.wanted);
  }
}

TEST_CASE("what becomes of a state follows from what its update is made of") {
  check_sums({
      {"no update", [](SmallSums& s) { s.zero(s.state(16)); }, ""},
      {"itself", [](SmallSums& s) { s.update(0, s.state(16)); }, "s0 added"},
      {"another state",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.state(16));
       },
       "s0 replaced"},
      {"what is no sum", [](SmallSums& s) { s.update(0, s.plain(s.state(16))); }, "s0 replaced"},
      {"zeros", [](SmallSums& s) { s.update(0, s.zero(s.state(16))); }, "s0 cleared"},
      {"a constant 0",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.constant(0));
       },
       "s0 cleared"},
      {"another constant",
       [](SmallSums& s) {
         s.state(16);
         s.update(0, s.constant(1));
       },
       "s0 replaced"},
  });
}

TEST_CASE("what is added to a state is added to it, wherever the sum began") {
  check_sums({
      {"a contribution that an op adds",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.data(16)));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a contribution that is added as it is made",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add_scaled(sum, s.data(16), 2));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a contribution without the sum before it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), s.data(16)));
       },
       "s0 replaced"},
      {"a contribution to what is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.plain(sum), s.data(16)));
       },
       "s0 replaced"},
      {"a sum that is added to what is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.plain(s.data(16)), sum));
       },
       "s0 replaced"},
      {"zeros that are added to what is no sum, as a contribution",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.add(s.plain(s.data(16)), s.zero(sum))));
       },
       "s0 added 0-16; op 3: s0 0-16"},
      {"zeros that are added to it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, s.zero(sum)));
       },
       "s0 added"},
      {"what is added to zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), sum));
       },
       "s0 added"},
      {"zeros and zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(s.zero(sum), s.zero(sum)));
       },
       "s0 cleared"},
      {"another sum and its contributions",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16);
         s.update(0, s.add(sum, s.add(other, s.data(16))));
         s.update(1, s.zero(other));
       },
       "s0 added 0-16; s1 cleared; op 0: s0 0-16"},
  });
}

TEST_CASE("a sum is not added to itself, and stays one when it is copied or summed over replicas") {
  check_sums({
      {"itself once more",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.add(sum, sum));
       },
       "s0 added; op 0 (accumulate -> %1) adds s0 to itself"},
      {"copies and reshapes",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.op(OpKind::kCopy, {}, {s.op(OpKind::kReshape, {}, {sum}, 16)}, 16));
       },
       "s0 added"},
      {"a sum over replicas",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.over(OpKind::kAllReduce, "dp", sum, 16));
       },
       "s0 added"},
  });
}

TEST_CASE("one contribution is added once to every element") {
  const auto twice = [](auto first, auto second) {
    return [=](SmallSums& s) {
      const ValueId sum = s.state(16), x = s.data(16), y = s.data(16);
      s.update(0, second(s, first(s, sum, x, y), x, y));
    };
  };
  const auto accumulate_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add(sum, x);
  };
  const auto accumulate_y = [](SmallSums& s, ValueId sum, ValueId, ValueId y) {
    return s.add(sum, y);
  };
  const auto relu_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_relu(sum, x);
  };
  const auto twice_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_scaled(sum, x, 2);
  };
  const auto thrice_x = [](SmallSums& s, ValueId sum, ValueId x, ValueId) {
    return s.add_scaled(sum, x, 3);
  };
  const char* const kOnce = "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16";
  check_sums({
      {"of two values", twice(accumulate_x, accumulate_y), kOnce},
      {"of two kinds", twice(accumulate_x, relu_x), kOnce},
      {"with two factors", twice(twice_x, thrice_x), kOnce},
      {"the same value", twice(accumulate_x, accumulate_x),
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (accumulate -> %4) adds the same "
       "contribution as op 0 once more"},
      {"the same product", twice(twice_x, twice_x),
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (scale -> %4) adds the same "
       "contribution as op 0 once more"},
      {"behind another",
       [&](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(16), y = s.data(16);
         s.update(0, s.add(s.add(s.add(sum, x), y), x));
       },
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 2: s0 0-16; op 2 (accumulate -> %5) adds "
       "the same contribution as op 0 once more"},
      {"in two sums that are added",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16), x = s.data(16);
         const ValueId added = s.add(sum, x);
         s.update(0, s.add(added, s.add(other, x)));
       },
       "s0 added 0-16; op 0: s0 0-16; op 1: s0 0-16; op 1 (accumulate -> %4) adds the same "
       "contribution as op 0 once more"},
  });
}

TEST_CASE("one contribution may be added to several parts of a sum") {
  check_sums({
      {"in two parts",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(8);
         s.update(0, s.assemble(sum, {0, 8},
                                {s.add(s.view(sum, 0, 8), x), s.add(s.view(sum, 8, 8), x)}));
       },
       "s0 added 0-16; op 0: s0 0-8; op 2: s0 8-16; op 1: s0 0-8; op 3: s0 8-16"},
      {"in parts of three sums, which touch",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), other = s.state(16), third = s.state(16);
         const ValueId x = s.data(4);
         const ValueId middle = s.with(sum, 4, x), low = s.with(other, 0, x);
         s.update(0, s.add(s.add(middle, low), s.with(third, 8, x)));
       },
       "s0 added 0-12; op 0: s0 4-8; op 3: s1 0-4; op 6: s2 8-12; op 1: s0 4-8; op 4: s0 0-4; "
       "op 7: s0 8-12"},
      {"to a part of what has it",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(8);
         const ValueId once = s.add(s.view(sum, 4, 8), x);
         s.update(0, s.assemble(sum, {4}, {s.add(once, x)}));
       },
       "s0 added 4-12; op 0: s0 4-12; op 1: s0 4-12; op 2: s0 4-12; op 2 (accumulate -> %4) adds "
       "the same contribution as op 1 once more"},
  });
}

TEST_CASE("a flat sum is put together from its parts") {
  check_sums({
      {"of two parts, the second first",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), x = s.data(4), y = s.data(4);
         const ValueId low = s.add(s.view(sum, 0, 4), x), high = s.add(s.view(sum, 8, 4), y);
         s.update(0, s.assemble(sum, {8, 0}, {high, low}));
       },
       "s0 added 0-4 8-12; op 0: s0 0-4; op 2: s0 8-12; op 1: s0 0-4; op 3: s0 8-12"},
      {"of a view of a view",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {6}, {s.add(s.view(s.view(sum, 4, 8), 2, 4), s.data(4))}));
       },
       "s0 added 6-10; op 0: s0 4-12; op 1: s0 6-10; op 2: s0 6-10"},
      {"of a part that is put together itself",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), part = s.view(sum, 4, 8);
         s.update(0, s.assemble(sum, {4}, {s.with(part, 2, s.data(4))}));
       },
       "s0 added 6-10; op 0: s0 4-12; op 1: s0 6-10; op 2: s0 6-10"},
      {"where it has contributions around the part, and in it",
       [](SmallSums& s) {
         const ValueId sum = s.add(s.state(16), s.data(16));
         s.update(0, s.assemble(sum, {4}, {s.add(s.view(sum, 4, 8), s.data(8))}));
       },
       "s0 added 0-16; op 1: s0 4-12; op 0: s0 0-4; op 0: s0 4-12; op 2: s0 4-12; op 0: s0 12-16"},
  });
}

TEST_CASE("a flat sum of which a part is replaced is no sum") {
  check_sums({
      {"of a part of other elements",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {8}, {s.view(sum, 0, 4)}));
       },
       "s0 replaced; op 0: s0 0-4"},
      {"of a part that is no sum",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         s.update(0, s.assemble(sum, {0}, {s.plain(s.view(sum, 0, 4))}));
       },
       "s0 replaced; op 0: s0 0-4"},
      {"of a part that holds what is no sum in a part",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), part = s.view(sum, 4, 8);
         const ValueId other = s.plain(s.data(4));
         s.update(0, s.assemble(sum, {4}, {s.assemble(part, {2}, {other})}));
       },
       "s0 replaced; op 0: s0 4-12"},
      {"of zeros, on zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId zeros = s.zero(sum);
         s.update(0, s.assemble(zeros, {0}, {s.zero(s.view(sum, 0, 4))}));
       },
       "s0 cleared; op 1: s0 0-4"},
      {"of zeros, on what was added to zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16), grown = s.add(s.zero(sum), s.data(16));
         s.update(0, s.assemble(grown, {0}, {s.zero(s.view(sum, 0, 4))}));
       },
       "s0 replaced; op 2: s0 0-4"},
      {"of the sum, on zeros",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId zeros = s.zero(sum);
         s.update(0, s.assemble(zeros, {0}, {s.view(sum, 0, 4)}));
       },
       "s0 replaced; op 1: s0 0-4"},
  });
}

TEST_CASE("what is added touches, overlaps or lies apart") {
  const auto added = [](const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    SmallSums s;
    ValueId sum = s.state(16);
    for (const auto& [begin, end] : ranges)
      sum = s.add(sum, s.with(s.state(16), begin, s.data(end - begin)));
    s.update(0, sum);
    const std::string text = told(s);
    return text.substr(0, text.find(';'));
  };
  CHECK(added({{0, 4}, {8, 12}}) == "s0 added 0-4 8-12");
  CHECK(added({{8, 12}, {0, 4}}) == "s0 added 0-4 8-12");
  CHECK(added({{0, 4}, {4, 12}}) == "s0 added 0-12");
  CHECK(added({{0, 8}, {4, 12}}) == "s0 added 0-12");
  CHECK(added({{0, 16}, {4, 8}, {14, 16}}) == "s0 added 0-16");
  CHECK(added({{0, 4}, {5, 6}}) == "s0 added 0-4 5-6");
}

TEST_CASE("what all shards of a split flat sum have is counted together") {
  check_sums({
      {"an addition to this device's part",
       [](SmallSums& s) {
         const ValueId sum = s.state(16, R"([{"dp"}])"), x = s.data(16, R"([{"dp"}])");
         s.update(0, s.op(OpKind::kAccumulate, {}, {sum, x}, 16, R"([{"dp"}])"));
       },
       "s0 added 0-16; op 0: s0 0-16"},
      {"a part behind which the whole is scattered and gathered",
       [](SmallSums& s) {
         const ValueId sum = s.state(16);
         const ValueId part = s.assemble(sum, {12}, {s.add(s.view(sum, 12, 4), s.data(4))});
         const ValueId own = s.over(OpKind::kReduceScatter, "dp", part, 16, R"([{"dp"}])");
         s.update(0, s.over(OpKind::kAllGather, "dp", own, 16));
       },
       "s0 added 12-16; op 0: s0 12-16; op 1: s0 12-16"},
      {"contributions behind the last part of a split sum",
       [](SmallSums& s) {
         const std::string own = R"([{"dp"}])";
         const ValueId sum = s.state(16, own), x = s.data(16, own);
         const ValueId added = s.op(OpKind::kAccumulate, {}, {sum, x}, 16, own);
         ir::AssembleAttrs attrs{{0}};
         s.update(0, s.op(OpKind::kAssemble, attrs, {added, s.view(added, 0, 2)}, 16, own));
       },
       "s0 added 0-16; op 1: s0 0-2; op 0: s0 0-2; op 0: s0 2-16"},
  });
}

TEST_CASE("a sum over holders tells what this rank adds to it") {
  check_sums({
      {"a state", [](SmallSums& s) { s.holders_sum(s.state(16)); },
       "op 0 sums w of [0] and sums []"},
      {"two states",
       [](SmallSums& s) {
         const ValueId a = s.state(16), b = s.state(16);
         s.holders_sum(s.add(a, b));
       },
       "op 1 sums w of [0,1] and sums []"},
      {"what is no sum", [](SmallSums& s) { s.holders_sum(s.plain(s.state(16))); },
       "op 1 sums w of [] and sums [] and other"},
      {"zeros", [](SmallSums& s) { s.holders_sum(s.zero(s.state(16))); },
       "op 1 sums w of [] and sums []"},
      {"zeros with a part that is no sum",
       [](SmallSums& s) {
         const ValueId zeros = s.zero(s.state(16));
         s.holders_sum(s.assemble(zeros, {0}, {s.data(4)}));
       },
       "op 2 sums w of [] and sums [] and other"},
      {"a sum over holders and a state",
       [](SmallSums& s) {
         const ValueId a = s.state(16), b = s.state(16);
         s.holders_sum(s.add(b, s.holders_sum(a)));
       },
       "op 0 sums w of [0] and sums []; op 2 sums w of [1] and sums [0]"},
      {"that becomes the state", [](SmallSums& s) { s.update(0, s.holders_sum(s.state(16))); },
       "s0 replaced; op 0 sums w of [0] and sums []"},
  });
}

// adamw of state 0 by `gradient`, with a scale of the norm in `squares_sharding`.
struct SumStep {
  ValueIds operands;
  ValueId squares;
};
SumStep add_step(SmallSums& s, ValueId weight, ValueId gradient,
                 const std::string& squares_sharding) {
  ir::FlatAttrs attrs;
  ir::Segment low, high;
  low.end = 4;
  high.begin = 8;
  high.end = 12;
  high.parameter = 3;
  attrs.groups = {{low, high}};
  attrs.parameters = 4;
  SumStep made;
  made.squares = s.op(OpKind::kNormParameters, attrs, {gradient}, 4, squares_sharding);
  const ValueIds clip = s.ops(OpKind::kClip, attrs, {made.squares}, 2, 4);
  made.operands = {weight, gradient, s.data(16), s.data(16), clip[1], s.data(1), s.data(1)};
  s.ops(OpKind::kAdamW, attrs, made.operands, 3, 16);
  return made;
}

TEST_CASE("a step tells its weights, its gradients, and what it keeps to be made again") {
  const auto keeping = [](size_t without) {
    return [=](SmallSums& s) {
      const ValueId weight = s.state(16), gradient = s.state(16);
      const SumStep made = add_step(s, weight, gradient, R"([{}] partial{"pp"})");
      for (size_t i = 0; i < 4; ++i) {
        const OpKind kind = i == without ? OpKind::kRelu : OpKind::kCopy;
        s.fragment.graph.outputs.push_back(s.op(kind, {}, {made.operands[i]}, 16));
      }
      if (without != 4) s.fragment.graph.outputs.push_back(made.squares);
    };
  };
  const char* const kLacks =
      "op 2 steps [0] by [1] and sums [], final, 0: 0-4, 3: 8-12; op 2 (adamw -> %9) makes a step "
      "with a norm that lacks other pipeline ranks, and keeps not all that it takes to amend it";
  std::vector<SumCase> cases = {
      {"of a norm of all",
       [](SmallSums& s) {
         const ValueId weight = s.state(16), gradient = s.state(16);
         add_step(s, weight, gradient, "[{}]");
       },
       "op 2 steps [0] by [1] and sums [], final, 0: 0-4, 3: 8-12"},
      {"of a sum over holders",
       [](SmallSums& s) {
         const ValueId weight = s.state(16), gradient = s.state(16);
         add_step(s, weight, s.holders_sum(gradient), "[{}]");
       },
       "op 0 sums w of [1] and sums []; op 3 steps [0] by [] and sums [0], final, 0: 0-4, 3: 8-12"},
      {"of a gradient to which it adds",
       [](SmallSums& s) {
         const ValueId weight = s.state(16), gradient = s.state(16);
         add_step(s, weight, s.add(gradient, s.data(16)), "[{}]");
       },
       "op 3 steps [0] by [1] and sums [], final, 0: 0-4, 3: 8-12; op 3 (adamw -> %11) takes a "
       "gradient to which op 0 of this call adds"},
      {"of a gradient of which a part is replaced",
       [](SmallSums& s) {
         const ValueId weight = s.state(16), gradient = s.state(16);
         add_step(s, weight, s.assemble(gradient, {0}, {s.data(4)}), "[{}]");
       },
       "op 3 steps [0] by [] and sums [], final, 0: 0-4, 3: 8-12"},
      {"of this rank's norm, with all that it takes", keeping(5),
       "op 2 steps [0] by [1] and sums [], kept 0,1,2,3,4, 0: 0-4, 3: 8-12"},
  };
  for (size_t without = 0; without < 5; ++without)
    cases.push_back({"without one", keeping(without), kLacks});
  check_sums(cases);
}

TEST_CASE("a step whose scale is no clipping factor of this rank is final") {
  for (const bool is_data : {true, false}) {
    SmallSums s;
    const ValueId weight = s.state(16), gradient = s.state(16);
    const ValueId pending = s.data(1, R"([{}] partial{"pp"})");
    const ValueId scale = is_data ? pending : s.plain(pending);
    ir::FlatAttrs attrs;
    attrs.groups = {{}};
    s.ops(OpKind::kAdamW, attrs,
          {weight, gradient, s.data(16), s.data(16), scale, s.data(1), s.data(1)}, 3, 16);
    CHECK(told(s) == fmt::format("op {} steps [0] by [1] and sums [], final", is_data ? 0 : 1));
  }
}

}  // namespace
}  // namespace mw::pipeline
