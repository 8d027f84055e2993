// Padded tails: where they are overwritten, and no more often than it takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "ops/builder.h"
#include "partition/partitioner.h"
#include "partition/test_ranks.h"

namespace mw::partition::padding_test {
namespace {

using ir::OpKind;
using sharding::parse_sharding;
using sharding::Sharding;

// A graph with given shardings. F a dimension of `size` over tp; G the same over dp
struct Net {
  ir::Module module;
  ir::Graph graph;
  ops::Builder b{graph};
  int64_t size = 7;
  std::vector<std::pair<ValueId, std::string>> given;
  std::vector<test::Tensor> inputs;
  double low = -1, high = 1;  // of all elements

  ValueId give(ValueId v, const std::string& sharding) {
    given.emplace_back(v, sharding);
    return v;
  }
  ValueId input(const std::string& name, const std::string& sharding, bool is_state = false,
                ir::StateKind kind = ir::StateKind::kWeight) {
    ir::State state;
    state.name = name;
    state.type = ir::make_type(DType::kF32, {size});
    state.kind = kind;
    test::Tensor tensor = test::random_tensor(state.type, name);
    for (double& x : tensor.values) x = low + (x + 1) / 2 * (high - low);
    inputs.push_back(std::move(tensor));
    const ir::TensorType type = state.type;
    const StateId id = is_state ? module.add_state(std::move(state)) : StateId();
    return give(graph.add_input(type, name, id), sharding);
  }
  ValueId x_F() { return input("x", R"([{"tp"}])"); }                               // garbage
  ValueId y_F() { return input("y", R"([{"tp"}])"); }                               // garbage
  ValueId w_F(const char* name = "w") { return input(name, R"([{"tp"}])", true); }  // zeros
  ValueId sum(ValueId a_F, ValueId b_F) { return b.dot(a_F, b_F, "f,f->"); }

  // Masks; the values are those of the global graph.
  int64_t masks() {
    const cluster::Mesh mesh({{"dp", 4}, {"tp", 4}});
    std::vector<std::optional<Sharding>> all(graph.values.size());
    for (const auto& [v, text] : given) all[v.index()] = parse_sharding(text);
    const Partitioned parts = partition({graph, module, mesh, all});
    CHECK(test::difference(graph, inputs, parts, mesh, {.tail = 1e3, .relative = 1}) == "");
    return std::count_if(parts.graph.ops.begin(), parts.graph.ops.end(),
                         [](const ir::Op& op) { return op.kind == OpKind::kPadMask; });
  }
};

struct Case {
  std::string name;
  int64_t masks;
  std::function<ValueId(Net&)> made;
};

TEST_CASE("one tail of zeros is enough for a product, and is kept by what keeps zeros") {
  for (const Case& c : std::vector<Case>{
           {"two of garbage", 1, [](Net& n) { return n.sum(n.x_F(), n.y_F()); }},
           {"a weight's", 0, [](Net& n) { return n.sum(n.x_F(), n.w_F()); }},
           {"a weight's, first", 0, [](Net& n) { return n.sum(n.w_F(), n.y_F()); }},
           {"a weight's negated", 0,
            [](Net& n) { return n.sum(n.x_F(), n.b.unary(OpKind::kNeg, n.w_F())); }},
           {"a weight times garbage", 0,
            [](Net& n) {
              const ValueId x = n.x_F();
              return n.sum(x, n.b.mul(n.w_F(), x));
            }},
           {"two weights' sum", 0,
            [](Net& n) { return n.sum(n.x_F(), n.b.add(n.w_F(), n.w_F("v"))); }},
           {"a weight plus garbage", 1,
            [](Net& n) {
              const ValueId x = n.x_F();
              return n.sum(x, n.b.add(n.w_F(), x));
            }},
           {"e to the 0 is 1: zeros at once, for all that read it", 1,
            [](Net& n) {
              const ValueId e = n.b.unary(OpKind::kExp, n.w_F());
              return n.b.add(n.sum(n.x_F(), e), n.sum(n.y_F(), e));
            }},
           {"nothing sums over it", 0, [](Net& n) { return n.b.unary(OpKind::kNeg, n.x_F()); }},
           {"cut from what is whole", 0,
            [](Net& n) {
              const ValueId x = n.b.unary(OpKind::kNeg, n.input("whole", "[{}]"));
              return n.sum(n.give(x, R"([{"tp"}])"), n.y_F());
            }},
           {"moved to another axis as it is", 1, [](Net& n) {
              const ValueId x = n.input("there", R"([{"dp"}])");
              const ValueId y = n.give(n.b.unary(OpKind::kNeg, x), R"([{"tp"}])");
              return n.sum(y, n.y_F());
            }}}) {
    CAPTURE(c.name);
    Net padded, even;
    even.size = 8;
    for (Net* n : {&padded, &even}) n->graph.outputs = {n->b.unary(OpKind::kTanh, c.made(*n))};
    CHECK(padded.masks() == c.masks);
    CHECK(even.masks() == 0);
  }
}

TEST_CASE("an accumulator's tail stays zeros") {
  const auto masks = [](const std::function<ValueId(Net&)>& gradient) {
    Net n;
    const ValueId acc = n.input("acc", R"([{"tp"}])", true, ir::StateKind::kGradient);
    const StateId state = n.graph.inputs[0].state;
    n.b.work = ir::Work::kWeightGrad;
    n.graph.updates = {{state, n.b.emit1(OpKind::kAccumulate, ir::NoAttrs{}, {acc, gradient(n)})}};
    return n.masks();
  };
  CHECK(masks([](Net& n) { return n.b.unary(OpKind::kNeg, n.x_F()); }) == 1);
  CHECK(masks([](Net& n) { return n.b.unary(OpKind::kNeg, n.w_F()); }) == 0);
}

TEST_CASE("no tail is the largest or the smallest number") {
  for (const auto& [low, high] : {std::pair{-2.0, -1.0}, {1.0, 2.0}}) {
    for (const ir::Reduction reduction : {ir::Reduction::kMax, ir::Reduction::kMin}) {
      for (const bool is_weight : {false, true}) {
        CAPTURE(low);
        CAPTURE(is_weight);
        Net n;
        n.low = low;
        n.high = high;
        n.graph.outputs = {n.b.reduce(is_weight ? n.w_F() : n.x_F(), reduction, {0})};
        CHECK(n.masks() == 1);
      }
    }
  }
}

}  // namespace
}  // namespace mw::partition::padding_test
