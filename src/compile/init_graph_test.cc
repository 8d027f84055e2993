#include "compile/init_graph.h"

#include <doctest/doctest.h>

#include "ops/update_ops.h"

namespace mw::compile {
namespace {

using ir::OpKind;
using sharding::parse_sharding;

// Weights of one group, drawn by a plan's rank.
struct Drawn {
  ir::Module module;
  FlatGroup group;
  Plan plan;
  cluster::Mesh mesh{{{"dp", 1}, {"tp", 1}}};

  void add(const std::string& name, ir::Init init, const std::vector<int64_t>& sizes,
           const std::vector<int64_t>& local = {}, const std::string& sharding = "") {
    ir::State state;
    state.name = name;
    state.init = init;
    state.type = ir::make_type(DType::kF32, sizes);
    GroupMember member;
    member.global = state.type;
    member.local = local.empty() ? state.type : ir::make_type(DType::kF32, local);
    member.sharding =
        sharding.empty() ? sharding::replicated(state.type.rank()) : parse_sharding(sharding);
    member.parameter = module.add_state(std::move(state));
    member.offset = group.elements;
    group.elements += ops::kNormBlock;
    group.members.push_back(std::move(member));
  }
  StateFragment build() {
    group.name = "h.0";
    group.data_axes = {"dp"};
    group.data_size = plan.dp;
    ir::State flat;
    flat.name = "weight/h.0";
    group.weight = module.add_state(flat);
    return build_init({group}, plan, module, mesh);
  }
};

std::vector<OpKind> kinds(const StateFragment& init) {
  std::vector<OpKind> found;
  for (const ir::Op& op : init.fragment.graph.ops) found.push_back(op.kind);
  return found;
}

TEST_CASE("every weight is drawn from its own distribution and site, all from one seed") {
  Drawn drawn;
  drawn.add("zeros", {ir::Init::Kind::kZeros, 0}, {4});
  drawn.add("ones", {ir::Init::Kind::kOnes, 0}, {4});
  drawn.add("normal", {ir::Init::Kind::kNormal, 0.02}, {2, 3});
  drawn.add("uniform", {ir::Init::Kind::kUniform, 0.5}, {5});
  const StateFragment init = drawn.build();
  CHECK(init.inputs == std::vector<std::string>{"seed"});
  CHECK(init.outputs == std::vector<std::string>{"zeros", "ones", "normal", "uniform"});
  REQUIRE(kinds(init) == std::vector<OpKind>{OpKind::kConstant, OpKind::kConstant, OpKind::kRandom,
                                             OpKind::kRandom});
  const std::vector<ir::Op>& ops = init.fragment.graph.ops;
  CHECK(ops[0].as<ir::ConstantAttrs>().value == 0);
  CHECK(ops[1].as<ir::ConstantAttrs>().value == 1);
  const auto &normal = ops[2].as<ir::RandomAttrs>(), &uniform = ops[3].as<ir::RandomAttrs>();
  CHECK(normal.distribution == ir::RandomAttrs::Distribution::kNormal);
  CHECK(normal.mean == 0);
  CHECK(normal.scale == 0.02);
  CHECK(normal.site == "init/normal");
  CHECK(normal.global_sizes == std::vector<int64_t>{2, 3});
  CHECK(uniform.distribution == ir::RandomAttrs::Distribution::kUniform);
  CHECK(uniform.scale == 0.5);
  CHECK(uniform.site == "init/uniform");
}

TEST_CASE("the padded tail of a shard is masked in the dimension that is padded, and only there") {
  Drawn drawn;
  drawn.plan.tp = 4;
  drawn.mesh = cluster::Mesh({{"dp", 1}, {"tp", 4}});
  drawn.add("even", {ir::Init::Kind::kOnes, 0}, {3, 8}, {3, 2}, R"([{}, {"tp"}])");
  drawn.add("padded", {ir::Init::Kind::kOnes, 0}, {3, 6}, {3, 2}, R"([{}, {"tp"}])");
  const StateFragment init = drawn.build();
  REQUIRE(kinds(init) ==
          std::vector<OpKind>{OpKind::kConstant, OpKind::kConstant, OpKind::kPadMask});
  const ir::Op& mask = init.fragment.graph.ops[2];
  CHECK(mask.operands == init.fragment.graph.ops[1].results);
  CHECK(mask.as<ir::PadMaskAttrs>().dim == 1);
  CHECK(mask.as<ir::PadMaskAttrs>().value == 0);
  CHECK(mask.as<ir::PadMaskAttrs>().offset.axes == sharding::Axes{"tp"});
  CHECK(mask.as<ir::PadMaskAttrs>().offset.global_size == 6);
}

TEST_CASE("ZeRO 3 keeps of the drawn group its own part, each member padded to its slot") {
  Drawn drawn;
  drawn.plan.dp = 2;
  drawn.plan.zero = 3;
  drawn.add("a", {ir::Init::Kind::kOnes, 0}, {4, 5});
  drawn.add("b", {ir::Init::Kind::kOnes, 0}, {7});
  drawn.group.elements = 1024;  // the second member's slot goes to the end
  const StateFragment init = drawn.build();
  CHECK(init.outputs == std::vector<std::string>{"weight/h.0"});
  REQUIRE(kinds(init) == std::vector<OpKind>{OpKind::kConstant, OpKind::kConstant, OpKind::kReshape,
                                             OpKind::kPad, OpKind::kReshape, OpKind::kPad,
                                             OpKind::kConcat, OpKind::kShardSlice});
  const ir::Graph& graph = init.fragment.graph;
  CHECK(graph.ops[3].as<ir::PadAttrs>().low == std::vector<int64_t>{0});
  CHECK(graph.ops[3].as<ir::PadAttrs>().high == std::vector<int64_t>{256 - 20});
  CHECK(graph.ops[5].as<ir::PadAttrs>().high == std::vector<int64_t>{768 - 7});
  CHECK(ir::to_string(graph.type(graph.ops[6].results[0])) == "f32[1024]");
  CHECK(ir::to_string(graph.type(graph.ops[7].results[0])) == "f32[512]");
  CHECK(graph.ops[7].as<ir::CollectiveAttrs>().global_size == 1024);
  // Below ZeRO 3 every rank of the data axes has the weights whole.
  Drawn whole;
  whole.plan.dp = 2;
  whole.plan.zero = 2;
  whole.add("a", {ir::Init::Kind::kOnes, 0}, {4, 5});
  CHECK(whole.build().outputs == std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace mw::compile
