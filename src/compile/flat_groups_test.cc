#include "compile/flat_groups.h"

#include <doctest/doctest.h>

#include <array>

#include <fmt/core.h>

#include "base/error.h"
#include "ops/update_ops.h"

namespace mw::compile {
namespace {

using sharding::parse_sharding;

// Weights with one accumulator a use.
class States {
 public:
  explicit States(int layers) {
    for (int i = 0; i < layers; ++i) module.layers.push_back({fmt::format("h.{}", i), true});
  }
  // `pending`: axes over which the gradient waits for its sum.
  void add(const std::string& name, int64_t elements, const std::vector<int>& layers,
           const sharding::Axes& pending) {
    ir::State weight;
    weight.name = name;
    weight.type = ir::make_type(DType::kF32, {elements});
    weight.layer = LayerId(layers[0]);
    const StateId id = module.add_state(weight);
    uses.push_back({id, weight.type, weight.type, sharding::replicated(1)});
    for (const int layer : layers) {
      ir::State gradient = weight;
      gradient.name = fmt::format("grad/{}@{}", name, layer);
      gradient.kind = ir::StateKind::kGradient;
      gradient.parameter = id;
      gradient.use = LayerId(layer);
      StateUse use{module.add_state(gradient), weight.type, weight.type, sharding::replicated(1)};
      use.sharding.partial = pending;
      uses.push_back(use);
    }
  }

  ir::Module module;
  std::vector<StateUse> uses;
};

TEST_CASE("members lie on multiples of the norm's block, a group is a multiple of block and dp") {
  CHECK(ops::kNormBlock == 256);
  States states(1);
  states.add("a", 100, {0}, {"dp"});
  states.add("b", 256, {0}, {"dp"});
  states.add("c", 257, {0}, {"dp"});
  for (const auto& [dp, elements] :
       {std::pair{1, 1024}, {2, 1024}, {3, 1536}, {4, 1024}, {8, 2048}}) {
    Plan plan;
    plan.dp = dp;
    ir::Module module = states.module;
    const std::vector<FlatGroup> groups = make_flat_groups(states.uses, plan, module);
    REQUIRE(groups.size() == 1);
    CHECK(groups[0].name == "h.0");
    CHECK(groups[0].members[0].offset == 0);
    CHECK(groups[0].members[1].offset == 256);
    CHECK(groups[0].members[2].offset == 512);
    CHECK(groups[0].elements == elements);
    CHECK(groups[0].dp_partial);
    CHECK(groups[0].model_partial.empty());
    for (const std::string kind : {"weight", "grad", "m", "v"}) {
      const auto state = module.find_state(kind + "/h.0");
      REQUIRE(state.has_value());
      CHECK(module.state(*state).type.dim(0) == elements);
    }
  }
}

TEST_CASE("a layer whose gradients wait for different sums has a group for each") {
  States states(2);
  states.add("w", 64, {0}, {"dp"});
  states.add("bias", 64, {0}, {"dp", "tp"});
  states.add("far", 64, {1}, {"dp"});
  states.add("whole", 64, {1}, {});
  Plan plan;
  plan.dp = plan.tp = 2;
  const std::vector<FlatGroup> groups = make_flat_groups(states.uses, plan, states.module);
  REQUIRE(groups.size() == 4);
  CHECK(groups[0].name == "h.0");
  CHECK(groups[1].name == "h.0/tp");
  CHECK(groups[1].model_partial == sharding::Axes{"tp"});
  CHECK(groups[1].dp_partial);
  CHECK(groups[2].model_partial == groups[3].model_partial);
  CHECK(groups[2].dp_partial != groups[3].dp_partial);
}

TEST_CASE(
    "a parameter of several layers has a group of its own with an accumulator a use, in model "
    "order") {
  States states(3);
  states.add("own", 64, {0}, {"dp"});
  states.add("tied", 64, {0, 2}, {"dp"});
  std::swap(states.uses[3], states.uses[4]);  // the order of the list does not matter
  Plan plan;
  const std::vector<FlatGroup> groups = make_flat_groups(states.uses, plan, states.module);
  REQUIRE(groups.size() == 2);
  const FlatGroup& tied = groups[1];
  CHECK(tied.name == "tied");
  CHECK(tied.shared);
  REQUIRE(tied.uses.size() == 2);
  CHECK(states.module.state(tied.uses[0].accumulators.at(0)).name == "grad/tied@0");
  CHECK(states.module.state(tied.uses[1].accumulators.at(0)).name == "grad/tied@2");
  CHECK(states.module.state(tied.uses[0].state).name == "grad/tied#0");
  CHECK(states.module.state(tied.uses[1].state).name == "grad/tied#1");
}

TEST_CASE(
    "a rank with one of a shared parameter's uses still keeps it apart, under the same flat "
    "states") {
  States states(2);
  states.add("own", 64, {0}, {"dp"});
  states.add("tied", 64, {0, 1}, {"dp"});
  Plan plan;
  plan.pp = 2;
  const std::vector<StateUse> first{states.uses[0], states.uses[1], states.uses[2], states.uses[3]};
  const std::vector<StateUse> second{states.uses[2], states.uses[4]};
  const std::vector<FlatGroup> a = make_flat_groups(first, plan, states.module);
  const std::vector<FlatGroup> b = make_flat_groups(second, plan, states.module);
  REQUIRE(a.size() == 2);
  REQUIRE(b.size() == 1);
  CHECK(b[0].shared);
  CHECK(b[0].uses.size() == 1);
  CHECK((a[1].weight == b[0].weight));
  CHECK((a[1].moment == b[0].moment));
}

TEST_CASE("experts have a group of their own, over the data axes that do not divide them") {
  States states(1);
  states.add("router", 64, {0}, {"dp", "ep"});
  states.add("experts", 64, {0}, {"dp"});
  states.uses[2].sharding = states.uses[3].sharding = parse_sharding(R"([{"ep"}])");
  states.uses[3].sharding.partial = {"dp"};
  for (const int64_t dp : {8, 4}) {
    CAPTURE(dp);
    Plan plan;
    plan.dp = dp;
    plan.ep = 4;
    ir::Module module = states.module;
    std::vector<StateUse> uses = states.uses;
    if (dp == 4) uses[1].sharding.partial = {"ep"};
    const std::vector<FlatGroup> groups = make_flat_groups(uses, plan, module);
    REQUIRE(groups.size() == 2);
    const FlatGroup &whole = groups[groups[0].name == "h.0" ? 0 : 1],
                    &experts = groups[groups[0].name == "h.0" ? 1 : 0];
    CHECK(whole.name == "h.0");
    CHECK(whole.data_axes == plan.data_axes());
    CHECK(whole.data_size == dp);
    CHECK(experts.name == "h.0/experts");
    CHECK(experts.data_axes == sharding::Axes{"dp"});
    CHECK(experts.data_size == dp / 4);
  }
}

TEST_CASE("a weight that nobody trains has a group with room for a gradient") {
  States states(1);
  states.add("w", 64, {0}, {});
  const std::vector<FlatGroup> groups = make_flat_groups({states.uses[0]}, {}, states.module);
  REQUIRE(groups.size() == 1);
  REQUIRE(groups[0].uses.size() == 1);
  CHECK(groups[0].uses[0].accumulators.empty());
}

TEST_CASE("what cannot lie in one flat state is refused") {
  States states(2);
  states.add("a", 64, {0}, {"dp"});
  states.add("b", 300, {0}, {"dp"});
  states.add("tied", 64, {0, 1}, {"dp"});
  Plan plan;
  plan.dp = plan.cp = 2;
  const auto refused = [&](const std::vector<StateUse>& uses, const char* why) {
    ir::Module module = states.module;
    make_flat_groups({states.uses[0]}, {}, module);
    CHECK_THROWS_WITH_AS(make_flat_groups(uses, plan, module), doctest::Contains(why),
                         CheckFailure);
  };
  refused({states.uses[2]}, "two flat states weight/h.0");
  refused({states.uses[0], states.uses[1]}, "a pends over a part of dp,cp");
  std::vector<StateUse> tied{states.uses[4], states.uses[5], states.uses[6]};
  tied[1].sharding.partial = {"dp", "cp"};
  tied[2].sharding.partial = {"dp", "cp", "tp"};
  refused(tied, "uses of tied pend over different axes");
}

TEST_CASE("a flat state lies on its group's own axes; what pends over them is in order") {
  FlatGroup group;
  group.elements = 1024;
  group.data_axes = {"dp", "cp"};
  CHECK(flat_type(group, 4).sharding.dims[0] == sharding::Axes{"dp", "cp"});
  CHECK(flat_type(group, 1).sharding.dims[0].empty());
  CHECK(data_pending(group).empty());
  group.dp_partial = true;
  CHECK(data_pending(group) == sharding::Axes{"cp", "dp"});
}

TEST_CASE("ZeRO's stages shard what they say") {
  const auto shards = [](const std::string& text) {
    const Plan plan = parse_plan(text);
    FlatGroup group;
    for (const Name axis : plan.data_axes()) group.data_size *= plan.axis_size(axis);
    return std::array<int64_t, 3>{weight_shards(plan, group), gradient_shards(plan, group),
                                  moment_shards(plan, group)};
  };
  CHECK((shards("dp=4") == std::array<int64_t, 3>{1, 1, 1}));
  CHECK((shards("dp=4,zero=1") == std::array<int64_t, 3>{1, 1, 4}));
  CHECK((shards("dp=4,zero=2") == std::array<int64_t, 3>{1, 4, 4}));
  CHECK((shards("dp=4,zero=2,grad_reduce=step") == std::array<int64_t, 3>{1, 1, 4}));
  CHECK((shards("dp=4,grad_reduce=microbatch") == std::array<int64_t, 3>{1, 1, 1}));
  CHECK((shards("dp=4,zero=1,grad_reduce=microbatch") == std::array<int64_t, 3>{1, 4, 4}));
  CHECK((shards("dp=4,zero=3") == std::array<int64_t, 3>{4, 4, 4}));
  CHECK((shards("dp=4,cp=2,zero=1") == std::array<int64_t, 3>{1, 1, 8}));
}

}  // namespace
}  // namespace mw::compile
