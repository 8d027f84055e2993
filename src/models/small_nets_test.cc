#include "models/small_nets.h"

#include <doctest/doctest.h>

#include "ops/op_def.h"

using namespace mw;
using namespace mw::models;

namespace {

void check_sound(const ir::Module& module) {
  CAPTURE(module.name);
  const ir::Graph& graph = module.graphs[0];
  CHECK(graph.name == "microbatch");
  ir::verify(graph, &module);
  ops::verify_types(graph);
  CHECK(to_text(ir::parse_module(to_text(module))) == to_text(module));
  CHECK(graph.label(graph.outputs[0]) == "loss_sum");
  CHECK(graph.type(graph.outputs[0]) == ir::TensorType(DType::kF32, {}));
  for (const ir::Op& op : graph.ops) CHECK(op.layer.valid());
}

// The layers whose ops read the value.
std::vector<std::string> readers(const ir::Module& module, const std::string& name) {
  const ir::Graph& graph = module.graphs[0];
  const auto users = graph.users();
  std::vector<std::string> layers;
  for (size_t i = 0; i < graph.values.size(); ++i) {
    if (graph.values[i].name != name) continue;
    for (const OpId op : users[i]) layers.push_back(module.layers[graph.op(op).layer.index()].name);
  }
  return layers;
}

}  // namespace

TEST_CASE("the small nets are sound with either loss") {
  for (const Loss loss : {Loss::kRegression, Loss::kClassification}) {
    MlpSpec mlp;
    mlp.loss = loss;
    check_sound(build_mlp(mlp));
    TwoTowerSpec towers;
    towers.loss = loss;
    check_sound(build_two_tower(towers));
    ConvNetSpec conv;
    conv.loss = loss;
    check_sound(build_conv_net(conv));
  }
}

TEST_CASE("the MLP's first value skips the blocks") {
  const ir::Module module = build_mlp({});
  CHECK(module.layers.size() == 4);
  CHECK(readers(module, "in.out") == std::vector<std::string>{"block.0", "out"});
  MlpSpec flat;
  flat.blocks = 0;
  CHECK(build_mlp(flat).layers.size() == 2);
}

TEST_CASE("both towers read the shared weight") {
  const ir::Module module = build_two_tower({});
  CHECK(readers(module, "shared.weight") == std::vector<std::string>{"left", "right"});
}

TEST_CASE("every convolution halves the image and doubles the channels") {
  const ir::Module module = build_conv_net({});
  for (const ir::Value& value : module.graphs[0].values) {
    if (value.name == "conv.0.out") CHECK(value.type == ir::make_type(DType::kF32, {8, 8, 8, 8}));
    if (value.name == "conv.1.out") CHECK(value.type == ir::make_type(DType::kF32, {8, 16, 4, 4}));
    if (value.name == "head.y") CHECK(value.type == ir::make_type(DType::kF32, {8, 8}));
  }
}
