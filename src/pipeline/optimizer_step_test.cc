// What is told of a step of the optimizer in a small fragment: its weights and gradients, and what
// it keeps to be made again.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ops/update_ops.h"
#include "pipeline/test_sums.h"

namespace mw::pipeline {
namespace {

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
